//! The gateway against model relays, in virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod data;
mod failover;
mod families;
mod hostile;
mod random;
mod reporting;
mod search;
mod silence;
mod world;
