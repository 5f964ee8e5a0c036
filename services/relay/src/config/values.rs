//! Texts to typed values; every error says what would be right.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use amt::relay::{GatewayAddress, Prefix};

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object in each line.
    Json,
}

/// Where gateways reach the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// An address.
    At(SocketAddr),
    /// All addresses of both families.
    All(u16),
}

pub fn log_format(text: &str) -> Result<LogFormat, String> {
    match text.trim() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("is neither text nor json".into()),
    }
}

pub fn listen(text: &str) -> Result<Listen, String> {
    let text = text.trim();
    let wrong = || {
        "is no address with a port, such as 192.0.2.1:2268, [2001:db8::1]:2268 or :2268 (all \
         addresses of this machine)"
            .to_owned()
    };
    match text.strip_prefix(':') {
        Some(port) => port.parse().map(Listen::All).map_err(|_| wrong()),
        None => text.parse().map(Listen::At).map_err(|_| wrong()),
    }
}

/// Where HTTP is answered; `None` for `off`.
pub fn http(text: &str) -> Result<Option<SocketAddr>, String> {
    let text = text.trim();
    if text == "off" {
        return Ok(None);
    }
    // As it is written everywhere for all addresses.
    let whole = match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => text.to_owned(),
    };
    whole.parse().map(Some).map_err(|_| {
        "is no address with a port, such as 127.0.0.1:8091, [::]:8091 or :8091 (all addresses of \
         this machine), and not off"
            .to_owned()
    })
}

/// An interface's name or address, which only the running relay looks up.
pub fn interface(text: &str) -> Result<String, String> {
    let text = text.trim();
    let ip: Option<IpAddr> = text.parse().ok();
    let no_interface = ip.is_some_and(|ip| ip.is_multicast() || ip.is_unspecified());
    // The longest name that Linux allows has 15 bytes.
    let no_name = ip.is_none() && (text.len() > 15 || text.contains(['/', ' ', ':']));
    if no_interface || no_name {
        return Err(
            "is neither an interface's name, such as eth0, nor one of its addresses".into(),
        );
    }
    Ok(text.to_owned())
}

pub fn address(text: &str) -> Result<IpAddr, String> {
    let ip: Option<IpAddr> = text.trim().parse().ok();
    ip.filter(|ip| !ip.is_multicast() && !ip.is_unspecified())
        .ok_or_else(|| "is no address of a host, such as 192.0.2.7 or 2001:db8::7".to_owned())
}

pub fn prefix(text: &str) -> Result<Prefix, String> {
    text.parse()
}

pub fn port(text: &str) -> Result<u16, String> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err("is no UDP port from 1 to 65535".into()),
        Ok(port) => Ok(port),
    }
}

pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("is neither true nor false".into()),
    }
}

/// A whole number from 1 to a million.
pub fn count(text: &str) -> Result<u32, String> {
    const MOST: u32 = 1_000_000;
    match text.trim().parse() {
        Ok(number @ 1..=MOST) => Ok(number),
        _ => Err(format!("is no whole number from 1 to {MOST}")),
    }
}

pub fn mtu(text: &str) -> Result<u16, String> {
    match text.trim().parse() {
        Ok(bytes @ 576..) => Ok(bytes),
        _ => Err("is no number of bytes from 576 to 65535".into()),
    }
}

/// How often gateways are asked: what a Query can say.
pub fn query_interval(text: &str) -> Result<Duration, String> {
    // The largest value of the code (RFC 3376, section 4.1.7).
    const MOST: Duration = Duration::from_secs(31_744);
    let interval = duration(text)?;
    if (Duration::from_secs(1)..=MOST).contains(&interval) {
        Ok(interval)
    } else {
        Err(format!("is not within 1s and {}s", MOST.as_secs()))
    }
}

/// A duration: in seconds, or with its unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (digits, unit) = text.split_at(digits);
    let ms = match unit.trim() {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    let number = digits.parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(ms))
        .filter(|ms| *ms > 0)
        .map(Duration::from_millis)
        .ok_or_else(|| "is no duration, such as 500ms, 10s, 5m or 1h".to_owned())
}

pub fn gateway_address(text: &str) -> Result<GatewayAddress, String> {
    match text.trim() {
        "off" => Ok(GatewayAddress::Off),
        "until-unanswered" => Ok(GatewayAddress::UntilUnanswered),
        "always" => Ok(GatewayAddress::Always),
        _ => Err("is neither off nor until-unanswered nor always".into()),
    }
}
