//! Whatever is shown as soon as it is here, and worthless later: updates with a deadline, before
//! the journal has them, and messages, which no journal keeps.

use std::cmp::Reverse;
use std::time::Instant;

use bytes::Bytes;
use feed::payload::event_json;
use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};

/// Those that wait for a follower at most; one that reads more slowly misses the oldest.
const WAITING: usize = 16;

/// The same of messages, of all channels.
const MESSAGES_WAITING: usize = 128;

/// Something that expires.
pub trait Expiring: Clone {
    /// Returns the instant at which it has expired, if ever.
    fn expires_at(&self) -> Option<Instant>;

    /// Whether it has expired.
    fn has_expired(&self) -> bool {
        self.expires_at().is_some_and(|at| at <= Instant::now())
    }
}

/// An update with a deadline.
#[derive(Debug, Clone)]
pub struct LiveUpdate {
    /// Its channel.
    pub channel: String,
    /// Its number.
    pub seq: u64,
    /// Its encoded bytes.
    pub encoded: Bytes,
    /// Instant at which it has expired, if ever.
    pub expires_at: Option<Instant>,
}

/// The way from the transport to those who follow.
#[derive(Debug)]
pub struct Live<T>(broadcast::Sender<T>);

impl<T: Expiring> Default for Live<T> {
    fn default() -> Self {
        Self(broadcast::Sender::new(WAITING))
    }
}

impl<T: Expiring> Live<T> {
    /// The way of messages, which come in bursts and not again.
    pub fn of_messages() -> Self {
        Self(broadcast::Sender::new(MESSAGES_WAITING))
    }
}

impl<T: Expiring> Live<T> {
    /// Hands one on to the followers that are there, unless it has expired.
    pub fn send(&self, one: T) {
        if !one.has_expired() {
            // Without a follower, nothing takes it.
            let _ = self.0.send(one);
        }
    }

    /// Returns those from now on.
    pub fn follow(&self) -> Follower<T> {
        Follower {
            here: self.0.subscribe(),
            first: None,
            missed: 0,
        }
    }
}

/// Everything that is handed on, for one follower.
#[derive(Debug)]
pub struct Follower<T> {
    here: broadcast::Receiver<T>,
    /// One that was waited for, and is not taken.
    first: Option<T>,
    /// Number of those that it was too slow for.
    missed: u64,
}

impl<T: Expiring> Follower<T> {
    /// Returns how many of them there were that this follower was too slow for, and begins to count
    /// again.
    pub fn take_missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }

    /// Takes those that are here and have not expired, the oldest first.
    pub fn take(&mut self) -> Vec<T> {
        let mut here: Vec<T> = self.first.take().into_iter().collect();
        loop {
            match self.here.try_recv() {
                Ok(one) => here.push(one),
                Err(TryRecvError::Lagged(missed)) => self.missed += missed,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        here.retain(|one| !one.has_expired());
        here
    }

    /// Waits until one is here.
    pub async fn ready(&mut self) {
        while self.first.is_none() {
            match self.here.recv().await {
                Ok(one) => self.first = Some(one),
                Err(RecvError::Lagged(missed)) => self.missed += missed,
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

impl Follower<LiveUpdate> {
    /// Takes the updates that are here and have not expired, the newest of a channel first.
    pub fn take_newest_first(&mut self) -> Vec<LiveUpdate> {
        let mut here = self.take();
        here.sort_by_key(|update| Reverse(update.seq));
        here
    }
}

impl Expiring for LiveUpdate {
    fn expires_at(&self) -> Option<Instant> {
        self.expires_at
    }
}

impl LiveUpdate {
    /// Appends the event, which has no id: the client's position stays where it is. An update that
    /// makes no sense is left to the outputs in order.
    pub fn write(&self, out: &mut String) {
        if let Ok(data) = event_json(&self.encoded) {
            write_event("live", &data, out);
        }
    }
}

/// Appends an event without an id to a stream of server-sent events.
pub fn write_event(kind: &str, data: &[u8], out: &mut String) {
    let Ok(data) = std::str::from_utf8(data) else {
        return;
    };
    out.push_str("event: ");
    out.push_str(kind);
    out.push('\n');
    for line in data.split(['\n', '\r']) {
        out.push_str("data: ");
        out.push_str(line);
        out.push('\n');
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    fn update(seq: u64, expires_at: Option<Instant>) -> LiveUpdate {
        LiveUpdate {
            channel: "lore".into(),
            seq,
            encoded: Bytes::new(),
            expires_at,
        }
    }

    fn seqs(client: &mut Follower<LiveUpdate>) -> Vec<u64> {
        client
            .take_newest_first()
            .iter()
            .map(|update| update.seq)
            .collect()
    }

    #[tokio::test]
    async fn the_newest_that_wait_come_first() {
        let updates = Live::default();
        let mut client = updates.follow();
        let later = Instant::now().checked_add(Duration::from_secs(3600));
        for seq in [3, 5, 4] {
            updates.send(update(seq, later));
        }
        client.ready().await;
        updates.send(update(6, None));
        assert_eq!(seqs(&mut client), [6, 5, 4, 3]);
        assert_eq!(seqs(&mut client), [] as [u64; 0]);
        // One that reads slowly misses the oldest.
        (10..40).for_each(|seq| updates.send(update(seq, later)));
        assert_eq!(seqs(&mut client), (24..40).rev().collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn nothing_late_is_handed_on() {
        let updates = Live::default();
        let mut client = updates.follow();
        let now = Instant::now();
        updates.send(update(1, Some(now)));
        assert!(client.here.is_empty(), "late before it waits");
        let soon = now + Duration::from_millis(50);
        updates.send(update(2, Some(soon)));
        updates.send(update(3, None));
        client.ready().await;
        tokio::time::sleep_until(soon.into()).await;
        assert_eq!(seqs(&mut client), [3], "late while it waits");
    }
}
