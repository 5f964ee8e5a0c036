//! From feeds to updates and back to a feed.
//!
//! The source's half: [`fetch`] polls a feed by conditional GET, [`parse`] splits the document
//! into entries and keeps the original XML of each, [`detect`] says which are new or changed and
//! in which order to number them, [`payload`] makes the encoded update that is stored and sent.
//! The receiver's half: [`payload`] decodes, [`atom`] keeps the Atom file.
//!
//! Everything that comes from outside (a feed, a payload, a damaged file) is bounded in size,
//! count and depth, and answered with a typed error, never with a panic.

pub mod atom;
pub mod detect;
mod entry;
pub mod fetch;
mod html;
pub mod parse;
pub mod payload;
mod xml;

pub use entry::{Attachment, Author, Entry, Kind};
