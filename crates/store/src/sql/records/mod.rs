//! Records of a source, and commands to it.

pub(super) mod change;
mod changes;
mod command;
pub(super) mod history;
pub(super) mod read;
mod roll_up;
pub(super) mod rows;
mod taking_over;
pub(super) mod trim;
mod write;
