//! A source within the test: a real one on a real socket, with a store in memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use feed::payload;
use feed::{Entry, Kind};
use flexfeed_receiver::link::Pin;
use flexicast_tokio::source::{
    Backlog, BoxError, Denied, Sabotage, Source, SourceConfig, SourceHandle,
};
use flexicast_tokio::spki_pin;
use tempfile::TempDir;
use uuid::Uuid;

const TOKEN: &str = "s3cret";

#[derive(Default)]
struct Store(Mutex<BTreeMap<u64, Bytes>>);

#[async_trait]
impl Backlog for Store {
    async fn updates(
        &self,
        from: u64,
        limit: usize,
        _max_bytes: usize,
    ) -> Result<Vec<(u64, Bytes)>, BoxError> {
        let updates = self.0.lock().unwrap();
        let updates = updates.range(from..).take(limit);
        Ok(updates.map(|(seq, b)| (*seq, b.clone())).collect())
    }

    async fn authorise(&self, token: &[u8], _receiver: Uuid, _name: &str) -> Result<(), Denied> {
        if token == TOKEN.as_bytes() {
            Ok(())
        } else {
            Err(Denied::Token("there is no such token".into()))
        }
    }
}

/// A source that can be stopped and started again, and its store.
pub struct Site {
    folder: TempDir,
    pin: Pin,
    store: Arc<Store>,
    pub incarnation: Uuid,
    running: Option<(SourceHandle, tokio::task::JoinHandle<()>)>,
    address: SocketAddr,
}

impl Site {
    /// Starts one on a free port.
    pub async fn start() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["localhost".into()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        std::fs::write(folder.path().join("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        let mut site = Site {
            folder,
            pin: Pin(spki_pin(certificate.der()).unwrap()),
            store: Arc::default(),
            incarnation: Uuid::new_v4(),
            running: None,
            address: ([127, 0, 0, 1], 0).into(),
        };
        site.again().await;
        site
    }

    /// Starts it again on the same port, with what is stored.
    pub async fn again(&mut self) {
        let (first, head) = {
            let updates = self.store.0.lock().unwrap();
            let first = updates.keys().next().copied().unwrap_or(1);
            (first, updates.keys().next_back().copied().unwrap_or(0))
        };
        let config = SourceConfig {
            listen: self.address,
            cert: self.folder.path().join("cert.pem"),
            key: self.folder.path().join("key.pem"),
            reset_key: [5; 32],
            channel: "lore".into(),
            incarnation: self.incarnation,
            head,
            first,
            flow: None,
            rate_bps: 50_000_000,
            ack_delay: Duration::from_millis(25),
            fall_back: Duration::from_millis(150),
            heartbeat: Duration::from_millis(300),
            sabotage: Sabotage::default(),
        };
        let source = Source::bind(config, self.store.clone()).await.unwrap();
        self.address = source.local_addr();
        let handle = source.handle();
        let task = tokio::spawn(async move { source.run().await.unwrap() });
        self.running = Some((handle, task));
    }

    /// Stops it.
    pub async fn stop(&mut self) {
        let (handle, task) = self.running.take().unwrap();
        handle.shutdown().await;
        task.await.unwrap();
    }

    /// Stores and publishes update `seq`, of an entry of its own.
    pub async fn publish(&self, seq: u64) {
        let entry = Entry {
            id: format!("urn:entry:{seq}"),
            title: Some(format!("Entry {seq}")),
            ..Entry::default()
        };
        let now = jiff::Timestamp::now();
        let url = "https://example.org/feed";
        let encoded = payload::encode(&entry, Kind::Created, url, self.incarnation, seq, now);
        self.publish_as(seq, encoded.into()).await;
    }

    /// Stores and publishes whatever bytes as update `seq`.
    pub async fn publish_as(&self, seq: u64, encoded: Bytes) {
        self.store.0.lock().unwrap().insert(seq, encoded.clone());
        if let Some((handle, _)) = &self.running {
            handle.publish(seq, encoded).await;
        }
    }

    /// Forgets the updates before `first`, while it is stopped.
    pub fn forget_before(&self, first: u64) {
        self.store.0.lock().unwrap().retain(|seq, _| *seq >= first);
    }

    /// Forgets the updates after `last`, as an older backup does, while it is stopped.
    pub fn restore(&self, last: u64) {
        self.store.0.lock().unwrap().retain(|seq, _| *seq <= last);
    }

    /// Begins a new store, while it is stopped.
    pub fn begin_anew(&mut self) {
        self.store = Arc::default();
        self.incarnation = Uuid::new_v4();
    }

    /// The enrolment link.
    pub fn link(&self) -> String {
        link(TOKEN, self.address, self.pin)
    }

    /// The same with another token.
    pub fn link_with_wrong_token(&self) -> String {
        link("s3cret2", self.address, self.pin)
    }

    /// The same with another pin.
    pub fn link_with_wrong_pin(&self) -> String {
        link(TOKEN, self.address, Pin([7; 32]))
    }
}

fn link(token: &str, address: SocketAddr, pin: Pin) -> String {
    format!("flexfeed://{token}@{address}?pin={pin}&ch=lore")
}

/// The numbers of the entries in an Atom file, in its order.
pub fn entries(data: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(data.join("lore.atom")).unwrap_or_default();
    let ids = text.split("<id>urn:entry:").skip(1);
    ids.map(|rest| rest[..rest.find('<').unwrap()].parse().unwrap())
        .collect()
}
