//! Integration tests, one program: real sockets, real joins.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod direct;
mod multicast;
mod multicast6;
mod replicator;
mod udp;
