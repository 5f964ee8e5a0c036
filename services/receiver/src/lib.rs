//! The flexfeed receiver: connects to a source by an enrolment link and keeps feed files up to
//! date.
//!
//! `cli`, `config` and `link` say what to do, `data` is the folder to do it in, with the receiver's
//! `credential` and whether that was let in (`admission`). `run` joins the transport
//! (`flexicast-tokio`, by `transport`) to the outputs: `receive` is the loop between the two, `deliver` the order
//! of one batch's steps, `sink` the files of a channel (with `cursor` and `delivery_log`), `journal`
//! what happened, from which `http` tells it to clients and `hooks` to webhooks and commands;
//! `board` and `status` what can be seen of it all, `notify` what systemd is told, `memory` what the
//! allocator keeps, `doctor` what is in the way.

pub mod admission;
pub mod board;
pub mod cli;
pub mod config;
pub mod credential;
pub mod cursor;
pub mod data;
pub mod dead_letters;
pub mod deliver;
pub mod delivery_log;
pub mod doctor;
pub mod durable;
pub mod feeds;
pub mod hooks;
pub mod http;
pub mod journal;
pub mod latency;
pub mod link;
pub mod memory;
pub mod narrate;
pub mod notify;
pub mod receive;
pub mod run;
#[cfg(feature = "sabotage")]
pub mod sabotage;
pub mod sink;
pub mod status;
pub mod transport;
