//! Parsers of values that several programs have. Every error says what would be valid, and follows
//! a quotation of the text.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Longest name for people, in bytes: what a HELLO can carry.
pub const MAX_NAME: usize = 255;

const BROADCAST: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);

/// True or false, in the ways in which people write it.
///
/// # Errors
/// The text is neither.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" | "y" | "t" => Ok(true),
        "0" | "false" | "no" | "off" | "n" | "f" => Ok(false),
        _ => Err("is neither true nor false".into()),
    }
}

/// Parses an address to listen at, `:PORT` for all addresses; `port` is for the example. An IPv4
/// address may have brackets, too: templates put them around any address.
///
/// # Errors
/// The text is no address with a port.
pub fn listen(text: &str, port: u16) -> Result<SocketAddr, String> {
    let text = text.trim();
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let whole = match (text.strip_prefix(':'), bracketed) {
        // As it is written everywhere for all addresses.
        (Some(port), _) => format!("[::]:{port}"),
        (None, Some((ip, port))) if ip.parse::<Ipv4Addr>().is_ok() => format!("{ip}{port}"),
        _ => text.to_owned(),
    };
    whole.parse().map_err(|_| {
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

/// Returns a parser of whole numbers within `range`.
pub fn whole<T>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: TryFrom<u64>,
{
    move |text| {
        let number = text.trim().parse().ok();
        let number = number.filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| {
                let (least, most) = (range.start(), range.end());
                format!("is no whole number from {least} to {most}")
            })
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

/// Returns a number times its unit: `1.5M` is 1.5 times `unit("M")`.
pub fn scaled(text: &str, unit: impl FnOnce(&str) -> Option<f64>) -> Option<f64> {
    let text = text.trim();
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = text.strip_suffix(rest)?.parse().ok()?;
    Some(number * unit(rest.trim())?)
}

/// Returns a parser of a number of bytes from `least` on, with K, M or G for 1,024 and so on.
pub fn size(least: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let bytes = scaled(text, |unit| match unit {
            "" => Some(1.0),
            "k" | "K" => Some(1024.0),
            "m" | "M" => Some(1_048_576.0),
            "g" | "G" => Some(1_073_741_824.0),
            _ => None,
        });
        match bytes {
            // Below 2^53, so the conversion is exact up to the fraction of a byte.
            Some(bytes @ 1.0..9e15) if bytes as u64 >= least => Ok(bytes as u64),
            Some(1.0..9e15) => Err(format!("is less than {least}")),
            _ => Err("is no number of bytes, such as 1048576, 64M or 2G".to_owned()),
        }
    }
}

/// Returns a time, perhaps none at all; `bare` is the unit of a number without one, in seconds.
pub fn time(text: &str, bare: Option<f64>) -> Option<Duration> {
    let seconds = scaled(text, |unit| match unit {
        "" => bare,
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        "d" => Some(86_400.0),
        "w" => Some(7.0 * 86_400.0),
        _ => None,
    });
    Duration::try_from_secs_f64(seconds?).ok()
}

/// Returns a parser of durations from `least` to `most`; `bare` is the unit of a number without
/// one, in seconds.
pub fn times(
    least: &'static str,
    most: &'static str,
    bare: Option<f64>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let wrong = || "is no duration, such as 500ms, 10s, 5m, 12h or 7d".to_owned();
        let given = time(text, bare).ok_or_else(wrong)?;
        let fits = time(least, None) <= Some(given) && Some(given) <= time(most, None);
        fits.then_some(given)
            .ok_or_else(|| format!("is not within {least} and {most}"))
    }
}

/// A duration with its unit.
///
/// # Errors
/// The text is none, less than a millisecond, or longer than anything waits.
pub fn duration(text: &str) -> Result<Duration, String> {
    times("1ms", "36500d", None)(text)
}

/// The same, or a number of seconds without a unit.
///
/// # Errors
/// The text is neither, less than a millisecond, or longer than anything waits.
pub fn duration_or_seconds(text: &str) -> Result<Duration, String> {
    times("1ms", "36500d", Some(1.0))(text)
}

/// A duration as it would be written, to a tenth of a second.
pub fn shown_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ];
    let mut units = units.into_iter().filter(|_| ms > 0);
    match units.find(|(_, length)| ms.is_multiple_of(*length)) {
        Some((unit, length)) => format!("{}{unit}", ms / length),
        None if ms > 1000 => format!("{:.1}s", duration.as_secs_f64()),
        None if ms > 0 => format!("{ms}ms"),
        None => "0s".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn units() {
        let ms = |text| duration(text).map(|d| d.as_millis());
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms(" 10 s "), Ok(10_000));
        assert_eq!(ms("5m"), Ok(300_000));
        assert_eq!(ms("7d"), Ok(7 * 86_400_000));
        assert_eq!((ms("1.5s"), ms("2w")), (Ok(1500), Ok(14 * 86_400_000)));
        for wrong in [
            "",
            "10",
            "s",
            "0s",
            "1y",
            "-1s",
            "99999999999999999d",
            "0.5ms",
            "1.5.1s",
            ".s",
            "infs",
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
        assert_eq!((switch(" Yes "), switch("0")), (Ok(true), Ok(false)));
        assert!(switch("perhaps").is_err());
        assert_eq!(name(" a b "), Ok("a b".to_owned()));
        for wrong in ["", " ", "a\nb", &"x".repeat(256)] {
            assert!(name(wrong).is_err(), "{wrong:?}");
        }
        assert!(name(&machine_name("x")).is_ok());
        let format = |text| one_of(&[("text", 1), ("json", 2)])(text);
        assert_eq!(format(" json"), Ok(2));
        assert_eq!(format("xml"), Err("is neither text nor json".to_owned()));
    }
}
