//! Execution of operators' commands.

use std::sync::Arc;
use std::time::Duration;

use flexicast_tokio::source::SourceHandle;
use store::{Command, Fence, Store, Topic};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::fences;
use crate::board::Board;
use crate::ingest::{RefreshError, Refreshes};
use crate::metrics::RecordMetrics;
use crate::status::{FeedState, IngestStatus};

/// Interval at which commands are read without a notification.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait for one answer of the database.
const PATIENCE: Duration = Duration::from_secs(5);
/// Commands in progress at once.
const AT_ONCE: usize = 16;
/// Time within which a key epoch is in use, or a feed was polled.
const WITHIN: Duration = Duration::from_secs(40);
/// Interval at which completion is checked.
const CHECK: Duration = Duration::from_millis(100);

/// Executor of operators' commands.
pub struct CommandExecutor {
    pub(crate) store: Store,
    pub(crate) board: Arc<Board>,
    pub(crate) handle: SourceHandle,
    pub(crate) refreshes: Refreshes,
    pub(crate) metrics: RecordMetrics,
    /// Starts an orderly shutdown.
    pub(crate) drain: CancellationToken,
}

impl CommandExecutor {
    /// Executes commands until `stop`.
    pub async fn follow(self, stop: CancellationToken) {
        let executor = Arc::new(self);
        let mut watch = executor.store.watch(Topic::Commands);
        let mut under_way = JoinSet::new();
        let work = async {
            loop {
                tokio::select! {
                    () = watch.changed() => {}
                    () = sleep(LOOK) => {}
                }
                while under_way.try_join_next().is_some() {}
                let room = AT_ONCE.saturating_sub(under_way.len());
                let held = fences(&executor.board);
                if room == 0 || held.is_empty() {
                    continue;
                }
                for command in executor.take(&held, room).await {
                    let executor = Arc::clone(&executor);
                    under_way.spawn(async move { executor.execute(command).await });
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    async fn take(&self, held: &[Fence], room: usize) -> Vec<Command> {
        match timeout(PATIENCE, self.store.commands().take(held, room)).await {
            Ok(Ok(commands)) => commands,
            Ok(Err(failure)) => {
                debug!(error = %failure, "command poll failed; retrying");
                Vec::new()
            }
            Err(_) => Vec::new(),
        }
    }

    async fn execute(&self, command: Command) {
        let asked = &command.asked;
        info!(
            by = asked.asked_by,
            kind = asked.kind,
            "operator command received"
        );
        let done = timeout(WITHIN, self.carry_out(&command));
        let done = done
            .await
            .unwrap_or_else(|_| Err(format!("not done within {} s", WITHIN.as_secs())));
        self.metrics.command(&asked.kind, done.is_ok());
        if let Err(why) = &done {
            warn!(kind = asked.kind, reason = why, "operator command failed");
        }
        let outcome = match &done {
            Ok(text) => Ok(text.as_str()),
            Err(why) => Err(why.as_str()),
        };
        let recorded = timeout(PATIENCE, self.store.commands().finish(command.id, outcome));
        if !matches!(recorded.await, Ok(Ok(_))) {
            warn!(command = command.id, "command result not recorded");
        }
        if done.is_ok() && asked.kind == "drain" {
            self.drain.cancel();
        }
    }

    async fn carry_out(&self, command: &Command) -> Result<String, String> {
        let asked = &command.asked;
        let channel = || asked.channel.clone().ok_or("it names no channel");
        match asked.kind.as_str() {
            "disconnect" => {
                let receiver = asked.receiver.ok_or("it names no receiver")?;
                let ended = self.handle.disconnect(receiver).await;
                match ended.ok_or("the source is stopping")? {
                    0 => Err("the receiver is not connected".to_owned()),
                    _ => Ok("its connection was ended; it comes back by itself".to_owned()),
                }
            }
            "rekey" => self.rekey(&channel()?).await,
            "refresh-feed" => {
                let url = asked.url.as_deref().ok_or("it names no feed")?;
                self.refresh(&channel()?, url).await
            }
            "drain" => Ok(
                "the source admits no further receivers, delivers published updates, and ends; \
                 its supervisor may start it again"
                    .to_owned(),
            ),
            other => Err(format!("this version does not know {other:?}")),
        }
    }

    /// Returns the key epoch of a channel's flow.
    async fn epoch(&self, channel: &str) -> Result<u64, String> {
        let status = self.handle.status().await.ok_or("the source is stopping")?;
        let its = status.channels.into_iter().find(|c| c.channel == channel);
        let its = its.ok_or_else(|| format!("{channel:?} is not published here"))?;
        let flow = its
            .flow
            .ok_or("the channel has no flow, so it has no key")?;
        Ok(flow.key_sequence)
    }

    async fn rekey(&self, channel: &str) -> Result<String, String> {
        let before = self.epoch(channel).await?;
        self.handle.rekey(channel).await;
        loop {
            sleep(CHECK).await;
            let now = self.epoch(channel).await?;
            if now > before {
                return Ok(format!("key epoch {now} is in use"));
            }
        }
    }

    async fn refresh(&self, channel: &str, url: &str) -> Result<String, String> {
        let last = |board: &Board| {
            let channels = board.snapshot().channels;
            let its = channels.into_iter().find(|c| c.name == channel);
            let feed = its.and_then(|c| c.feeds.into_iter().find(|feed| feed.url == url));
            feed.and_then(|feed| feed.ingest)
        };
        let before = last(&self.board).ok_or("the feed is not polled here")?;
        match self.refreshes.ask(channel, url) {
            Ok(()) => {}
            Err(RefreshError::TooSoon) => return Err("the feed was asked a moment ago".into()),
            Err(RefreshError::NotPolled) => return Err(not_polled(&before)),
        }
        let asked = Instant::now();
        loop {
            sleep(CHECK).await;
            let now = last(&self.board).ok_or("the feed is not polled here any more")?;
            if now.last_poll_ms != before.last_poll_ms {
                let (state, detail) = now.feed();
                let took = asked.elapsed().as_millis();
                return Ok(format!("{}: {detail} (after {took} ms)", state.word()));
            }
            if !self.refreshes.are_of(channel, url) {
                return Err(not_polled(&now));
            }
        }
    }
}

/// Returns why a feed is not polled, with the remedy.
fn not_polled(shown: &IngestStatus) -> String {
    let (state, detail) = shown.feed();
    match state {
        FeedState::Gone => format!(
            "the feed is not polled any more: {detail}. To try again, remove it and add it again"
        ),
        _ => format!("the feed is not polled: {detail}"),
    }
}
