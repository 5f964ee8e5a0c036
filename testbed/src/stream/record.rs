//! A receiver's records: 25 bytes for each delivered message.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use flexicast::Via;

const LENGTH: usize = 25;

/// Path of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// Every byte by the flow.
    Flow,
    /// Part of it by the unicast path.
    Repaired,
    /// All of it by the unicast path.
    Unicast,
}

/// A message that the application got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub seq: u64,
    /// Time of publication, by [`now_ns`](super::now_ns).
    pub sent_ns: u64,
    /// When the application got it, by the same clock.
    pub received_ns: u64,
    /// Path of the arrival.
    pub way: Route,
}

impl Arrival {
    /// From publishing to the application, in milliseconds.
    pub fn delay_ms(&self) -> f64 {
        self.received_ns.saturating_sub(self.sent_ns) as f64 / 1e6
    }

    fn encode(&self) -> [u8; LENGTH] {
        let mut out = [0; LENGTH];
        out[..8].copy_from_slice(&self.seq.to_be_bytes());
        out[8..16].copy_from_slice(&self.sent_ns.to_be_bytes());
        out[16..24].copy_from_slice(&self.received_ns.to_be_bytes());
        out[24] = self.way as u8;
        out
    }

    fn decode(bytes: &[u8]) -> Option<Arrival> {
        let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Arrival {
            seq: number(0)?,
            sent_ns: number(8)?,
            received_ns: number(16)?,
            way: match bytes.get(24)? {
                0 => Route::Flow,
                1 => Route::Repaired,
                2 => Route::Unicast,
                _ => return None,
            },
        })
    }
}

impl From<Via> for Route {
    fn from(via: Via) -> Route {
        match via {
            Via::Flow => Route::Flow,
            Via::Repaired => Route::Repaired,
            Via::Unicast => Route::Unicast,
        }
    }
}

/// A file of arrivals that is being written.
#[derive(Debug)]
pub struct Records {
    file: BufWriter<File>,
}

impl Records {
    /// Makes the file.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(path: &Path) -> Result<Records> {
        let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
        Ok(Records {
            file: BufWriter::with_capacity(1 << 16, file),
        })
    }

    /// Adds one.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn add(&mut self, arrival: &Arrival) -> io::Result<()> {
        self.file.write_all(&arrival.encode())
    }

    /// Writes out what is in memory.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Reads a file of arrivals.
///
/// # Errors
/// When it cannot be read, or is not of this form.
pub fn read_arrivals(path: &Path) -> Result<Vec<Arrival>> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    ensure!(
        bytes.len().is_multiple_of(LENGTH),
        "{} ends within a record: its writer did not end in order",
        path.display()
    );
    bytes
        .chunks_exact(LENGTH)
        .map(|record| {
            Arrival::decode(record)
                .with_context(|| format!("{} holds something else", path.display()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("arrivals");
        let arrivals = [Route::Flow, Route::Repaired, Route::Unicast].map(|way| Arrival {
            seq: 7,
            sent_ns: 1_000_000,
            received_ns: 3_500_000,
            way,
        });
        let mut records = Records::create(&path).unwrap();
        for arrival in &arrivals {
            records.add(arrival).unwrap();
        }
        records.flush().unwrap();
        assert_eq!(read_arrivals(&path).unwrap(), arrivals);
        assert_eq!(arrivals[0].delay_ms(), 2.5);
        std::fs::write(&path, [0; 30]).unwrap();
        assert!(read_arrivals(&path).is_err());
    }
}
