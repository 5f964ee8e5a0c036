//! What systemd is told (`Type=notify`): ready, how it goes, alive, stopping.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::net::UnixDatagram;
use tokio::time::timeout;
use tracing::debug;

/// The status line is looked at so often.
const LOOK: Duration = Duration::from_secs(1);
/// So long is waited until there is room for what systemd is told.
const PATIENCE: Duration = Duration::from_secs(2);

/// Says that the program is ready, and keeps telling how it goes, in one `line`, until `done`; once
/// `stop` comes, that it stops, and `stopping`. Says that it is alive as long as `is_alive` says so.
/// Does nothing where nobody asked for it.
pub async fn keep<A: Future<Output = bool>>(
    line: impl Fn() -> String,
    is_alive: impl Fn() -> A,
    stopping: &str,
    stop: impl Future<Output = ()>,
    done: impl Future<Output = ()>,
) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    // Three times in the time within which it has to be heard.
    let alive = sd_notify::watchdog_enabled().map(|within| within / 3);
    let pause = alive.map_or(LOOK, |within| within.min(LOOK));
    let mut told = line();
    if !ready(Some(&told)).await {
        told.clear();
    }
    let (mut stop, mut done) = (pin!(stop), pin!(done));
    let mut is_stopping = false;
    loop {
        if alive.is_some() && is_alive().await {
            tell(&[NotifyState::Watchdog]).await;
        }
        let now = line();
        if !is_stopping && now != told && tell(&[NotifyState::Status(&now)]).await {
            told = now;
        }
        tokio::select! {
            () = &mut done => return,
            () = &mut stop, if !is_stopping => {
                is_stopping = true;
                tell(&[NotifyState::Stopping, NotifyState::Status(stopping)]).await;
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Says that the program is ready, and how it goes, if that is given. While there is no room for that, false is returned, and that it
/// is ready is said again, beside what the program does: who never hears of it ends the program.
pub async fn ready(line: Option<&str>) -> bool {
    let all = [Some(NotifyState::Ready), line.map(NotifyState::Status)];
    let told = tell(&all.into_iter().flatten().collect::<Vec<_>>()).await;
    if !told {
        tokio::spawn(async {
            while !tell(&[NotifyState::Ready]).await {
                tokio::time::sleep(LOOK).await;
            }
        });
    }
    told
}

/// Tells it something; nothing where nobody asked for it. Only a few messages wait to be read by it: while it reads none, it is not
/// waited for long, and no thread stands still. False where there was no room, so that the same may be said later.
pub async fn tell(state: &[NotifyState<'_>]) -> bool {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else {
        return true;
    };
    let text: String = state.iter().map(|state| format!("{state}\n")).collect();
    let told = timeout(PATIENCE, send(Path::new(&place), text.as_bytes())).await;
    let told = told.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    if let Err(error) = &told {
        debug!("systemd could not be told {state:?}: {error}");
    }
    told.map_or_else(|error| error.kind() != ErrorKind::TimedOut, |()| true)
}

async fn send(place: &Path, text: &[u8]) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(place)?;
    socket.send(text).await?;
    Ok(())
}
