//! Confirmation before something is lost.

use std::io::{IsTerminal, Write};

use super::Failure;

/// Requires confirmation: by `--yes`, or by the answer at the terminal.
pub(super) fn confirm(what: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format_args!(
            "{what}. If that is meant, add --yes"
        )));
    }
    let mut err = std::io::stderr().lock();
    let _ = write!(err, "{what}. Go on? [y/N] ").and_then(|()| err.flush());
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    match (read, answer.trim().to_ascii_lowercase().as_str()) {
        (Ok(_), "y" | "yes") => Ok(()),
        _ => Err(Failure::other("nothing was done")),
    }
}
