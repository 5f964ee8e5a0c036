//! `/metrics` in the OpenMetrics text format; listed in `docs/metrics.md`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::StatusCode;
use flexicast::Rung;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::Site;
use crate::board::Board;
use crate::hooks::HookStatus;
use crate::journal::JournalReader;
use crate::latency::ChannelLabels;
use crate::status::model::Channel;
use service::places::Limit;

const RUNGS: [Rung; 4] = [Rung::Multicast, Rung::Amt, Rung::Replicated, Rung::Unicast];

/// A gauge of a number that need not be whole.
type Real = Gauge<f64, AtomicU64>;
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

/// All metrics of the receiver. Most are taken over from its status when they are asked for.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
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

#[derive(Debug, Default)]
struct Channels {
    head: Gauges,
    cursor: Gauges,
    lag: Gauges,
    rung: Family<RungLabels, Gauge>,
    relay: Gauges,
    updates: Family<ViaLabels, Counter>,
    undecodable: Counters,
    missing: Counters,
    moves: Family<MoveLabels, Counter>,
    packets: Counters,
    invalid: Counters,
    duplicates: Counters,
    mismatches: Counters,
    refetched: Counters,
    journal_records: Gauges,
    journal_bytes: Gauges,
}

#[derive(Debug, Default)]
struct Hooks {
    pending: Family<HookLabels, Gauge>,
    running: Family<HookLabels, Gauge>,
    delivered: Family<HookLabels, Counter>,
    failed: Family<HookLabels, Counter>,
    dead: Family<HookLabels, Counter>,
    dropped: Family<HookLabels, Counter>,
    lost: Family<HookLabels, Counter>,
    disabled: Family<HookLabels, Gauge>,
}

impl Metrics {
    /// Those of a receiver, whose latencies `board` keeps.
    pub(super) fn new(board: &Board) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("flexfeed_receiver"),
            started: Real::default(),
            connected: Gauge::default(),
            failing: Gauge::default(),
            connections_made: Counter::default(),
            disconnects: Counter::default(),
            refusals: Counter::default(),
            storage_failures: Counter::default(),
            channels: Channels::default(),
            hooks: Hooks::default(),
            answers: Family::default(),
            clients: Gauge::default(),
            events: Counter::default(),
            dropped: Counter::default(),
            refused: Counter::default(),
            connections: Gauge::default(),
            limits: Family::default(),
        };
        metrics.register();
        metrics.channels.register(&mut metrics.registry);
        metrics.hooks.register(&mut metrics.registry);
        let help = "Time from storing at the source to the receiver's outputs, by two clocks, of \
            live updates";
        let latencies = board.latencies().family();
        metrics
            .registry
            .register_with_unit("update_latency", help, Unit::Seconds, latencies);
        metrics
    }

    fn register(&mut self) {
        let r = &mut self.registry;
        let version = [("version", env!("CARGO_PKG_VERSION"))].to_vec();
        r.register("build", "The program", Info::new(version));
        let help = "Unix time of the process's start";
        r.register_with_unit("start_timestamp", help, Unit::Seconds, self.started.clone());
        let help = "Whether the receiver is admitted on the present connection";
        r.register("connected", help, self.connected.clone());
        let help =
            "Whether the receiver is failing: no connection, or outputs that cannot be written";
        r.register("failing", help, self.failing.clone());
        let help = "Connections on which the source admitted the receiver";
        r.register("connections", help, self.connections_made.clone());
        let help = "Connections to the source, or attempts, that failed or ended";
        r.register("disconnects", help, self.disconnects.clone());
        let help = "Refusals by the source";
        r.register("refusals", help, self.refusals.clone());
        let help = "Failed attempts to write the outputs";
        r.register("storage_failures", help, self.storage_failures.clone());
        let help = "HTTP responses, by page and status code";
        r.register("http_answers", help, self.answers.clone());
        let help = "Clients connected to /events";
        r.register("event_clients", help, self.clients.clone());
        let help = "Events sent to clients of /events";
        r.register("events_sent", help, self.events.clone());
        let help = "Clients of /events dropped because they read too slowly";
        r.register("event_clients_dropped", help, self.dropped.clone());
        let help = "Clients of /events refused because there were too many";
        r.register("event_clients_refused", help, self.refused.clone());
        let help = "HTTP connections";
        r.register("http_connections", help, self.connections.clone());
        let help = "HTTP requests and connections refused or cut short, by limit";
        r.register("http_limited", help, self.limits.clone());
    }

    /// Counts an answer.
    pub(super) fn answered(&self, page: &'static str, code: StatusCode) {
        let code = u32::from(code.as_u16());
        self.answers
            .get_or_create(&AnswerLabels { page, code })
            .inc();
    }

    /// The text of `/metrics`.
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
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Channels {
    fn register(&self, r: &mut Registry) {
        let help = "Seq of the source's last known update";
        r.register("head_seq", help, self.head.clone());
        let help = "Seq up to which the outputs are complete";
        r.register("cursor_seq", help, self.cursor.clone());
        let help = "Updates between the head and the cursor";
        r.register("lag_updates", help, self.lag.clone());
        let help = "The channel's rung: 1 for that one";
        r.register("rung", help, self.rung.clone());
        let help = "Whether the channel has an AMT relay, in use or on standby";
        r.register("amt_relay", help, self.relay.clone());
        let help = "Moves of the channel to a rung; the end of a connection is none";
        r.register("rung_moves", help, self.moves.clone());
        let help = "Updates written to the outputs since the start, by the path they came on";
        r.register("updates", help, self.updates.clone());
        let help = "Updates that could not be decoded and were skipped";
        r.register("undecodable_updates", help, self.undecodable.clone());
        let help = "Updates gone at the source before they could be received";
        r.register("missing_updates", help, self.missing.clone());
        let help = "Flow packets accepted";
        r.register("flow_packets", help, self.packets.clone());
        let help = "Packets to the group that were not valid packets of the flow";
        r.register("flow_invalid_packets", help, self.invalid.clone());
        let help = "Packets and ranges that arrived more than once";
        r.register("duplicates", help, self.duplicates.clone());
        let help = "Contradictions between bytes of an update";
        r.register("mismatches", help, self.mismatches.clone());
        let help = "Updates whose bytes from the flow were dropped and fetched again by unicast";
        r.register("refetched_updates", help, self.refetched.clone());
        let help = "Records in the journal";
        r.register("journal_records", help, self.journal_records.clone());
        let help = "Size of the journal";
        r.register_with_unit(
            "journal_size",
            help,
            Unit::Bytes,
            self.journal_bytes.clone(),
        );
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
        count(&self.packets, channel.reception.flow_packets);
        count(&self.invalid, channel.reception.flow_invalid);
        count(&self.duplicates, channel.reception.duplicates);
        count(&self.mismatches, channel.reception.mismatches);
        count(&self.refetched, channel.reception.refetched);
        if let Some(reader) = reader {
            let (records, bytes) = reader.size();
            set(&self.journal_records, records);
            set(&self.journal_bytes, bytes);
        }
    }
}

impl Channels {
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
    fn register(&self, r: &mut Registry) {
        let help = "Updates not delivered to the hook yet";
        r.register("hook_pending_updates", help, self.pending.clone());
        let help = "Deliveries in progress";
        r.register("hook_running_attempts", help, self.running.clone());
        let help = "Updates delivered to the hook";
        r.register("hook_delivered_updates", help, self.delivered.clone());
        let help = "Failed delivery attempts";
        r.register("hook_failed_attempts", help, self.failed.clone());
        let help = "Updates given up and kept as dead letters";
        r.register("hook_dead_letters", help, self.dead.clone());
        let help = "Dead letters dropped, oldest first, because there were too many";
        r.register("hook_dropped_dead_letters", help, self.dropped.clone());
        let help = "Updates that could not be read back from the journal";
        r.register("hook_lost_updates", help, self.lost.clone());
        let help = "Whether delivery to the hook is disabled until the next start";
        r.register("hook_disabled", help, self.disabled.clone());
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
        self.disabled
            .get_or_create(&labels)
            .set(hook.disabled.into());
    }
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Brings a counter up to what was counted; counters never go down.
fn raise(counter: &Counter, to: u64) {
    counter.inner().fetch_max(to, Ordering::Relaxed);
}
