//! ADDRESSES: where else receivers reach the source (protocol.md section 4.11).

use std::net::SocketAddr;

use crate::wire::{BufMutExt, Reader, WireError, version_of};

/// The most addresses that one ADDRESSES names.
pub const MAX_SOURCE_ADDRESSES: usize = 8;
const WHAT: &str = "ADDRESSES";
/// The address is about to go.
const LEAVING: u8 = 0x01;

/// An address of the source's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceAddress {
    /// Address and UDP port that receivers connect to.
    pub at: SocketAddr,
    /// Whether it is about to go: receivers that use it move to another one.
    pub leaving: bool,
}

impl SourceAddress {
    /// Whether it can be announced: it is neither unspecified nor multicast, and has a port.
    pub fn is_valid(&self) -> bool {
        let ip = self.at.ip();
        !ip.is_unspecified() && !ip.is_multicast() && self.at.port() != 0
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(if self.leaving { LEAVING } else { 0 });
        out.push(version_of(self.at.ip()));
        out.put_ip(self.at.ip());
        out.extend_from_slice(&self.at.port().to_be_bytes());
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let flags = r.u8()?;
        let version = r.u8()?;
        let ip = r.ip(version)?;
        let address = SourceAddress {
            at: SocketAddr::new(ip, r.u16()?),
            leaving: flags & LEAVING != 0,
        };
        match address.is_valid() {
            true => Ok(address),
            false => Err(WireError::invalid(
                WHAT,
                "not a unicast address with a port",
            )),
        }
    }
}

/// Appends the body of ADDRESSES.
pub(super) fn put(addresses: &[SourceAddress], out: &mut Vec<u8>) {
    out.put_varint(addresses.len() as u64);
    addresses.iter().for_each(|address| address.put(out));
}

/// Reads the body of ADDRESSES.
pub(super) fn read(r: &mut Reader<'_>) -> Result<Vec<SourceAddress>, WireError> {
    let count = super::hello::count(r, MAX_SOURCE_ADDRESSES, WHAT)?;
    (0..count).map(|_| SourceAddress::read(r)).collect()
}
