//! What all programs of flexfeed do in the same way where people and browsers meet them.
//!
//! - [`ask`]: a page of a program that answers HTTP here; [`health`]: the command made of that.
//! - [`environment`]: variables that look like settings and are meant for somebody else.
//! - [`host`]: which names a site without passwords answers to.
//! - [`nearest`]: what somebody meant who mistyped a name.
//! - [`server`]: HTTP with bounds on what clients can use up; [`places`]: how many there is room for.
//! - [`peer_text`]: text that others wrote, made fit for a log line or a terminal.

pub mod ask;
pub mod environment;
pub mod health;
pub mod host;
pub mod nearest;
pub mod peer_text;
pub mod places;
pub mod server;
