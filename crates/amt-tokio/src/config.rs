//! Configuration of a gateway.

#[cfg(any(test, feature = "fault-injection"))]
use std::net::SocketAddr;

use amt::gateway::Timing;

use crate::discovery;
use crate::memory::Memory;
use crate::name::RelayName;

/// Configuration of a gateway. Set single fields, and take the others from [`Config::default`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Relays to try before all others, the preferred ones first.
    pub relays: Vec<RelayName>,
    /// DNS settings for looking up the relays of subscribed sources (RFC 8777); `None` for no
    /// lookups. Relays found for one source also serve the others: a program with flows of several
    /// sources whose relays differ starts a gateway for each, and one whose relays serve only one
    /// of its two address families starts one for each family.
    pub dns: Option<discovery::Config>,
    /// Whether the anycast addresses are tried when all others fail (RFC 7450, section 7.1).
    pub anycast: bool,
    /// Preferred local UDP port, in place of one that the kernel chooses. Of several gateways, the
    /// first gets it.
    pub port: Option<u16>,
    /// State for the next run of the program.
    pub memory: Option<Memory>,
    /// Durations of the state machine. Names are looked up again after the pauses of failed relays,
    /// which double up to 5 minutes.
    pub timing: Timing,
}

impl Default for Config {
    /// Returns a configuration without relays other than those in the DNS.
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
                // Without the G flag, there is no address.
                *flags &= !1;
                from
            }
            _ => from,
        }
    }
}

/// A relay announced by the source of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Address or host name.
    pub host: String,
    /// UDP port.
    pub port: u16,
    /// Priority; relays with lower values are tried first.
    pub priority: u8,
}
