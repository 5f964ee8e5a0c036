//! Settings of the relay: from flags, the environment and a TOML file, in that order.
//!
//! The mechanism is common to all programs: see `service::settings`. `table` declares every setting
//! once, `resolve` gives each its type.

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

/// Default time for which gateways are served after a stop request.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// All settings of a relay, with defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Addresses at which gateways reach it.
    pub listen: Vec<Listen>,
    /// Interface with the multicast, by name or address; `None` for that of the routing table.
    pub interface: Option<String>,
    /// Reception of multicast.
    pub receive: Receive,
    /// Settings of the protocol.
    pub relay: amt::relay::Config,
    /// Time for which gateways are served after a stop request.
    pub drain_time: Duration,
    /// HTTP address; `None` for no HTTP.
    pub http: Option<HttpSettings>,
    /// Log.
    pub log: LogSettings,
}

/// Settings with their origins and warnings.
pub type Loaded = service::settings::Loaded<Settings>;
