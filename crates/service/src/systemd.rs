//! What systemd is told (`Type=notify`): ready, how it goes, alive, stopping.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::debug;

/// The status line is looked at so often.
const LOOK: Duration = Duration::from_secs(1);

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
    tell(&[NotifyState::Ready, NotifyState::Status(&told)]);
    let (mut stop, mut done) = (pin!(stop), pin!(done));
    let mut is_stopping = false;
    loop {
        if alive.is_some() && is_alive().await {
            tell(&[NotifyState::Watchdog]);
        }
        let now = line();
        if !is_stopping && now != told {
            tell(&[NotifyState::Status(&now)]);
            told = now;
        }
        tokio::select! {
            () = &mut done => return,
            () = &mut stop, if !is_stopping => {
                is_stopping = true;
                tell(&[NotifyState::Stopping, NotifyState::Status(stopping)]);
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Tells it something.
pub fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!("systemd cannot be told: {error}");
    }
}
