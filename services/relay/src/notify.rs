//! Reports of the relay's health to systemd.

use std::sync::Arc;
use std::time::Duration;

use service::systemd;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;

/// A packet thread that takes longer to respond than this is stuck.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reports the status until `done`, and the stop once `stop` is cancelled.
pub async fn keep(engine: Arc<Engine>, stop: CancellationToken, done: CancellationToken) {
    systemd::keep(
        || line(&engine),
        // The thread that forwards packets has to progress.
        || engine.is_alive(PATIENCE),
        "taking no new gateways",
        stop,
        done,
    )
    .await;
}

/// Returns the status in a line.
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
