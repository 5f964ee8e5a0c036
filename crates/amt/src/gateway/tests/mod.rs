//! The gateway against relays that are models, in a time of their own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod data;
mod families;
mod finding;
mod hostile;
mod moving;
mod random;
mod silence;
mod telling;
mod world;
