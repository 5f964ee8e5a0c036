//! Transport with reconnection, as the loop needs it.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flexicast::Cursor;
use flexicast_tokio::receiver::{Event, Receiver, ReceiverConfig, ReceiverHandle};
use tokio::sync::mpsc;
use tracing::warn;

use crate::receive::Cursors;

/// Time limit for closing a connection before the next.
const GOODBYE: Duration = Duration::from_secs(3);

/// Running transport, which can be replaced by another one.
pub struct Transport {
    config: ReceiverConfig,
    history: Option<u64>,
    /// Running transport; `None` between two.
    handle: Mutex<Option<ReceiverHandle>>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Transport {
    /// Starts a transport on the current tokio runtime. Channels without a cursor begin with
    /// `history` of their last updates; `None` leaves the number to the source.
    #[must_use]
    pub fn start(config: ReceiverConfig, history: Option<u64>) -> (Self, mpsc::Receiver<Event>) {
        let (handle, events) = start(ReceiverConfig {
            channels: beginning(config.channels.clone(), history),
            ..config.clone()
        });
        let transport = Self {
            config,
            history,
            handle: Mutex::new(Some(handle)),
        };
        (transport, events)
    }

    /// Confirms that the outputs durably have everything up to `cursor` of the channel.
    pub fn confirm(&self, channel: &str, cursor: Cursor) {
        // The next transport begins with its cursors.
        if let Some(handle) = &*self.handle() {
            handle.confirm(channel, cursor);
        }
    }

    /// Replaces the transport by one that begins after these cursors, and finds the source at
    /// `known` if it was served there. The caller must not wait for events of the old one any more.
    pub async fn again(&self, cursors: Cursors, known: Vec<SocketAddr>) -> mpsc::Receiver<Event> {
        // In this order, because the source refuses a second connection of the same receiver.
        if tokio::time::timeout(GOODBYE, self.shutdown())
            .await
            .is_err()
        {
            warn!(
                "the connection to {} could not be closed in time",
                self.config.server
            );
        }
        let (handle, events) = start(ReceiverConfig {
            channels: beginning(cursors, self.history),
            known: match known.is_empty() {
                true => self.config.known.clone(),
                false => known,
            },
            ..self.config.clone()
        });
        *self.handle() = Some(handle);
        events
    }

    /// Closes the connection to the source, with the last confirmed cursors.
    pub async fn shutdown(&self) {
        let handle = self.handle().take();
        if let Some(handle) = handle {
            handle.shutdown().await;
        }
    }

    fn handle(&self) -> MutexGuard<'_, Option<ReceiverHandle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start(config: ReceiverConfig) -> (ReceiverHandle, mpsc::Receiver<Event>) {
    #[cfg(feature = "fault-injection")]
    return Receiver::start_with_faults(config, crate::faults::of_transport());
    #[cfg(not(feature = "fault-injection"))]
    Receiver::start(config)
}

/// Returns the cursors, with starting points for channels without one if history is requested.
fn beginning(cursors: Cursors, history: Option<u64>) -> Cursors {
    let wish = history.map(Cursor::of_last);
    let cursors = cursors.into_iter();
    cursors
        .map(|(channel, cursor)| (channel, cursor.or(wish)))
        .collect()
}
