//! Parsers of single values.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use flexicast_tokio::source::RatePolicy;
use service::values::{listen, number, switch, time, whole};

use super::{CONSOLE, Keep};

/// Longest name of a channel, in bytes: it is also a file name at the receivers, with endings.
const MAX_CHANNEL: usize = 100;

/// No channel's name: receivers have a file of their own that is called so.
const RESERVED: &str = "status";

/// Polls are at least this far apart: more often is of no use to anybody.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The longest farewell.
const MAX_DRAIN: Duration = Duration::from_secs(600);

/// Updates are kept at least as long as a poll may take, and at most for ten years.
const MIN_AGE: Duration = Duration::from_secs(60);
const MAX_AGE: Duration = Duration::from_secs(3650 * 86_400);

/// Beginning of a pin, by which receivers recognise the source's key.
const SHA256: &str = "sha256:";

const KEEP_FORM: &str = "write how many updates to keep, for how long, or both: 100000, 30d or \
                         100000,30d; or `all`, or `default` for what holds for all channels";

/// Lowest and highest rate in bit/s.
const MIN_RATE: f64 = 64e3;
const MAX_RATE: f64 = 100e9;

/// Address of the source in enrolment links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicAddress {
    /// A name or an address.
    pub host: url::Host,
    /// `None` for the port that the source listens on.
    pub port: Option<u16>,
}

impl PublicAddress {
    /// Returns the default: this machine's loopback address.
    pub fn local() -> Self {
        Self {
            host: url::Host::Ipv4(Ipv4Addr::LOCALHOST),
            port: None,
        }
    }

    /// HOST:PORT, an IPv6 address in brackets; `listening` is the port unless another was given.
    pub fn with_port(&self, listening: u16) -> String {
        format!("{}:{}", self.host, self.port.unwrap_or(listening))
    }

    /// The host alone, an IPv6 address without brackets, as certificates have it.
    pub fn host_name(&self) -> String {
        match &self.host {
            url::Host::Domain(name) => name.clone(),
            url::Host::Ipv4(ip) => ip.to_string(),
            url::Host::Ipv6(ip) => ip.to_string(),
        }
    }

    fn ip(&self) -> Option<IpAddr> {
        match self.host {
            url::Host::Domain(_) => None,
            url::Host::Ipv4(ip) => Some(ip.into()),
            url::Host::Ipv6(ip) => Some(ip.into()),
        }
    }
}

impl fmt::Display for PublicAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => write!(f, "{}", self.host),
        }
    }
}

pub(super) fn public_address(text: &str) -> Result<PublicAddress, String> {
    let wrong = |why: String| {
        format!("{why}; write HOST or HOST:PORT, for example feeds.example.org or 192.0.2.1:4433")
    };
    if let Ok(ip) = text.parse::<Ipv6Addr>() {
        return Ok(PublicAddress {
            host: url::Host::Ipv6(ip),
            port: None,
        });
    }
    let (host, port) = match text.rsplit_once(':') {
        // The colon is inside of an address in brackets.
        Some((_, rest)) if rest.contains(']') => (text, None),
        Some((host, port)) => {
            let port: u16 = port
                .parse()
                .map_err(|_| wrong(format!("{port:?} is not a port")))?;
            if port == 0 {
                return Err(wrong("port 0 cannot be reached".into()));
            }
            (host, Some(port))
        }
        None => (text, None),
    };
    let host = url::Host::parse(host).map_err(|error| wrong(format!("{host:?}: {error}")))?;
    Ok(PublicAddress { host, port })
}

/// Returns a warning about a public address that will probably not work.
pub(super) fn reachability(given: Option<&PublicAddress>, listen: SocketAddr) -> Option<String> {
    let Some(address) = given else {
        return Some(
            "--public-address is not given: the enrolment link says 127.0.0.1, which works for \
             receivers on this machine only"
                .into(),
        );
    };
    let is_local_name = matches!(&address.host, url::Host::Domain(name)
        if name == "localhost" || name.ends_with(".localhost"));
    let ip = address.ip();
    if is_local_name || ip.is_some_and(|ip| ip.is_loopback()) {
        Some(format!(
            "--public-address {address} is this machine's own: the enrolment link works for \
             receivers on this machine only"
        ))
    } else if let Some(ip) = ip
        && !netio::is_routable(ip)
    {
        Some(format!(
            "--public-address {address} is not reachable from the Internet: the enrolment link \
             works for receivers in the same network only"
        ))
    } else if listen.ip().is_loopback() {
        Some(format!(
            "--listen {listen} takes connections from this machine only, but the enrolment link \
             says {address}"
        ))
    } else {
        None
    }
}

/// A channel's name, which is a file name at the receivers.
///
/// # Errors
/// The text cannot be a channel's name.
pub fn channel(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > MAX_CHANNEL {
        return Err(format!(
            "a channel's name has 1 to {MAX_CHANNEL} characters"
        ));
    }
    if let Some(odd) = text.chars().find(|&c| !allowed(c)) {
        return Err(format!(
            "{odd:?} cannot be in a channel's name: use letters, digits, '-', '_' and '.'"
        ));
    }
    if text.starts_with('.') {
        return Err("a channel's name cannot begin with a dot".into());
    }
    if text == RESERVED {
        return Err(format!(
            "no channel can be called {RESERVED}: receivers keep their own status in \
             {RESERVED}.json, where the channel's feed would be"
        ));
    }
    Ok(text.to_owned())
}

/// A time between polls; a bare number is in seconds.
///
/// # Errors
/// The text is none, or out of range.
pub fn interval(text: &str) -> Result<Duration, String> {
    let time = time(text, Some(1.0))
        .ok_or_else(|| "write a time such as 20, 0.5, 500ms, 20s, 5m or 1h".to_owned())?;
    if (MIN_INTERVAL..=MAX_INTERVAL).contains(&time) {
        Ok(time)
    } else {
        Err("it must be between 50ms and 24h".into())
    }
}

pub(super) fn drain_time(text: &str) -> Result<Duration, String> {
    match time(text, Some(1.0)) {
        Some(time) if time <= MAX_DRAIN => Ok(time),
        Some(_) => Err("it must be at most 10m".into()),
        None => Err("write a time such as 0, 5s or 1m".into()),
    }
}

/// A time that needs its unit: a bare number would be taken for a count as easily as for seconds.
///
/// # Errors
/// The text is none, or out of range.
pub fn age(text: &str) -> Result<Duration, String> {
    match time(text, None) {
        Some(time) if (MIN_AGE..=MAX_AGE).contains(&time) => Ok(time),
        Some(_) => Err("it must be between 1m and 3650d".into()),
        None => Err("write a time with its unit, such as 90m, 12h, 30d or 8w".into()),
    }
}

/// Parses the retention of a channel: a number of updates, an age, or both with a comma between.
///
/// # Errors
/// The text is none of that.
pub fn keep(text: &str) -> Result<Keep, String> {
    let mut keep = Keep::default();
    match text.trim() {
        "default" => return Ok(keep),
        "all" => {
            keep.count = Some(Keep::ALL);
            return Ok(keep);
        }
        _ => {}
    }
    for part in text.split(',').map(str::trim) {
        let twice = if part.chars().all(|c| c.is_ascii_digit()) {
            let count: u64 = part
                .parse()
                .ok()
                .filter(|&count| count > 0)
                .ok_or_else(|| KEEP_FORM.to_owned())?;
            keep.count.replace(count).is_some()
        } else {
            let age = age(part).map_err(|why| format!("{why}; {KEEP_FORM}"))?;
            keep.age.replace(age).is_some()
        };
        if twice {
            return Err(KEEP_FORM.into());
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
    match switch(text) {
        Ok(true) => listen(CONSOLE, 0).map(Some),
        Ok(false) => Ok(None),
        Err(_) => listen(text, 9470)
            .map(Some)
            .map_err(|what| format!("{what}, and neither true nor false")),
    }
}

pub(super) fn database_url(text: &str) -> Result<String, String> {
    let checked = store::check_url(text).map_err(|error| error.to_string());
    checked.map(|()| text.to_owned())
}

pub(super) fn contact(text: &str) -> Result<String, String> {
    feed::fetch::check_contact(text).map(|()| text.to_owned())
}

/// Returns a pin as a link has it.
pub fn show_pin(pin: &[u8; 32]) -> String {
    format!("{SHA256}{}", BASE64URL_NOPAD.encode(pin))
}

/// Parses a pin as a link has it.
pub(super) fn pin(text: &str) -> Result<[u8; 32], String> {
    let encoded = text.strip_prefix(SHA256).unwrap_or_default();
    let bytes = BASE64URL_NOPAD.decode(encoded.as_bytes()).ok();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| {
            "write a pin as enrolment links have it: sha256: and 43 characters, the SHA-256 of the \
         key's SubjectPublicKeyInfo in base64url"
                .to_owned()
        })
}

/// Policy of rate control.
pub fn rate_policy(text: &str) -> Result<RatePolicy, String> {
    match text.trim() {
        "tcp-friendly" => Ok(RatePolicy::TcpFriendly),
        "cubic-min" => Ok(RatePolicy::CubicMin),
        "fixed" => Ok(RatePolicy::Fixed),
        _ => Err("write tcp-friendly, cubic-min or fixed".to_owned()),
    }
}

/// A rate in bit/s.
///
/// # Errors
/// The text is none, or out of range.
pub fn rate(text: &str) -> Result<u64, String> {
    let wrong = || "write a rate in bit/s such as 10M, 500k or 1G".to_owned();
    let (value, unit) = number(text.trim()).ok_or_else(wrong)?;
    let unit = unit.strip_suffix("bit/s").unwrap_or(unit);
    let factor = match unit.trim() {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        _ => return Err(wrong()),
    };
    let bits = value * factor;
    if (MIN_RATE..=MAX_RATE).contains(&bits) {
        // In range, so the conversion is exact up to the fraction of a bit.
        Ok(bits as u64)
    } else {
        Err("it must be between 64k and 100G".into())
    }
}
