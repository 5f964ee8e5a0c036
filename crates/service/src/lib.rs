//! What all programs of flexfeed do in the same way where people, browsers and systems meet them.
//!
//! How a program is told what to do, and says how it did:
//!
//! - [`settings`]: by flags, variables and a TOML file, and `config check`; [`values`]: how single
//!   ones are written; [`environment`]: variables that look like settings and are meant for somebody
//!   else; [`nearest`]: what somebody meant who mistyped a name.
//! - [`core_dumps`], which are forbidden.
//! - [`program`]: what `main` does; [`logging`], with a bound on the lines that peers cause;
//!   [`signals`], [`systemd`]; [`ownership`]: what to do where the data folder cannot be written.
//! - [`backoff`]: delays between attempts.
//!
//! How it answers and asks:
//!
//! - [`listen`]: where HTTP is answered; [`server`]: HTTP with bounds on what clients can use up;
//!   [`places`]: how many there is room for; [`host`]: which names a site without passwords answers to;
//!   [`exposition`]: in which form metrics are shown.
//! - [`ask`]: a page of a program that answers HTTP here; [`health`]: the command made of that.
//! - [`peer_text`]: text that others wrote, made fit for a log line or a terminal.
//!
//! With the feature `fault-injection`, which no released program has, `faults` reads which
//! protections a test takes off.

pub mod ask;
pub mod backoff;
pub mod cli;
pub mod core_dumps;
pub mod environment;
pub mod exposition;
#[cfg(any(test, feature = "fault-injection"))]
pub mod faults;
pub mod health;
pub mod host;
pub mod listen;
mod log_limit;
pub mod logging;
pub mod nearest;
pub mod ownership;
pub mod peer_text;
pub mod places;
pub mod program;
pub mod server;
pub mod settings;
pub mod signals;
pub mod systemd;
pub mod values;
