//! Feeds to updates, and updates back to a feed.
//!
//! # The model
//!
//! A *feed* is a document at an address that lists its last *entries*. An *update* is one version
//! of one entry: new ([`Kind::Created`]) or changed ([`Kind::Updated`]). A *source* polls feeds and
//! numbers their updates per *channel*; a *receiver* keeps a feed file of each channel's last
//! entries.
//!
//! ```text
//! source     fetch ──► parse ──► detect ──► payload::encode ──► bytes, stored and sent as they are
//!            bytes     entries   updates
//!
//! receiver   bytes ──► payload::decode ──► atom, json_feed ──► feed files
//! ```
//!
//! The caller owns all state between two polls: the validators of the last document, the content
//! hashes of known entries, and the number of the last update. Only [`fetch`] does network I/O and
//! only the feed files touch the disk; everything else is a function of its arguments.
//!
//! # The parts
//!
//! - [`fetch::Fetcher`]: polls by conditional GET, with bounds on time and size, and without access
//!   to private networks.
//! - [`schedule::Schedule`]: the time of the next poll, by the feed's rate and its server's hints.
//! - [`parse`]: entries of Atom, RSS and JSON Feed, leniently; the XML of Atom entries is kept byte
//!   for byte.
//! - [`detect`]: the new and changed entries of a document, in the order of their numbers.
//! - [`gap`]: archives and searches with entries that left a feed between two polls.
//! - [`payload`]: the encoding of an update, a CloudEvents event with a JSON Feed item.
//! - [`message`]: messages of live channels, which are no updates, and their encoding.
//! - [`publication`]: entries that a publisher sends, as CloudEvents events or texts.
//! - [`atom`], [`json_feed`]: the feed files of a receiver; [`feed_file`] is common to both.
//! - [`opml`]: lists of feeds.
//!
//! # Hostile input
//!
//! A panic is a bug, whatever is passed in. Everything that comes from outside (a document, an
//! update, a damaged file) is bounded in size, count and depth, and defects are typed errors.
//! Content is not sanitised: HTML is as trustworthy as the feed.

pub mod atom;
pub mod detect;
mod entry;
pub mod feed_file;
pub mod fetch;
mod file_error;
pub mod gap;
mod html;
mod item;
pub mod json_feed;
pub mod message;
pub mod opml;
pub mod parse;
pub mod payload;
pub mod publication;
pub mod schedule;
mod snapshot;
mod window;
mod xml;

pub use entry::{Attachment, Author, Entry, Kind};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
