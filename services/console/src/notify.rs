//! What systemd is told (`Type=notify`): ready, how it goes, alive, stopping.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::site::Site;

/// The status line is looked at so often.
const LOOK: Duration = Duration::from_secs(1);

/// Says that it is ready, and keeps telling how it goes until `stop`. Does nothing where nobody asked
/// for it.
pub(crate) async fn keep(site: Arc<Site>, stop: CancellationToken) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    // Three times in the time within which it has to be heard.
    let alive = sd_notify::watchdog_enabled().map(|within| within / 3);
    let pause = alive.map_or(LOOK, |within| within.min(LOOK));
    let mut told = line(&site);
    tell(&[NotifyState::Ready, NotifyState::Status(&told)]);
    loop {
        let pause = tokio::time::sleep(pause);
        if stop.run_until_cancelled(pause).await.is_none() {
            tell(&[NotifyState::Stopping]);
            return;
        }
        if alive.is_some() {
            tell(&[NotifyState::Watchdog]);
        }
        let now = line(&site);
        if now != told {
            tell(&[NotifyState::Status(&now)]);
            told = now;
        }
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!("systemd cannot be told: {error}");
    }
}

/// The status in a line.
fn line(site: &Site) -> String {
    let trouble = match site.health.is_failing() {
        true => ", the database does not answer",
        false => "",
    };
    format!(
        "{} receivers, {} pages watch{trouble}",
        site.fleet().len(),
        site.hub.clients()
    )
}
