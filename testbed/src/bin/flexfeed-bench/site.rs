//! A source in this process for receivers on this machine: the engine that `flexfeed-source` runs,
//! with updates in memory, over the loopback interface.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use flexfeed_receiver::link::Pin;
use flexicast::signing::Lineage;
use flexicast_tokio::source::{
    Admission, AdmissionError, Backlog, BoxError, ChannelConfig, FlowEndpoint, FlowSettings,
    RateControl, Source, SourceConfig, SourceHandle, SourceStatus,
};
use testbed::binaries::Binaries;
use uuid::Uuid;

/// The channel.
pub const CHANNEL: &str = "bench";
/// Its incarnation.
pub const INCARNATION: Uuid = Uuid::from_u128(7);
/// The group of its flow.
const GROUP: Ipv4Addr = Ipv4Addr::new(232, 70, 72, 1);
/// Bit/s of the flow and of each receiver's connection: no pacing is measured here.
const RATE: u64 = 1_000_000_000;
/// Time limit for receivers to find their rung, and for updates to be confirmed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval of checks for both.
const LOOK: Duration = Duration::from_millis(500);
/// Receivers of a swarm that are started per second.
const RAMP: &str = "100/s";

/// Everything that was published.
#[derive(Default)]
struct Store(Mutex<Vec<Bytes>>);

#[async_trait]
impl Backlog for Store {
    async fn updates(
        &self,
        _channel: &str,
        from: u64,
        limit: usize,
        _max_bytes: usize,
    ) -> std::result::Result<Vec<(u64, Bytes)>, BoxError> {
        let updates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = (1..).zip(updates.iter().cloned());
        let wanted = all.skip_while(|(seq, _)| *seq < from);
        Ok(wanted.take(limit).collect())
    }

    async fn authorise(&self, _: &Admission) -> std::result::Result<(), AdmissionError> {
        Ok(())
    }
}

/// A running source.
pub struct Site {
    handle: SourceHandle,
    address: SocketAddr,
    link: String,
    store: Arc<Store>,
    // The certificate's folder.
    _folder: tempfile::TempDir,
}

impl Site {
    /// Starts a source with one channel and its flow, in the calling runtime.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub async fn start() -> Result<Self> {
        Self::start_signed(Lineage::default()).await
    }

    /// Starts the same with a channel whose updates these keys sign; none for one that is not
    /// signed.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub async fn start_signed(lineage: Lineage) -> Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for a certificate")?;
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
        std::fs::write(&cert, made.cert.pem())?;
        std::fs::write(&key, made.signing_key.serialize_pem())?;
        let pin =
            flexicast_tokio::spki_pin(made.cert.der()).context("a certificate without key")?;
        // A free port, so that runs do not meet.
        let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let endpoint = FlowEndpoint {
            group: (GROUP, free.port()).into(),
            interface: Ipv4Addr::LOCALHOST.into(),
            asm: false,
            ttl: 1,
        };
        let flow = FlowSettings {
            endpoints: vec![endpoint],
            replicate: false,
            rate_bps: RATE,
            authentication: None,
            fec: None,
            control: RateControl::fixed(),
        };
        let config = SourceConfig {
            channels: vec![ChannelConfig {
                flow: Some(flow),
                lineage,
                ..ChannelConfig::new(CHANNEL, INCARNATION)
            }],
            rate_bps: RATE,
            unicast_rate_bps: None,
            // A busy machine is no reason to leave the flow.
            fall_back: Duration::from_secs(4),
            heartbeat: Duration::from_secs(3),
            ..SourceConfig::new((Ipv4Addr::LOCALHOST, 0).into(), cert, key, rand::random())
        };
        let store = Arc::new(Store::default());
        let source = Source::bind(config, store.clone()).await?;
        let (handle, address) = (source.handle(), source.local_addr());
        tokio::spawn(source.run());
        let link = format!("flexfeed://t@{address}?pin={}&ch={CHANNEL}", Pin(pin));
        Ok(Site {
            handle,
            address,
            link,
            store,
            _folder: folder,
        })
    }

    /// Returns the enrolment link.
    pub fn link(&self) -> &str {
        &self.link
    }

    /// Where receivers connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stores an update and publishes it.
    pub async fn publish(&self, encoded: Bytes) {
        let seq = {
            let mut updates = self.store.0.lock().unwrap_or_else(PoisonError::into_inner);
            updates.push(encoded.clone());
            updates.len() as u64
        };
        self.handle.publish(CHANNEL, seq, encoded).await;
    }

    async fn status(&self) -> Result<SourceStatus> {
        self.handle.status().await.context("the source has stopped")
    }

    /// Waits until so many receivers are on a rung.
    ///
    /// # Errors
    /// When they are not in time.
    pub async fn wait_rung(&self, receivers: usize, rung: &str) -> Result<()> {
        self.wait(&format!("{receivers} receivers on {rung}"), |status| {
            let channels = status.receivers.iter().flat_map(|r| &r.channels);
            channels.filter(|channel| channel.rung == rung).count() == receivers
        })
        .await
    }

    /// Waits until every receiver has confirmed everything.
    ///
    /// # Errors
    /// When one has not in time.
    pub async fn wait_confirmed(&self) -> Result<()> {
        self.wait("everything confirmed", |status| {
            let head = status.channels.iter().map(|c| c.head).max();
            let mut channels = status.receivers.iter().flat_map(|r| &r.channels);
            channels.all(|channel| channel.cursor == head)
        })
        .await
    }

    async fn wait(&self, what: &str, done: impl Fn(&SourceStatus) -> bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            if done(&self.status().await?) {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "not in time: {what}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Starts `flexfeed-swarm` with so many receivers.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn swarm(&self, receivers: usize, more: &[&str]) -> Result<Swarm> {
        let child = Command::new(Binaries::find()?.swarm)
            .args([&self.link, "--json", "--warm-up", "1s", "--ramp", RAMP])
            .args(["--interface", "127.0.0.1", "--receivers"])
            .arg(receivers.to_string())
            .args(more)
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .context("starting flexfeed-swarm")?;
        Ok(Swarm { child })
    }

    /// Ends the source.
    pub async fn stop(self) {
        self.handle.shutdown().await;
    }
}

/// A process of many receivers, which ends with this.
pub struct Swarm {
    child: Child,
}

impl Swarm {
    /// Ends the swarm, which judges what its receivers got.
    ///
    /// # Errors
    /// When one of them did not get every update once, in order, with the same bytes as the others.
    pub fn end(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the swarm ended with {status}");
                return Ok(());
            }
            testbed::waiting::pause(LOOK);
        }
        bail!("the swarm does not end")
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
