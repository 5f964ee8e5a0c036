//! Integration tests, one program.
#![allow(clippy::unwrap_used)]

mod crowd;
mod rate;
mod sabotage;
mod seeds;
