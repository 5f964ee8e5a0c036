//! The sending end of a stream.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::source::{
    Admission, AdmissionError, Backlog, BoxError, ChannelConfig, Credential, Faults, FlowEndpoint,
    FlowSettings, RateControl, ReceiverStatus, Source, SourceConfig, SourceHandle, SourceStatus,
};
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::{Messages, STREAM, StreamMove, StreamReport, TOKEN, interval, now_ns};

/// Time limit for all receivers to become members, and to confirm the last message.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of status requests to the source.
const LOOK: Duration = Duration::from_millis(500);

/// Options of a stream's source.
#[derive(Debug, Clone)]
pub struct SourceSettings {
    /// Address that receivers connect to.
    pub listen: SocketAddr,
    /// Destination of the flow.
    pub group: SocketAddr,
    /// The address of the interface it leaves by.
    pub interface: IpAddr,
    /// Number of receivers that have to be members before it begins.
    pub receivers: usize,
    /// Number of messages.
    pub count: u64,
    /// Bytes of each.
    pub size: usize,
    /// Bits of messages per second.
    pub rate_bps: u64,
    /// `D_fb`.
    pub fall_back: Duration,
    /// Maximum acknowledgement delay.
    pub ack_delay: Duration,
    /// The transport's rate, in bits per second: of the flow, and of each session.
    pub pace_bps: u64,
    /// Whether receivers that multicast does not reach get copies of the flow's packets.
    pub replicate: bool,
    /// A folder for qlog files.
    pub qlog: Option<PathBuf>,
    /// The report to write, first when the stream begins and again when it is over.
    pub report: PathBuf,
    /// Members stay on a flow that does not reach them.
    pub fall_back_off: bool,
    /// Fault: losses on the flow are not repaired.
    pub repair_off: bool,
    /// Whether the flow's rate follows its receivers' acknowledgements; else it is fixed.
    pub rate_control: bool,
}

struct Store(Arc<Messages>);

#[async_trait]
impl Backlog for Store {
    async fn updates(
        &self,
        _channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> std::result::Result<Vec<(u64, Bytes)>, BoxError> {
        Ok(self.0.stored(from, limit, max_bytes))
    }

    async fn authorise(&self, request: &Admission) -> std::result::Result<(), AdmissionError> {
        if matches!(&request.credential, Credential::Enrol { token, .. } if token == TOKEN) {
            Ok(())
        } else {
            Err(AdmissionError::Token(
                "not the token of a stream".to_owned(),
            ))
        }
    }
}

/// Waits for the receivers, publishes, waits until all have everything, and says goodbye.
///
/// # Errors
/// When the source cannot be made or fails, or the receivers do not come.
pub async fn publish(settings: SourceSettings) -> Result<()> {
    let folder = tempfile::tempdir().context("making a folder for a certificate")?;
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
    std::fs::write(&cert, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let messages = Arc::new(Messages::new(settings.size));
    let config = SourceConfig {
        channels: vec![ChannelConfig {
            name: STREAM.to_owned(),
            incarnation: Uuid::new_v4(),
            head: 0,
            first: 1,
            private: false,
            lineage: Default::default(),
            endorsements: Vec::new(),
            flow: Some(FlowSettings {
                endpoints: vec![FlowEndpoint {
                    group: settings.group,
                    interface: settings.interface,
                    asm: false,
                    ttl: 8,
                }],
                replicate: settings.replicate,
                rate_bps: settings.pace_bps,
                authentication: None,
                fec: None,
                control: match settings.rate_control {
                    true => RateControl::default(),
                    false => RateControl::fixed(),
                },
            }),
        }],
        rate_bps: settings.pace_bps,
        unicast_rate_bps: None,
        ack_delay: settings.ack_delay,
        fall_back: settings.fall_back,
        heartbeat: Duration::from_secs(1),
        qlog: settings.qlog.clone(),
        ..SourceConfig::new(settings.listen, cert, key, rand::random())
    };
    let mut source = Source::bind(config, Arc::new(Store(messages.clone()))).await?;
    source.inject_faults(Faults {
        repair_off: settings.repair_off,
        fall_back_off: settings.fall_back_off,
        ..Faults::default()
    })?;
    let handle = source.handle();
    let running = tokio::spawn(source.run());
    let result = drive(&settings, &handle, &messages).await;
    handle.shutdown().await;
    running.await.context("the source has panicked")??;
    result
}

async fn drive(
    settings: &SourceSettings,
    handle: &SourceHandle,
    messages: &Arc<Messages>,
) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while members(&status(handle).await?) < settings.receivers {
        if Instant::now() > deadline {
            bail!(
                "not all of {} receivers became members: {:?}",
                settings.receivers,
                status(handle).await?.receivers
            );
        }
        sleep(LOOK).await;
    }
    let step = interval(settings.size, settings.rate_bps);
    // Time for the report's reader to be ready.
    let lead = Duration::from_secs(1);
    let start = Instant::now() + lead;
    let mut report = StreamReport {
        start_ns: now_ns() + u64::try_from(lead.as_nanos())?,
        ..StreamReport::default()
    };
    report.write(&settings.report)?;
    let publisher = tokio::spawn(publish_all(
        handle.clone(),
        messages.clone(),
        start,
        step,
        settings.count,
    ));
    let mut history = History::default();
    while !publisher.is_finished() {
        history.look(&status(handle).await?);
        sleep(LOOK).await;
    }
    let latest = publisher.await.context("the publisher has panicked")?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = status(handle).await?;
        history.look(&now);
        let last = Some(settings.count);
        let confirmed =
            |one: &ReceiverStatus| one.channels.iter().all(|channel| channel.cursor == last);
        report.complete =
            now.receivers.len() == settings.receivers && now.receivers.iter().all(confirmed);
        report.unicast_bytes = now.counters.unicast_bytes;
        report.flow_packets = flow_packets(&now);
        if report.complete || Instant::now() > deadline {
            break;
        }
        sleep(LOOK).await;
    }
    report.moves = history.moves;
    report.latest_us = u64::try_from(latest.as_micros())?;
    report.write(&settings.report)
}

/// Number of messages that may be published at once when the publisher was late: receivers that are
/// well would lose what their sockets cannot hold.
const AT_ONCE: u32 = 4;

/// Publishes each message when it is due; returns the maximum lateness. A delay of more than a few
/// messages delays all that follow.
async fn publish_all(
    handle: SourceHandle,
    messages: Arc<Messages>,
    start: Instant,
    step: Duration,
    count: u64,
) -> Duration {
    let mut latest = Duration::ZERO;
    let mut due = start;
    for _ in 0..count {
        sleep_until(due).await;
        latest = latest.max(due.elapsed());
        let (seq, message) = messages.add(now_ns());
        handle.publish(STREAM, seq, message).await;
        due += step + due.elapsed().saturating_sub(step * AT_ONCE);
    }
    latest
}

async fn status(handle: &SourceHandle) -> Result<SourceStatus> {
    handle.status().await.context("the source has stopped")
}

fn members(status: &SourceStatus) -> usize {
    let member = |one: &&ReceiverStatus| {
        let mut channels = one.channels.iter();
        channels.any(|channel| matches!(channel.rung.as_str(), "multicast" | "amt"))
    };
    status.receivers.iter().filter(member).count()
}

fn flow_packets(status: &SourceStatus) -> u64 {
    let flows = status.channels.iter().filter_map(|one| one.flow.as_ref());
    flows.map(|flow| flow.packets).sum()
}

/// All moves, though the source shows only the latest: those with a newer time than any seen before
/// are added.
#[derive(Default)]
struct History {
    moves: Vec<StreamMove>,
}

impl History {
    fn look(&mut self, status: &SourceStatus) {
        // Offset of the two clocks.
        let unix_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |age| age.as_nanos());
        let offset = unix_ns.saturating_sub(u128::from(now_ns()));
        let known = self.moves.len();
        for one in &status.moves {
            let at = u128::from(one.at_ms) * 1_000_000;
            let step = StreamMove {
                at_ns: u64::try_from(at.saturating_sub(offset)).unwrap_or(0),
                name: one.name.clone(),
                to: one.to.clone(),
                cause: one.cause.clone(),
            };
            // The offset is measured each time, so that the same move may seem to be a little
            // earlier or later.
            let again = |old: &StreamMove| {
                old.at_ns.abs_diff(step.at_ns) < 2_000_000
                    && (&old.name, &old.to) == (&step.name, &step.to)
            };
            if !self.moves[..known].iter().rev().any(again) {
                self.moves.push(step);
            }
        }
    }
}

impl StreamReport {
    /// Reads a report; `None` while there is none.
    ///
    /// # Errors
    /// When the file is something else.
    pub fn read(path: &Path) -> Result<Option<StreamReport>> {
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("reading {}", path.display()))
                .map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// Writes the report in one step, so that no partial file is read.
    fn write(&self, path: &Path) -> Result<()> {
        let half = path.with_extension("half");
        std::fs::write(&half, serde_json::to_vec(self)?)
            .and_then(|()| std::fs::rename(&half, path))
            .with_context(|| format!("writing {}", path.display()))
    }
}
