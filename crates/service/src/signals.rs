//! SIGTERM and SIGINT: the first ends a program in good order, a later one at once.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use crate::logging;

/// A further signal within this time of the first is a duplicate of it: `timeout` signals the
/// program and, in the next system call, the program's group. Short enough that no person or
/// service manager means it as a second signal.
const DUPLICATE: Duration = Duration::from_millis(100);

/// A stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
}

impl Stop {
    fn name(self) -> &'static str {
        match self {
            Stop::Terminate => "SIGTERM",
            Stop::Interrupt => "SIGINT",
        }
    }

    /// Returns the exit code of a program that the signal ended: 128 plus the signal's number.
    #[must_use]
    pub fn exit_code(self) -> i32 {
        match self {
            Stop::Terminate => 143,
            Stop::Interrupt => 130,
        }
    }
}

/// Returns a token that the first signal from now on cancels, logged with `event`; a later signal
/// ends the program with `exit_code`. To be called within a runtime.
///
/// # Errors
/// The system delivers no signals.
pub fn stop_token(
    event: &'static str,
    exit_code: fn(Stop) -> i32,
) -> io::Result<CancellationToken> {
    let watch = |kind| {
        signal(kind).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot watch for signals: {error}"))
        })
    };
    let mut terminate = watch(SignalKind::terminate())?;
    let mut interrupt = watch(SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let first = next(&mut terminate, &mut interrupt).await;
        let since = Instant::now();
        info!("{}: {event}", first.name());
        // The program may end in any way from here on.
        logging::sum_up();
        stopping.cancel();
        loop {
            let again = next(&mut terminate, &mut interrupt).await;
            if is_meant(since.elapsed()) {
                error!("{} again: ending at once", again.name());
                logging::sum_up();
                std::process::exit(exit_code(again));
            }
            debug!(signal = again.name(), "duplicate signal ignored");
        }
    });
    Ok(stop)
}

/// Whether a further signal, so long after the first, is no duplicate.
fn is_meant(since_first: Duration) -> bool {
    since_first >= DUPLICATE
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> Stop {
    tokio::select! {
        _ = terminate.recv() => Stop::Terminate,
        _ = interrupt.recv() => Stop::Interrupt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_is_ignored_and_exit_codes_name_the_signal() {
        assert!(!is_meant(Duration::from_millis(99)));
        assert!(is_meant(Duration::from_millis(100)));
        assert_eq!(Stop::Terminate.exit_code(), 143);
        assert_eq!(Stop::Interrupt.exit_code(), 130);
    }
}
