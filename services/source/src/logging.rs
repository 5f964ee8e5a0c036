//! Log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

const DEFAULT: &str = "info";

/// Begins logging. `level` are directives from the command line; without them RUST_LOG holds, and
/// without that everything from `info` on. Returns what is to be warned about.
pub fn start(format: LogFormat, level: Option<&str>) -> Option<String> {
    let (filter, warning) = match level {
        Some(level) => (EnvFilter::new(level), None),
        None => match std::env::var(EnvFilter::DEFAULT_ENV) {
            Ok(given) if !given.is_empty() => match EnvFilter::try_new(&given) {
                Ok(filter) => (filter, None),
                Err(error) => (
                    EnvFilter::new(DEFAULT),
                    Some(format!("RUST_LOG is not usable and ignored: {error}")),
                ),
            },
            _ => (EnvFilter::new(DEFAULT), None),
        },
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            let colours = !plain && std::io::stderr().is_terminal();
            builder.with_ansi(colours).with_target(false).init();
        }
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    warning
}
