//! Parsers of single values.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use service::values::{boolean, listen, scaled, times, whole};
use url::Host;

use super::{CONSOLE, Keep};

const KEEP_FORM: &str = "write how many updates to keep, for how long, or both: 100000, 30d or \
                         100000,30d; or `all`, or `default` for what holds for all channels";

/// Address of the source in enrolment links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicAddress {
    /// A name or an address.
    pub host: Host,
    /// `None` for the port that the source listens on.
    pub port: Option<u16>,
}

impl PublicAddress {
    /// Returns the default: this machine's loopback address.
    pub fn local() -> Self {
        let host = Host::Ipv4(Ipv4Addr::LOCALHOST);
        Self { host, port: None }
    }

    /// HOST:PORT, an IPv6 address in brackets; `listening` is the port unless another was given.
    pub fn with_port(&self, listening: u16) -> String {
        format!("{}:{}", self.host, self.port.unwrap_or(listening))
    }

    /// The host alone, an IPv6 address without brackets, as certificates have it.
    pub fn host_name(&self) -> String {
        let host = self.host.to_string();
        host.trim_matches(['[', ']']).to_owned()
    }
}

impl fmt::Display for PublicAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => self.host.fmt(f),
        }
    }
}

pub(super) fn public_address(text: &str) -> Result<PublicAddress, String> {
    let form = "is neither HOST nor HOST:PORT, for example feeds.example.org or 192.0.2.1:4433";
    let (host, port) = match (text.parse::<Ipv6Addr>(), text.rsplit_once(':')) {
        (Ok(ip), _) => (format!("[{ip}]"), None),
        // Otherwise, the colon is inside of an address in brackets.
        (_, Some((host, port))) if !port.contains(']') => (host.to_owned(), Some(port)),
        _ => (text.to_owned(), None),
    };
    let port = port.map(whole::<u16>(1..=65_535)).transpose();
    let port = port.map_err(|why| format!("{form}: the port {why}"))?;
    let host = Host::parse(&host).map_err(|why| format!("{form}: {why}"))?;
    Ok(PublicAddress { host, port })
}

/// A time between polls; a bare number is in seconds.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    times("50ms", "24h", true)(text)
}

/// A time that needs its unit: a bare number would be taken for a count as easily as for seconds.
///
/// # Errors
/// The text is none, or out of range.
pub fn age(text: &str) -> Result<Duration, String> {
    times("1m", "3650d", false)(text)
}

/// Deadline of a channel's updates: the time after which they expire; `None` for a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deadline(pub Option<Duration>);

impl Deadline {
    /// Returns the time in ms.
    pub fn millis(self) -> Option<u64> {
        self.0.map(|time| time.as_millis() as u64)
    }
}

/// Parses the deadline of a channel's updates: a time with its unit, or `none`.
///
/// # Errors
/// The text is none, or out of range.
pub fn deadline(text: &str) -> Result<Deadline, String> {
    match text.trim() {
        "none" => Ok(Deadline::default()),
        time => times("10ms", "24h", false)(time).map(|time| Deadline(Some(time))),
    }
}

/// Parses the retention of a channel: a number of updates, an age, or both with a comma between.
///
/// # Errors
/// The text is none of that.
pub fn keep(text: &str) -> Result<Keep, String> {
    let mut keep = Keep::default();
    if text.trim() == "default" {
        return Ok(keep);
    }
    for part in text.split(',').map(str::trim) {
        let wrong = |why: &str| format!("{part:?} {why}; {KEEP_FORM}");
        let age = |part| age(part).map_err(|why| wrong(&why));
        let twice = match part.parse() {
            _ if part == "all" => keep.count.replace(Keep::ALL).is_some(),
            Ok(0) => return Err(wrong("would keep nothing")),
            Ok(count) => keep.count.replace(count).is_some(),
            Err(_) => keep.age.replace(age(part)?).is_some(),
        };
        if twice {
            return Err(wrong("is the second of its kind"));
        }
    }
    Ok(keep)
}

/// Returns a parser of times in whole milliseconds.
pub(super) fn ms(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    let whole = whole::<u64>(range);
    move |text| whole(text).map(Duration::from_millis)
}

/// Parses a number of updates; `None` for 0.
pub(super) fn count(text: &str) -> Result<Option<u64>, String> {
    whole(0..=u64::MAX)(text).map(|count| Some(count).filter(|&count| count > 0))
}

/// Parses the console's address; `None` for no console.
pub(super) fn console(text: &str) -> Result<Option<SocketAddr>, String> {
    let wrong = |what| format!("{what}, and neither true nor false");
    match boolean(text) {
        Ok(true) => listen(CONSOLE, 0).map(Some),
        Ok(false) => Ok(None),
        Err(_) => listen(text, 9470).map(Some).map_err(wrong),
    }
}

/// A rate in bit/s.
///
/// # Errors
/// The text is none, or out of range.
pub fn rate(text: &str) -> Result<u64, String> {
    match scaled(text.trim_end().trim_end_matches("bit/s"), 1000.0) {
        // In range, so the conversion is exact up to the fraction of a bit.
        Some(bits @ 64e3..=100e9) => Ok(bits as u64),
        Some(_) => Err("is not within 64k and 100G".into()),
        None => Err("write a rate in bit/s such as 10M, 500k or 1G".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_public_address_has_its_reason() {
        let port = "the port is no whole number from 1 to 65535";
        for (text, why) in [("h:0", port), ("h:99999", port), ("", "empty host")] {
            let wrong = public_address(text).err().unwrap_or_default();
            assert!(wrong.contains(why), "{text}: {wrong}");
        }
    }

    #[test]
    fn the_console_is_a_boolean_or_an_address() {
        for (text, expected) in [("True\r", listen(CONSOLE, 0).ok()), (" OFF", None)] {
            assert_eq!(console(text), Ok(expected), "{text:?}");
        }
        let wrong = console("maybe").err().unwrap_or_default();
        assert!(wrong.contains("neither true nor false"), "{wrong}");
    }
}
