//! The source's interface to the running transport.

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::Error;
use flexicast_tokio::source::{History, MessageError, SourceHandle, SourceStatus};

/// Reason why a message is not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsent {
    /// There is no room, or the channel is being announced: it can be sent later.
    Later,
    /// Never, for this reason.
    Never(String),
}

/// The service's interface to the running transport; tests substitute a recorder.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends a stored update to all receivers of its channel. Seqs are dense. Waits for room.
    async fn publish(&self, channel: &str, seq: u64, encoded: Bytes);
    /// Sends a message to all receivers of its channel that are connected. Numbers ascend.
    ///
    /// # Errors
    /// [`Unsent`] if it is not sent now.
    async fn send_message(&self, channel: &str, number: u64, message: Bytes) -> Result<(), Unsent>;
    /// Announces that updates of a channel before `first` are no longer kept.
    async fn set_first(&self, channel: &str, first: u64);
    /// Returns the transport's status; `None` once it has stopped.
    async fn status(&self) -> Option<SourceStatus>;
    /// Returns the events of receivers after number `after`; `None` once it has stopped.
    async fn history(&self, after: u64) -> Option<History>;
}

#[async_trait]
impl Transport for SourceHandle {
    async fn publish(&self, channel: &str, seq: u64, encoded: Bytes) {
        SourceHandle::publish(self, channel, seq, encoded).await;
    }

    async fn send_message(&self, channel: &str, number: u64, message: Bytes) -> Result<(), Unsent> {
        match SourceHandle::message(self, channel, number, message).await {
            Ok(()) => Ok(()),
            Err(Error::Message(MessageError::NoRoom | MessageError::NoChannel)) => {
                Err(Unsent::Later)
            }
            Err(error) => Err(Unsent::Never(error.to_string())),
        }
    }

    async fn set_first(&self, channel: &str, first: u64) {
        SourceHandle::set_first(self, channel, first).await;
    }

    async fn status(&self) -> Option<SourceStatus> {
        SourceHandle::status(self).await
    }

    async fn history(&self, after: u64) -> Option<History> {
        SourceHandle::history(self, after).await
    }
}
