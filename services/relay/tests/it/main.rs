//! Integration tests, one program: the relay in this process, and the program.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod lab;
mod native;
mod program;
mod relay;
