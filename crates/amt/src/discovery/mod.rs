//! Which relays to try, and in what order (RFC 8777).
//!
//! A source may publish its relays in the DNS, as [`AmtRelay`] records under the reverse name of
//! its address ([`reverse_name`]). Whoever looks them up turns them into [`Found`] relays, and
//! [`order`] puts these among those that became known otherwise.

mod order;
mod record;

pub use order::{Found, anycast, order};
pub use record::{AmtRelay, RdataError, Relay, reverse_name};

/// The type of AMTRELAY records (RFC 8777, section 4.1).
pub const RECORD_TYPE: u16 = 260;
