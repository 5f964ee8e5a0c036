//! How a relay is: as data, as text, live.

pub mod command;
pub mod model;
mod view;
pub mod watch;
