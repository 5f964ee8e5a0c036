//! Integration tests, one program.
#![allow(clippy::unwrap_used)]

mod sabotage;
mod seeds;
