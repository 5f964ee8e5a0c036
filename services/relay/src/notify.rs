//! What systemd is told (`Type=notify`): ready, how it goes, alive, stopping.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tracing::debug;

use crate::engine::Engine;

/// The status line is looked at so often.
const LOOK: Duration = Duration::from_secs(1);

/// A packet thread that takes longer to answer than this does not go on.
const PATIENCE: Duration = Duration::from_secs(1);

/// Says that it is ready, and keeps telling how it goes until `done` is true; that it stops once
/// `stop` is. Does nothing where nobody asked for it.
pub async fn keep(
    engine: Arc<Engine>,
    mut stop: watch::Receiver<bool>,
    mut done: watch::Receiver<bool>,
) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    // Three times in the time within which it has to be heard.
    let alive = sd_notify::watchdog_enabled().map(|within| within / 3);
    let pause = alive.map_or(LOOK, |within| within.min(LOOK));
    let mut told = line(&engine);
    tell(&[NotifyState::Ready, NotifyState::Status(&told)]);
    let mut stopping = false;
    loop {
        if *done.borrow_and_update() {
            return;
        }
        if !stopping && *stop.borrow() {
            stopping = true;
            tell(&[
                NotifyState::Stopping,
                NotifyState::Status("taking no new gateways"),
            ]);
        }
        // The thread that forwards packets has to go on.
        if alive.is_some() && engine.is_alive(PATIENCE).await {
            tell(&[NotifyState::Watchdog]);
        }
        let now = line(&engine);
        if !stopping && now != told {
            tell(&[NotifyState::Status(&now)]);
            told = now;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop), if !stopping => {}
            changed = done.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!("systemd cannot be told: {error}");
    }
}

/// The status in a line.
fn line(engine: &Engine) -> String {
    let counters = engine.counters();
    let missing = match counters.joins_missing.get() {
        0 => String::new(),
        missing => format!(", {missing} that cannot be joined"),
    };
    format!(
        "{} gateways, {} groups{missing}",
        counters.gateways.get(),
        counters.joins.get()
    )
}
