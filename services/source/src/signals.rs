//! SIGTERM and SIGINT: the first ends the program in good order, the second at once.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The exit code of a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

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
        let name = next(&mut terminate, &mut interrupt).await;
        info!("{name}: stopping; once more ends it at once");
        first.cancel();
        let name = next(&mut terminate, &mut interrupt).await;
        warn!("{name} again: ending at once");
        std::process::exit(INTERRUPTED);
    });
    Ok(stop)
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
