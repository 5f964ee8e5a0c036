//! Relay hints: AMT relays that forward a flow, as FC_ANNOUNCE lists them (protocol.md section
//! 4.5).

use std::fmt;
use std::net::IpAddr;

use super::MAX_NAME;
use crate::wire::{BufMutExt, Reader, WireError, version_of};

/// The most relays that one FC_ANNOUNCE names.
pub const MAX_RELAYS: usize = 16;
const WHAT: &str = "FC_ANNOUNCE";

/// Where a relay is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RelayAddress {
    /// By its address.
    Ip(IpAddr),
    /// By its name, at most 255 bytes.
    Name(String),
}

/// An AMT relay announced to receivers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayHint {
    /// Lower ones are tried first; alike ones side by side.
    pub priority: u8,
    /// Where it is.
    pub address: RelayAddress,
    /// Its UDP port.
    pub port: u16,
}

impl fmt::Display for RelayHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            RelayAddress::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            RelayAddress::Ip(ip) => write!(f, "{ip}:{}", self.port),
            RelayAddress::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl RelayHint {
    /// Returns why it cannot be announced, if so.
    fn fault(&self) -> Option<&'static str> {
        let bad_address = match &self.address {
            RelayAddress::Ip(ip) => ip.is_unspecified() || ip.is_multicast(),
            RelayAddress::Name(name) => name.is_empty() || name.len() > MAX_NAME,
        };
        if bad_address {
            return Some("a relay without a unicast address or a name");
        }
        (self.port == 0).then_some("a relay with port 0")
    }

    /// Whether it can be announced: it has an address that is neither unspecified nor multicast or
    /// a name of 1 to 255 bytes, and a port.
    pub fn is_valid(&self) -> bool {
        self.fault().is_none()
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.push(self.priority);
        match &self.address {
            RelayAddress::Ip(address) => {
                out.push(version_of(*address));
                out.put_ip(*address);
            }
            RelayAddress::Name(name) => {
                out.push(0);
                out.put_prefixed(name.as_bytes());
            }
        }
        out.extend_from_slice(&self.port.to_be_bytes());
    }

    /// Appends the relays that a TLV's value lists.
    pub(super) fn read_list(r: &mut Reader<'_>, list: &mut Vec<Self>) -> Result<(), WireError> {
        while r.remaining() > 0 {
            if list.len() >= MAX_RELAYS {
                return Err(WireError::invalid(WHAT, "more than 16 relays"));
            }
            let priority = r.u8()?;
            let address = match r.u8()? {
                0 => RelayAddress::Name(r.text(MAX_NAME)?),
                version => RelayAddress::Ip(r.ip(version)?),
            };
            let hint = RelayHint {
                priority,
                address,
                port: r.u16()?,
            };
            if let Some(why) = hint.fault() {
                return Err(WireError::invalid(WHAT, why));
            }
            list.push(hint);
        }
        Ok(())
    }
}
