//! Shared helpers of the tests; a dev-dependency only.
//!
//! A helper that fails panics: the caller is a test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod isolation;
