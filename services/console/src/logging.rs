//! The log: to standard error, as text or JSON.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// What is logged if nobody says.
const DEFAULT: &str = "info";

/// Begins logging at `level`, or as the variable `RUST_LOG` says, or at `info`.
///
/// # Errors
/// If a level is not one, in words for the operator.
pub fn begin(format: LogFormat, level: Option<&str>) -> Result<(), String> {
    let set = |text: &&str| !text.trim().is_empty();
    let variable = std::env::var("RUST_LOG").ok();
    let (name, text) = match (level.filter(set), variable.as_deref().filter(set)) {
        (Some(level), _) => ("--log-level", level),
        (None, Some(variable)) => ("RUST_LOG", variable),
        (None, None) => ("", DEFAULT),
    };
    let filter = EnvFilter::try_new(text).map_err(|error| {
        format!("{name} {text:?} is no log level: {error}; use error, warn, info, debug or trace")
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr);
    let begun = match format {
        LogFormat::Text => log
            .with_ansi(stderr().is_terminal())
            .with_target(false)
            .try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    begun.map_err(|error| format!("cannot begin logging: {error}"))
}
