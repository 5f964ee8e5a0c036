//! SIGTERM and SIGINT: the first ends the program in good order, a later one at once. SIGHUP: the
//! certificate is read again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// So soon after the first, a signal is the same wish once more: `timeout` sends its own to the
/// program and then to the program's group.
const SAME_WISH: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
enum Stop {
    Terminate,
    Interrupt,
}

impl Stop {
    fn name(self) -> &'static str {
        match self {
            Stop::Terminate => "SIGTERM",
            Stop::Interrupt => "SIGINT",
        }
    }

    /// The exit code of a program that the signal ended: 128 and the signal's number.
    fn exit_code(self) -> i32 {
        match self {
            Stop::Terminate => 143,
            Stop::Interrupt => 130,
        }
    }
}

/// Cancels the returned token at the first signal.
///
/// # Errors
/// The system gives no signals.
pub fn watch() -> Result<CancellationToken> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    let first = stop.clone();
    tokio::spawn(async move {
        let name = next(&mut terminate, &mut interrupt).await.name();
        let since = Instant::now();
        info!("{name}: stopping; once more ends it at once");
        first.cancel();
        loop {
            let again = next(&mut terminate, &mut interrupt).await;
            if is_meant(since.elapsed()) {
                warn!("{} again: ending at once", again.name());
                std::process::exit(again.exit_code());
            }
            debug!("{} again, too soon to be another wish", again.name());
        }
    });
    Ok(stop)
}

/// Tells of each SIGHUP from now on; without this, the first one ends the program.
///
/// # Errors
/// The system gives no signals.
pub fn hangups() -> Result<Arc<Notify>> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let told = Arc::new(Notify::new());
    let tell = Arc::clone(&told);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            info!("SIGHUP: the certificate is read again");
            tell.notify_one();
        }
    });
    Ok(told)
}

/// Whether a further signal, so long after the first, is a wish of its own.
fn is_meant(since_first: Duration) -> bool {
    since_first >= SAME_WISH
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
    fn a_doubled_signal_is_one_and_a_later_one_is_told_by_the_exit_code() {
        assert!(!is_meant(Duration::from_millis(999)));
        assert!(is_meant(Duration::from_secs(1)));
        assert_eq!(Stop::Terminate.exit_code(), 143);
        assert_eq!(Stop::Interrupt.exit_code(), 130);
    }
}
