//! The console over real connections, with both databases.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod actions;
mod bench;
mod feeds;
mod live;
mod long;
mod odd;
mod reading;
mod signing;
mod surface;

use bench::{Answer, Bench, Client, on_both};
