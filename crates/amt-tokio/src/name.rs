//! Names of relays.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use amt::PORT;

/// Longest name of a host, in bytes (RFC 1035, section 2.3.4).
const MAX_HOST: usize = 255;

/// A configured relay: `HOST[:PORT]`, `ADDRESS[:PORT]` or `anycast`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RelayName {
    /// An address.
    Address(SocketAddr),
    /// A host name, which is looked up each time that a relay is needed.
    Host {
        /// The name.
        host: String,
        /// The UDP port.
        port: u16,
    },
    /// The anycast addresses of Relay Discovery (RFC 7450, section 7.1).
    Anycast,
}

/// Error in the name of a relay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} names no AMT relay: {why}; write HOST, HOST:PORT, an address, [IPV6]:PORT, or \
     `anycast`"
)]
pub struct ParseRelayNameError {
    text: String,
    why: &'static str,
}

impl RelayName {
    /// Creates a name from a host or address and a port.
    ///
    /// # Errors
    /// The host is neither, or the port is 0.
    pub fn new(host: &str, port: u16) -> Result<Self, ParseRelayNameError> {
        let bad = |why| ParseRelayNameError {
            text: format!("{host}:{port}"),
            why,
        };
        if port == 0 {
            return Err(bad("there is no port 0"));
        }
        if let Ok(ip) = host.parse::<IpAddr>() {
            if ip.is_unspecified() || ip.is_multicast() {
                return Err(bad("a relay has a unicast address"));
            }
            return Ok(RelayName::Address(SocketAddr::new(ip.to_canonical(), port)));
        }
        let part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if host.is_empty() || host.len() > MAX_HOST || !host.chars().all(part) {
            return Err(bad("that is neither an address nor a name of a host"));
        }
        // No top-level domain is a number: this is a mistyped address.
        if host
            .rsplit('.')
            .next()
            .is_some_and(|last| last.parse::<u64>().is_ok())
        {
            return Err(bad("that is no address"));
        }
        Ok(RelayName::Host {
            host: host.to_owned(),
            port,
        })
    }
}

impl FromStr for RelayName {
    type Err = ParseRelayNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("anycast") {
            return Ok(RelayName::Anycast);
        }
        let bad = |why| ParseRelayNameError {
            text: text.to_owned(),
            why,
        };
        let named = |host: &str, port: &str| {
            let port = port
                .parse()
                .map_err(|_| bad("the port is no number of 1 to 65535"))?;
            RelayName::new(host, port)
        };
        if let Some(rest) = text.strip_prefix('[') {
            let (host, port) = rest.split_once(']').ok_or_else(|| bad("a ] is missing"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(bad("only an IPv6 address may be in brackets"));
            }
            return match port.strip_prefix(':') {
                Some(port) => named(host, port),
                None if port.is_empty() => RelayName::new(host, PORT),
                None => Err(bad("only :PORT may follow the ]")),
            };
        }
        if text.parse::<IpAddr>().is_ok() {
            return RelayName::new(text, PORT);
        }
        match text.split_once(':') {
            Some((host, port)) => named(host, port),
            None => RelayName::new(text, PORT),
        }
    }
}

impl fmt::Display for RelayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RelayName::Address(address) => address.fmt(f),
            RelayName::Host { host, port } => write!(f, "{host}:{port}"),
            RelayName::Anycast => f.write_str("anycast"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn all_forms_are_read_and_written_back() {
        for (text, written) in [
            ("relay.example", "relay.example:2268"),
            ("relay.example:7000", "relay.example:7000"),
            ("192.0.2.1", "192.0.2.1:2268"),
            ("192.0.2.1:7000", "192.0.2.1:7000"),
            ("2001:db8::1", "[2001:db8::1]:2268"),
            ("[2001:db8::1]", "[2001:db8::1]:2268"),
            ("[2001:db8::1]:7000", "[2001:db8::1]:7000"),
            ("[::ffff:192.0.2.1]:7000", "192.0.2.1:7000"),
            (" Anycast ", "anycast"),
            ("relay", "relay:2268"),
        ] {
            let name: RelayName = text.parse().unwrap();
            assert_eq!(name.to_string(), written);
            assert_eq!(written.parse(), Ok(name), "{written}");
        }
    }

    #[test]
    fn invalid_relay_names_are_rejected_with_a_reason() {
        for (text, why) in [
            ("", "neither an address nor a name"),
            ("relay.example:", "port"),
            ("relay.example:0", "port 0"),
            ("relay.example:70000", "1 to 65535"),
            ("192.0.2.300", "no address"),
            ("192.0.2.300:2268", "no address"),
            ("[192.0.2.1]:1", "IPv6"),
            ("[2001:db8::1", "]"),
            ("[2001:db8::1]7000", ":PORT"),
            ("0.0.0.0", "unicast"),
            ("ff02::1", "unicast"),
            ("a b", "neither an address nor a name"),
            ("http://relay.example", "1 to 65535"),
        ] {
            let error = text.parse::<RelayName>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(RelayName::new(&"a".repeat(256), 1).is_err());
    }
}
