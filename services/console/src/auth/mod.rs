//! Who asks, and what they may do.
//!
//! `caller` finds out who it is, by a cookie or a token; `rights` says what they may; `origin` that a
//! browser does not ask for another site; `client` from where. `password` and `secret` are what people
//! and programs show, `limit` how often they may try; `trail` keeps what of that was noted.

pub mod caller;
pub mod client;
pub mod cookie;
pub mod limit;
pub mod origin;
pub mod password;
pub mod rights;
pub mod secret;
pub(crate) mod trail;
