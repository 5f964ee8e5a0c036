//! AMT relays announced to receivers.

use amt_tokio::RelayName;
use flexicast::control::{MAX_RELAYS, RelayAddress, RelayHint};

const ANYCAST: &str = "receivers use the anycast addresses by themselves; write HOST, HOST:PORT or \
                       HOST:PORT=HOST:PORT, the second for this machine: relay.example.org";

/// A relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    /// Address for receivers.
    pub public: RelayName,
    /// Address for this machine's health checks.
    pub asked: RelayName,
    /// Number of relays preferred to it; receivers share those with the same number.
    pub preference: u8,
}

impl Relay {
    /// Returns the announcement for receivers.
    pub fn hint(&self) -> Option<RelayHint> {
        let (address, port) = match &self.public {
            RelayName::Address(at) => (RelayAddress::Ip(at.ip()), at.port()),
            RelayName::Host { host, port } => (RelayAddress::Name(host.clone()), *port),
            RelayName::Anycast => return None,
        };
        Some(RelayHint {
            priority: self.preference,
            address,
            port,
        })
    }

    /// Returns a warning about an address that will probably not work.
    pub(super) fn doubt(&self) -> Option<String> {
        match &self.public {
            RelayName::Address(at) if !netio::is_routable(at.ip()) => Some(format!(
                "--relay {}: receivers elsewhere on the Internet cannot reach {}; give the relay's \
                 public address, and behind = the one at which this machine reaches it",
                self.public,
                at.ip()
            )),
            _ => None,
        }
    }
}

/// Relays as they are written: a list with commas, the preferred ones first, and `|` between those
/// that are alike.
///
/// # Errors
/// A relay cannot be announced.
pub(super) fn relays(text: &str) -> Result<Vec<Relay>, String> {
    let name = |text: &str| match text.parse::<RelayName>() {
        Ok(RelayName::Anycast) => Err(ANYCAST.to_owned()),
        name => name.map_err(|error| error.to_string()),
    };
    let mut relays: Vec<Relay> = Vec::new();
    for (alike, preference) in text.split(',').zip(0..=u8::MAX) {
        for part in alike.split('|').map(str::trim) {
            let (public, asked) = part.split_once('=').unwrap_or((part, part));
            let (public, asked) = (name(public)?, name(asked)?);
            if relays.iter().any(|known| known.public == public) {
                return Err(format!("the relay {public} is given twice"));
            }
            relays.push(Relay {
                public,
                asked,
                preference,
            });
        }
    }
    match relays.len() > MAX_RELAYS {
        true => Err(format!("receivers take {MAX_RELAYS} relays at most")),
        false => Ok(relays),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn lists_are_read_and_become_hints_in_their_order() {
        let all =
            relays("relay.example.org, 203.0.113.7:7000=127.0.0.1:2268,[2001:db8::7]").unwrap();
        let hints: Vec<_> = all.iter().map(|r| r.hint().unwrap()).collect();
        let texts: Vec<_> = hints.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "relay.example.org:2268",
                "203.0.113.7:7000",
                "[2001:db8::7]:2268"
            ]
        );
        let order: Vec<_> = hints.iter().map(|hint| hint.priority).collect();
        assert_eq!(order, [0, 1, 2]);
        assert!(hints.iter().all(RelayHint::is_valid));
        assert_eq!(all[1].asked, "127.0.0.1:2268".parse().unwrap());
        assert_eq!(all[0].asked, all[0].public);
    }

    #[test]
    fn relays_that_are_alike_have_one_priority() {
        let all = relays("a.example|b.example=127.0.0.1, c.example | d.example,e.example").unwrap();
        let hints: Vec<_> = all.iter().map(|r| r.hint().unwrap()).collect();
        let order: Vec<_> = hints.iter().map(|hint| hint.priority).collect();
        assert_eq!(order, [0, 0, 1, 1, 2]);
        assert_eq!(all[1].asked, "127.0.0.1".parse().unwrap());
        assert_eq!(hints[3].to_string(), "d.example:2268");
        for text in ["a.example|", "|a.example", "a.example|a.example", "a||b"] {
            assert!(relays(text).is_err(), "{text}");
        }
    }

    #[test]
    fn unusable_addresses_are_refused_or_warned_about() {
        for text in [
            "",
            "a b",
            "anycast",
            "x:0",
            "a,a",
            "224.0.0.1",
            "a=",
            "a,,b",
        ] {
            assert!(relays(text).is_err(), "{text}");
        }
        assert!(relays("anycast").unwrap_err().contains("write HOST"));
        let many: Vec<_> = (0..=MAX_RELAYS).map(|n| format!("r{n}.example")).collect();
        assert!(relays(&many.join(",")).unwrap_err().contains("16"));
        let doubt = |text: &str| relays(text).unwrap()[0].doubt();
        assert!(doubt("10.0.0.7").unwrap().contains("10.0.0.7"));
        assert_eq!(doubt("1.1.1.1=10.0.0.7"), None);
        assert_eq!(doubt("relay.example.org"), None);
    }
}
