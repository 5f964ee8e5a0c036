//! A source within the test, with a flow on loopback, that publishes small updates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use feed::{Entry, Kind, payload};
use flexicast_tokio::source::{
    Admission, AdmissionError, Backlog, BoxError, ChannelConfig, Credential, FlowEndpoint,
    FlowSettings, RateControl, Source, SourceConfig, SourceHandle,
};
use service::link::Pin;
use tempfile::TempDir;
use uuid::Uuid;

pub const TOKEN: &str = "s3cret";
const CHANNEL: &str = "lore";
const INCARNATION: Uuid = Uuid::from_u128(42);
/// Time between two updates.
const EVERY: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Store {
    updates: Mutex<BTreeMap<u64, Bytes>>,
    receivers: Mutex<BTreeSet<(Uuid, [u8; 32])>>,
}

#[async_trait]
impl Backlog for Store {
    async fn updates(
        &self,
        _channel: &str,
        from: u64,
        limit: usize,
        _max_bytes: usize,
    ) -> Result<Vec<(u64, Bytes)>, BoxError> {
        let updates = self.updates.lock().unwrap();
        let updates = updates.range(from..).take(limit);
        Ok(updates.map(|(seq, bytes)| (*seq, bytes.clone())).collect())
    }

    async fn authorise(&self, request: &Admission) -> Result<(), AdmissionError> {
        let Credential::Enrol { token, secret, .. } = &request.credential else {
            return Err(AdmissionError::Token("an old receiver".into()));
        };
        if token != TOKEN.as_bytes() {
            return Err(AdmissionError::Token("there is no such token".into()));
        }
        let mut receivers = self.receivers.lock().unwrap();
        receivers.insert((request.receiver, *secret));
        Ok(())
    }
}

/// A running source.
pub struct Site {
    _folder: TempDir,
    store: Arc<Store>,
    handle: SourceHandle,
    link: String,
    connected: Arc<Mutex<usize>>,
}

impl Site {
    pub async fn start() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (cert, key) = (
            folder.path().join("cert.pem"),
            folder.path().join("key.pem"),
        );
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let pin = Pin(flexicast_tokio::spki_pin(made.cert.der()).unwrap());
        // Tests run side by side: each has a group port of its own.
        let group = format!("232.70.72.1:{}", kit::ports::free().port());
        let endpoint = FlowEndpoint {
            group: group.parse().unwrap(),
            interface: [127, 0, 0, 1].into(),
            asm: false,
            ttl: 1,
        };
        let mut channel = ChannelConfig::new(CHANNEL, INCARNATION);
        channel.flow = Some(FlowSettings {
            endpoints: vec![endpoint],
            replicate: false,
            rate_bps: 50_000_000,
            authentication: None,
            fec: None,
            control: RateControl::default(),
        });
        let listen = ([127, 0, 0, 1], 0).into();
        let mut config = SourceConfig::new(listen, cert, key, [5; 32]);
        config.channels = vec![channel];
        // A busy machine may stand still for some seconds.
        config.fall_back = Duration::from_secs(5);
        let store = Arc::new(Store::default());
        let source = Source::bind(config, store.clone()).await.unwrap();
        let (handle, address) = (source.handle(), source.local_addr());
        tokio::spawn(source.run());
        let connected = Arc::<Mutex<usize>>::default();
        let (counted, watched) = (connected.clone(), handle.clone());
        tokio::spawn(async move {
            while let Some(status) = watched.status().await {
                *counted.lock().unwrap() = status.receivers.len();
                tokio::time::sleep(EVERY).await;
            }
        });
        Site {
            _folder: folder,
            store,
            handle,
            link: format!("flexfeed://{TOKEN}@{address}?pin={pin}&ch={CHANNEL}"),
            connected,
        }
    }

    pub fn link(&self) -> String {
        self.link.clone()
    }

    /// Number of receivers that ever enrolled.
    pub fn enrolled(&self) -> usize {
        self.store.receivers.lock().unwrap().len()
    }

    /// Number of receivers that are connected.
    pub fn connected(&self) -> usize {
        *self.connected.lock().unwrap()
    }

    /// Number of feedback packets that the source has taken.
    pub async fn feedback_packets(&self) -> u64 {
        let status = self.handle.status().await;
        status.map_or(0, |status| status.counters.protocol.feedback.packets)
    }

    /// Publishes updates for ever.
    pub async fn keep_publishing(&self) {
        loop {
            let last = self.store.updates.lock().unwrap().len() as u64;
            let seq = last + 1;
            let entry = Entry {
                id: format!("urn:entry:{seq}"),
                title: Some(format!("Entry {seq}")),
                ..Entry::default()
            };
            let (url, now) = ("https://example.org/feed", jiff::Timestamp::now());
            let encoded = payload::encode(&entry, Kind::Created, url, INCARNATION, seq, now);
            let encoded = Bytes::from(encoded);
            let stored = encoded.clone();
            self.store.updates.lock().unwrap().insert(seq, stored);
            self.handle.publish(CHANNEL, seq, encoded).await;
            tokio::time::sleep(EVERY).await;
        }
    }
}
