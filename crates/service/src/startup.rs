//! Steps before a program serves.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::systemd::notify;

/// Bound on the wait for a database: containers start in any order.
const WAIT: Duration = Duration::from_secs(120);

/// Interval of attempts to open it.
const RETRY: Duration = Duration::from_secs(1);

/// Interval of log lines meanwhile.
const REPORT: Duration = Duration::from_secs(10);

/// systemd's patience from one log line on, in microseconds.
const EXTENSION: u32 = 30_000_000;

/// Opens a database, waiting as long as it is unavailable, within a bound.
///
/// # Errors
/// The error of `open`.
pub async fn open_database<T, E: Display>(
    open: impl AsyncFn() -> Result<T, E>,
    is_unavailable: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let began = Instant::now();
    let mut reported: Option<Instant> = None;
    loop {
        let error = match open().await {
            Err(error) if is_unavailable(&error) && began.elapsed() < WAIT => error,
            Ok(opened) => {
                if reported.is_some() {
                    info!("the database answers");
                }
                return Ok(opened);
            }
            Err(error) => return Err(error),
        };
        if reported.is_none_or(|at| at.elapsed() >= REPORT) {
            reported = Some(Instant::now());
            let left = WAIT.saturating_sub(began.elapsed()).as_secs();
            warn!("waiting for the database, for {left} s at most: {error}");
            notify(&[
                NotifyState::Status("waiting for the database"),
                NotifyState::ExtendTimeoutUsec(EXTENSION),
            ])
            .await;
        }
        sleep(RETRY).await;
    }
}

/// Makes the folder for qlog files, if one is set.
///
/// # Errors
/// The folder cannot be made; in words for the operator.
pub fn make_qlog_folder(folder: Option<&Path>) -> Result<(), String> {
    let made = folder.map(|folder| (folder, std::fs::create_dir_all(folder)));
    let Some((folder, Err(error))) = made else {
        return Ok(());
    };
    Err(format!(
        "cannot make the folder {}: {error}; choose another one with --qlog",
        folder.display()
    ))
}
