//! What the relay is told to do: by flags, by the environment, by a TOML file, in that order.
//!
//! How that works is the same for all programs: see `service::settings`. `table` names every
//! setting once, `resolve` gives each its type.

pub mod check;
mod resolve;
pub mod table;
mod values;

#[cfg(test)]
mod tests;

use std::time::Duration;

use service::listen::HttpSettings;
use service::logging::LogSettings;

pub use resolve::{http_address, load};
pub use table::TABLE;
pub use values::Listen;

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
    /// The log.
    pub log: LogSettings,
}

/// Settings, and what is worth saying about them.
pub type Loaded = service::settings::Loaded<Settings>;
