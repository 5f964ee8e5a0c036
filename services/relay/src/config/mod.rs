//! What the relay is told to do: by flags, by the environment, by a TOML file, in that order.
//!
//! `table` names every setting once: its flag, its variable and its key come from there, and so do
//! the help and the test of who wins. A `layer` is what one of the three says, as text and with where
//! it stands; `resolve` takes each setting from the first layer that has it and gives it its type. A
//! default is in no layer: it can win over nothing.

pub mod check;
mod file;
pub mod layer;
mod resolve;
pub mod table;
mod values;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

pub use layer::{Layer, Origin};
pub use resolve::{Loaded, http_address, load};
pub use values::{Listen, LogFormat};

use crate::engine::Receive;

/// How long gateways are served after the wish to stop, if nobody says.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// Everything that a relay is told, with its defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where gateways reach it.
    pub listen: Vec<Listen>,
    /// The interface with the multicast, by name or address; `None` leaves it to the routing table.
    pub interface: Option<String>,
    /// How multicast is received.
    pub receive: Receive,
    /// How gateways are treated.
    pub relay: amt::relay::Config,
    /// How long they are served after the wish to stop.
    pub drain_time: Duration,
    /// Where it answers HTTP; `None` for nowhere.
    pub http: Option<HttpSettings>,
    /// Form of the log.
    pub log_format: LogFormat,
    /// What is logged; `None` leaves it to `RUST_LOG`.
    pub log_level: Option<String>,
}

/// Where HTTP is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpSettings {
    /// The address and TCP port.
    pub addr: SocketAddr,
    /// Somebody asked for it: that it is taken is then no small matter.
    pub explicit: bool,
}

/// What is wrong with the settings: all of it, a line each, in words for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.join("\n"))]
pub struct Problems(pub Vec<String>);
