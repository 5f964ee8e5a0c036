//! Integration tests, one program: the codecs against documents and captures, both ends in virtual
//! time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod captures;
mod document;
mod pair;
mod properties;
mod vectors;
