//! `/metrics` in the OpenMetrics text format; listed in `docs/metrics.md`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::StatusCode;
use flexicast::Rung;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use service::metrics::{self, Real, Unit, raise};
use service::places::Limit;

use super::Site;
use crate::board::Board;
use crate::hooks::HookStatus;
use crate::journal::JournalReader;
use crate::latency::ChannelLabels;
use crate::status::model::Channel;

const RUNGS: [Rung; 4] = [Rung::Multicast, Rung::Amt, Rung::Replicated, Rung::Unicast];

type Gauges = Family<ChannelLabels, Gauge>;
type Counters = Family<ChannelLabels, Counter>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ViaLabels {
    channel: String,
    via: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RungLabels {
    channel: String,
    rung: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LegLabels {
    channel: String,
    leg: String,
    /// Its AMT relay; empty for none.
    relay: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MoveLabels {
    channel: String,
    to: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookLabels {
    hook: String,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    page: &'static str,
    code: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    limit: &'static str,
}

/// All metrics of the receiver. Most are copied from its status for each request.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: metrics::Metrics,
    started: Real,
    connected: Gauge,
    failing: Gauge,
    connections_made: Counter,
    disconnects: Counter,
    refusals: Counter,
    storage_failures: Counter,
    channels: Channels,
    hooks: Hooks,
    answers: Family<AnswerLabels, Counter>,
    clients: Gauge,
    events: Counter,
    dropped: Counter,
    refused: Counter,
    connections: Gauge,
    limits: Family<LimitLabels, Counter>,
}

#[derive(Debug)]
struct Channels {
    head: Gauges,
    cursor: Gauges,
    lag: Gauges,
    rung: Family<RungLabels, Gauge>,
    leg: Family<LegLabels, Gauge>,
    legs_lost: Counters,
    redundant: Counters,
    relay: Gauges,
    updates: Family<ViaLabels, Counter>,
    undecodable: Counters,
    missing: Counters,
    live: Counters,
    expired: Counters,
    moves: Family<MoveLabels, Counter>,
    packets: Counters,
    rebuilt: Counters,
    invalid: Counters,
    duplicates: Counters,
    mismatches: Counters,
    refetched: Counters,
    auth_failures: Counters,
    forged: Counters,
    messages: Counters,
    messages_late: Counters,
    messages_dropped: Counters,
    messages_forged: Counters,
    journal_records: Gauges,
    journal_bytes: Gauges,
}

#[derive(Debug)]
struct Hooks {
    pending: Family<HookLabels, Gauge>,
    running: Family<HookLabels, Gauge>,
    delivered: Family<HookLabels, Counter>,
    failed: Family<HookLabels, Counter>,
    dead: Family<HookLabels, Counter>,
    dropped: Family<HookLabels, Counter>,
    lost: Family<HookLabels, Counter>,
    expired: Family<HookLabels, Counter>,
    disabled: Family<HookLabels, Gauge>,
}

impl Metrics {
    /// Returns the metrics of a receiver whose latencies `board` keeps.
    pub(super) fn new(board: &Board) -> Self {
        let mut r = metrics::Metrics::new("flexfeed_receiver");
        let latency = "Time from storing at the source to the receiver's outputs, by two clocks, \
            of live updates";
        let latencies = board.latencies().family();
        Self {
            started: r.unit(
                "start_timestamp",
                "Unix time of the process's start",
                Unit::Seconds,
            ),
            connected: r.add(
                "connected",
                "Whether the receiver is admitted on the present connection",
            ),
            failing: r.add(
                "failing",
                "Whether the receiver is failing: no connection, or outputs that cannot be written",
            ),
            connections_made: r.add(
                "connections",
                "Connections on which the source admitted the receiver",
            ),
            disconnects: r.add(
                "disconnects",
                "Connections to the source, or attempts, that failed or ended",
            ),
            refusals: r.add("refusals", "Refusals by the source"),
            storage_failures: r.add("storage_failures", "Failed attempts to write the outputs"),
            answers: r.add("http_answers", "HTTP responses, by page and status code"),
            clients: r.add("event_clients", "Clients connected to /events"),
            events: r.add("events_sent", "Events sent to clients of /events"),
            dropped: r.add(
                "event_clients_dropped",
                "Clients of /events dropped because they read too slowly",
            ),
            refused: r.add(
                "event_clients_refused",
                "Clients of /events refused because there were too many",
            ),
            connections: r.add("http_connections", "HTTP connections"),
            limits: r.add(
                "http_limited",
                "HTTP requests and connections refused or cut short, by limit",
            ),
            channels: Channels::register(&mut r),
            hooks: Hooks::register(&mut r),
            registry: {
                let unit = Unit::Seconds;
                r.registry()
                    .register_with_unit("update_latency", latency, unit, latencies);
                r
            },
        }
    }

    /// Counts an answer.
    pub(super) fn answered(&self, page: &'static str, code: StatusCode) {
        let code = u32::from(code.as_u16());
        self.answers
            .get_or_create(&AnswerLabels { page, code })
            .inc();
    }

    /// Returns the text of `/metrics`.
    pub(super) fn text(&self, site: &Site) -> Result<String, std::fmt::Error> {
        let status = site.board.status();
        self.started.set(status.started_ms as f64 / 1e3);
        self.connected.set(status.connected.into());
        self.failing.set(status.error.is_some().into());
        let counts = site.board.counts();
        raise(&self.connections_made, counts.connections);
        raise(&self.disconnects, counts.disconnects);
        raise(&self.refusals, counts.refusals);
        raise(&self.storage_failures, counts.storage_failures);
        // A channel that fell back has no legs for a while.
        self.channels.leg.clear();
        for channel in &status.channels {
            let name = &channel.channel;
            self.channels
                .show(channel, site.reader(name).map(AsRef::as_ref));
            self.channels.show_moves(name, &site.board.moved(name));
        }
        for hook in &site.hooks {
            self.hooks.show(&hook.status());
        }
        let clients = &site.clients;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.clients.set(whole(count(&clients.connected)));
        raise(&self.events, count(&clients.sent));
        raise(&self.dropped, count(&clients.dropped));
        raise(&self.refused, count(&clients.refused));
        self.connections.set(whole(site.places.connections()));
        for limit in Limit::ALL {
            let labels = LimitLabels {
                limit: limit.name(),
            };
            raise(&self.limits.get_or_create(&labels), site.places.met(limit));
        }
        self.registry.text()
    }
}

impl Channels {
    fn register(r: &mut metrics::Metrics) -> Self {
        Self {
            head: r.add("head_seq", "Seq of the source's last known update"),
            cursor: r.add("cursor_seq", "Seq up to which the outputs are complete"),
            lag: r.add("lag_updates", "Updates between the head and the cursor"),
            rung: r.add("rung", "The channel's rung: 1 for that one"),
            leg: r.add(
                "leg",
                "Whether a leg of a flow that comes by two works, with its AMT relay",
            ),
            legs_lost: r.add(
                "legs_lost",
                "Times that a leg of a flow that comes by two fell silent, while the other went on",
            ),
            redundant: r.add(
                "redundant_packets",
                "Flow packets that came by one leg after another had brought them",
            ),
            relay: r.add(
                "amt_relay",
                "Whether the channel has an AMT relay, in use or on standby",
            ),
            moves: r.add(
                "rung_moves",
                "Moves of the channel to a rung; the end of a connection is none",
            ),
            updates: r.add(
                "updates",
                "Updates written to the outputs since the start, by the path they came on",
            ),
            undecodable: r.add(
                "undecodable_updates",
                "Updates that could not be decoded and were skipped",
            ),
            missing: r.add(
                "missing_updates",
                "Updates gone at the source before they could be received",
            ),
            live: r.add(
                "live_updates",
                "Updates with a deadline handed on as soon as they were whole",
            ),
            expired: r.add(
                "expired_updates",
                "Updates passed over because their deadline had passed",
            ),
            packets: r.add("flow_packets", "Flow packets accepted"),
            rebuilt: r.add(
                "rebuilt_packets",
                "Packets that did not arrive and were rebuilt from repair symbols",
            ),
            invalid: r.add(
                "flow_invalid_packets",
                "Packets to the group that were not valid packets of the flow",
            ),
            duplicates: r.add(
                "duplicates",
                "Packets and ranges that arrived more than once",
            ),
            auth_failures: r.add(
                "auth_failures",
                "Times that the source failed to prove an update by the pinned key",
            ),
            mismatches: r.add("mismatches", "Contradictions between bytes of an update"),
            refetched: r.add(
                "refetched_updates",
                "Updates whose bytes from the flow were dropped and fetched again by unicast",
            ),
            forged: r.add(
                "forged",
                "Headers and updates on the flow that the source did not sign",
            ),
            messages: r.add("messages", "Messages handed on to event clients and hooks"),
            messages_late: r.add(
                "messages_late",
                "Messages dropped because their deadline had passed",
            ),
            messages_dropped: r.add(
                "messages_dropped",
                "Messages dropped because too many waited for the outputs",
            ),
            messages_forged: r.add(
                "messages_forged",
                "Messages dropped because the source did not send them",
            ),
            journal_records: r.add("journal_records", "Records in the journal"),
            journal_bytes: r.unit("journal_size", "Size of the journal", Unit::Bytes),
        }
    }

    fn show(&self, channel: &Channel, reader: Option<&JournalReader>) {
        let name = &channel.channel;
        let labels = ChannelLabels {
            channel: name.clone(),
        };
        let set = |gauges: &Gauges, to: u64| {
            gauges.get_or_create(&labels).set(whole(to));
        };
        let count = |counters: &Counters, to: u64| raise(&counters.get_or_create(&labels), to);
        set(&self.head, channel.head);
        set(&self.cursor, channel.cursor);
        set(&self.relay, channel.relay.is_some().into());
        set(&self.lag, channel.head.saturating_sub(channel.cursor));
        for rung in RUNGS {
            let rung = rung.to_string();
            let holds = rung == channel.rung;
            let channel = name.clone();
            let labels = RungLabels { channel, rung };
            self.rung.get_or_create(&labels).set(holds.into());
        }
        for leg in &channel.legs {
            let labels = LegLabels {
                channel: name.clone(),
                leg: leg.leg.clone(),
                relay: leg.relay.map(|relay| relay.to_string()).unwrap_or_default(),
            };
            let works = leg.state == "working";
            self.leg.get_or_create(&labels).set(works.into());
        }
        let via = &channel.via;
        for (via, updates) in [
            ("flow", via.flow),
            ("repaired", via.repaired),
            ("unicast", via.unicast),
        ] {
            let channel = name.clone();
            raise(
                &self.updates.get_or_create(&ViaLabels { channel, via }),
                updates,
            );
        }
        count(&self.undecodable, channel.undecodable);
        count(&self.missing, channel.missing);
        count(&self.live, channel.reception.live);
        count(&self.expired, channel.reception.expired);
        count(&self.packets, channel.reception.flow_packets);
        count(&self.rebuilt, channel.reception.rebuilt);
        count(&self.invalid, channel.reception.flow_invalid);
        count(&self.duplicates, channel.reception.duplicates);
        count(&self.legs_lost, channel.reception.legs_lost);
        count(&self.redundant, channel.reception.redundant);
        count(&self.auth_failures, channel.auth_failures);
        count(&self.mismatches, channel.reception.mismatches);
        count(&self.refetched, channel.reception.refetched);
        count(&self.forged, channel.reception.forged);
        count(&self.messages, channel.messages.taken);
        count(&self.messages_late, channel.messages.late);
        count(&self.messages_dropped, channel.messages.dropped);
        count(&self.messages_forged, channel.messages.forged);
        if let Some(reader) = reader {
            let (records, bytes) = reader.size();
            set(&self.journal_records, records);
            set(&self.journal_bytes, bytes);
        }
    }

    fn show_moves(&self, channel: &str, moved: &BTreeMap<String, u64>) {
        for rung in RUNGS {
            let to = rung.to_string();
            let moves = moved.get(&to).copied().unwrap_or(0);
            let channel = channel.to_owned();
            let labels = MoveLabels { channel, to };
            raise(&self.moves.get_or_create(&labels), moves);
        }
    }
}

impl Hooks {
    fn register(r: &mut metrics::Metrics) -> Self {
        Self {
            pending: r.add(
                "hook_pending_updates",
                "Updates not delivered to the hook yet",
            ),
            running: r.add("hook_running_attempts", "Deliveries in progress"),
            delivered: r.add("hook_delivered_updates", "Updates delivered to the hook"),
            failed: r.add("hook_failed_attempts", "Failed delivery attempts"),
            dead: r.add(
                "hook_dead_letters",
                "Updates given up and kept as dead letters",
            ),
            dropped: r.add(
                "hook_dropped_dead_letters",
                "Dead letters dropped, oldest first, because there were too many",
            ),
            lost: r.add(
                "hook_lost_updates",
                "Updates that could not be read back from the journal",
            ),
            expired: r.add(
                "hook_expired_messages",
                "Messages given up, most because they had expired",
            ),
            disabled: r.add(
                "hook_disabled",
                "Whether delivery to the hook is disabled until the next start",
            ),
        }
    }

    fn show(&self, hook: &HookStatus) {
        let labels = HookLabels {
            hook: hook.name.clone(),
            kind: hook.kind,
        };
        self.pending.get_or_create(&labels).set(whole(hook.pending));
        self.running.get_or_create(&labels).set(whole(hook.running));
        raise(&self.delivered.get_or_create(&labels), hook.delivered);
        raise(&self.failed.get_or_create(&labels), hook.failed_attempts);
        raise(&self.dead.get_or_create(&labels), hook.dead_letters);
        raise(&self.dropped.get_or_create(&labels), hook.dropped_letters);
        raise(&self.lost.get_or_create(&labels), hook.lost);
        raise(&self.expired.get_or_create(&labels), hook.expired);
        self.disabled
            .get_or_create(&labels)
            .set(hook.disabled.into());
    }
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
