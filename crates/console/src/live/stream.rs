//! Event stream of one watcher.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::hub::{TooManyTopics, TopicKey, Watcher};
use crate::auth::caller::Caller;
use crate::site::Site;

/// A sign of life where nothing happens, so that proxies and browsers notice a dead connection.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Interval at which a watcher's rights are checked, for revocations at another console.
const CHECK: Duration = Duration::from_secs(60);

/// In how many milliseconds browsers come back.
const RETRY: &str = "retry: 2000\n\n";

struct Streaming {
    site: Arc<Site>,
    caller: Caller,
    watcher: Watcher,
    departures: watch::Receiver<u64>,
    heartbeat: Interval,
    check: Interval,
    has_begun: bool,
}

/// Returns the events for a watcher, until it loses its rights or the program ends.
///
/// # Errors
/// Too many topics.
pub fn stream(
    site: Arc<Site>,
    caller: Caller,
    key: TopicKey,
    last_event_id: Option<&str>,
) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static, TooManyTopics> {
    let departures = site.departures();
    let watcher = site.hub.watch(&site, key, caller.user.id, last_event_id)?;
    let every = |time| {
        let mut interval = interval_at(Instant::now() + time, time);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    };
    let streaming = Streaming {
        site,
        caller,
        watcher,
        departures,
        heartbeat: every(HEARTBEAT),
        check: every(CHECK),
        has_begun: false,
    };
    Ok(unfold(streaming, |mut streaming| async move {
        let bytes = streaming.next().await?;
        Some((Ok(bytes), streaming))
    }))
}

impl Streaming {
    async fn next(&mut self) -> Option<Bytes> {
        if !self.has_begun {
            self.has_begun = true;
            return Some(Bytes::from_static(RETRY.as_bytes()));
        }
        loop {
            if let Some(event) = self.watcher.next(&self.site) {
                self.heartbeat.reset();
                return Some(event);
            }
            tokio::select! {
                () = self.site.stop.cancelled() => return None,
                () = self.watcher.changed() => {}
                _ = self.heartbeat.tick() => return Some(Bytes::from_static(b": alive\n\n")),
                Ok(()) = self.departures.changed() => {
                    if !self.caller.is_still_admitted(&self.site).await {
                        return None;
                    }
                }
                _ = self.check.tick() => {
                    if !self.caller.is_still_admitted(&self.site).await {
                        return None;
                    }
                }
            }
        }
    }
}
