//! What a gateway is told.

#[cfg(any(test, feature = "fault-injection"))]
use std::net::SocketAddr;

use amt::gateway::Timing;

use crate::discovery;
use crate::memory::Memory;
use crate::name::RelayName;

/// What a gateway is told at the start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Relays to use before all others, the preferred ones first.
    pub relays: Vec<RelayName>,
    /// Whether the DNS is asked for the relays of the sources that are subscribed to (RFC 8777),
    /// and how. What is found for one source serves the others as well: whoever has flows of
    /// several sources, with relays of their own, starts a gateway for each; and whoever has flows of
    /// both address families and relays that serve only one of them, one for each family.
    pub dns: Option<discovery::Config>,
    /// Whether any relay near here may be asked for, when all others fail (RFC 7450, section 7.1).
    pub anycast: bool,
    /// Local UDP port to use where it is free, in place of one that the kernel chooses; of several
    /// gateways, the first gets it.
    pub port: Option<u16>,
    /// Where the gateway keeps what its next run needs.
    pub memory: Option<Memory>,
    /// The durations that it goes by. Names are looked up again after the pauses that failed relays
    /// have, which double up to 5 minutes.
    pub timing: Timing,
}

impl Default for Config {
    /// No relay but those that the DNS names.
    fn default() -> Self {
        Self {
            relays: Vec::new(),
            dns: Some(discovery::Config::default()),
            anycast: false,
            port: None,
            memory: None,
            timing: Timing::default(),
        }
    }
}

/// Protections that a gateway leaves out, for tests that must notice. All are on by default.
#[cfg(any(test, feature = "fault-injection"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Whether packets are taken from any sender, not from the relay alone.
    pub source_check_off: bool,
    /// Whether a new address that the relay sees this gateway at goes unnoticed.
    pub rebind_unnoticed: bool,
}

#[cfg(any(test, feature = "fault-injection"))]
impl Faults {
    /// Falsifies a datagram, and returns its falsified sender.
    pub(crate) fn falsify(
        self,
        from: SocketAddr,
        data: &mut [u8],
        relay: Option<SocketAddr>,
    ) -> SocketAddr {
        match data {
            [6, ..] if self.source_check_off => relay.unwrap_or(from),
            [4, flags, ..] if self.rebind_unnoticed => {
                // Without G, there is no address.
                *flags &= !1;
                from
            }
            _ => from,
        }
    }
}

/// A relay that the source of a flow announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Its address or name.
    pub host: String,
    /// Its UDP port.
    pub port: u16,
    /// Lower ones are tried first.
    pub priority: u8,
}
