//! SIGTERM and SIGINT: the first ends a program in good order, a later one at once.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
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

/// Behaviour at signals.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// Text logged at the first signal, after its name.
    pub first: &'static str,
    /// Exit code if a later one ends the program at once.
    pub at_once: fn(Stop) -> i32,
}

/// Watches for signals from now on; calls `stop` at the first one. Call it within a runtime.
///
/// # Errors
/// The system delivers no signals.
pub fn on_stop(manners: Manners, stop: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let first = next(&mut terminate, &mut interrupt).await;
        let since = Instant::now();
        info!("{}: {}", first.name(), manners.first);
        // The program may end in any way from here on.
        logging::sum_up();
        stop();
        loop {
            let again = next(&mut terminate, &mut interrupt).await;
            if is_meant(since.elapsed()) {
                error!("{} again: ending at once", again.name());
                logging::sum_up();
                std::process::exit((manners.at_once)(again));
            }
            debug!(signal = again.name(), "duplicate signal ignored");
        }
    });
    Ok(())
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
