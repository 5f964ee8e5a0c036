//! Parsers of values that several programs have. Every error says what would be valid, and follows
//! a quotation of the text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// Longest name for people, in bytes: what a HELLO can carry.
pub const MAX_NAME: usize = 255;

const BROADCAST: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);

/// Parses an address to listen at, `:PORT` for all addresses; `port` is for the example. An IPv4
/// address may have brackets, too: templates put them around any address.
///
/// # Errors
/// The text is no address with a port.
pub fn listen(text: &str, port: u16) -> Result<SocketAddr, String> {
    let text = text.trim();
    // As it is written everywhere for all addresses.
    let all = text.strip_prefix(':').map(|port| format!("[::]:{port}"));
    let bare = text.strip_prefix('[').map(|text| text.replacen(']', "", 1));
    let address = all.as_deref().unwrap_or(text).parse().ok();
    let address = address.or_else(|| bare?.parse().ok());
    address.ok_or_else(|| {
        format!(
            "is no address with a port, such as 127.0.0.1:{port}, [::]:{port} or :{port} (all \
             addresses of this machine)"
        )
    })
}

/// Parses the address of a host, or of one of its interfaces.
///
/// # Errors
/// The text is no address, or one that no host has.
pub fn host(text: &str) -> Result<IpAddr, String> {
    let ip: Option<IpAddr> = text.trim().parse().ok();
    let no_host = |ip: &IpAddr| ip.is_multicast() || ip.is_unspecified() || *ip == BROADCAST;
    ip.filter(|ip| !no_host(ip))
        .ok_or_else(|| "is no IP address of a host, such as 192.0.2.7 or 2001:db8::7".to_owned())
}

/// Addresses of a host, one of each family at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostAddresses {
    /// Address for IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Address for IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl HostAddresses {
    /// Returns the address of the family of `peer`.
    pub fn of_family(&self, peer: SocketAddr) -> Option<IpAddr> {
        match peer {
            SocketAddr::V4(_) => self.v4.map(IpAddr::from),
            SocketAddr::V6(_) => self.v6.map(IpAddr::from),
        }
    }
}

impl FromStr for HostAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut addresses = Self::default();
        for part in text.split(',') {
            let twice = match host(part)? {
                IpAddr::V4(ip) => addresses.v4.replace(ip).is_some(),
                IpAddr::V6(ip) => addresses.v6.replace(ip).is_some(),
            };
            if twice {
                return Err("has two addresses of one family; leave one of them out".to_owned());
            }
        }
        Ok(addresses)
    }
}

/// Returns a parser of whole numbers within `range`.
pub fn whole<T>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: TryFrom<u64>,
{
    move |text| {
        let number = text.trim().parse().ok().filter(|n| range.contains(n));
        let number = number.and_then(|number| T::try_from(number).ok());
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| format!("is no whole number from {least} to {most}"))
    }
}

/// Parses a boolean, in any case of letters.
///
/// # Errors
/// The text is none.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "t" | "y" | "1" => Ok(true),
        "false" | "no" | "off" | "f" | "n" | "0" => Ok(false),
        _ => Err("is neither true nor false".to_owned()),
    }
}

/// Returns a parser of one of the words, for what it means.
pub fn one_of<T: Copy>(words: &'static [(&str, T)]) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let named = words.iter().find(|(word, _)| *word == text.trim());
        named.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            format!("is neither {}", words.join(" nor "))
        })
    }
}

/// A name for people.
///
/// # Errors
/// The text is empty, longer than [`MAX_NAME`], or has control characters.
pub fn name(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("is no name".to_owned()),
        name if name.len() > MAX_NAME || name.contains(char::is_control) => Err(format!(
            "a name has at most {MAX_NAME} bytes and no control characters"
        )),
        name => Ok(name.to_owned()),
    }
}

/// Returns this machine's name, or `default` if it has none.
pub fn machine_name(default: &str) -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = text.ok().and_then(|text| name(&text).ok());
    name.unwrap_or_else(|| default.to_owned())
}

/// Returns a number that K, M or G after it multiplies with a power of `base`.
pub fn scaled(text: &str, base: f64) -> Option<f64> {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    let mut powers = ["", "k", "m", "g"].into_iter().zip(0..);
    let (_, power) = powers.find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()))?;
    Some(number * base.powi(power))
}

/// Returns a parser of a number of bytes from `least` on, with K, M or G for 1,024 and so on.
pub fn size(least: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| match scaled(text, 1024.0) {
        // Below 2^53, so the conversion is exact up to the fraction of a byte.
        Some(bytes @ 1.0..9e15) if bytes as u64 >= least => Ok(bytes as u64),
        Some(1.0..9e15) => Err(format!("is less than {least}")),
        _ => Err("is no number of bytes, such as 1048576, 64M or 2G".to_owned()),
    }
}

/// Returns a time, perhaps none at all; where `seconds` is true, a number without a unit is one of
/// seconds. Months and years are refused: `1M` is as easily a million.
pub fn time(text: &str, seconds: bool) -> Option<Duration> {
    let is_in = |unit: &&str| text.replace("day", "").contains(unit);
    match text.trim().parse().ok().filter(|_| seconds) {
        Some(number) => Duration::try_from_secs_f64(number).ok(),
        None if ["M", "mo", "y"].iter().any(is_in) => None,
        None => humantime::parse_duration(text).ok(),
    }
}

/// Returns a parser of durations from `least` to `most`; see [`time`].
pub fn times(
    least: &'static str,
    most: &'static str,
    seconds: bool,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let wrong = || "is no duration in ms, s, m, h, d or w, such as 500ms, 10s or 7d".to_owned();
        let given = time(text, seconds).ok_or_else(wrong)?;
        let fits = time(least, false) <= Some(given) && Some(given) <= time(most, false);
        fits.then_some(given)
            .ok_or_else(|| format!("is not within {least} and {most}"))
    }
}

/// Returns a duration as it would be written: 0s, 500ms, 1.5s, 90s, 36h, 7d.
pub fn shown_duration(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_nanos()) {
        (0, 0) => "0s".to_owned(),
        (seconds, 0) if seconds % 86_400 == 0 => format!("{}d", seconds / 86_400),
        (seconds, 0) if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        (seconds, 0) if seconds % 60 == 0 => format!("{}m", seconds / 60),
        _ => format!("{duration:?}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn units() {
        let duration = times("1ms", "36500d", false);
        let duration_or_seconds = times("1ms", "36500d", true);
        let ms = |text| duration(text).map(|d| d.as_millis());
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms(" 10 s "), Ok(10_000));
        assert_eq!(ms("5m"), Ok(300_000));
        assert_eq!(ms("7d"), Ok(7 * 86_400_000));
        assert_eq!(ms("1day 2 days"), ms("3d"));
        assert_eq!((ms("1.5s"), ms("2w")), (Ok(1500), Ok(14 * 86_400_000)));
        for wrong in [
            "",
            "10",
            "s",
            "0s",
            "1x",
            "-1s",
            "99999999999999999d",
            "0.5ms",
            "1.5.1s",
            ".s",
            "infs",
            "1M",
            "1y",
            "2months",
            "1d 1year",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for text in ["500ms", "10s", "90s", "5m", "12h", "36h", "7d"] {
            assert_eq!(shown_duration(duration(text).unwrap()), text);
        }
        assert_eq!(duration_or_seconds(" 10 "), Ok(Duration::from_secs(10)));
        assert_eq!(duration_or_seconds("10ms"), Ok(Duration::from_millis(10)));
        for wrong in ["", "0", "-1", "18446744073709551615"] {
            assert!(duration_or_seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(size(1)("1048576"), Ok(1 << 20));
        assert_eq!(size(1)("64M"), Ok(64 << 20));
        assert_eq!(size(4096)("4k"), Ok(4096));
        assert_eq!(size(4097)("4k"), Err("is less than 4097".to_owned()));
        assert_eq!(size(1)("2 g"), Ok(2 << 30));
        for wrong in ["", "M", "0", "1T", "99999999999999G", "ä"] {
            assert!(size(1)(wrong).is_err(), "{wrong}");
        }
        let digit = |text| whole::<u32>(1..=9)(text);
        assert!(digit("0").is_err() && digit("x").is_err() && digit("10").is_err());
        assert_eq!(digit("7"), Ok(7));
        assert!(whole::<u8>(0..=u64::MAX)("256").is_err());
    }

    #[test]
    fn addresses() {
        let http = |text| {
            let http = crate::listen::http(8080)(text)?;
            Ok::<_, String>(http.map(|http| http.addr))
        };
        assert_eq!(http("off"), Ok(None));
        assert_eq!(http(":80"), Ok(Some("[::]:80".parse().unwrap())));
        assert_eq!(http("[::1]:80"), Ok(Some("[::1]:80".parse().unwrap())));
        let bracketed = http("[192.0.2.1]:80");
        assert_eq!(bracketed, Ok(Some("192.0.2.1:80".parse().unwrap())));
        for wrong in [
            "",
            "8080",
            "localhost:8080",
            "1.2.3.4",
            "[1.2.3.4]",
            "[1.2.3.4",
            "[localhost]:80",
            "1.2.3.4]:80",
        ] {
            assert!(http(wrong).is_err(), "{wrong}");
        }
        let what = http("x").unwrap_err();
        assert!(what.contains(":8080") && what.contains("not off"), "{what}");
        assert!(!listen("off", 1).unwrap_err().contains("not off"));
        for wrong in ["eth0", "ff3e::1", "0.0.0.0", "255.255.255.255", ""] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
        assert_eq!(host(" 2001:db8::7"), Ok("2001:db8::7".parse().unwrap()));
    }

    #[test]
    fn words() {
        assert_eq!(name(" a b "), Ok("a b".to_owned()));
        for wrong in ["", " ", "a\nb", &"x".repeat(256)] {
            assert!(name(wrong).is_err(), "{wrong:?}");
        }
        assert!(name(&machine_name("x")).is_ok());
        let format = |text| one_of(&[("text", 1), ("json", 2)])(text);
        assert_eq!((boolean("true\r"), boolean("OFF")), (Ok(true), Ok(false)));
        assert_eq!(boolean(""), Err("is neither true nor false".to_owned()));
        assert_eq!(format(" json"), Ok(2));
        assert_eq!(format("xml"), Err("is neither text nor json".to_owned()));
    }
}
