//! Integration tests, one program.
#![allow(clippy::unwrap_used)]

mod rate;
mod sabotage;
mod seeds;
