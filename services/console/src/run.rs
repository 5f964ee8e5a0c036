//! The `serve` command: from settings to an exit.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use store::Opened;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::config::Settings;
use crate::site::Parts;
use crate::{mount, notify};

/// So soon after the first, a signal is the same wish once more: `timeout` sends its own to the
/// program and then to the program's group.
const SAME_WISH: Duration = Duration::from_secs(1);

/// A database that is not there yet is waited for at most so long: containers start in any order.
const WAIT: Duration = Duration::from_secs(120);

/// Between two attempts.
const AGAIN: Duration = Duration::from_secs(1);

/// It is said so often that it is waited for.
const SAY: Duration = Duration::from_secs(10);

/// The database is closed within this time, or not.
const CLOSING: Duration = Duration::from_secs(5);

/// Runs the console until it is told to stop.
///
/// # Errors
/// If it cannot start; in words for the operator.
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
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!(
            "cannot answer HTTP on {address}: choose another address with --listen ADDRESS:PORT or \
             FLEXFEED_CONSOLE_LISTEN"
        )
    })?;
    let opened = tokio::select! {
        opened = open(&settings.database.0) => opened?,
        () = stop.cancelled() => return Ok(()),
    };
    sabotage()?;
    let console = mount(Parts {
        store: opened.store.clone(),
        records: opened.records,
        accounts: opened.accounts,
        settings: settings.site.clone(),
        stop: stop.clone(),
    });
    let told = tokio::spawn(notify::keep(console.site().clone(), stop.clone()));
    console.serve(listener).await;
    // It ends with the stop.
    let _ = told.await;
    if tokio::time::timeout(CLOSING, opened.store.close())
        .await
        .is_err()
    {
        warn!("the database was not closed in time");
    }
    info!("stopped");
    Ok(())
}

/// What tests may break; nothing in ordinary builds.
#[cfg(feature = "sabotage")]
fn sabotage() -> Result<()> {
    crate::sabotage::begin()
}

#[cfg(not(feature = "sabotage"))]
#[allow(clippy::unnecessary_wraps)] // as its other form
fn sabotage() -> Result<()> {
    Ok(())
}

/// Opens the database, and waits until it can be opened.
async fn open(url: &str) -> Result<Opened> {
    let began = Instant::now();
    let mut said: Option<Instant> = None;
    loop {
        let error = match store::open_all(url).await {
            Ok(opened) => {
                if said.is_some() {
                    info!("the database answers");
                }
                return Ok(opened);
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

/// Cancelled from the first SIGTERM or SIGINT on. A second one ends the process at once, if it is not
/// so soon after the first that it is the same wish.
fn stop_on_signals() -> Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for signals")?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let mut first: Option<Instant> = None;
        loop {
            let name = tokio::select! {
                Some(()) = terminate.recv() => "SIGTERM",
                Some(()) = interrupt.recv() => "SIGINT",
                else => return,
            };
            match first {
                None => {
                    first = Some(Instant::now());
                    info!("{name}: stopping; once more ends it at once");
                    stopping.cancel();
                }
                Some(first) if first.elapsed() < SAME_WISH => {
                    debug!("{name} again, too soon to be another wish");
                }
                Some(_) => {
                    error!("{name} again: stopping at once");
                    std::process::exit(1);
                }
            }
        }
    });
    Ok(stop)
}
