//! From feeds to updates and back to a feed.
//!
//! The source's half: [`fetch`] polls a feed by conditional GET, [`parse`] splits the document
//! into entries and keeps the original XML of each, [`detect`] says which are new or changed and
//! in which order to number them, [`payload`] makes the encoded update that is stored and sent.
//! [`gap`] says where entries can be had that left a feed between two polls, [`opml`] reads and
//! writes lists of feeds.
//! The receiver's half: [`payload`] decodes, [`atom`] and [`json_feed`] keep the feed files.
//!
//! Everything that comes from outside (a feed, a payload, a damaged file) is bounded in size,
//! count and depth, and answered with a typed error, never with a panic.

pub mod atom;
pub mod detect;
mod entry;
pub mod feed_file;
pub mod fetch;
pub mod gap;
mod html;
mod item;
pub mod json_feed;
pub mod opml;
pub mod parse;
pub mod payload;
pub mod schedule;
mod snapshot;
mod window;
mod xml;

pub use entry::{Attachment, Author, Entry, Kind};
