//! Enrolment links: all that a receiver needs, in one line.

use std::fs;
use std::path::Path;

use url::Url;
use x509_parser::pem::Pem;

use super::Failure;
use crate::config::{Config, PublicAddress, show_pin};

/// The longest enrolment link that receivers read, in bytes.
pub const MAX_LINK: usize = 4096;

const CERT: &str = "cert.pem";
const SAVED: &str = "enrolment-link";

/// The link with this token. `address` is HOST:PORT.
pub fn link(token: &str, address: &str, pins: &[[u8; 32]], channels: &[String]) -> String {
    let mut link = format!("flexfeed://{token}@{address}");
    let pins = pins.iter().map(|pin| format!("pin={}", show_pin(pin)));
    let channels = channels.iter().map(|channel| format!("ch={channel}"));
    for (at, part) in pins.chain(channels).enumerate() {
        link.push(if at == 0 { '?' } else { '&' });
        link.push_str(&part);
    }
    link
}

/// Where receivers find the source, and how they recognise it.
#[derive(Debug)]
pub(super) struct Whereabouts {
    pub address: String,
    pub pins: Vec<[u8; 32]>,
    /// What to say beside the link.
    pub doubt: Option<String>,
}

/// From the settings, and from what the source has left in its data folder.
pub(super) fn whereabouts(config: &Config) -> Result<Whereabouts, Failure> {
    let (address, doubt) = match (&config.public_address, saved_address(&config.data)) {
        (Some(address), _) => (address.with_port(config.listen.port()), None),
        (None, Some(saved)) => (saved, None),
        (None, None) => {
            let local = PublicAddress::local().with_port(config.listen.port());
            let doubt = "--public-address is not given: the link says 127.0.0.1, which works for \
                         receivers on this machine only";
            (local, Some(doubt.to_owned()))
        }
    };
    let mut pins = vec![present_pin(config)?];
    if let Some(next) = config.next_pin
        && !pins.contains(&next)
    {
        pins.push(next);
    }
    Ok(Whereabouts {
        address,
        pins,
        doubt,
    })
}

/// What the source's own first link says.
fn saved_address(data: &Path) -> Option<String> {
    let text = fs::read_to_string(data.join(SAVED)).ok()?;
    let link = Url::parse(text.trim()).ok()?;
    let host = link.host_str()?;
    Some(format!("{host}:{}", link.port()?))
}

fn present_pin(config: &Config) -> Result<[u8; 32], Failure> {
    let path = match &config.certificate {
        Some(own) => own.cert.clone(),
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
