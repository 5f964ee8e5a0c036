//! Notifications for systemd.

use std::sync::Arc;

use service::systemd;
use tokio_util::sync::CancellationToken;

use crate::site::Site;

/// Reports the status until `done`, and stopping once the site's stop comes.
pub(crate) async fn keep(site: Arc<Site>, done: CancellationToken) {
    systemd::keep(
        || line(&site),
        // Sent by the runtime that answers requests, so a hung runtime misses its watchdog.
        async || true,
        "finishing what is being answered",
        site.stop.cancelled(),
        done.cancelled(),
    )
    .await;
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
