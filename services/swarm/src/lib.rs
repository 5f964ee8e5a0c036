//! Thousands of light receivers in one process, for tests and for operators who size a machine.
//!
//! Each receiver is one of `flexicast-tokio`, with a QUIC connection, acknowledgements, decryption
//! and merging of its own; multicast groups are joined once for all of them. In the place of a
//! journal and feed files it has a [`position`] that checks that every update arrives once and in
//! order, and a [`ledger`] shared by all, that every receiver gets the same bytes.
//!
//! `cli` is the command line; [`run`] the phases of a run: receivers are started, measured and
//! stopped by [`fleet`], each a task of [`member`] with an [`identity`] from the seed. [`board`] is
//! what is known about all of them, with the [`latency`] of updates; [`summary`] and [`http`] show
//! it, beside the process's own [`usage`].

pub mod board;
pub mod cli;
pub mod fleet;
pub mod http;
pub mod identity;
pub mod latency;
pub mod ledger;
pub mod member;
pub mod position;
pub mod run;
pub mod summary;
pub mod usage;
