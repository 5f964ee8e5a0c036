//! The `serve` command: from settings to an exit.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use console::Parts;
use service::listen::listen;
use service::signals::{self, Manners};
use store::Store;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::Settings;
use crate::notify;

/// A database that is not there yet is waited for at most so long: containers start in any order.
const WAIT: Duration = Duration::from_secs(120);

/// Between two attempts.
const AGAIN: Duration = Duration::from_secs(1);

/// Interval of log lines while waiting.
const SAY: Duration = Duration::from_secs(10);

/// The database is closed within this time, or not.
const CLOSING: Duration = Duration::from_secs(5);

/// Runs the console until it is asked to stop.
///
/// # Errors
/// The console cannot start; in words for the operator.
pub fn run(settings: &Settings) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("console")
        .enable_all()
        .build()?;
    let result = runtime.block_on(serve(settings));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn serve(settings: &Settings) -> Result<()> {
    let stop = stop_on_signals()?;
    let address = settings.listen;
    let listener = listen(address).with_context(|| {
        format!(
            "cannot answer HTTP on {address}: choose another address with --listen ADDRESS:PORT or \
             FLEXFEED_CONSOLE_LISTEN"
        )
    })?;
    let store = tokio::select! {
        store = open(&settings.database.0) => store?,
        () = stop.cancelled() => return Ok(()),
    };
    #[cfg(feature = "fault-injection")]
    service::faults::inject_from_environment()?;
    let console = console::mount(Parts {
        store: store.clone(),
        settings: settings.site.clone(),
        stop: stop.clone(),
    });
    let done = CancellationToken::new();
    let told = tokio::spawn(notify::keep(console.site().clone(), stop, done.clone()));
    console.serve(listener).await;
    done.cancel();
    let _ = told.await;
    if tokio::time::timeout(CLOSING, store.close()).await.is_err() {
        warn!("database not closed in time");
    }
    info!("stopped");
    Ok(())
}

/// Opens the database, waiting until it is available.
async fn open(url: &str) -> Result<Store> {
    let began = Instant::now();
    let mut said: Option<Instant> = None;
    loop {
        let error = match store::open(url).await {
            Ok(store) => {
                if said.is_some() {
                    info!("the database answers");
                }
                return Ok(store);
            }
            Err(error) if error.is_unavailable() && began.elapsed() < WAIT => error,
            Err(error) => return Err(error.into()),
        };
        if said.is_none_or(|at| at.elapsed() >= SAY) {
            said = Some(Instant::now());
            let left = WAIT.saturating_sub(began.elapsed()).as_secs();
            warn!("waiting for the database, for {left} s at most: {error}");
        }
        sleep(AGAIN).await;
    }
}

/// Cancelled from the first SIGTERM or SIGINT on.
fn stop_on_signals() -> Result<CancellationToken> {
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let manners = Manners {
        first: "stopping; once more ends it at once",
        at_once: |_| 1,
    };
    signals::on_stop(manners, move || stopping.cancel()).context("cannot watch for signals")?;
    Ok(stop)
}
