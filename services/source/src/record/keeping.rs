//! Maintenance of the records, so that they stay small for years: larger steps are made of smaller
//! ones, and old rows are deleted.

use std::sync::Arc;
use std::time::Duration;

use store::Store;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::board::Board;
use crate::clock::now_ms;
use crate::status::Role;

/// Interval of roll-ups.
const ROLL_UP: Duration = Duration::from_secs(60);
/// Interval of deletions.
const TRIM: Duration = Duration::from_secs(3600);
/// Longest duration of one pass.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether this source publishes anything: the publishing source maintains the records.
pub(super) fn leads(board: &Board) -> bool {
    let channels = board.snapshot().channels;
    let is_ours = |role: &Role| matches!(role, Role::Active { .. });
    channels.iter().any(|channel| is_ours(&channel.role))
}

/// Maintains the records until `stop`, while this source publishes.
pub async fn keep(store: Store, board: Arc<Board>, stop: CancellationToken) {
    let work = async {
        let mut trimmed: Option<Instant> = None;
        loop {
            sleep(ROLL_UP).await;
            if !leads(&board) {
                continue;
            }
            match timeout(PATIENCE, store.records().roll_up(now_ms())).await {
                Ok(Ok(count)) => debug!(count, "records rolled up"),
                Ok(Err(failure)) => debug!(error = %failure, "roll-up failed; retrying"),
                Err(_) => debug!("roll-up timed out; retrying"),
            }
            if trimmed.is_some_and(|at| at.elapsed() < TRIM) {
                continue;
            }
            match timeout(PATIENCE, store.records().trim(now_ms())).await {
                Ok(Ok(count)) => {
                    debug!(count, "old records removed");
                    trimmed = Some(Instant::now());
                }
                Ok(Err(failure)) => {
                    warn!(error = %failure, "removal of old records failed; retrying")
                }
                Err(_) => warn!("removal of old records timed out; retrying"),
            }
        }
    };
    stop.run_until_cancelled(work).await;
}
