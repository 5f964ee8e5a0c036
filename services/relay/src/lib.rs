//! The flexfeed AMT relay: brings multicast to networks without it (RFC 7450).
//!
//! `engine` is the data path, a thread of its own; everything else is around it: `config` (what it is
//! told), `run` (start and end), `http` (status, health, metrics), `status` (the command that shows
//! them), `notify` (systemd).

pub mod cli;
pub mod config;
pub mod engine;
#[cfg(feature = "fault-injection")]
mod faults;
pub mod http;
mod notify;
pub mod run;
pub mod status;
