//! What a receiver tells about itself: `status.json` in its data folder, and the `status` command.

pub mod command;
pub mod file;
pub mod model;
mod view;
