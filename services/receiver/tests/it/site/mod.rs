//! A source within the test: a real one on a real socket, with a store in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use feed::payload;
use feed::{Entry, Kind};
use flexfeed_receiver::link::Pin;
use flexicast::signing::{Era, Lineage, SALT_LEN, Signer, Statement};
use flexicast_tokio::source::{
    Admission, AdmissionError, Backlog, BoxError, ChannelConfig, Credential, FlowEndpoint,
    FlowSettings, RateControl, Source, SourceConfig, SourceHandle,
};
use flexicast_tokio::spki_pin;
use tempfile::TempDir;
use uuid::Uuid;

const TOKEN: &str = "s3cret";

/// The channel that every site has.
const LORE: &str = "lore";

/// Updates of each channel, and admissions.
#[derive(Default)]
struct Store {
    updates: Mutex<BTreeMap<String, BTreeMap<u64, Bytes>>>,
    receivers: Mutex<BTreeMap<Uuid, [u8; 32]>>,
    revoked: Mutex<BTreeSet<Uuid>>,
    /// Uses of the token.
    enrolled: AtomicUsize,
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
        let channels = self.updates.lock().unwrap();
        let updates = channels.get(channel).into_iter();
        let updates = updates
            .flat_map(|updates| updates.range(from..))
            .take(limit);
        Ok(updates.map(|(seq, b)| (*seq, b.clone())).collect())
    }

    async fn authorise(&self, request: &Admission) -> Result<(), AdmissionError> {
        let Credential::Enrol { token, secret, .. } = &request.credential else {
            return Err(AdmissionError::Token("this receiver is too old".into()));
        };
        let mut receivers = self.receivers.lock().unwrap();
        if self.revoked.lock().unwrap().contains(&request.receiver) {
            return Err(AdmissionError::Token("this receiver was revoked".into()));
        }
        match receivers.get(&request.receiver) {
            Some(known) if known == secret => Ok(()),
            Some(_) => Err(AdmissionError::InUse("another receiver has this id".into())),
            None if token == TOKEN.as_bytes() => {
                self.enrolled.fetch_add(1, Ordering::Relaxed);
                receivers.insert(request.receiver, *secret);
                Ok(())
            }
            None => Err(AdmissionError::Token("there is no such token".into())),
        }
    }
}

/// A source that can be stopped and started again, and its store.
pub struct Site {
    folder: TempDir,
    pin: Pin,
    store: Arc<Store>,
    /// Of the first channel; the others' follow from it.
    pub incarnation: Uuid,
    channels: Vec<String>,
    /// Whether flow packets are copied to receivers that want it.
    pub copies: bool,
    /// Interval of flow announcements. A pause of three is a fall-back.
    pub heartbeat: Duration,
    /// Endpoints of its flows, each on the next port.
    pub groups: Vec<FlowEndpoint>,
    /// Key of the first channel, and its first signed update.
    signing: Option<(Signer, u64)>,
    /// Time after which signed updates expire.
    pub lifetime: Option<Duration>,
    running: Option<(SourceHandle, tokio::task::JoinHandle<()>)>,
    address: SocketAddr,
}

impl Site {
    /// Starts one with one channel on a free port.
    pub async fn start() -> Site {
        Site::with(&[LORE]).await
    }

    /// Starts one with these channels.
    pub async fn with(channels: &[&str]) -> Site {
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
            channels: channels.iter().map(|name| (*name).to_owned()).collect(),
            copies: false,
            heartbeat: Duration::from_millis(600),
            groups: Vec::new(),
            signing: None,
            lifetime: None,
            running: None,
            address: kit::ports::free(),
        };
        site.again().await;
        site
    }

    /// Moves it to another address, with a flow to the groups.
    pub async fn move_to(&mut self, address: SocketAddr, groups: Vec<FlowEndpoint>) {
        self.stop().await;
        self.address = address;
        self.groups = groups;
        self.again().await;
    }

    /// Returns the number of admissions by the token.
    pub fn enrolled(&self) -> usize {
        self.store.enrolled.load(Ordering::Relaxed)
    }

    /// Lets this receiver in no more.
    pub fn revoke(&self, id: Uuid) {
        self.store.revoked.lock().unwrap().insert(id);
    }

    /// The link without its token.
    pub fn link_without_token(&self) -> String {
        self.link().replace(&format!("{TOKEN}@"), "")
    }

    /// The link without its pin, with a host that the certificate names.
    pub fn link_without_pin(&self) -> String {
        let host = self.address.ip().to_string();
        let link = self.link().replace(&host, "localhost");
        link.replace(&format!("pin={}&", self.pin), "")
    }

    /// The certificate, which is its own authority.
    pub fn certificate(&self) -> std::path::PathBuf {
        self.folder.path().join("cert.pem")
    }

    /// Starts it again on the same port, with what is stored.
    pub async fn again(&mut self) {
        let channels = self.channels.iter().map(|name| {
            let store = self.store.updates.lock().unwrap();
            let seqs = store.get(name).map(|updates| {
                let seqs = updates.keys().copied();
                (seqs.clone().next().unwrap_or(1), seqs.last().unwrap_or(0))
            });
            let (first, head) = seqs.unwrap_or((1, 0));
            ChannelConfig {
                name: name.clone(),
                incarnation: self.incarnation_of(name),
                head,
                first,
                private: false,
                endorsements: Vec::new(),
                lineage: self.lineage_of(name),
                flow: (self.copies || !self.groups.is_empty()).then(|| FlowSettings {
                    endpoints: self.groups.clone(),
                    replicate: self.copies,
                    rate_bps: 50_000_000,
                    authentication: None,
                    fec: None,
                    control: RateControl::default(),
                }),
            }
        });
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| self.folder.path().join(name));
        let config = SourceConfig {
            channels: channels.collect(),
            rate_bps: 50_000_000,
            unicast_rate_bps: None,
            // No test waits for a fall-back, and a busy machine may stand still for some seconds.
            // Three heartbeats that are not acknowledged are a fall-back too.
            fall_back: Duration::from_secs(10),
            heartbeat: self.heartbeat,
            ..SourceConfig::new(self.address, cert, key, [5; 32])
        };
        // The previous owner may take a moment to release it.
        for _ in 0..500 {
            if std::net::UdpSocket::bind(self.address).is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
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

    fn incarnation_of(&self, channel: &str) -> Uuid {
        match self.channels.iter().position(|name| name == channel) {
            Some(at) => Uuid::from_u128(self.incarnation.as_u128() ^ at as u128),
            None => panic!("no channel {channel}"),
        }
    }

    /// Signs the updates of the first channel from `first` on; while it is stopped.
    pub fn sign_from(&mut self, first: u64) {
        self.signing = Some((Signer::from_seed(&[1; 32]).unwrap(), first));
    }

    /// Public key of the first channel, as `verify --key` takes it.
    pub fn public_key(&self) -> String {
        let (signer, _) = self.signing.as_ref().unwrap();
        signer.key().to_string()
    }

    fn lineage_of(&self, channel: &str) -> Lineage {
        let signing = self.signing.iter().filter(|_| channel == LORE);
        let eras = signing.map(|(signer, first)| Era {
            first: *first,
            last: None,
            incarnation: self.incarnation,
            key: signer.key(),
        });
        Lineage::new(eras.collect()).unwrap()
    }

    /// Stores and publishes update `seq`, of an entry of its own.
    pub async fn publish(&self, seq: u64) {
        self.publish_on(LORE, seq).await;
    }

    /// The same on a channel.
    pub async fn publish_on(&self, channel: &str, seq: u64) {
        let entry = Entry {
            id: format!("urn:entry:{seq}"),
            title: Some(format!("Entry {seq} of {channel}")),
            ..Entry::default()
        };
        let now = jiff::Timestamp::now();
        let incarnation = self.incarnation_of(channel);
        let url = "https://example.org/feed";
        let mut encoded = payload::encode(&entry, Kind::Created, url, incarnation, seq, now);
        if let Some((signer, first)) = self.signing.as_ref().filter(|_| channel == LORE)
            && seq >= *first
        {
            let deadline = self.lifetime.map(|lifetime| now + lifetime);
            let deadline_ms = deadline.map_or(0, |at| at.as_millisecond() as u64);
            let statement = Statement {
                channel,
                incarnation,
                seq,
                deadline_ms,
            };
            encoded = signer.sign(&statement, &[7; SALT_LEN], &encoded).unwrap();
        }
        self.put(channel, seq, encoded.into()).await;
    }

    /// Stores and publishes whatever bytes as update `seq`.
    pub async fn publish_as(&self, seq: u64, encoded: Bytes) {
        self.put(LORE, seq, encoded).await;
    }

    async fn put(&self, channel: &str, seq: u64, encoded: Bytes) {
        self.store_one(channel, seq, encoded.clone());
        if let Some((handle, _)) = &self.running {
            handle.publish(channel, seq, encoded).await;
        }
    }

    fn store_one(&self, channel: &str, seq: u64, encoded: Bytes) {
        let mut channels = self.store.updates.lock().unwrap();
        let updates = channels.entry(channel.to_owned()).or_default();
        updates.insert(seq, encoded);
    }

    /// Forgets the updates of all channels that are not so.
    fn keep(&self, is: impl Fn(u64) -> bool) {
        for updates in self.store.updates.lock().unwrap().values_mut() {
            updates.retain(|seq, _| is(*seq));
        }
    }

    /// Forgets the updates before `first`, while it is stopped.
    pub fn forget_before(&self, first: u64) {
        self.keep(|seq| seq >= first);
    }

    /// The same on one channel.
    pub fn forget_on(&self, channel: &str, first: u64) {
        let mut channels = self.store.updates.lock().unwrap();
        if let Some(updates) = channels.get_mut(channel) {
            updates.retain(|seq, _| *seq >= first);
        }
    }

    /// Forgets the updates after `last`, as an older backup does, while it is stopped.
    pub fn restore(&self, last: u64) {
        self.keep(|seq| seq <= last);
    }

    /// Begins a new store, while it is stopped.
    pub fn replace_store(&mut self) {
        self.store = Arc::default();
        self.incarnation = Uuid::new_v4();
    }

    /// The enrolment link.
    pub fn link(&self) -> String {
        self.linked(TOKEN, self.pin)
    }

    /// The same with another token.
    pub fn link_with_wrong_token(&self) -> String {
        self.linked("s3cret2", self.pin)
    }

    /// The same with another pin.
    pub fn link_with_wrong_pin(&self) -> String {
        self.linked(TOKEN, Pin([7; 32]))
    }

    fn linked(&self, token: &str, pin: Pin) -> String {
        let channels = self.channels.join("&ch=");
        format!(
            "flexfeed://{token}@{}?pin={pin}&ch={channels}",
            self.address
        )
    }
}

/// The numbers of the entries in the Atom file of the first channel, in its order.
pub fn entries(data: &Path) -> Vec<u64> {
    entries_of(data, LORE)
}

/// The same of another.
pub fn entries_of(data: &Path, channel: &str) -> Vec<u64> {
    let path = data.join(format!("{channel}.atom"));
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let ids = text.split("<id>urn:entry:").skip(1);
    ids.map(|rest| rest[..rest.find('<').unwrap()].parse().unwrap())
        .collect()
}
