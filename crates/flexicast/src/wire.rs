//! Common parts of all codecs: the error, and the field types of RFC 9000.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use octets::Octets;

/// Bytes of a peer that break the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("{what}: the bytes end too early")]
    Truncated {
        /// The frame or structure that was being read.
        what: &'static str,
    },
    /// A field has a value that it must not have.
    #[error("{what}: {why}")]
    Invalid {
        /// The frame or structure that was being read.
        what: &'static str,
        /// The problem.
        why: &'static str,
    },
    /// A frame is longer than this end accepts.
    #[error("{what}: {len} bytes, more than the {max} accepted")]
    TooLong {
        /// The frame or structure that was being read.
        what: &'static str,
        /// The length that it claims, in bytes.
        len: u64,
        /// The most that is accepted, in bytes.
        max: u64,
    },
}

impl WireError {
    pub(crate) fn invalid(what: &'static str, why: &'static str) -> Self {
        WireError::Invalid { what, why }
    }
}

/// A reader that names what it reads when the bytes run out.
pub(crate) struct Reader<'a> {
    octets: Octets<'a>,
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Reader {
            octets: Octets::with_slice(bytes),
            what,
        }
    }

    fn truncated(&self) -> WireError {
        WireError::Truncated { what: self.what }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.octets.cap()
    }

    pub(crate) fn offset(&self) -> usize {
        self.octets.off()
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        self.octets.get_u8().map_err(|_| self.truncated())
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        self.octets.get_u16().map_err(|_| self.truncated())
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.octets.get_u64().map_err(|_| self.truncated())
    }

    /// A variable-length integer (RFC 9000 section 16).
    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        self.octets.get_varint().map_err(|_| self.truncated())
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let bytes = self.octets.get_bytes(len).map_err(|_| self.truncated())?;
        Ok(bytes.buf())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// Bytes after a varint length of at most `max`.
    pub(crate) fn prefixed(&mut self, max: usize) -> Result<&'a [u8], WireError> {
        let len = self.varint()?;
        if len > max as u64 {
            return Err(WireError::TooLong {
                what: self.what,
                len,
                max: max as u64,
            });
        }
        self.bytes(len as usize)
    }

    /// UTF-8 text after a varint length of at most `max` bytes.
    pub(crate) fn text(&mut self, max: usize) -> Result<String, WireError> {
        let what = self.what;
        let bytes = self.prefixed(max)?;
        String::from_utf8(bytes.to_vec())
            .map_err(|_| WireError::invalid(what, "text that is not UTF-8"))
    }

    /// An address of an IP version.
    pub(crate) fn ip(&mut self, version: u8) -> Result<IpAddr, WireError> {
        match version {
            4 => Ok(Ipv4Addr::from(self.array::<4>()?).into()),
            6 => Ok(Ipv6Addr::from(self.array::<16>()?).into()),
            _ => Err(WireError::invalid(
                self.what,
                "an IP version other than 4 and 6",
            )),
        }
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        let len = self.remaining();
        self.bytes(len).unwrap_or(&[])
    }
}

/// The IP version of an address.
pub(crate) fn version_of(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 4 } else { 6 }
}

/// The bytes that `value` takes as a variable-length integer.
pub(crate) fn varint_len(value: u64) -> usize {
    octets::varint_len(value)
}

/// The largest value of a variable-length integer (RFC 9000 section 16).
pub(crate) const VARINT_MAX: u64 = (1 << 62) - 1;

/// Appending of the field types to a vector.
pub(crate) trait BufMutExt {
    fn put_varint(&mut self, value: u64);
    fn put_prefixed(&mut self, bytes: &[u8]);
    fn put_ip(&mut self, ip: IpAddr);
}

impl BufMutExt for Vec<u8> {
    fn put_varint(&mut self, value: u64) {
        // The two highest bits are the length's logarithm. Each length is a constant for its copy.
        let value = value.min(VARINT_MAX);
        match varint_len(value) {
            1 => self.push(value as u8),
            2 => self.extend_from_slice(&(value as u16 | 1 << 14).to_be_bytes()),
            4 => self.extend_from_slice(&(value as u32 | 2 << 30).to_be_bytes()),
            _ => self.extend_from_slice(&(value | 3 << 62).to_be_bytes()),
        }
    }

    fn put_prefixed(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }
    fn put_ip(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => self.extend_from_slice(&ip.octets()),
        }
    }
}
