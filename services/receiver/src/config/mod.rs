//! Settings of the receiver: from flags, the environment and a TOML file, in that order.
//!
//! The mechanism is common to all programs: see `service::settings`. `table` declares every setting
//! once, and the documentation is made from it; `resolve` gives each its type, `hooks` those of
//! webhooks and commands.

pub mod check;
mod hooks;
mod resolve;
pub mod table;
mod values;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use flexicast_tokio::receiver::{Relays, Verify};
use service::listen::HttpSettings;
use service::logging::LogSettings;

pub use hooks::{Exec, Secret, Webhook};
pub use resolve::{data_folder, http_address, load, load_or};
pub use table::TABLE;
pub use values::shown_url;

use crate::link::Link;

/// Settings of a receiver, with their defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The enrolment link.
    pub link: Link,
    /// Folder of the outputs and of the receiver's state.
    pub data: PathBuf,
    /// Name shown to the source's operator.
    pub name: String,
    /// HTTP address; `None` for no HTTP.
    pub http: Option<HttpSettings>,
    /// Whether a JSON Feed file is kept beside each Atom file.
    pub json: bool,
    /// Most entries that each feed file keeps.
    pub keep_entries: usize,
    /// The shortest time between two writes of a channel's feed files.
    pub file_interval: Duration,
    /// Webhooks that updates are posted to.
    pub webhooks: Vec<Webhook>,
    /// Commands run for updates.
    pub exec: Vec<Exec>,
    /// Delivery log, with a line for each update.
    pub delivery_log: Option<PathBuf>,
    /// An address of the interface to join groups on; `None` leaves it to the routing table.
    pub interface: Option<IpAddr>,
    /// Whether groups are joined at all.
    pub multicast: bool,
    /// Whether copies of the flow's packets are taken.
    pub replicate: bool,
    /// AMT relays; `None` to use none.
    pub amt: Option<Relays>,
    /// A folder for qlog files.
    pub qlog: Option<PathBuf>,
    /// The log.
    pub log: LogSettings,
    /// Authentication of the source.
    pub verify: Verify,
    /// Bounds on the journal of each channel.
    pub journal: JournalSettings,
    /// Number of a channel's last updates to start with where there is no cursor; `None` leaves it
    /// to the source.
    pub history: Option<u64>,
}

/// The bounds of each channel's journal; what is older than the stricter one goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalSettings {
    /// The most updates.
    pub updates: usize,
    /// The most bytes.
    pub bytes: u64,
}

/// Settings, and what is worth saying about them.
pub type Loaded = service::settings::Loaded<Settings>;

#[cfg(test)]
mod tests;
