//! What is going on, from the database into memory and on to browsers.
//!
//! `feeder` follows the database, `board` is what it keeps beside the fleet, `heard` when the source said
//! something last, `hub` makes events of the changes, once for all who watch the same, `stream` is what
//! one of them is sent.

pub mod board;
mod feeder;
mod heard;
mod hub;
mod stream;
#[cfg(test)]
mod tests;

pub use feeder::{facts, follow};
pub use hub::{Hub, TooMany, TopicKey, tell};
pub use stream::stream;
