//! Progress of commands that take longer than a moment, on standard error.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time before progress is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// Intervals of progress: on a terminal, and elsewhere, where each is a line of its own.
const LIVE: Duration = Duration::from_secs(1);
const LINES: Duration = Duration::from_secs(10);

/// Progress of one operation. Dropped, it clears its line on a terminal.
#[derive(Debug)]
pub struct Progress {
    what: String,
    began: Instant,
    due: Instant,
    is_live: bool,
    is_shown: bool,
}

impl Progress {
    /// Returns the progress of an operation that begins now.
    #[must_use]
    pub fn new(what: &str) -> Self {
        let began = Instant::now();
        Self {
            what: what.to_owned(),
            began,
            due: began + PATIENCE,
            is_live: std::io::stderr().is_terminal(),
            is_shown: false,
        }
    }

    /// Time at which progress is to be shown next.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Shows the duration, and how far the operation is if known, where that is due.
    pub fn show(&mut self, far: impl FnOnce() -> Option<String>) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + if self.is_live { LIVE } else { LINES };
        self.is_shown = true;
        let far = far().map(|far| format!(", {far}")).unwrap_or_default();
        let text = format!("{}: {} s{far}", self.what, self.began.elapsed().as_secs());
        say(&if self.is_live {
            format!("\r\x1b[K{text}")
        } else {
            format!("{text}\n")
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown && self.is_live {
            say("\r\x1b[K");
        }
    }
}

fn say(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}
