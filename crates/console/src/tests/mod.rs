//! The console over real connections, with both databases.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod actions;
mod audit;
mod bench;
mod feeds;
mod files;
mod live;
mod long;
mod messages;
mod odd;
mod publications;
mod reading;
mod signing;
mod surface;

pub(crate) use feeds::lookup;

use bench::{Bench, Client, TestResponse, on_both};
