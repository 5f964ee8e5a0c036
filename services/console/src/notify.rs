//! What systemd is told: how the console does.

use std::sync::Arc;

use service::systemd;
use tokio_util::sync::CancellationToken;

use crate::site::Site;

/// Keeps telling how it goes until `done`; that it stops once the site's stop comes.
pub(crate) async fn keep(site: Arc<Site>, done: CancellationToken) {
    systemd::keep(
        || line(&site),
        // By a task of the runtime that answers requests: where that hangs, nobody says this.
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
