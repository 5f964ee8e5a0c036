//! Notifications for systemd.

use std::sync::Arc;

use console::Site;
use service::systemd;
use tokio_util::sync::CancellationToken;

/// Reports the status until `done`, and stopping once `stop` comes.
pub(crate) async fn keep(site: Arc<Site>, stop: CancellationToken, done: CancellationToken) {
    systemd::keep(
        || site.status_line(),
        // Sent by the runtime that answers requests, so a hung runtime misses its watchdog.
        async || true,
        "finishing what is being answered",
        stop.cancelled(),
        done.cancelled(),
    )
    .await;
}
