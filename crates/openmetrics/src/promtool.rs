//! Checks by Prometheus's `promtool`. If it is missing, a check is skipped with a message; with
//! `FLEXFEED_REQUIRE_PEERS` it fails.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Variable that forbids skipping.
const REQUIRED: &str = "FLEXFEED_REQUIRE_PEERS";

const MISSING: &str = "promtool is missing (Debian's package prometheus)";

/// Runs promtool in `folder` with `input`; returns whether it succeeded, and its output. `None` if
/// it is missing.
///
/// # Errors
/// promtool cannot be run, or is missing though required.
pub fn run(arguments: &[&str], folder: &Path, input: &str) -> io::Result<Option<(bool, String)>> {
    let begun = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match begun {
        Ok(child) => child,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) if std::env::var_os(REQUIRED).is_some() => return Err(io::Error::other(MISSING)),
        Err(_) => {
            eprintln!("!!! SKIPPED: {MISSING}");
            return Ok(None);
        }
    };
    if let Some(mut pipe) = child.stdin.take() {
        // promtool may reject the beginning without reading the rest; then its output counts.
        match pipe.write_all(input.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    let done = child.wait_with_output()?;
    let text = [done.stdout, done.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Some((done.status.success(), text)))
}

/// Returns the errors of a text in Prometheus's text format, naming conventions included.
pub(crate) fn plain(text: &str) -> Vec<String> {
    let run = run(&["check", "metrics"], Path::new("."), text);
    complaint(run)
}

/// Returns the errors of an OpenMetrics text, by way of a database: promtool reads the format only
/// there.
pub(crate) fn open_metrics(text: &str) -> Vec<String> {
    let made = tempfile::tempdir().and_then(|folder| {
        // For a database, every sample needs a time.
        let timed = text.lines().map(|line| match line.starts_with('#') {
            true => format!("{line}\n"),
            false => format!("{line} 1700000000\n"),
        });
        std::fs::write(folder.path().join("metrics"), timed.collect::<String>())?;
        let arguments = ["tsdb", "create-blocks-from", "openmetrics", "metrics"];
        run(&arguments, folder.path(), "")
    });
    complaint(made)
}

fn complaint(run: io::Result<Option<(bool, String)>>) -> Vec<String> {
    match run {
        Ok(None | Some((true, _))) => Vec::new(),
        Ok(Some((false, said))) => vec![format!("promtool says: {said}")],
        Err(error) => vec![format!("promtool: {error}")],
    }
}
