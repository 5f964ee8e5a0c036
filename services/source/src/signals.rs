//! SIGTERM and SIGINT: the first ends the program in good order, a later one at once. SIGHUP: the
//! certificate is read again.

use std::sync::Arc;

use anyhow::{Context, Result};
use service::signals::{Stop, stop_token};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Cancels the returned token at the first signal.
///
/// # Errors
/// The system gives no signals.
pub fn watch() -> Result<CancellationToken> {
    Ok(stop_token(
        "stopping; once more ends it at once",
        Stop::exit_code,
    )?)
}

/// Returns a notification of each SIGHUP; without a handler, the first one ends the program.
///
/// # Errors
/// The system gives no signals.
pub fn hangups() -> Result<Arc<Notify>> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let hangups = Arc::new(Notify::new());
    let notifier = Arc::clone(&hangups);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            info!("SIGHUP: reloading the certificate");
            notifier.notify_one();
        }
    });
    Ok(hangups)
}
