//! The flexfeed AMT relay: brings multicast to networks without it (RFC 7450).
//!
//! `engine` is the data path, in a thread of its own. Around it are `config` (settings), `run`
//! (start and stop), `http` (status, health, metrics), `status` (the command that shows them) and
//! `notify` (systemd).

pub mod cli;
pub mod config;
pub mod engine;
#[cfg(feature = "fault-injection")]
mod faults;
pub mod http;
mod notify;
pub mod run;
pub mod status;
