//! A source with its store, receivers that check what they get, and what lies between them.

pub mod proxy;
pub mod relay;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::receiver::{
    Event, Receiver, ReceiverConfig, ReceiverHandle, Redundancy, Verify,
};
use flexicast_tokio::source::{
    Admission, AdmissionError, Backlog, BoxError, ChannelConfig, Credential, FlowEndpoint,
    FlowSettings, RateControl, Source, SourceConfig, SourceHandle, SourceStatus,
};
use flexicast_tokio::{Cursor, Rung, Via, spki_pin};
use tokio::sync::mpsc;
use tokio::time::timeout;
use uuid::Uuid;

pub const LIMIT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Store {
    updates: Mutex<BTreeMap<String, BTreeMap<u64, Bytes>>>,
    /// Asked so often.
    reads: AtomicU64,
}

impl Store {
    pub fn head(&self, channel: &str) -> u64 {
        let updates = self.updates.lock().unwrap();
        let last = updates.get(channel).and_then(|u| u.last_key_value());
        last.map_or(0, |(seq, _)| *seq)
    }

    fn insert(&self, channel: &str, seq: u64, encoded: Bytes) {
        let mut updates = self.updates.lock().unwrap();
        let of_channel = updates.entry(channel.to_owned()).or_default();
        of_channel.insert(seq, encoded);
    }

    /// Forgets all updates before `first`.
    pub fn retain(&self, channel: &str, first: u64) {
        let mut updates = self.updates.lock().unwrap();
        let kept = updates.get_mut(channel).unwrap().split_off(&first);
        updates.insert(channel.to_owned(), kept);
    }
}

#[async_trait]
impl Backlog for Store {
    async fn updates(
        &self,
        channel: &str,
        from: u64,
        limit: usize,
        _max_bytes: usize,
    ) -> Result<Vec<(u64, Bytes)>, BoxError> {
        // The first read fails: the source has to ask again.
        if self.reads.fetch_add(1, Ordering::Relaxed) == 0 {
            return Err("the disk is on holiday".into());
        }
        let updates = self.updates.lock().unwrap();
        let of_channel = updates
            .get(channel)
            .into_iter()
            .flat_map(|u| u.range(from..));
        Ok(of_channel
            .take(limit)
            .map(|(seq, b)| (*seq, b.clone()))
            .collect())
    }

    async fn authorise(&self, request: &Admission) -> Result<(), AdmissionError> {
        if matches!(&request.credential, Credential::Enrol { token, .. } if token == b"good") {
            Ok(())
        } else {
            Err(AdmissionError::Token("this token is not valid".into()))
        }
    }
}

/// Returns the bytes of a channel's update.
pub fn body(channel: &str, seq: u64) -> Bytes {
    let len = seq as usize * 211 % 9000 + channel.len();
    (0..len)
        .map(|i| (i as u64 + seq) as u8 ^ channel.len() as u8)
        .collect::<Vec<_>>()
        .into()
}

pub struct Site {
    pub folder: tempfile::TempDir,
    pub pin: [u8; 32],
    pub store: Arc<Store>,
    pub incarnation: Uuid,
}

/// A source at work.
pub struct Running {
    pub handle: SourceHandle,
    pub addr: SocketAddr,
    pub task: tokio::task::JoinHandle<()>,
}

impl Running {
    pub async fn status(&self) -> SourceStatus {
        self.handle.status().await.expect("a running source")
    }

    /// Waits until the status is as wanted.
    pub async fn until(&self, what: &str, mut wanted: impl FnMut(&SourceStatus) -> bool) {
        let waiting = async {
            while !wanted(&self.status().await) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(LIMIT, waiting).await.is_err() {
            panic!("not within the time: {what}; {:#?}", self.status().await);
        }
    }
}

/// Number of shards of sources: tests hold for any.
fn shards() -> NonZeroUsize {
    let wanted = std::env::var("FLEXICAST_TEST_SHARDS").ok();
    wanted.map_or(NonZeroUsize::MIN.saturating_add(1), |n| n.parse().unwrap())
}

pub fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

impl Site {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = rcgen::CertificateParams::new(vec!["localhost".into()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        std::fs::write(folder.path().join("cert.pem"), cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        Site {
            folder,
            pin: spki_pin(cert.der()).unwrap(),
            store: Arc::default(),
            incarnation: Uuid::new_v4(),
        }
    }

    /// Tests of one process run side by side: each has groups of its own.
    pub fn group(&self, channel: usize) -> SocketAddr {
        let host = self.incarnation.as_bytes();
        let ip = Ipv4Addr::new(232, 70 + channel as u8, host[0], host[1]);
        SocketAddr::from((ip, 20_000 + u16::from(host[2])))
    }

    /// A channel with a flow by IPv4 multicast on the loopback interface and by copies.
    pub fn channel(&self, name: &str, index: usize) -> ChannelConfig {
        ChannelConfig {
            name: name.into(),
            incarnation: self.incarnation,
            head: self.store.head(name),
            first: 1,
            private: false,
            lineage: Default::default(),
            endorsements: Vec::new(),
            flow: Some(FlowSettings {
                endpoints: vec![FlowEndpoint {
                    group: self.group(index),
                    interface: Ipv4Addr::LOCALHOST.into(),
                    asm: false,
                    ttl: 1,
                }],
                replicate: true,
                rate_bps: 50_000_000,
                authentication: None,
                fec: None,
                control: RateControl::default(),
            }),
        }
    }

    /// A source of the channel "lore".
    pub fn config(&self, listen: SocketAddr) -> SourceConfig {
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| self.path(name));
        SourceConfig {
            channels: vec![self.channel("lore", 0)],
            rate_bps: 50_000_000,
            unicast_rate_bps: None,
            shards: shards(),
            // Generous: a busy machine is no reason to leave the flow, or the connection. Three
            // heartbeats that are not acknowledged are one, so they have to be further apart than a
            // third of this.
            fall_back: Duration::from_secs(4),
            heartbeat: Duration::from_secs(3),
            ..SourceConfig::new(listen, cert, key, [5; 32])
        }
    }

    pub async fn start(&self, config: SourceConfig) -> Running {
        let source = Source::bind(config, self.store.clone()).await.unwrap();
        let (handle, addr) = (source.handle(), source.local_addr());
        let task = tokio::spawn(async move { source.run().await.unwrap() });
        Running { handle, addr, task }
    }

    pub async fn source(&self) -> Running {
        self.start(self.config(any_port())).await
    }

    /// A source that is soon missed: where tests wait for that.
    pub async fn lively_source(&self) -> Running {
        let mut config = self.config(any_port());
        config.fall_back = Duration::from_millis(1500);
        config.heartbeat = Duration::from_millis(600);
        self.start(config).await
    }

    pub async fn publish_on(&self, handle: &SourceHandle, channel: &str, count: u64) {
        for _ in 0..count {
            let seq = self.store.head(channel) + 1;
            let encoded = body(channel, seq);
            self.store.insert(channel, seq, encoded.clone());
            handle.publish(channel, seq, encoded).await;
        }
    }

    pub async fn publish(&self, handle: &SourceHandle, count: u64) {
        self.publish_on(handle, "lore", count).await;
    }

    /// A receiver of the channel "lore" by all rungs.
    pub fn receiver_config(&self, server: impl ToString) -> ReceiverConfig {
        ReceiverConfig {
            server: server.to_string(),
            known: Vec::new(),
            verify: Verify::Pins(vec![[0; 32], self.pin]),
            token: b"good".to_vec(),
            credential: *Uuid::new_v4().as_bytes().repeat(2).first_chunk().unwrap(),
            receiver_id: Uuid::new_v4(),
            name: "probe".into(),
            software: "test".into(),
            channels: vec![("lore".into(), None)],
            interface: Some(IpAddr::from(Ipv4Addr::LOCALHOST)),
            multicast: true,
            replicated: false,
            amt: None,
            redundancy: Redundancy::One,
            qlog: None,
            check: None,
            verify_updates: true,
            pinned_keys: Vec::new(),
        }
    }

    pub fn start_receiver(&self, config: ReceiverConfig) -> Probe {
        let next = |cursor: &Option<Cursor>| cursor.map_or(1, |c| c.seq + 1);
        let channels = config.channels.iter();
        let next = channels.map(|(name, cursor)| (name.clone(), next(cursor)));
        let next: BTreeMap<_, _> = next.collect();
        let (handle, events) = Receiver::start(config);
        Probe {
            handle,
            events,
            next,
            via: BTreeMap::new(),
            rungs: BTreeMap::new(),
            gaps: Vec::new(),
            connected: Vec::new(),
            disconnected: Vec::new(),
            incarnation: self.incarnation,
        }
    }

    pub fn receiver(&self, server: SocketAddr) -> Probe {
        self.start_receiver(self.receiver_config(server))
    }

    /// A receiver that only replicated packets reach.
    pub fn behind(&self, server: SocketAddr) -> Probe {
        let mut config = self.receiver_config(server);
        (config.multicast, config.replicated) = (false, true);
        self.start_receiver(config)
    }

    pub fn cursor(&self, seq: u64) -> Option<Cursor> {
        Some(Cursor {
            incarnation: self.incarnation,
            seq,
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// A receiver whose application checks that it gets each update once, whole and in order.
pub struct Probe {
    pub handle: ReceiverHandle,
    events: mpsc::Receiver<Event>,
    next: BTreeMap<String, u64>,
    pub via: BTreeMap<String, Vec<Via>>,
    rungs: BTreeMap<String, Rung>,
    pub gaps: Vec<(String, u64, u64)>,
    pub connected: Vec<SocketAddr>,
    pub disconnected: Vec<String>,
    incarnation: Uuid,
}

impl Probe {
    pub async fn event(&mut self) -> Event {
        let event = timeout(LIMIT, self.events.recv())
            .await
            .unwrap_or_else(|_| {
                panic!(
                    "no event in time: {:?} {:?} {:?}",
                    self.next, self.rungs, self.disconnected
                )
            })
            .expect("a running receiver");
        match &event {
            Event::Update {
                channel,
                seq,
                encoded,
                via,
                incarnation,
            } => {
                let next = self.next.get_mut(channel).unwrap();
                assert_eq!(
                    (*seq, *incarnation),
                    (*next, self.incarnation),
                    "each once and in order"
                );
                assert_eq!(*encoded, body(channel, *seq));
                *next += 1;
                self.via.entry(channel.clone()).or_default().push(*via);
                let (incarnation, seq) = (*incarnation, *seq);
                self.handle.confirm(channel, Cursor { incarnation, seq });
            }
            Event::Expired { channel, from, to } => {
                let next = self.next.get_mut(channel).unwrap();
                assert_eq!(*from, *next, "in the place of its updates");
                *next = to + 1;
            }
            Event::Gap { channel, from, to } => {
                let next = self.next.get_mut(channel).unwrap();
                assert_eq!(*from, *next, "a gap is in the place of its updates");
                *next = to + 1;
                self.gaps.push((channel.clone(), *from, *to));
            }
            Event::Rung { channel, rung, .. } => {
                self.rungs.insert(channel.clone(), *rung);
            }
            Event::Connected { addr } => self.connected.push(*addr),
            Event::Disconnected { reason, .. } => {
                self.rungs.clear();
                self.disconnected.push(reason.clone());
            }
            _ => {}
        }
        event
    }

    pub fn rung_of(&self, channel: &str) -> Rung {
        *self.rungs.get(channel).unwrap_or(&Rung::Unicast)
    }

    pub async fn until_rung_of(&mut self, channel: &str, wanted: Rung) {
        while self.rung_of(channel) != wanted {
            self.event().await;
        }
    }

    pub async fn until_rung(&mut self, wanted: Rung) {
        self.until_rung_of("lore", wanted).await;
    }

    pub async fn until_seq_of(&mut self, channel: &str, seq: u64) {
        while self.next[channel] <= seq {
            self.event().await;
        }
    }

    pub async fn until_seq(&mut self, seq: u64) {
        self.until_seq_of("lore", seq).await;
    }

    pub async fn until_reason(&mut self) -> String {
        loop {
            if let Event::Disconnected { reason, .. }
            | Event::Refused {
                reason,
                fatal: true,
                ..
            } = self.event().await
            {
                return reason;
            }
        }
    }

    /// Returns the number of updates of a channel received by its flow, repaired ones included: a
    /// small receive buffer of a busy machine loses packets.
    pub fn by_flow(&self, channel: &str) -> usize {
        let via = self.via.get(channel).map_or(&[][..], |v| v);
        via.iter().filter(|v| **v != Via::Unicast).count()
    }
}
