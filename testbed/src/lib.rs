//! Where flexfeed is put to the test: networks made of namespaces, a feed like lore's that grows on command, the services run in them, independent readers of what
//! they write, and the scenarios, demo and fault runner built from these.
//!
//! The library is made of threads and processes; the feed generator's server and the streams alone use tokio. `testbed/README.md` says how to run one scenario.

pub mod binaries;
pub mod delay;
pub mod delivery;
pub mod demo;
pub mod faults;
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
