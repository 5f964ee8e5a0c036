//! Parsers of values that several programs have. Every error says what would be valid, and follows
//! a quotation of the text.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Longest name for people, in bytes: what a HELLO can carry.
pub const MAX_NAME: usize = 255;

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
    // As it is written everywhere for all addresses.
    let whole = match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => without_brackets(text),
    };
    whole.parse().map_err(|_| {
        format!(
            "is no address with a port, such as 127.0.0.1:{port}, [::]:{port} or :{port} (all \
             addresses of this machine)"
        )
    })
}

/// An address and port without the brackets around it, if it is one of IPv4.
fn without_brackets(text: &str) -> String {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match bracketed {
        Some((ip, rest)) if ip.parse::<Ipv4Addr>().is_ok() => format!("{ip}{rest}"),
        _ => text.to_owned(),
    }
}

/// The same; `None` for `off`.
///
/// # Errors
/// The text is neither.
pub fn listen_or_off(text: &str, port: u16) -> Result<Option<SocketAddr>, String> {
    match text.trim() {
        "off" => Ok(None),
        text => match listen(text, port) {
            Ok(address) => Ok(Some(address)),
            Err(what) => Err(format!("{what}, and not off")),
        },
    }
}

/// Returns a parser of whole numbers within `range`.
pub fn whole<T>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: TryFrom<u64>,
{
    move |text| {
        let number = text
            .trim()
            .parse()
            .ok()
            .filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| {
                let (least, most) = (range.start(), range.end());
                match *most {
                    u64::MAX => format!("is no whole number from {least} on"),
                    _ => format!("is no whole number from {least} to {most}"),
                }
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
#[must_use]
pub fn machine_name(default: &str) -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = text.ok().and_then(|text| name(&text).ok());
    name.unwrap_or_else(|| default.to_owned())
}

/// A number of bytes, with K, M or G for 1,024 and so on.
///
/// # Errors
/// The text is none.
pub fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1_u64),
    };
    let bytes = digits.trim().parse::<u64>().ok();
    bytes
        .and_then(|number| number.checked_mul(unit))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "is no number of bytes, such as 1048576, 64M or 2G".to_owned())
}

/// Splits a number from its unit: `1.5M` is (1.5, "M").
#[must_use]
pub fn number(text: &str) -> Option<(f64, &str)> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let digits = text.strip_suffix(rest)?;
    Some((digits.parse().ok()?, rest.trim()))
}

/// Returns a time, perhaps none at all; `bare` is the unit of a number without one, in seconds.
#[must_use]
pub fn time(text: &str, bare: Option<f64>) -> Option<Duration> {
    let (value, unit) = number(text.trim())?;
    let unit = match unit {
        "" => bare?,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "w" => 7.0 * 86_400.0,
        _ => return None,
    };
    let time = Duration::try_from_secs_f64(value * unit).ok()?;
    // Far below what a point in time can hold.
    u64::try_from(time.as_millis()).ok().map(|_| time)
}

fn some_time(text: &str, bare: Option<f64>) -> Result<Duration, String> {
    time(text, bare)
        .filter(|time| time.as_millis() > 0)
        .ok_or_else(|| "is no duration, such as 500ms, 10s, 5m, 12h or 7d".to_owned())
}

/// A duration with its unit.
///
/// # Errors
/// The text is none, or less than a millisecond.
pub fn duration(text: &str) -> Result<Duration, String> {
    some_time(text, None)
}

/// The same, or a number of seconds without a unit.
///
/// # Errors
/// The text is neither, or less than a millisecond.
pub fn duration_or_seconds(text: &str) -> Result<Duration, String> {
    some_time(text, Some(1.0))
}

/// A duration as it would be written.
#[must_use]
pub fn shown_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ];
    let unit = units
        .into_iter()
        .find(|(_, length)| ms > 0 && ms.is_multiple_of(*length));
    match unit {
        Some((unit, length)) => format!("{}{unit}", ms / length),
        None => format!("{ms}ms"),
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
        assert_eq!(size("1048576"), Ok(1 << 20));
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("2 g"), Ok(2 << 30));
        for wrong in ["", "M", "0", "1T", "99999999999999G", "ä"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        let digit = |text| whole::<u32>(1..=9)(text);
        assert!(digit("0").is_err() && digit("x").is_err() && digit("10").is_err());
        assert_eq!(digit("7"), Ok(7));
        assert!(whole::<u8>(0..=u64::MAX)("256").is_err());
    }

    #[test]
    fn addresses() {
        let http = |text| listen_or_off(text, 8080);
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
