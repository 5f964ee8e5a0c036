//! Integration tests, one program: the networks and tools of the testbed, and the scenarios.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod beyond;
mod delay;
mod lab;
mod scenarios;
