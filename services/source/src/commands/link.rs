//! Enrolment links: all that a receiver needs, in one line.

use std::fs;
use std::io;
use std::path::Path;

use service::link::Pin;
use url::Url;
use x509_parser::pem::Pem;

use super::Failure;
use crate::config::{Config, PublicAddress};
use crate::data::PrivateFile;
use crate::data::enrolment::{FILE, token_of};
use crate::data::identity::CERT;
use crate::record::address_warning;

/// Returns the token and the link in a file; `None` if there is no file.
pub(super) fn kept(file: &Path) -> Result<Option<(String, String)>, Failure> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let shown = file.display();
            return Err(Failure::other(format_args!("cannot read {shown}: {error}")));
        }
    };
    let link = text.trim();
    let token = token_of(link).ok_or_else(|| {
        Failure::other(format_args!(
            "{} holds something else than an enrolment link: name another file, or remove it",
            file.display()
        ))
    })?;
    Ok(Some((token, link.to_owned())))
}

/// Writes a link to a file that only its owner can read; readers find all of it, or the previous
/// content.
pub(super) fn keep(file: &Path, link: &str) -> Result<(), Failure> {
    let written = PrivateFile::write(file, format!("{link}\n").as_bytes());
    written.and_then(PrivateFile::replace).map_err(|error| {
        let shown = file.display();
        Failure::other(format_args!(
            "cannot put the link into {shown}: {error}; its token was made: see token list"
        ))
    })
}

/// Address and certificate pins of the source.
#[derive(Debug)]
pub(super) struct SourceAddress {
    pub address: String,
    pub pins: Vec<[u8; 32]>,
    /// Warning shown with the link.
    pub doubt: Option<String>,
}

/// Returns them from the settings and the source's data folder.
pub(super) fn source_address(config: &Config) -> Result<SourceAddress, Failure> {
    let (address, doubt) = match (&config.public_address, saved_address(&config.data)) {
        (Some(address), _) => (address.with_port(config.listen.port()), None),
        (None, Some(saved)) => (saved, None),
        (None, None) => {
            let local = PublicAddress::local().with_port(config.listen.port());
            (local, address_warning(None))
        }
    };
    let mut pins = vec![present_pin(config)?];
    if let Some(Pin(next)) = config.next_pin
        && !pins.contains(&next)
    {
        pins.push(next);
    }
    Ok(SourceAddress {
        address,
        pins,
        doubt,
    })
}

/// Returns the address in the source's own first link.
fn saved_address(data: &Path) -> Option<String> {
    let text = fs::read_to_string(data.join(FILE)).ok()?;
    let link = Url::parse(text.trim()).ok()?;
    let host = link.host_str()?;
    Some(format!("{host}:{}", link.port()?))
}

fn present_pin(config: &Config) -> Result<[u8; 32], Failure> {
    let path = match config.cert.as_deref() {
        Some(own) => own.to_owned(),
        None => config.data.join(CERT),
    };
    let shown = path.display();
    let pem = fs::read(&path).map_err(|error| {
        Failure::other(format_args!(
            "cannot read the certificate {shown}, which the link has to name: {error}; start the \
             source once, which makes one, or give --cert and --key"
        ))
    })?;
    let unusable = || Failure::other(format_args!("{shown} is not a usable PEM certificate"));
    let first = Pem::iter_from_buffer(&pem).next();
    let pem = first.and_then(Result::ok).ok_or_else(unusable)?;
    flexicast_tokio::spki_pin(&pem.contents).ok_or_else(unusable)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_link_is_kept_for_its_owner_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("link");
        assert_eq!(kept(&file).unwrap(), None);
        for link in ["flexfeed://T@h:1?ch=lore", "flexfeed://U@h:2?ch=lore"] {
            keep(&file, link).unwrap();
            let (token, found) = kept(&file).unwrap().unwrap();
            assert_eq!((token.as_str(), found.as_str()), (&link[11..12], link));
            let mode = fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(&file, "something else").unwrap();
        assert!(kept(&file).unwrap_err().to_string().contains("something"));
        let nowhere = folder.path().join("no/link");
        let error = keep(&nowhere, "flexfeed://T@h:1").unwrap_err().to_string();
        assert!(error.contains("no/link") && error.contains("token list"));
    }
}
