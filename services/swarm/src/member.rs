//! The life of one receiver.

use std::sync::Arc;
use std::time::Duration;

use flexicast::Cursor;
use flexicast_tokio::receiver::{
    Event, Receiver, ReceiverConfig, ReceiverHandle, SharedGroups, Verify,
};
#[cfg(feature = "fault-injection")]
use service::faults::Fault;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::board::{Board, Connection, Delivered, Welcome};
use crate::fleet::Exits;
use crate::identity::Identity;

/// Time for which a receiver that leaves stays away.
const AWAY: Duration = Duration::from_secs(1);
/// Time limit for closing a connection.
const GOODBYE: Duration = Duration::from_secs(3);

/// Parameters that all receivers have in common.
#[derive(Debug)]
pub struct Settings {
    /// `host:port` of the source.
    pub server: String,
    /// Authentication of the source.
    pub verify: Verify,
    /// Enrolment token.
    pub token: Vec<u8>,
    /// Names of the channels.
    pub channels: Vec<String>,
    /// Updates before the present that each fetches first.
    pub history: u64,
    /// Interface to join groups on.
    pub interface: Option<std::net::IpAddr>,
    /// Whether to try multicast.
    pub multicast: bool,
    /// Whether to have flows replicated where multicast does not arrive.
    pub replicate: bool,
}

/// One receiver.
pub struct Member {
    /// Its number.
    pub index: usize,
    /// Its identity.
    pub identity: Identity,
    /// Common parameters.
    pub settings: Arc<Settings>,
    /// Multicast groups of all receivers.
    pub groups: SharedGroups,
    /// State of all receivers.
    pub board: Arc<Board>,
    /// Requests to be away for a while.
    pub exits: Arc<Exits>,
    /// Asks it to end.
    pub stop: CancellationToken,
}

/// Why a connection is not continued.
enum End {
    /// The receiver leaves for a while.
    Leave,
    /// The receiver crashes, and comes back.
    Crash,
    /// The receiver stops, or is refused for good.
    Stop,
}

impl Member {
    /// Receives until it is asked to stop, with pauses.
    pub async fn live(self) {
        loop {
            let config = self.config();
            let (handle, events) = Receiver::start_sharing(config, &self.groups);
            let end = self.receive(&handle, events).await;
            if let End::Crash = end {
                handle.abort();
            } else {
                self.confirm(&handle);
                // A source that does not answer any more has it time out.
                let _ = tokio::time::timeout(GOODBYE, handle.shutdown()).await;
            }
            if let End::Stop = end {
                return;
            }
            self.board.disconnected(self.index, Connection::Away, None);
            tokio::select! {
                () = tokio::time::sleep(AWAY) => self.board.returned(),
                () = self.stop.cancelled() => return,
            }
        }
    }

    fn config(&self) -> ReceiverConfig {
        let settings = &*self.settings;
        let channels = settings.channels.iter().cloned().zip(self.cursors());
        let history = Cursor::of_last(settings.history);
        let channels = channels.map(|(name, cursor)| (name, cursor.or(Some(history))));
        let mut config = ReceiverConfig::new(
            settings.server.clone(),
            settings.verify.clone(),
            self.identity.id,
            self.identity.credential,
            channels.collect(),
        );
        config.token.clone_from(&settings.token);
        config.name = format!("swarm-{:04}", self.index + 1);
        config.software = concat!("flexfeed-swarm ", env!("CARGO_PKG_VERSION")).to_owned();
        config.interface = settings.interface;
        config.multicast = settings.multicast;
        config.replicated = settings.replicate;
        // A thousand of them would verify the same signature.
        config.verify_updates = false;
        config
    }

    /// Returns the cursors, in the order of the channels; none before the first WELCOME.
    fn cursors(&self) -> Vec<Option<Cursor>> {
        let member = self.board.member(self.index);
        let positions = member.map(|member| member.positions.clone());
        let positions = positions.unwrap_or_default();
        positions.iter().map(|position| position.cursor()).collect()
    }

    fn confirm(&self, handle: &ReceiverHandle) {
        for (channel, cursor) in self.settings.channels.iter().zip(self.cursors()) {
            if let Some(cursor) = cursor {
                handle.confirm(channel, cursor);
            }
        }
    }

    async fn receive(&self, handle: &ReceiverHandle, mut events: mpsc::Receiver<Event>) -> End {
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                () = self.exits.leave.notified() => return End::Leave,
                () = self.exits.crash.notified() => return End::Crash,
                () = self.stop.cancelled() => return End::Stop,
            };
            match event {
                None => return End::Stop,
                Some(Event::Refused { reason, fatal, .. }) => {
                    self.board.refused(self.index, &reason, fatal);
                    if fatal {
                        return End::Stop;
                    }
                }
                Some(event) => self.take(handle, event),
            }
        }
    }

    fn take(&self, handle: &ReceiverHandle, event: Event) {
        let (board, index) = (&self.board, self.index);
        match event {
            Event::Update {
                channel,
                incarnation,
                seq,
                encoded,
                via,
            } => {
                #[cfg(feature = "fault-injection")]
                if Fault::UpdateLost.is_injected() && index == 0 && seq.is_multiple_of(5) {
                    return;
                }
                let update = Delivered {
                    incarnation,
                    seq,
                    via,
                    encoded,
                };
                board.update(index, &channel, &update);
            }
            Event::Gap { channel, from, to } | Event::Expired { channel, from, to } => {
                board.gap(index, &channel, from, to);
            }
            Event::Welcome {
                channel,
                incarnation,
                head,
                first,
                resync,
            } => {
                let welcome = Welcome {
                    incarnation,
                    head,
                    first,
                    resync,
                };
                board.welcome(index, &channel, welcome);
            }
            Event::Rung {
                channel,
                rung,
                cause,
                ..
            } => board.step(index, &channel, rung, cause),
            Event::Disconnected { reason, .. } => {
                board.disconnected(index, Connection::None, Some(&reason));
            }
            // Once a second after deliveries: often enough to confirm them.
            Event::Stats { channel, stats } => {
                board.note_head(&channel, stats.head);
                self.confirm(handle);
            }
            _ => {}
        }
    }
}
