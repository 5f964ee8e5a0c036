//! Log lines on standard error.

use service::logging::{self, LogFormat};
use tracing_subscriber::EnvFilter;

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
    // Called once per process.
    let started = logging::start(format, filter);
    warning.or(started.err())
}
