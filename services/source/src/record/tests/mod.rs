#![allow(clippy::unwrap_used, clippy::expect_used)]
//! The whole of it, with a transport that is made up and a database that is not.

mod bounds;
mod feeds;
mod made;
mod moves;
mod parts;
mod places;
mod site;
mod updates;

use std::time::Duration;

/// For everything that should happen soon.
const SOON: Duration = Duration::from_secs(60);
const CHANNEL: &str = "lore";
