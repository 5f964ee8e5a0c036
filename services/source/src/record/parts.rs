//! Reads over many receivers, part by part: each read has a time limit, and the next one continues
//! where it ended, so that the whole completes however many receivers there are and however slow
//! the database is.

use std::collections::BTreeMap;
use std::time::Duration;

use store::{FeedEvent, Fence, StateRow, Store, StoreError};
use thiserror::Error;
use tokio::time::{Instant, timeout};
use tracing::debug;
use uuid::Uuid;

use super::hour::LastHour;
use crate::clock::now_ms;

/// Largest and smallest number of rows in one part: after a part that took too long, the next one
/// is smaller.
const MOST: usize = 1_000;
const LEAST: usize = 16;
/// Longest wait for one part.
const PATIENCE: Duration = Duration::from_secs(2);
/// Duration of one call, in addition to the current part.
const LOOK: Duration = Duration::from_secs(1);

/// Failure to read a part.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Error of the database.
    #[error("{0}")]
    Failed(#[from] StoreError),
    /// No answer in time.
    #[error("the database did not answer within {} s, for {rows} rows", PATIENCE.as_secs())]
    Late {
        /// Rows that were requested.
        rows: usize,
    },
}

/// Size of the parts.
#[derive(Debug)]
struct Size(usize);

impl Size {
    /// Waits for a part, and makes the next one smaller if it took too long.
    async fn part<T>(
        &mut self,
        asked: impl Future<Output = Result<Vec<T>, StoreError>>,
    ) -> Result<Vec<T>, ReadError> {
        let rows = self.0;
        match timeout(PATIENCE, asked).await {
            Ok(part) => Ok(part?),
            Err(_) => {
                self.0 = (rows / 4).max(LEAST);
                Err(ReadError::Late { rows })
            }
        }
    }
}

/// Takeover of the records that another source, or an earlier run of this one, wrote of channels.
#[derive(Debug)]
pub struct Takeover {
    fences: Vec<Fence>,
    size: Size,
    states: Vec<StateRow>,
    are_states_whole: bool,
    events: Vec<FeedEvent>,
    /// Counts by channel.
    hours: BTreeMap<String, LastHour>,
}

impl Takeover {
    /// Returns a takeover that has not read anything yet.
    pub fn new(fences: Vec<Fence>) -> Self {
        Self {
            fences,
            size: Size(MOST),
            states: Vec::new(),
            are_states_whole: false,
            events: Vec::new(),
            hours: BTreeMap::new(),
        }
    }

    /// Returns the leases of the takeover.
    pub fn fences(&self) -> &[Fence] {
        &self.fences
    }

    /// Continues for a while. Returns whether everything is read.
    ///
    /// # Errors
    /// The database fails or is late; earlier parts stay.
    pub async fn go_on(&mut self, store: &Store) -> Result<bool, ReadError> {
        let begun = Instant::now();
        while !self.are_states_whole {
            let last = self.states.last();
            let after = last.map(|row| (row.receiver, row.channel.clone()));
            let rows = self.size.0;
            let cause = "the source that served it has ended";
            let asked =
                store
                    .records()
                    .take_over(&self.fences, after.as_ref(), rows, now_ms(), cause);
            let part = self.size.part(asked).await?;
            self.are_states_whole = part.len() < rows;
            self.states.extend(part);
            if !self.are_states_whole && begun.elapsed() >= LOOK {
                return Ok(false);
            }
        }
        let channels: Vec<&str> = self.fences.iter().map(|f| f.channel.as_str()).collect();
        loop {
            let after = self.events.last().map_or(0, |event| event.id);
            let rows = self.size.0;
            let asked = store.records().feed_states(&channels, after, rows);
            let part = self.size.part(asked).await?;
            let is_last = part.len() < rows;
            self.events.extend(part);
            if is_last {
                break;
            }
            if begun.elapsed() >= LOOK {
                return Ok(false);
            }
        }
        for Fence { channel, .. } in &self.fences {
            if self.hours.contains_key(channel) {
                continue;
            }
            let asked = LastHour::read(store, channel, now_ms());
            let hour = match timeout(PATIENCE, asked).await {
                Ok(Ok(hour)) => hour,
                // Nothing else waits for a number that is right again in an hour.
                failed => {
                    debug!(channel, error = ?failed, "published count unknown");
                    LastHour::default()
                }
            };
            self.hours.insert(channel.clone(), hour);
            if begun.elapsed() >= LOOK {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the state of all receivers, the events of feeds, oldest first, and the counts of
    /// each channel.
    pub fn taken(self) -> (Vec<StateRow>, Vec<FeedEvent>, BTreeMap<String, LastHour>) {
        (self.states, self.events, self.hours)
    }
}

/// Scan of the receivers that the database knows.
#[derive(Debug)]
pub struct ReceiverScan {
    size: Size,
    since_ms: i64,
    after: Option<Uuid>,
    admitted: BTreeMap<Uuid, Vec<String>>,
}

impl ReceiverScan {
    /// Returns a scan that starts now.
    pub fn new(now_ms: i64) -> Self {
        Self {
            size: Size(MOST),
            since_ms: now_ms,
            after: None,
            admitted: BTreeMap::new(),
        }
    }

    /// Continues for a while. Returns whether everything is read.
    ///
    /// # Errors
    /// The database fails or is late; earlier parts stay.
    pub async fn go_on(&mut self, store: &Store) -> Result<bool, ReadError> {
        let begun = Instant::now();
        loop {
            let rows = self.size.0;
            let asked = store.receivers().list_after(self.after, rows);
            let part = self.size.part(asked).await?;
            self.after = part.last().map_or(self.after, |row| Some(row.id));
            let is_last = part.len() < rows;
            let admitted = part.into_iter().filter(|row| row.revoked_ms.is_none());
            self.admitted
                .extend(admitted.map(|row| (row.id, row.channels)));
            if is_last {
                return Ok(true);
            }
            if begun.elapsed() >= LOOK {
                return Ok(false);
            }
        }
    }

    /// Returns the known receivers with their requested channels, and the start of the read: later
    /// receivers may be missing.
    pub fn known(self) -> (BTreeMap<Uuid, Vec<String>>, i64) {
        (self.admitted, self.since_ms)
    }
}
