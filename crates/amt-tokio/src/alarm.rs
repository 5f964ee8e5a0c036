//! A timer that is only reset when its deadline changes.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::time::Instant;

use tokio::time::{Sleep, sleep_until};

/// A reusable timer. A loop that checks it once for every few packets does not reset a timer of the
/// runtime each time, but only when the deadline changes.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    at: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Waits until `at`; for ever without a deadline. Cancel safe.
    pub(crate) async fn wait(&mut self, at: Option<Instant>) {
        let Some(at) = at else {
            return pending().await;
        };
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(sleep_until(at.into())));
        if self.at.replace(at) != Some(at) {
            sleep.as_mut().reset(at.into());
        }
        poll_fn(|cx| sleep.as_mut().poll(cx)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    const A_MOMENT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn an_alarm_rings_at_the_last_deadline() {
        let mut alarm = Alarm::default();
        let late = Instant::now() + Duration::from_secs(3600);
        for round in 0..3 {
            let early = timeout(A_MOMENT, alarm.wait(Some(late))).await;
            assert!(early.is_err(), "not yet in round {round}");
            let soon = Instant::now() + A_MOMENT;
            // A cancelled wait may be resumed.
            let _ = timeout(Duration::ZERO, alarm.wait(Some(soon))).await;
            let rung = timeout(PATIENCE, alarm.wait(Some(soon))).await;
            assert!(rung.is_ok() && Instant::now() >= soon, "round {round}");
            let past = timeout(PATIENCE, alarm.wait(Some(soon))).await;
            assert!(past.is_ok(), "what is past does not wait");
            let never = timeout(A_MOMENT, alarm.wait(None)).await;
            assert!(never.is_err(), "no time, no alarm");
        }
    }
}
