//! The key that signs updates: a file of 32 secret bytes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use signing::Signer;
use zeroize::Zeroizing;

use super::{DataFolder, PRIVATE, check_private, random, read};

/// File of the key's seed in the data folder (RFC 8032 section 5.1.5).
const FILE: &str = "signing.key";

/// Returns the file of the key: the operator's own, or the one in the data folder.
pub fn file(data: &Path, own: Option<&Path>) -> PathBuf {
    own.map_or_else(|| data.join(FILE), Path::to_owned)
}

/// Returns the key, which is made in the folder if there is none and no file of the operator's.
///
/// # Errors
/// The file is missing or damaged, or cannot be read or written; the text names it and a remedy.
pub fn load_or_make(folder: &DataFolder, own: Option<&Path>) -> Result<Signer> {
    let path = file(&folder.path, own);
    if let Some(signer) = load(&path)? {
        return Ok(signer);
    }
    if own.is_some() {
        return Err(anyhow!(
            "there is no {} (--signing-key): put the key file of the other sources there; for the \
             first source, make one with `openssl rand -out FILE 32`",
            path.display()
        ));
    }
    let (signer, seed) = generate()?;
    folder.write(FILE, &*seed, PRIVATE)?;
    Ok(signer)
}

/// Returns the key in a file; `None` if there is no file.
///
/// # Errors
/// The file is damaged or cannot be read.
pub fn load(path: &Path) -> Result<Option<Signer>> {
    let Some(stored) = read(path)?.map(Zeroizing::new) else {
        return Ok(None);
    };
    check_private(path);
    let seed = stored.as_slice().try_into().map_err(|_| {
        anyhow!(
            "{} is {} bytes long instead of 32, and no signing key: restore it from a backup; if \
             it is lost, `flexfeed-source key rotate --lost` makes a new one",
            path.display(),
            stored.len()
        )
    })?;
    let signer = Signer::from_seed(&seed).with_context(|| path.display().to_string())?;
    Ok(Some(signer))
}

/// Returns a new key with its seed.
///
/// # Errors
/// The system has no random bytes.
pub fn generate() -> Result<(Signer, Zeroizing<[u8; 32]>)> {
    let seed = Zeroizing::new(random()?);
    let signer = Signer::from_seed(&seed).context("cannot make a signing key")?;
    Ok((signer, seed))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_an_own_one_never() {
        let outside = tempfile::tempdir().unwrap();
        let path = outside.path().join("data");
        let folder = DataFolder::open(&path).unwrap();
        let made = load_or_make(&folder, None).unwrap().key();
        assert_eq!(load_or_make(&folder, None).unwrap().key(), made);
        let mode = fs::metadata(folder.file(FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);

        let own = outside.path().join("own.key");
        let missing = load_or_make(&folder, Some(&own)).unwrap_err().to_string();
        assert!(missing.contains("own.key") && missing.contains("openssl rand"));
        assert!(!own.exists());
        fs::write(&own, [7; 32]).unwrap();
        let key = load_or_make(&folder, Some(&own)).unwrap().key();
        assert_eq!(key, Signer::from_seed(&[7; 32]).unwrap().key());
        fs::write(&own, [7; 31]).unwrap();
        let damaged = load_or_make(&folder, Some(&own)).unwrap_err().to_string();
        assert!(damaged.contains("own.key is 31 bytes long"), "{damaged}");
    }
}
