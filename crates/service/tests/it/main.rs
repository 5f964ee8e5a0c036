//! Integration tests, one program.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod serving;
mod signals;
