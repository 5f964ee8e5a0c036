//! Status of a relay: as data, as text, live.

pub mod command;
pub mod model;
mod view;
pub mod watch;
