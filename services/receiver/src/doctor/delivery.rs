//! Reception for some seconds, or the status of a running receiver.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use feed::payload;
use flexicast::Rung;
use flexicast_tokio::receiver::{Event, Receiver, ReceiverConfig};
use tokio::time::{Instant, timeout_at};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::LISTEN;
use super::folder::was_admitted;
use super::network::{Counters, Machine, Membership};
use super::report::{Report, Verdict};
use crate::admission::Admission;
use crate::board::now_ms;
use crate::config::Settings;
use crate::connection_log::ConnectionLog;
use crate::cursor::{CursorFile, CursorState};
use crate::data::DataFolder;
use crate::status::file as status_file;
use crate::status::model::Status;
use service::peer_text::plain;

/// Time limit for the admission by the source.
const WELCOME_WITHIN: Duration = Duration::from_secs(20);

/// Time limit for closing the connection.
const GOODBYE: Duration = Duration::from_secs(3);

/// Time between two readings of a running receiver's status; heartbeats come every second.
const APART: Duration = Duration::from_secs(3);

/// Clock offsets above this are reported, in ms.
const SKEW_MS: f64 = 500.0;

/// Largest number of the transport's log lines that are kept.
const MAX_HEARD: usize = 32;

/// Multicast groups as reported by the transport's log.
#[derive(Clone, Default)]
pub(super) struct TransportLog(Arc<Mutex<Vec<String>>>);

impl TransportLog {
    /// Starts to collect log lines of this process.
    pub(super) fn listen(&self) {
        let registry = tracing_subscriber::registry().with(self.clone());
        // Tests may have installed another one.
        let _ = tracing::subscriber::set_global_default(registry);
    }

    fn lines(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl<S: tracing::Subscriber> Layer<S> for TransportLog {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let groups = event.metadata().target() == "flexicast_tokio::receiver::groups";
        if !groups || *event.metadata().level() > tracing::Level::INFO {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < MAX_HEARD && !lines.contains(&text.0) {
            lines.push(text.0);
        }
    }
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.0.insert_str(0, &text);
        } else {
            self.0.push_str(&format!(" ({})", text.trim_matches('"')));
        }
    }
}

/// Observations of one channel during the test.
#[derive(Debug, Default)]
struct ChannelProbe {
    welcome: Option<u64>,
    rung: Option<Rung>,
    cause: String,
}

/// Receives as the receiver of the data folder, without output or confirmation: the next start
/// receives everything.
pub(super) async fn receive(
    settings: &Settings,
    data: &DataFolder,
    mut config: ReceiverConfig,
    heard: &TransportLog,
    report: &mut Report,
) {
    config.token = settings.link.token.as_bytes().to_vec();
    config.credential = data.credential().secret();
    config.receiver_id = data.receiver_id();
    config.channels = settings
        .link
        .channels
        .iter()
        .map(|channel| {
            let found = CursorFile::new(&data.state(), channel).load();
            let cursor = match found {
                Ok(CursorState::Cursor(noted)) => Some(noted.cursor),
                _ => None,
            };
            (channel.clone(), cursor)
        })
        .collect();
    let machine = Machine::this();
    let (joined_before, before) = (machine.memberships(), machine.counters());
    let (handle, mut events) = Receiver::start(config);
    let mut channels: BTreeMap<String, ChannelProbe> = BTreeMap::new();
    let mut ahead_ms: f64 = 0.0;
    let mut refused = None;
    let mut lost = None;
    let mut until = Instant::now() + WELCOME_WITHIN;
    let mut welcomed = false;
    while let Ok(Some(event)) = timeout_at(until, events.recv()).await {
        match event {
            Event::Welcome { channel, head, .. } => {
                channels.entry(channel).or_default().welcome = Some(head);
                if !welcomed {
                    welcomed = true;
                    until = Instant::now() + LISTEN;
                }
            }
            Event::Rung {
                channel,
                rung,
                cause,
                ..
            } => {
                let seen = channels.entry(channel).or_default();
                seen.rung = Some(rung);
                seen.cause = cause.to_string();
            }
            Event::Update { encoded, .. } => {
                if let Ok(update) = payload::decode(&encoded) {
                    ahead_ms = ahead_ms.max(update.time.as_millisecond() as f64 - now_ms());
                }
            }
            Event::Refused {
                code,
                reason,
                fatal,
            } => {
                refused = Some((code, reason));
                // Other failures are retried after long delays.
                if fatal || !welcomed {
                    break;
                }
            }
            Event::AuthenticationFailed {
                channel, failure, ..
            } => {
                let what = format!(
                    "channel {channel}: update {}: {}",
                    failure.seq, failure.forgery
                );
                let advice = "the source does not have the key that the link pins (key=): ask its \
                              operator, and use a new link only if the key was replaced";
                report.add("signing key", Verdict::Fail, &what, advice);
                break;
            }
            Event::Disconnected { reason, .. } => lost = Some(plain(&reason)),
            _ => {}
        }
        let best = if settings.network.multicast {
            Rung::Multicast
        } else {
            Rung::Replicated
        };
        let there = |seen: &ChannelProbe| seen.rung == Some(best);
        if channels.len() == settings.link.channels.len() && channels.values().all(there) {
            break;
        }
    }
    let joined: Vec<Membership> = machine
        .memberships()
        .into_iter()
        .filter(|membership| !joined_before.contains(membership))
        .collect();
    let after = machine.counters();
    drop(events);
    let _ = tokio::time::timeout(GOODBYE, handle.shutdown()).await;

    if !welcomed {
        not_let_in(settings, refused, lost, report);
        return;
    }
    let admission = Admission {
        state: data.state(),
        receiver_id: data.receiver_id(),
        source: settings.link.server(),
    };
    let noted = tokio::task::spawn_blocking(move || admission.note()).await;
    if let Ok(Err(error)) = noted {
        let what = format!("the admission cannot be recorded: {error}");
        report.add(
            "admission",
            Verdict::Warn,
            &what,
            &super::folder::give_it(&settings.data),
        );
    }
    let what = format!(
        "the source admitted {} (id {})",
        settings.name,
        data.receiver_id()
    );
    report.add("admission", Verdict::Ok, &what, "");
    if let Some(reason) = lost {
        let what = format!("the connection did not last: {reason}");
        report.add(
            "admission",
            Verdict::Warn,
            &what,
            "try again; see the source's log",
        );
    }
    if ahead_ms > SKEW_MS {
        clock(ahead_ms, report);
    }
    for channel in &settings.link.channels {
        match channels.get(channel) {
            Some(seen) if seen.welcome.is_some() => {
                examine_channel(channel, seen, settings, report)
            }
            _ => report.add(
                "delivery",
                Verdict::Warn,
                &format!("channel {channel}: no answer"),
                "try again; see the source's log",
            ),
        }
    }
    let all = channels
        .values()
        .all(|seen| seen.rung == Some(Rung::Multicast));
    if !all {
        multicast(
            settings,
            &machine,
            &heard.lines(),
            &joined,
            &before,
            &after,
            report,
        );
    }
}

fn not_let_in(
    settings: &Settings,
    refused: Option<(u64, String)>,
    lost: Option<String>,
    report: &mut Report,
) {
    let server = settings.link.server();
    match (refused, lost) {
        (Some((code, reason)), _) => {
            let newcomer = (!was_admitted(settings)).then_some(settings.data.as_path());
            let text = ConnectionLog::new(&server, newcomer).refusal(code, &reason);
            report.add("admission", Verdict::Fail, &text, "");
        }
        (None, Some(reason)) => {
            report.add("admission", Verdict::Fail, &reason, "see the source's log");
        }
        (None, None) => {
            let what = format!(
                "{server} did not answer within {} s",
                WELCOME_WITHIN.as_secs()
            );
            report.add("admission", Verdict::Fail, &what, "see the source's log");
        }
    }
}

fn examine_channel(channel: &str, seen: &ChannelProbe, settings: &Settings, report: &mut Report) {
    let name = plain(channel);
    match seen.rung {
        Some(Rung::Multicast) => {
            let what = format!("channel {name}: the flow arrives by multicast");
            report.add("delivery", Verdict::Ok, &what, "");
        }
        Some(rung @ (Rung::Amt | Rung::Replicated)) => {
            let what = format!("channel {name}: the flow's packets arrive by {rung}");
            report.add("delivery", Verdict::Ok, &what, "");
        }
        Some(Rung::Unicast) | None
            if !settings.network.multicast && !settings.network.replicate =>
        {
            let what = format!("channel {name}: by unicast, as the settings want it");
            report.add("delivery", Verdict::Ok, &what, "");
        }
        Some(Rung::Unicast) | None => {
            let cause = if seen.cause.is_empty() {
                String::new()
            } else {
                format!(" ({})", seen.cause)
            };
            let what = format!(
                "channel {name}: updates come, but only by this receiver's own connection \
                 (unicast){cause}"
            );
            let advice = "nothing is lost or late by that; the source sends each update for this \
                receiver alone";
            report.add("delivery", Verdict::Warn, &what, advice);
        }
    }
}

/// Reports the reason for missing multicast.
fn multicast(
    settings: &Settings,
    machine: &Machine,
    heard: &[String],
    joined: &[Membership],
    before: &Counters,
    after: &Counters,
    report: &mut Report,
) {
    if !settings.network.multicast {
        return report.add(
            "multicast",
            Verdict::Skipped,
            "switched off by the settings",
            "",
        );
    }
    if heard.is_empty() {
        let what = "not tested: the source offers no group for these channels";
        return report.add("multicast", Verdict::Skipped, what, "");
    }
    for line in heard {
        if line.starts_with("cannot") {
            report.add("multicast", Verdict::Warn, line, "");
        }
    }
    if joined.is_empty() {
        return;
    }
    let names: Vec<String> = joined.iter().map(ToString::to_string).collect();
    let what = format!(
        "joined {}, but no packet of the flow came within {} s",
        names.join(", "),
        LISTEN.as_secs()
    );
    report.add("multicast", Verdict::Warn, &what, "");
    for finding in machine.explain(joined, before, after) {
        report.add("multicast", finding.verdict, &finding.what, &finding.advice);
    }
}

fn clock(ahead_ms: f64, report: &mut Report) {
    let what = format!(
        "this machine's clock is behind the source's by {:.1} s or more: updates come before they \
         were made",
        ahead_ms / 1000.0
    );
    report.add(
        "clock",
        Verdict::Warn,
        &what,
        "set both clocks, for example with timesyncd or chrony",
    );
}

/// Reads the status of the receiver that runs on the data folder, twice.
pub(super) async fn beside(settings: &Settings, report: &mut Report) {
    let first = status_file::read(&settings.data).ok().flatten();
    let machine = Machine::this();
    let before = machine.counters();
    tokio::time::sleep(APART).await;
    let after = machine.counters();
    let second = status_file::read(&settings.data).ok().flatten();
    let (Some(first), Some(second)) = (first, second) else {
        let what = "a receiver runs on the data folder, but has written no status";
        return report.add("receiver", Verdict::Warn, what, "see its log");
    };
    let what = format!("{} runs (pid {})", plain(&second.name), second.pid);
    match (&second.error, second.connected) {
        (Some(error), _) => {
            let what = format!("{what}, with a problem: {}", plain(error));
            report.add("receiver", Verdict::Fail, &what, "");
        }
        (None, true) => report.add(
            "receiver",
            Verdict::Ok,
            &format!("{what} and is connected"),
            "",
        ),
        (None, false) => {
            let what = format!("{what} and is not connected");
            report.add("receiver", Verdict::Fail, &what, "see its log");
        }
    }
    if second.connected {
        running(settings, &first, &second, report);
    }
    let away = second
        .channels
        .iter()
        .any(|channel| channel.rung != "multicast");
    if settings.network.multicast && second.connected && away {
        let joined = machine.memberships();
        if joined.is_empty() {
            let what = "this machine has joined no group";
            let advice = "the source may offer none; a failed join is in the receiver's log";
            return report.add("multicast", Verdict::Skipped, what, advice);
        }
        for finding in machine.explain(&joined, &before, &after) {
            report.add("multicast", finding.verdict, &finding.what, &finding.advice);
        }
    }
}

fn running(settings: &Settings, first: &Status, second: &Status, report: &mut Report) {
    for channel in &second.channels {
        let name = plain(&channel.channel);
        let before = first.channels.iter().find(|c| c.channel == channel.channel);
        let packets = before.map_or(0, |before| {
            channel
                .reception
                .flow_packets
                .saturating_sub(before.reception.flow_packets)
        });
        let behind = channel.head.saturating_sub(channel.cursor);
        let what = format!(
            "channel {name}: on {}, {behind} behind, {packets} packets of the flow in {} s",
            plain(&channel.rung),
            APART.as_secs()
        );
        let wanted = settings.network.multicast || settings.network.replicate;
        let (verdict, advice) = match channel.rung.as_str() {
            "unicast" if wanted => (
                Verdict::Warn,
                "nothing is lost or late by that; the source sends each update for this receiver \
                 alone",
            ),
            "unicast" => (Verdict::Ok, ""),
            _ if packets == 0 => (
                Verdict::Warn,
                "a heartbeat should come each second; the receiver falls back by itself if they \
                 stay away",
            ),
            _ => (Verdict::Ok, ""),
        };
        report.add("delivery", verdict, &what, advice);
        if let Some(p50) = channel.latency_ms.p50
            && p50 < -SKEW_MS
        {
            clock(-p50, report);
        }
    }
    for hook in &second.hooks {
        if let Some(error) = &hook.error {
            let what = format!(
                "{} {}: {}",
                plain(&hook.kind),
                plain(&hook.name),
                plain(error)
            );
            report.add(
                "hooks",
                Verdict::Warn,
                &what,
                "deliveries are retried; failed ones are in the dead-letter file",
            );
        }
    }
}
