//! Progress of operations that take longer than a moment.

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time before progress is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// Intervals of progress: on a terminal, and elsewhere, where each is a line of its own.
const LIVE: Duration = Duration::from_secs(1);
const LINES: Duration = Duration::from_secs(10);

/// Runs an operation. Shows its duration, and its progress if known, on standard error.
pub(super) async fn with_progress<T>(
    what: &str,
    far: impl Fn() -> Option<String>,
    work: impl Future<Output = T>,
) -> T {
    let began = Instant::now();
    let live = std::io::stderr().is_terminal();
    let mut next = PATIENCE;
    let mut said = false;
    tokio::pin!(work);
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            () = tokio::time::sleep(next) => {}
        }
        next = if live { LIVE } else { LINES };
        said = true;
        let far = far().map(|far| format!(", {far}")).unwrap_or_default();
        let text = format!("{what}: {} s{far}", began.elapsed().as_secs());
        say(&if live {
            format!("\r\x1b[K{text}")
        } else {
            format!("{text}\n")
        });
    };
    if said && live {
        say("\r\x1b[K");
    }
    result
}

fn say(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}
