//! Records of a source.

pub(super) mod change;
mod changes;
pub(super) mod history;
pub(super) mod read;
mod roll_up;
pub(super) mod rows;
mod taking_over;
pub(super) mod trim;
mod write;
