//! What the receiver is told to do: by flags, by the environment, by a TOML file, in that order.
//!
//! `table` names every setting once: its flag, its variable and its key come from there, and so do
//! the help, the documentation and the test of who wins. A `layer` is what one of the three says, as
//! text and with where it stands; `resolve` takes each setting from the first layer that has it and
//! gives it its type. A default is in no layer: it can win over nothing.

pub mod check;
mod file;
mod hooks;
pub mod layer;
mod resolve;
pub mod table;
mod values;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use flexicast_tokio::receiver::{Relays, Verify};
use thiserror::Error;

pub use hooks::{Exec, Secret, Webhook};
pub use layer::{Layer, Origin};
pub use resolve::{Loaded, data_folder, http_address, load, load_or};
pub use values::{LogFormat, shown_url};

use crate::link::Link;

/// Everything that a receiver is told, with its defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The enrolment link.
    pub link: Link,
    /// Folder of the outputs and of the receiver's state.
    pub data: PathBuf,
    /// What the source's operator sees this receiver as.
    pub name: String,
    /// Where it answers HTTP; `None` for nowhere.
    pub http: Option<HttpSettings>,
    /// Whether a JSON Feed file is kept beside each Atom file.
    pub json: bool,
    /// To whom updates are posted.
    pub webhooks: Vec<Webhook>,
    /// What is run for updates.
    pub exec: Vec<Exec>,
    /// Where a line is written for each update.
    pub delivery_log: Option<PathBuf>,
    /// An address of the interface to join groups on; `None` leaves it to the routing table.
    pub interface: Option<IpAddr>,
    /// Whether groups are joined at all.
    pub multicast: bool,
    /// Whether copies of the flow's packets are taken.
    pub replicate: bool,
    /// Where to look for AMT relays; `None` to use none.
    pub amt: Option<Relays>,
    /// A folder for qlog files.
    pub qlog: Option<PathBuf>,
    /// Form of the log.
    pub log_format: LogFormat,
    /// What is logged; `None` leaves it to `RUST_LOG`.
    pub log_level: Option<String>,
    /// How the source proves who it is.
    pub verify: Verify,
    /// How much the journal of each channel keeps.
    pub journal: JournalSettings,
}

/// Where HTTP is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpSettings {
    /// The address and TCP port.
    pub addr: SocketAddr,
    /// Somebody asked for it: that it is taken is then no small matter.
    pub explicit: bool,
}

/// The bounds of each channel's journal; what is older than the stricter one goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalSettings {
    /// The most updates.
    pub updates: usize,
    /// The most bytes.
    pub bytes: u64,
}

/// What is wrong with the settings: all of it, a line each, in words for the operator. Quotes no
/// secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.join("\n"))]
pub struct Problems(pub Vec<String>);

#[cfg(test)]
mod tests;
