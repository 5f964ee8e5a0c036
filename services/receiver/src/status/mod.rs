//! Status of a receiver: `status.json` in its data folder, and the `status` command, as text
//! (`view`) or live (`watch`, which draws `screen`).

mod clock;
pub mod command;
pub mod file;
pub mod model;
mod rates;
mod screen;
mod view;
pub mod watch;
