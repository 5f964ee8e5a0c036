//! Receivers that connect to the program with its enrolment link.

use std::fs;
use std::path::Path;
use std::time::Duration;

use flexicast_tokio::receiver::{
    Event, Receiver, ReceiverConfig, ReceiverHandle, Redundancy, Verify,
};
use flexicast_tokio::{Cursor, Via};
use kit::ports;
use rustix::process::Signal;
use service::link::Link;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::running::{Feed, Running, SOON, source, source_at};

/// For what happens to a receiver. It may come behind several of the longest pauses between
/// attempts to connect, and attempts that hang: 45 + 10 + 30 + 10 + 30 s.
const PATIENCE: Duration = Duration::from_secs(180);

/// Returns a receiver's settings from the link in a data folder.
pub fn configuration(data: &Path) -> ReceiverConfig {
    configuration_of(&fs::read_to_string(data.join("enrolment-link")).unwrap())
}

/// Returns a receiver's settings from a link.
pub fn configuration_of(link: &str) -> ReceiverConfig {
    let (link, unknown) = Link::parse(link).unwrap();
    assert!(unknown.is_empty(), "{unknown:?}");
    ReceiverConfig {
        server: link.server(),
        known: Vec::new(),
        verify: Verify::Pins(link.pins.iter().map(|pin| pin.0).collect()),
        token: link.token.as_bytes().to_vec(),
        credential: rand::random(),
        receiver_id: Uuid::new_v4(),
        name: "r1".into(),
        software: "test".into(),
        channels: link.channels.into_iter().map(|name| (name, None)).collect(),
        interface: None,
        multicast: false,
        replicated: false,
        amt: None,
        redundancy: Redundancy::One,
        qlog: None,
        check: None,
        verify_updates: true,
        pinned_keys: link.keys,
    }
}

/// A receiver that keeps what it gets.
pub struct Listening {
    pub handle: ReceiverHandle,
    events: mpsc::Receiver<Event>,
    /// Of all channels, as they came.
    pub seqs: Vec<u64>,
    /// The same with their channels.
    pub updates: Vec<(String, u64)>,
    /// So long is waited for an event.
    pub patience: Duration,
}

impl Listening {
    pub fn start(config: ReceiverConfig) -> Self {
        let (handle, events) = Receiver::start(config);
        Self {
            handle,
            events,
            seqs: Vec::new(),
            updates: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// Reads events until one is as wanted, and confirms the updates among them.
    pub async fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        let read = async {
            loop {
                let event = self.events.recv().await.unwrap();
                if let Event::Update {
                    channel,
                    incarnation,
                    seq,
                    via,
                    ..
                } = &event
                {
                    assert_eq!(*via, Via::Unicast);
                    self.seqs.push(*seq);
                    self.updates.push((channel.clone(), *seq));
                    let cursor = Cursor {
                        incarnation: *incarnation,
                        seq: *seq,
                    };
                    self.handle.confirm(channel, cursor);
                }
                if let Some(found) = wanted(&event) {
                    return found;
                }
            }
        };
        match tokio::time::timeout(self.patience, read).await {
            Ok(found) => found,
            Err(_) => panic!("not in time: {what}"),
        }
    }

    pub async fn update(&mut self, last: u64) {
        let is_last = |event: &Event| match event {
            Event::Update { seq, .. } if *seq == last => Some(()),
            _ => None,
        };
        self.until(&format!("update {last}"), is_last).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_gets_everything_once_across_a_kill_of_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(5);
    // The receiver knows the port, so both lives have the same.
    let listen = ports::free().to_string();
    let mut first = Running::start(source_at(&listen, folder.path(), &feed));
    let mut receiver = Listening::start(configuration(folder.path()));
    receiver.update(5).await;
    feed.grow(3);
    receiver.update(8).await;
    first.until("the cursor", |running| {
        running.page("/status.json").1.contains("\"cursor\":8")
    });
    let (_, page) = first.page("/status.json");
    assert!(
        page.contains("\"name\":\"r1\"") && page.contains("\"rung\":\"unicast\""),
        "{page}"
    );
    assert!(first.page("/readyz").0 == 200);

    first.signal(Signal::KILL);
    first.end();
    feed.grow(4);
    let second = Running::start(source_at(&listen, folder.path(), &feed));
    receiver.update(12).await;
    assert_eq!(receiver.seqs, (1..=12).collect::<Vec<_>>());

    let (status, log, _) = second.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    let reason = receiver
        .until("the goodbye", |event| match event {
            Event::Disconnected { reason, .. } => Some(reason.clone()),
            _ => None,
        })
        .await;
    assert!(!reason.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_tokens_and_pins_are_refused_without_disturbance() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(2);
    let mut running = Running::start(source(folder.path(), &feed));
    let good = configuration(folder.path());
    let mut receiver = Listening::start(good.clone());
    receiver.update(2).await;

    let token = "not-the-token-of-this-source";
    let mut stranger = Listening::start(ReceiverConfig {
        token: token.as_bytes().to_vec(),
        receiver_id: Uuid::new_v4(),
        ..good.clone()
    });
    let (reason, fatal) = stranger
        .until("the refusal", |event| match event {
            Event::Refused { reason, fatal, .. } => Some((reason.clone(), *fatal)),
            _ => None,
        })
        .await;
    assert!(fatal && reason.contains("not valid here"), "{reason}");
    assert_eq!(stranger.seqs, Vec::<u64>::new());

    let mut careful = Listening::start(ReceiverConfig {
        verify: Verify::Pins(vec![[7; 32]]),
        receiver_id: Uuid::new_v4(),
        ..good
    });
    careful
        .until("the wrong pin", |event| match event {
            Event::Disconnected { .. } | Event::Refused { .. } => Some(()),
            Event::Connected { .. } => panic!("connected in spite of the pin"),
            _ => None,
        })
        .await;

    feed.grow(1);
    receiver.update(3).await;
    assert_eq!(receiver.seqs, [1, 2, 3]);
    running.until("it is counted", |running| {
        running
            .page("/metrics")
            .1
            .contains("flexfeed_source_refused_total 1\n")
    });
    let (status, log, _) = running.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains(token), "{log}");
    tokio::time::timeout(SOON, receiver.handle.shutdown())
        .await
        .unwrap();
}

/// The pages stay readable and the end stays quick while much is on its way to a receiver that does
/// not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_does_not_read_does_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(900);
    let mut running = Running::start(source(folder.path(), &feed));
    running.until("stored", |running| {
        running.page("/status.json").1.contains("\"head\":900,")
    });
    let (_handle, _unread) = Receiver::start(configuration(folder.path()));
    running.until("connected", |running| {
        running.page("/status.json").1.contains("\"name\":\"r1\"")
    });
    let (status, log, _) = running.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    // This line would show a held-up shutdown.
    assert!(!log.contains("not everything was closed"), "{log}");
}
