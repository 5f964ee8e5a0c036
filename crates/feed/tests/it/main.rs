//! Integration tests, one program: documents of the field, servers, and other readers of feeds.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod dialects;
mod feed_rs;
mod fetch;
mod formats;
mod lore;
mod message;
mod readers;
