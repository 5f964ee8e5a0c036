//! Updates with a deadline for event clients, as soon as they are whole and before the journal has
//! them.

use std::cmp::Reverse;
use std::time::Instant;

use bytes::Bytes;
use feed::payload::event_json;
use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};

/// Updates that wait for a client at most; one that reads more slowly misses the oldest, and gets
/// them in order later.
const WAITING: usize = 16;

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

/// The way from the transport to event clients.
#[derive(Debug)]
pub struct LiveUpdates(broadcast::Sender<LiveUpdate>);

impl Default for LiveUpdates {
    fn default() -> Self {
        Self(broadcast::Sender::new(WAITING))
    }
}

impl LiveUpdates {
    /// Hands an update to the clients that are there, unless it has expired.
    pub fn send(&self, update: LiveUpdate) {
        if !update.has_expired() {
            // Without a client, nobody takes it.
            let _ = self.0.send(update);
        }
    }

    /// Returns the updates from now on.
    pub fn follow(&self) -> LiveClient {
        LiveClient {
            updates: self.0.subscribe(),
            first: None,
        }
    }
}

/// Updates with a deadline for one client.
#[derive(Debug)]
pub struct LiveClient {
    updates: broadcast::Receiver<LiveUpdate>,
    /// An update that was waited for, and is not taken.
    first: Option<LiveUpdate>,
}

impl LiveClient {
    /// Takes the updates that are here and have not expired, the newest of a channel first.
    pub fn take(&mut self) -> Vec<LiveUpdate> {
        let mut here: Vec<LiveUpdate> = self.first.take().into_iter().collect();
        loop {
            match self.updates.try_recv() {
                Ok(update) => here.push(update),
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        here.retain(|update| !update.has_expired());
        here.sort_by_key(|update| Reverse(update.seq));
        here
    }

    /// Waits until an update is here.
    pub async fn ready(&mut self) {
        while self.first.is_none() {
            match self.updates.recv().await {
                Ok(update) => self.first = Some(update),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

impl LiveUpdate {
    fn has_expired(&self) -> bool {
        self.expires_at.is_some_and(|at| at <= Instant::now())
    }

    /// Appends the event, which has no id: the client's position stays where it is. An update that
    /// makes no sense is left to the outputs in order.
    pub fn write(&self, out: &mut String) {
        let Ok(Ok(data)) = event_json(&self.encoded).map(String::from_utf8) else {
            return;
        };
        out.push_str("event: live\n");
        for line in data.split(['\n', '\r']) {
            out.push_str("data: ");
            out.push_str(line);
            out.push('\n');
        }
        out.push('\n');
    }
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

    fn seqs(client: &mut LiveClient) -> Vec<u64> {
        client.take().iter().map(|update| update.seq).collect()
    }

    #[tokio::test]
    async fn the_newest_that_wait_come_first() {
        let updates = LiveUpdates::default();
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
        let updates = LiveUpdates::default();
        let mut client = updates.follow();
        let now = Instant::now();
        updates.send(update(1, Some(now)));
        assert!(client.updates.is_empty(), "late before it waits");
        let soon = now + Duration::from_millis(50);
        updates.send(update(2, Some(soon)));
        updates.send(update(3, None));
        client.ready().await;
        tokio::time::sleep_until(soon.into()).await;
        assert_eq!(seqs(&mut client), [3], "late while it waits");
    }
}
