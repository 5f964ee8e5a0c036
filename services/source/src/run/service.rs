//! Notifications for systemd, if it listens.

use std::sync::Arc;
use std::time::Duration;

use flexicast_tokio::source::SourceHandle;
use sd_notify::NotifyState;
pub(super) use service::systemd::{notify, ready};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::status::{Role, Snapshot};

/// Interval of checks whether the status text has changed.
const LOOK: Duration = Duration::from_secs(2);

/// Reports the status to systemd until `stop`: in words, and by the watchdog for as long as the
/// transport answers.
pub(super) async fn report_status(
    board: Arc<Board>,
    handle: SourceHandle,
    stop: CancellationToken,
) {
    let words = async {
        let mut last = String::new();
        loop {
            let now = words(&board.snapshot());
            if now != last && notify(&[NotifyState::Status(&now)]).await {
                last = now;
            }
            sleep(LOOK).await;
        }
    };
    let life = async {
        let Some(limit) = sd_notify::watchdog_enabled() else {
            return std::future::pending::<()>().await;
        };
        let pause = limit / 3;
        loop {
            // The watchdog is for a transport that is stuck.
            if let Ok(Some(_)) = timeout(pause, handle.status()).await {
                notify(&[NotifyState::Watchdog]).await;
            }
            sleep(pause).await;
        }
    };
    let both = async { tokio::join!(words, life) };
    stop.run_until_cancelled(both).await;
}

/// Returns the current state in one line.
fn words(seen: &Snapshot) -> String {
    if let Some(error) = &seen.database.error {
        return format!("the database is away: {error}");
    }
    let mut parts = Vec::new();
    let mut active = 0;
    for channel in &seen.channels {
        match &channel.role {
            Role::Active { .. } => match &channel.store_failure {
                Some(failure) => parts.push(format!("{}: {failure}", channel.name)),
                None => active += 1,
            },
            Role::Standby { holder } => parts.push(match holder {
                Some(holder) => format!("{}: {holder} publishes", channel.name),
                None => format!("{}: standing by", channel.name),
            }),
            Role::Lapsed { reason, .. } | Role::Failed { reason } => {
                parts.push(format!("{}: {reason}", channel.name));
            }
            Role::Starting => parts.push(format!("{}: starting", channel.name)),
        }
    }
    if active > 0 || parts.is_empty() {
        parts.insert(0, format!("publishing {active} channels"));
    }
    parts.join("; ")
}
