//! Texts to the typed values that only a relay has; every error says what would be right.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use amt::relay::{GatewayAddress, Prefix};
use service::values;

/// Address at which gateways reach the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// An address.
    At(SocketAddr),
    /// All addresses of both families.
    All(u16),
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

/// A whole number from 1 to a million.
pub fn count(text: &str) -> Result<u32, String> {
    const MOST: u32 = 1_000_000;
    values::count(text, MOST)
}

pub fn mtu(text: &str) -> Result<u16, String> {
    match text.trim().parse() {
        Ok(bytes @ 576..) => Ok(bytes),
        _ => Err("is no number of bytes from 576 to 65535".into()),
    }
}

/// Parses the interval of Queries: one that a Query can express.
pub fn query_interval(text: &str) -> Result<Duration, String> {
    // The largest value of the code (RFC 3376, section 4.1.7).
    const MOST: Duration = Duration::from_secs(31_744);
    let interval = values::duration_or_seconds(text)?;
    if (Duration::from_secs(1)..=MOST).contains(&interval) {
        Ok(interval)
    } else {
        Err(format!("is not within 1s and {}s", MOST.as_secs()))
    }
}

pub fn gateway_address(text: &str) -> Result<GatewayAddress, String> {
    match text.trim() {
        "off" => Ok(GatewayAddress::Off),
        "until-unanswered" => Ok(GatewayAddress::UntilUnanswered),
        "always" => Ok(GatewayAddress::Always),
        _ => Err("is neither off nor until-unanswered nor always".into()),
    }
}
