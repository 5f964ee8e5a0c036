//! Integration tests, one program.
#![allow(clippy::unwrap_used)]

mod crowd;
mod fec;
mod mcquic;
mod rate;
mod sabotage;
mod seeds;
mod thesis;
