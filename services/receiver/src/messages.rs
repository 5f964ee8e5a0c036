//! Messages: shown to event clients and passed to hooks while they are worth something, and not
//! kept.

use std::sync::Arc;
use std::time::{Duration, Instant};

use feed::message::{Message, MessageError};
use flexicast::signing;
use uuid::Uuid;

use crate::board::now_ms;
use crate::hooks::Event;
use crate::live::{Expiring, Live, write_event};

/// The way of messages from the transport to event clients and hooks.
pub type Messages = Live<Arc<ReceivedMessage>>;

/// A message of a channel.
#[derive(Debug)]
pub struct ReceivedMessage {
    /// The event.
    pub event: Event,
    /// Instant at which it has expired, if ever.
    pub expires_at: Option<Instant>,
}

impl ReceivedMessage {
    /// Reads a message, with the header that signs it if there is one.
    ///
    /// # Errors
    /// [`MessageError`] if the bytes are none.
    pub fn of(
        channel: &str,
        number: u64,
        encoded: &[u8],
        expires_at: Option<Instant>,
    ) -> Result<Self, MessageError> {
        let header = signing::Header::parse(encoded).ok();
        let incarnation = header.map_or(Uuid::nil(), |header| header.incarnation());
        // Before the source's time is known, this machine's is better than none.
        let by_own_clock = || {
            let left = header?.deadline_ms()?.saturating_sub(now_ms() as u64);
            Instant::now().checked_add(Duration::from_millis(left))
        };
        let expires_at = expires_at.or_else(by_own_clock);
        let message = Message::decode(signing::content(encoded))?;
        let event = Event::of_message(channel, incarnation, number, message);
        Ok(Self { event, expires_at })
    }

    /// Appends the event, which has no id: the client's position stays where it is.
    pub fn write(&self, out: &mut String) {
        write_event("live-message", &self.event.json, out);
    }
}

impl Expiring for Arc<ReceivedMessage> {
    fn expires_at(&self) -> Option<Instant> {
        self.expires_at
    }
}
