//! Authentication and authorisation.
//!
//! `caller` identifies the caller, by a cookie or a token; `rights` are scopes and roles; `origin`
//! rejects requests of other sites' pages; `client` finds the client's address. `password` and
//! `secret` are the credentials of people and programs, `limit` bounds the attempts; `trail` tracks
//! whether a request was audited.

pub mod caller;
pub mod client;
pub mod cookie;
pub mod limit;
pub mod origin;
pub mod password;
pub mod rights;
pub mod secret;
pub(crate) mod trail;
