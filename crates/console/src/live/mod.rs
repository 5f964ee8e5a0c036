//! The path from the database into memory and on to browsers.
//!
//! `feeder` follows the database, `board` is its state besides the fleet, `heard` the time of the
//! source's last report, `hub` makes `events` of the changes, once for all watchers of a topic,
//! `stream` is the response to one of them.

pub mod board;
pub mod events;
mod feeder;
mod heard;
mod hub;
mod stream;
#[cfg(test)]
mod tests;

pub use feeder::{facts, follow};
pub use hub::{Hub, TooManyTopics, TopicKey, notify};
pub use stream::stream;
