//! Discovery of relays and the order of attempts (RFC 8777).
//!
//! A source may publish its relays in the DNS, as [`AmtRelay`] records under the reverse name of
//! its address ([`reverse_name`]). [`order`] merges them with relays known from elsewhere, all as
//! [`RankedRelay`].

mod order;
mod record;

pub use order::{RankedRelay, anycast, order};
pub use record::{AmtRelay, RdataError, RelayTarget, reverse_name};

/// DNS type of AMTRELAY records (RFC 8777, section 4.1).
pub const RECORD_TYPE: u16 = 260;
