//! When packets that do not come are a reason to suspect the relay.

use std::time::Duration;

use tokio::time::Instant;

/// The relay is suspected when nothing came for so long. The pauses after that double: a flow may
/// be at rest.
const SILENCE: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long nothing has come from a relay.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// Not before there is a relay.
    next: Option<Instant>,
    pause: Duration,
}

impl Silence {
    /// There is a relay: packets are expected.
    pub(crate) fn begins(&mut self) {
        if self.next.is_none() {
            self.broken();
        }
    }

    /// A packet came.
    pub(crate) fn broken(&mut self) {
        self.pause = SILENCE;
        self.next = Some(Instant::now() + SILENCE);
    }

    /// Waits until it has lasted.
    pub(crate) async fn lasted(&mut self) {
        match self.next {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
        self.pause = (self.pause * 2).min(SILENCE_MAX);
        self.next = Some(Instant::now() + self.pause);
    }
}
