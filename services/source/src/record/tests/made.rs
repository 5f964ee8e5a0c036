//! A transport that is made up.

use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::source::{
    ChannelBytes, ChannelStatus, Counters, History, HistoryEvent, HistoryEventKind, Lateness,
    LoadStatus, Move, Overload, ReceiverChannel, ReceiverStatus, SourceStatus,
};
use tokio::sync::watch;
use uuid::Uuid;

use super::CHANNEL;
use crate::clock::now_ms;
use crate::transport::Transport;

/// A transport to which things happen as the test says.
#[derive(Default)]
pub struct FakeTransport {
    pub seen: Mutex<TransportState>,
    pub latest: watch::Sender<u64>,
}

/// State shown by the fake transport.
#[derive(Default)]
pub struct TransportState {
    overloads: Vec<Overload>,
    pub head: u64,
    receivers: Vec<ReceiverStatus>,
    pub history: Vec<HistoryEvent>,
    next_session: u64,
}

impl TransportState {
    fn receiver(&mut self, n: usize) -> &mut ReceiverStatus {
        let id = id(n).to_string();
        let mut receivers = self.receivers.iter_mut();
        receivers.find(|receiver| receiver.id == id).unwrap()
    }
}

/// The receiver of that number.
pub fn id(n: usize) -> Uuid {
    Uuid::from_u128(n as u128 + 1)
}

impl FakeTransport {
    fn add(&self, seen: &mut TransportState, what: impl FnOnce(u64, u64) -> HistoryEventKind) {
        let number = seen.history.len() as u64 + 1;
        let at_ms = now_ms().unsigned_abs();
        seen.history.push(HistoryEvent {
            number,
            at_ms,
            what: what(number, at_ms),
        });
        self.latest.send_replace(number);
    }

    /// A receiver comes.
    pub fn connect(&self, n: usize) {
        let mut seen = self.seen.lock().unwrap();
        seen.next_session += 1;
        let session = seen.next_session;
        let (name, addr) = (format!("r{n}"), "192.0.2.9:5000".to_owned());
        let mut since = 0;
        self.add(&mut seen, |_, at_ms| {
            since = at_ms;
            HistoryEventKind::Connected {
                session,
                receiver: id(n),
                name: name.clone(),
                software: "test".into(),
                addr: addr.clone(),
                channels: vec![CHANNEL.into()],
            }
        });
        seen.receivers.push(ReceiverStatus {
            id: id(n).to_string(),
            name,
            session,
            software: "test".into(),
            addr,
            connected_ms: since,
            rtt_ms: 1.0,
            channels: vec![ReceiverChannel {
                channel: CHANNEL.into(),
                rung: "unicast".into(),
                since_ms: since,
                cause: None,
                legs: Vec::new(),
                cursor: None,
                backlog: 0,
                key_sequence: None,
            }],
        });
    }

    /// A receiver moves.
    pub fn step(&self, n: usize, to: &str, cause: &str) {
        let mut seen = self.seen.lock().unwrap();
        let since = self.say(&mut seen, n, Some(to), cause, HistoryEventKind::Moved);
        let place = &mut seen.receiver(n).channels[0];
        place.rung = to.into();
        place.since_ms = since;
        place.cause = Some(cause.into());
    }

    /// A receiver reports forged packets, and stays on its rung.
    pub fn report_forgery(&self, n: usize) {
        let mut seen = self.seen.lock().unwrap();
        self.say(&mut seen, n, None, "forged", HistoryEventKind::Reported);
    }

    /// Adds an event of a receiver's rung. Returns its time.
    fn say(
        &self,
        seen: &mut TransportState,
        n: usize,
        to: Option<&str>,
        cause: &str,
        what: impl FnOnce(Move) -> HistoryEventKind,
    ) -> u64 {
        let known = seen.receiver(n);
        let (receiver, name) = (known.id.clone(), known.name.clone());
        let from = known.channels[0].rung.clone();
        let mut since = 0;
        self.add(seen, |number, at_ms| {
            since = at_ms;
            what(Move {
                number,
                at_ms,
                channel: CHANNEL.into(),
                receiver,
                name,
                to: to.unwrap_or(&from).to_owned(),
                from,
                cause: cause.into(),
            })
        });
        since
    }

    /// A receiver goes.
    pub fn disconnect(&self, n: usize) {
        let mut seen = self.seen.lock().unwrap();
        let receiver = id(n).to_string();
        let at = seen
            .receivers
            .iter()
            .position(|r| r.id == receiver)
            .unwrap();
        let session = seen.receivers.remove(at).session;
        self.add(&mut seen, |_, _| HistoryEventKind::Disconnected {
            session,
            receiver: id(n),
            reason: "gone".into(),
        });
    }

    /// The source begins to be overloaded, or ends.
    pub fn overload(&self, since_ms: u64, until_ms: Option<u64>) {
        let mut seen = self.seen.lock().unwrap();
        let overload = Overload {
            since_ms,
            until_ms,
            late: vec![Lateness::Engine, Lateness::ReceiveQueue],
        };
        seen.overloads.retain(|known| known.since_ms != since_ms);
        seen.overloads.push(overload.clone());
        self.add(&mut seen, |_, _| HistoryEventKind::Overload(overload));
    }

    /// All outputs hold everything up to the head.
    pub fn confirm(&self) {
        let mut seen = self.seen.lock().unwrap();
        let head = seen.head;
        let all = seen.receivers.iter_mut();
        all.for_each(|receiver| receiver.channels[0].cursor = Some(head));
    }
}

#[async_trait]
impl Transport for FakeTransport {
    async fn publish(&self, _: &str, _: u64, _: Bytes) {}

    async fn send_message(
        &self,
        _: &str,
        _: u64,
        _: Bytes,
    ) -> Result<(), crate::transport::Unsent> {
        Ok(())
    }

    async fn set_first(&self, _: &str, _: u64) {}

    async fn status(&self) -> Option<SourceStatus> {
        let seen = self.seen.lock().unwrap();
        Some(SourceStatus {
            channels: vec![ChannelStatus {
                channel: CHANNEL.into(),
                head: seen.head,
                flow: None,
                bytes: ChannelBytes::default(),
            }],
            receivers: seen.receivers.clone(),
            moves: Vec::new(),
            mass_fall_backs: Vec::new(),
            replication_queue: 0,
            load: LoadStatus {
                overloads: seen.overloads.clone(),
                ..LoadStatus::default()
            },
            shards: vec![0],
            counters: Counters::default(),
        })
    }

    async fn history(&self, after: u64) -> Option<History> {
        let seen = self.seen.lock().unwrap();
        let new = seen.history.iter().filter(|h| h.number > after);
        Some(History {
            events: new.take(1000).cloned().collect(),
            last: seen.history.len() as u64,
            missed: 0,
        })
    }
}
