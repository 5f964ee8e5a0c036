//! The flexfeed receiver: connects to a source by an enrolment link and keeps feed files up to
//! date.
//!
//! `cli` and `config` are its settings, with the enrolment `link`; `data` is the data folder, with
//! the receiver's `credential`, its `admission`, and the source's last `addresses`. `run` connects
//! the transport (`flexicast-tokio`, through `transport`) to the outputs: `receive` is the loop
//! between the two, `deliver` the order of steps for one batch, `sink` the files of a channel (with
//! `cursor` and `delivery_log`), `journal` the log from which `http` serves clients and `hooks`
//! serves webhooks and commands. `board` and `status` are the observable state, `notify` the
//! systemd notifications, `memory` the allocator's limits, `doctor` the diagnosis, `verify` the
//! proof of a journal.

pub mod addresses;
pub mod admission;
pub mod board;
pub mod cli;
pub mod config;
pub mod connection_log;
pub mod credential;
pub mod cursor;
pub mod data;
pub mod dead_letters;
pub mod deliver;
pub mod delivery_log;
pub mod doctor;
pub mod durable;
#[cfg(feature = "fault-injection")]
mod faults;
pub mod feeds;
pub mod hooks;
pub mod http;
pub mod journal;
pub mod latency;
pub mod live;
pub mod memory;
pub mod messages;
pub mod notify;
pub mod receive;
pub mod run;
pub mod sink;
pub mod status;
pub mod transport;
pub mod verify;

pub use service::link;
