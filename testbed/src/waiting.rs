//! Waiting for what other processes do.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Interval at which a condition is checked.
const EVERY: Duration = Duration::from_millis(50);

/// Stops this thread for a while.
///
/// The one place where the testbed sleeps: it runs on threads of its own, never on a tokio worker.
#[allow(clippy::disallowed_methods)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Asks `condition` again and again until it has an answer.
///
/// The bound is a safety net, to be chosen several times longer than what is expected. `condition`
/// returns `Ok(None)` for «not yet».
///
/// # Errors
/// The condition's own error at once; after `bound`, one that names `what`.
pub fn wait_for<T>(
    what: &str,
    bound: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = condition()? {
            return Ok(answer);
        }
        if start.elapsed() > bound {
            bail!("{what}: not within {bound:?}");
        }
        pause(EVERY);
    }
}
