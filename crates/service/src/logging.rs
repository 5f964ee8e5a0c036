//! Log on standard error, as text or JSON.

use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;

use clap::Args;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::log_limit::LogLimit;
use crate::values::one_of;

/// Variable with the filter if no setting has one.
const VARIABLE: &str = EnvFilter::DEFAULT_ENV;

/// Limit of this program's log.
static LIMIT: OnceLock<LogLimit> = OnceLock::new();

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text lines.
    Text,
    /// One JSON object in each line.
    Json,
}

/// Settings of the log.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct LogSettings {
    /// Format of the log on standard error: text or json
    #[arg(
        id = "log_format",
        long = "log-format",
        value_name = "FORM",
        default_value = "text"
    )]
    #[arg(value_parser = one_of(&[("text", LogFormat::Text), ("json", LogFormat::Json)]))]
    pub format: LogFormat,
    /// Log filter: error, warn, info, debug, trace, or directives such as info,feed=debug; the
    /// variable RUST_LOG does the same [default: info]
    #[arg(id = "log_level", long = "log-level", value_name = "LEVEL", value_parser = level)]
    pub level: Option<String>,
}

/// Parses a filter, to be parsed again when the log begins.
fn level(text: &str) -> Result<String, String> {
    let wrong = |what: String| what.trim_start().to_owned();
    filter("", text).map(|_| text.to_owned()).map_err(wrong)
}

/// Begins logging at the level that is set, or that of the variable `RUST_LOG`, or `default`. An
/// invalid `RUST_LOG` is ignored with a warning.
///
/// # Errors
/// The level is none, or a log is installed already; in words for the operator.
pub fn begin(settings: &LogSettings, default: &str) -> Result<(), String> {
    let set = |text: &&str| !text.trim().is_empty();
    let variable = std::env::var(VARIABLE).ok();
    let variable = variable.as_deref().filter(set);
    let mut ignored = None;
    let filter = match settings.level.as_deref().filter(set) {
        Some(level) => filter("--log-level", level)?,
        None => {
            let by_variable = variable.map(|text| filter(VARIABLE, text)).transpose();
            let by_variable = by_variable.unwrap_or_else(|error| {
                ignored = Some(error);
                None
            });
            by_variable.map_or_else(|| filter("", default), Ok)?
        }
    };
    start(settings.format, filter)?;
    if let Some(error) = ignored {
        tracing::warn!("{error}; it is ignored");
    }
    Ok(())
}

/// Parses a filter; `name` names its place in errors.
///
/// # Errors
/// The text is neither a level nor a filter; in words for the operator.
pub fn filter(name: &str, text: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(text).map_err(|error| {
        format!("{name} {text:?} is no log level: {error}; use error, warn, info, debug or trace")
    })
}

/// Starts a log of the events that pass `filter`; in colours only on a terminal, and not if
/// `NO_COLOR` is set. Lines that peers cause are limited.
///
/// # Errors
/// A log is installed already.
pub fn start(format: LogFormat, filter: EnvFilter) -> Result<(), String> {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let lines = fmt::layer().with_writer(stderr);
    let lines = match format {
        LogFormat::Text => lines
            .with_ansi(!plain && stderr().is_terminal())
            .with_target(false)
            .boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let limit = LIMIT.get_or_init(LogLimit::default);
    tracing_subscriber::registry()
        .with(filter)
        .with(limit.clone())
        .with(lines)
        .try_init()
        .map_err(|error| format!("cannot start the log: {error}"))?;
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(|| limit.keep_summed_up())
        .map_err(|error| format!("cannot start the log: {error}"))?;
    Ok(())
}

/// Sums up the suppressed lines that are not summed up yet; for the end of a program.
pub fn sum_up() {
    if let Some(limit) = LIMIT.get() {
        limit.sum_up();
    }
}
