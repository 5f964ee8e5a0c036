//! Test environment of flexfeed: networks made of namespaces, a feed generator like lore, the
//! services run in them, independent readers of their output, and the scenarios, demo and fault
//! runner built from these.
//!
//! The library is made of threads and processes; the feed generator's server and the streams alone
//! use tokio. `testbed/README.md` explains how to run one scenario.

pub mod binaries;
pub mod delay;
pub mod delivery;
pub mod demo;
pub mod faults;
pub mod forger;
pub mod garbage;
pub mod http;
pub mod lab;
pub mod lore;
pub mod probing;
pub mod process;
pub mod pump;
pub mod readers;
pub mod run_dir;
pub mod scenario;
pub mod status;
pub mod stream;
pub mod tunnel;
pub mod until;
pub mod urgent;
pub mod waiting;
