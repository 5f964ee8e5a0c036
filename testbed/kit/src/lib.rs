//! Shared helpers of the tests; a dev-dependency only.
//!
//! | module | for |
//! |---|---|
//! | [`isolation`] | a test that needs a process, interfaces or mounts of its own |
//! | [`network`] | a second network, with a cable to the test's own |
//! | [`wait`] | conditions that come true later |
//! | [`ports`] | addresses that survive a restart |
//! | [`program`] | programs, their output, signals and end |
//! | [`http`] | one request to a server |
//! | [`dns`] | a scripted name server |
//! | [`postgres`] | a PostgreSQL server to throw away |
//!
//! A helper that fails panics: the caller is a test. The exception is [`postgres`], which the
//! benchmarks use too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod dns;
pub mod http;
pub mod isolation;
pub mod network;
pub mod ports;
pub mod postgres;
pub mod program;
pub mod wait;
