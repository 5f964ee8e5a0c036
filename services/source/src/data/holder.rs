//! Identity of a process as a holder of leases.
//!
//! A process that ended without releasing its leases still holds them for some seconds. The next
//! one in the same folder need not wait for that: the folder's lock proves that the other one is
//! gone, so it continues under the other's id. A copy of the folder is another holder; both might
//! run.

use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};
use tracing::debug;
use uuid::Uuid;

use super::{DataFolder, PRIVATE};

const FILE: &str = "holder";

/// Changes at each boot of the machine (Linux).
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

impl DataFolder {
    /// Returns the id that holds leases from this folder on this machine: that of the previous
    /// process, or a new one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn holder(&self) -> Result<Uuid> {
        let place = self.place()?;
        let said = self
            .read(FILE)?
            .and_then(|said| String::from_utf8(said).ok());
        let kept = said.as_deref().and_then(|said| said.trim().split_once(' '));
        if let (Some((id, before)), Some(place)) = (kept, &place)
            && before == place
            && let Ok(id) = id.parse()
        {
            return Ok(id);
        }
        let id = Uuid::new_v4();
        if let Some(place) = place {
            self.write(FILE, format!("{id} {place}\n").as_bytes(), PRIVATE)?;
        }
        Ok(id)
    }

    /// Returns what distinguishes this folder from its copies, here and elsewhere; `None` if that
    /// is unknown.
    fn place(&self) -> Result<Option<String>> {
        let lock = self.file("lock");
        let metadata = std::fs::metadata(&lock)
            .with_context(|| format!("cannot read the metadata of {}", lock.display()))?;
        let boot = match std::fs::read_to_string(BOOT) {
            Ok(boot) => boot,
            Err(error) => {
                debug!("{BOOT} cannot be read: {error}");
                return Ok(None);
            }
        };
        Ok(Some(format!(
            "{} {}:{}",
            boot.trim(),
            metadata.dev(),
            metadata.ino()
        )))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use std::fs;

    #[test]
    fn a_place_keeps_its_number_and_a_copy_gets_its_own() {
        let outer = tempfile::tempdir().unwrap();
        let (here, there) = (outer.path().join("a"), outer.path().join("b"));
        let folder = DataFolder::open(&here).unwrap();
        let id = folder.holder().unwrap();
        assert_eq!(folder.holder().unwrap(), id);
        drop(folder);
        assert_eq!(DataFolder::open(&here).unwrap().holder().unwrap(), id);

        fs::create_dir(&there).unwrap();
        for name in ["lock", FILE] {
            fs::copy(here.join(name), there.join(name)).unwrap();
        }
        let copy = DataFolder::open(&there).unwrap();
        let other = copy.holder().unwrap();
        assert_ne!(other, id);
        assert_eq!(copy.holder().unwrap(), other);

        fs::write(there.join(FILE), "no number at all").unwrap();
        assert_ne!(copy.holder().unwrap(), other);
    }
}
