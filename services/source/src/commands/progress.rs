//! Progress of operations that take longer than a moment.

use std::future::Future;

use service::progress::Progress;

/// Runs an operation. Shows its duration, and its progress if known, on standard error.
pub(super) async fn with_progress<T>(
    what: &str,
    far: impl Fn() -> Option<String>,
    work: impl Future<Output = T>,
) -> T {
    let mut progress = Progress::new(what);
    tokio::pin!(work);
    loop {
        tokio::select! {
            result = &mut work => break result,
            () = tokio::time::sleep_until(progress.due().into()) => progress.show(&far),
        }
    }
}
