//! Messages for one hook. No journal has them: each is tried until it is delivered or worthless,
//! and one that arrives while 16 of them wait is lost.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::stats::{InFlight, add};
use super::{Hook, Target, Verdict};
use crate::live::{Expiring, Follower};
use crate::messages::ReceivedMessage;
use service::peer_text::plain;

/// Messages that wait for a hook at most.
const WAITING: usize = 16;

/// Delivers the messages of these channels, of all if there are none, until `stop`.
pub(super) async fn run<T: Target>(
    hook: Arc<Hook<T>>,
    channels: Vec<String>,
    mut messages: Follower<Arc<ReceivedMessage>>,
    stop: CancellationToken,
) {
    let (queue, mut waiting) = mpsc::channel::<Arc<ReceivedMessage>>(WAITING);
    let wants = |message: &ReceivedMessage| {
        channels.is_empty() || channels.contains(&message.event.channel)
    };
    let take_all = async {
        loop {
            messages.ready().await;
            let mut lost = messages.take_missed();
            for message in messages.take() {
                if wants(&message) && queue.try_send(message).is_err() {
                    lost += 1;
                }
            }
            lost += messages.take_missed();
            if lost > 0 {
                add(&hook.stats.expired, lost);
                warn!(
                    kind = T::KIND,
                    hook = hook.name,
                    lost,
                    "messages lost; the hook is slow"
                );
            }
        }
    };
    let deliver_all = async {
        while let Some(message) = waiting.recv().await {
            deliver(&hook, &message).await;
        }
    };
    tokio::select! {
        () = take_all => {}
        () = deliver_all => {}
        () = hook.disabled.cancelled() => {}
        () = stop.cancelled() => {}
    }
}

/// Delivers a message, with retries until it has expired.
async fn deliver<T: Target>(hook: &Hook<T>, message: &Arc<ReceivedMessage>) {
    let channel = &message.event.channel;
    let (mut attempts, mut last) = (0, String::from("other messages were before it"));
    while !message.has_expired() {
        let Ok(permit) = hook.permits.acquire().await else {
            return;
        };
        if message.has_expired() {
            break;
        }
        attempts += 1;
        let verdict = {
            let _running = InFlight::new(&hook.stats.running);
            hook.target.attempt(&message.event, attempts).await
        };
        drop(permit);
        let (reason, after) = match verdict {
            Verdict::Done => {
                add(&hook.stats.delivered, 1);
                if hook.stats.succeed(channel) {
                    info!(kind = T::KIND, hook = hook.name, "hook works again");
                }
                return;
            }
            Verdict::Disable { reason } => {
                hook.disable(channel, &reason);
                return;
            }
            Verdict::Again { reason, after } => (plain(&reason), after),
        };
        add(&hook.stats.failed, 1);
        hook.complain(channel, &reason);
        let pause = hook.patience.pauses.after(attempts, after);
        let is_over = Instant::now().checked_add(pause).zip(message.expires_at);
        last = reason;
        if attempts >= hook.patience.attempts || is_over.is_some_and(|(at, end)| at >= end) {
            break;
        }
        sleep(pause).await;
    }
    add(&hook.stats.expired, 1);
    let id = plain(&message.event.id);
    warn!(
        kind = T::KIND,
        hook = hook.name,
        channel,
        id,
        attempts,
        reason = last,
        "message given up"
    );
}
