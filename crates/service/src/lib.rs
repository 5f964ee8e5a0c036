//! The skeleton of all programs of flexfeed.
//!
//! From the command line to an exit code:
//!
//! - [`cli`]: commands that all programs have; [`settings`]: flags, variables, a TOML file and
//!   `config check`, from one declaration; [`values`]: parsers of common values; [`environment`]:
//!   variables meant for other programs; [`nearest`]: suggestions for mistyped names.
//! - [`program`]: `main`; [`core_dumps`], which are forbidden; [`logging`], with a bound on the
//!   lines that peers cause; [`progress`] of commands; [`signals`]; [`systemd`]; [`startup`]: a
//!   database that is not there yet; [`ownership`]: advice where the data folder cannot be
//!   written; [`backoff`]: delays between attempts.
//!
//! HTTP:
//!
//! - [`listen`]: the listener; [`server`]: connections; [`places`]: bounds on clients; [`host`]:
//!   the names that a site without passwords answers to; [`pages`]: health, readiness;
//!   [`metrics`] and their formats, [`exposition`].
//! - [`ask`]: requests to a running program; [`health`]: the command made of that; `screen`: a
//!   status live on a terminal (feature `screen`).
//! - [`link`]: enrolment links.
//! - [`peer_text`]: text of peers made fit for a log line or a terminal.
//!
//! With the feature `fault-injection`, which no released program has, `faults` reads the faults
//! that a test injects.

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
pub mod link;
pub mod listen;
mod log_limit;
pub mod logging;
pub mod metrics;
pub mod nearest;
mod outcome;
pub mod ownership;
pub mod pages;
pub mod peer_text;
pub mod places;
pub mod program;
pub mod progress;
#[cfg(feature = "screen")]
pub mod screen;
pub mod server;
pub mod settings;
pub mod signals;
pub mod startup;
pub mod systemd;
pub mod values;
