//! Where the source was last: `state/addresses`, for a start after it has left the address in the
//! link.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use crate::board::Board;
use crate::durable::{FileError, replace};

const NAME: &str = "addresses";

/// First word of the file: its format.
const FORMAT: &str = "flexfeed-addresses-1";

/// Bound on the file.
const MAX_FILE: u64 = 4096;

/// Bound on the addresses taken from it.
const MAX_ADDRESSES: usize = 8;

/// Delay between attempts to write on a disk that fails.
const PAUSE: Duration = Duration::from_secs(10);

/// File of the addresses of one source.
#[derive(Debug, Clone)]
pub struct AddressFile {
    /// State folder.
    pub state: PathBuf,
    /// `host:port` of the source, as the link has it: addresses of another one mean nothing.
    pub source: String,
}

impl AddressFile {
    /// Returns the addresses; none if the file is missing, damaged, or of another source.
    #[must_use]
    pub fn read(&self) -> Vec<SocketAddr> {
        let mut text = String::new();
        let read =
            File::open(self.path()).and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
        let Some(list) = text.strip_prefix(&self.head()).filter(|_| read.is_ok()) else {
            return Vec::new();
        };
        let addresses = list.lines().filter_map(|line| line.parse().ok());
        let is_unicast = |at: &SocketAddr| !at.ip().is_unspecified() && !at.ip().is_multicast();
        addresses.filter(is_unicast).take(MAX_ADDRESSES).collect()
    }

    /// Replaces the addresses, durably. Blocks for the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, addresses: &[SocketAddr]) -> Result<(), FileError> {
        let mut text = self.head();
        for address in addresses {
            text.push_str(&format!("{address}\n"));
        }
        replace(&self.path(), text.as_bytes())
    }

    fn head(&self) -> String {
        format!("{FORMAT} {}\n", self.source)
    }

    fn path(&self) -> PathBuf {
        self.state.join(NAME)
    }
}

/// Writes the addresses whenever they change, retrying until they are on disk.
pub async fn keep(board: Arc<Board>, file: AddressFile) {
    let mut known = board.known();
    let mut reported = false;
    while known.changed().await.is_ok() {
        let addresses = known.borrow_and_update().clone();
        let one = file.clone();
        let written = tokio::task::spawn_blocking(move || one.write(&addresses)).await;
        if let Ok(Err(error)) = written {
            if !std::mem::replace(&mut reported, true) {
                warn!(%error, "source's addresses not recorded yet; retrying");
            }
            known.mark_changed();
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_are_kept_for_one_source() {
        let folder = tempfile::tempdir().unwrap();
        let file = AddressFile {
            state: folder.path().to_owned(),
            source: "h:4433".into(),
        };
        assert!(file.read().is_empty());
        let addresses: Vec<SocketAddr> = ["192.0.2.1:4433", "[2001:db8::1]:4433"]
            .map(|at| at.parse().unwrap())
            .to_vec();
        file.write(&addresses).unwrap();
        assert_eq!(file.read(), addresses);
        let other = AddressFile {
            source: "other:4433".into(),
            ..file.clone()
        };
        assert!(other.read().is_empty());
        file.write(&[]).unwrap();
        assert!(file.read().is_empty());
    }

    #[test]
    fn a_damaged_file_costs_what_it_would_have_saved() {
        let folder = tempfile::tempdir().unwrap();
        let file = AddressFile {
            state: folder.path().to_owned(),
            source: "h:4433".into(),
        };
        let good = "192.0.2.1:1\n";
        let many: String = (1..=99).map(|port| format!("192.0.2.1:{port}\n")).collect();
        let cases: [(Vec<u8>, usize); 5] = [
            (b"\xff".to_vec(), 0),
            (good.as_bytes().to_vec(), 0),
            (format!("{}nonsense\n{good}", file.head()).into(), 1),
            (
                format!("{}0.0.0.0:1\n232.1.1.1:1\n{good}", file.head()).into(),
                1,
            ),
            (format!("{}{many}", file.head()).into(), MAX_ADDRESSES),
        ];
        for (content, count) in cases {
            std::fs::write(file.path(), &content).unwrap();
            assert_eq!(file.read().len(), count, "{content:?}");
        }
    }
}
