//! Detection of silence: missing packets as a reason to suspect the relay.

use std::time::Duration;

use service::backoff::Backoff;
use tokio::time::Instant;

/// Silence after which the relay is suspected, the first time and at most: it doubles, since a flow
/// may be idle.
const SILENCE: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Silence of a relay.
#[derive(Debug)]
pub(crate) struct Silence {
    /// End of the present pause; `None` before there is a relay.
    next: Option<Instant>,
    pauses: Backoff,
}

impl Default for Silence {
    fn default() -> Self {
        Self {
            next: None,
            pauses: Backoff::new(SILENCE, SILENCE_MAX),
        }
    }
}

impl Silence {
    /// Expects packets, since there is a relay.
    pub(crate) fn begins(&mut self) {
        if self.next.is_none() {
            self.broken();
        }
    }

    /// Notes a packet.
    pub(crate) fn broken(&mut self) {
        self.pauses.reset();
        self.next = Some(Instant::now() + self.pauses.delay());
    }

    /// Waits until the silence is long enough to suspect the relay.
    pub(crate) async fn lasted(&mut self) {
        match self.next {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
        self.next = Some(Instant::now() + self.pauses.delay());
    }
}
