//! The `serve` command: from settings to an exit.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use console::{Parts, Site};
use service::listen::listen;
use service::program::{LAST_WAIT, block_on};
use service::startup::open_database;
use service::{signals, systemd};
use store::StoreError;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::Settings;

/// Time limit for closing the database.
const CLOSING: Duration = Duration::from_secs(5);

/// Runs the console until it is asked to stop.
///
/// # Errors
/// The console cannot start; in words for the operator.
pub fn run(settings: &Settings) -> Result<()> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).thread_name("console");
    block_on(&mut builder, LAST_WAIT, serve(settings))
}

async fn serve(settings: &Settings) -> Result<()> {
    let stop = signals::stop_token("stopping; once more ends it at once", |_| 1)?;
    let address = settings.listen;
    let listener = listen(address).with_context(|| {
        format!(
            "cannot answer HTTP on {address}: choose another address with --listen ADDRESS:PORT or \
             FLEXFEED_CONSOLE_LISTEN"
        )
    })?;
    let open = async || store::open(&settings.database_url).await;
    let store = tokio::select! {
        store = open_database(open, StoreError::is_unavailable) => store?,
        () = stop.cancelled() => return Ok(()),
    };
    let console = console::mount(Parts {
        store: store.clone(),
        settings: settings.site.clone(),
        stop: stop.clone(),
    });
    let done = CancellationToken::new();
    let notified = tokio::spawn(notify(console.site().clone(), stop, done.clone()));
    console.serve(listener).await;
    done.cancel();
    let _ = notified.await;
    if tokio::time::timeout(CLOSING, store.close()).await.is_err() {
        warn!("database not closed in time");
    }
    info!("stopped");
    Ok(())
}

/// Reports the status to systemd until `done`, and the stop once `stop` is cancelled.
async fn notify(site: Arc<Site>, stop: CancellationToken, done: CancellationToken) {
    systemd::keep(
        || site.status_line(),
        // Sent by the runtime that answers requests, so a hung runtime misses its watchdog.
        async || true,
        "finishing what is being answered",
        stop,
        done,
    )
    .await;
}
