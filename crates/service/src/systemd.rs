//! Notifications for systemd (`Type=notify`): ready, status, watchdog, stopping.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::net::UnixDatagram;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Interval of checks for a new status line.
const LOOK: Duration = Duration::from_secs(1);
/// Bound on the wait for room in the notification socket.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reports readiness, then the status `line` until `done`, and `stopping` once `stop` is cancelled.
/// Feeds the watchdog as long as `is_alive`. Does nothing without a notification socket.
pub async fn keep<A: Future<Output = bool>>(
    line: impl Fn() -> String,
    is_alive: impl Fn() -> A,
    stopping: &str,
    stop: CancellationToken,
    done: CancellationToken,
) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    // Three times within the watchdog's time.
    let alive = sd_notify::watchdog_enabled().map(|within| within / 3);
    let pause = alive.map_or(LOOK, |within| within.min(LOOK));
    let mut sent = line();
    if !ready(Some(&sent)).await {
        sent.clear();
    }
    let mut is_stopping = false;
    loop {
        if alive.is_some() && is_alive().await {
            notify(&[NotifyState::Watchdog]).await;
        }
        let now = line();
        if !is_stopping && now != sent && notify(&[NotifyState::Status(&now)]).await {
            sent = now;
        }
        tokio::select! {
            // A program that stops at once is done at the same moment.
            biased;
            () = stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                notify(&[NotifyState::Stopping, NotifyState::Status(stopping)]).await;
            }
            () = done.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Reports readiness and the status `line`. Returns false if there was no room: a task then repeats
/// the report, because systemd ends a program that never gets ready.
pub async fn ready(line: Option<&str>) -> bool {
    let all = [Some(NotifyState::Ready), line.map(NotifyState::Status)];
    let sent = notify(&all.into_iter().flatten().collect::<Vec<_>>()).await;
    if !sent {
        tokio::spawn(async {
            while !notify(&[NotifyState::Ready]).await {
                tokio::time::sleep(LOOK).await;
            }
        });
    }
    sent
}

/// Sends a notification, if there is a socket. Waits briefly, and blocks no thread, while systemd
/// reads none; returns false if there was no room, so that the caller may repeat it later.
pub async fn notify(state: &[NotifyState<'_>]) -> bool {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else {
        return true;
    };
    let text: String = state.iter().map(|state| format!("{state}\n")).collect();
    let sent = timeout(PATIENCE, send(Path::new(&place), text.as_bytes())).await;
    let sent = sent.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    if let Err(error) = &sent {
        debug!(?state, %error, "systemd notification failed");
    }
    sent.map_or_else(|error| error.kind() != ErrorKind::TimedOut, |()| true)
}

async fn send(place: &Path, text: &[u8]) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(place)?;
    socket.send(text).await?;
    Ok(())
}
