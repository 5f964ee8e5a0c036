//! SIGTERM and SIGINT: the first ends the program in good order, a later one at once. SIGHUP: the
//! certificate is read again.

use std::sync::Arc;

use anyhow::{Context, Result};
use service::signals::{self, Manners, Stop};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Cancels the returned token at the first signal.
///
/// # Errors
/// The system gives no signals.
pub fn watch() -> Result<CancellationToken> {
    let stop = CancellationToken::new();
    let first = stop.clone();
    let manners = Manners {
        first: "stopping; once more ends it at once",
        at_once: Stop::exit_code,
    };
    signals::on_stop(manners, move || first.cancel()).context("cannot listen for signals")?;
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
            info!("SIGHUP: reloading the certificate");
            tell.notify_one();
        }
    });
    Ok(told)
}
