//! Waiting for conditions.

use std::time::{Duration, Instant};

/// Bound of a wait: longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Time between two looks at a condition.
const INTERVAL: Duration = Duration::from_millis(10);

/// Stops this thread, which must not be a worker of tokio.
#[expect(clippy::disallowed_methods, reason = "the caller's thread is its own")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until the condition holds, or panics after [`PATIENCE`].
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_some(what, || holds().then_some(()));
}

/// Waits until there is a value and returns it, or panics after [`PATIENCE`].
pub fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        pause(INTERVAL);
    }
}

/// Waits in tokio's time, which a test may have paused.
#[cfg(feature = "tokio")]
pub mod on_tokio {
    use super::{Duration, INTERVAL, PATIENCE};
    use tokio::time::{Instant, sleep};

    /// Waits until the condition holds, or panics after [`PATIENCE`].
    pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
        until_some(what, async || holds().await.then_some(())).await;
    }

    /// Waits until there is a value and returns it, or panics after [`PATIENCE`].
    pub async fn until_some<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
        let described = || what.to_owned();
        until_some_within(PATIENCE, described, look).await
    }

    /// Waits until there is a value and returns it; panics with the description after the bound.
    pub async fn until_some_within<T>(
        bound: Duration,
        describe: impl FnOnce() -> String,
        mut look: impl AsyncFnMut() -> Option<T>,
    ) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look().await {
                return found;
            }
            if begun.elapsed() >= bound {
                panic!("not in time: {}", describe());
            }
            sleep(INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_comes_later_is_found() {
        let mut looks = 0;
        let found = until_some("the third look", || {
            looks += 1;
            (looks == 3).then_some("there")
        });
        assert_eq!((looks, found), (3, "there"));
    }

    #[cfg(feature = "tokio")]
    #[tokio::test]
    #[should_panic(expected = "not in time: never")]
    async fn a_value_that_never_comes_fails_the_test() {
        let describe = || "never".to_owned();
        on_tokio::until_some_within(Duration::ZERO, describe, async || None::<()>).await;
    }
}
