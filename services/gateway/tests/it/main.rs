//! Integration tests, one program: a gateway and the relays that tests play.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod lab;
mod reemit;
mod relays;
