//! One hook on one channel.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::event::Event;
use super::offset::OffsetFile;
use super::progress::Progress;
use super::stats::{InFlight, PendingCounter, add};
use super::{Hook, Letter, Target, Verdict};
use crate::board::now_ms;
use crate::journal::{Guard, JournalReader, Kind, Record};
use service::peer_text::plain;

/// Time limit for attempts in progress at the end.
const GRACE: Duration = Duration::from_secs(2);

/// Shortest time between two writes of an offset. A kill repeats the deliveries in between.
const SPACING: Duration = Duration::from_millis(200);

/// Delay between attempts to read or write on a disk that fails.
const DISK_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Lane<T> {
    hook: Arc<Hook<T>>,
    channel: String,
    reader: Arc<JournalReader>,
    file: OffsetFile,
    progress: Mutex<Progress>,
    /// Serialises dead letters: an update that leaves the journal while its last attempt fails
    /// becomes one letter.
    giving_up: Mutex<()>,
    /// Whether the offset differs from the one on disk.
    moved: Notify,
    /// Whether the offset cannot be written.
    is_stuck: AtomicBool,
}

/// Next step for an update whose attempt failed.
struct Failure {
    attempts: u32,
    reason: String,
}

impl<T: Target> Lane<T> {
    /// Loads the offset, and writes it. Blocks for the disk.
    pub(super) fn open(
        data: &Path,
        hook: Arc<Hook<T>>,
        channel: &str,
        reader: Arc<JournalReader>,
    ) -> anyhow::Result<Self> {
        let file = OffsetFile::new(data, &hook.name, channel);
        let (offset, forgotten) = file.load(&reader)?;
        add(&hook.stats.lost, forgotten);
        let lane = Self {
            hook,
            channel: channel.to_owned(),
            reader,
            file,
            giving_up: Mutex::default(),
            progress: Mutex::new(Progress {
                next: offset.position,
                offset,
            }),
            moved: Notify::new(),
            is_stuck: AtomicBool::new(false),
        };
        // A new hook that is killed before its first update must not start later next time.
        if let Err(error) = lane.store() {
            warn!(hook = lane.hook.name, channel = lane.channel, %error, "hook offset not written; \
                retrying");
            lane.moved.notify_one();
        }
        Ok(lane)
    }

    /// Delivers updates to the hook until `stop`.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let over = CancellationToken::new();
        let keeping = tokio::spawn(Arc::clone(&self).keep(over.clone()));
        let mut end = self.reader.watch();
        let mut in_hand: JoinSet<()> = JoinSet::new();
        loop {
            end.mark_unchanged();
            while in_hand.len() < self.hook.window
                && let Some(position) = self.take_next()
            {
                in_hand.spawn(Arc::clone(&self).deliver(position, stop.clone()));
            }
            tokio::select! {
                () = self.hook.disabled.cancelled() => break,
                changed = end.changed() => if changed.is_err() { break },
                Some(_) = in_hand.join_next() => {}
            }
        }
        while in_hand.join_next().await.is_some() {}
        // A disabled hook stays so until the restart; until then, its updates leave the journal.
        stop.cancelled().await;
        over.cancel();
        if keeping.await.is_err() {
            error!(hook = self.hook.name, "hook offset is no longer persisted");
        }
    }

    /// Returns the next update that is not in progress.
    fn take_next(&self) -> Option<u64> {
        if self.hook.disabled.is_cancelled() {
            return None;
        }
        let mut progress = self.progress();
        loop {
            let record = self.reader.next(progress.next)?;
            // The records in between were lost with a damaged file.
            let mut lost = 0;
            for position in progress.next..record.position {
                lost += u64::from(!progress.is_done(position));
                progress.done(position);
            }
            self.lost(lost);
            progress.next = record.position + 1;
            if !matches!(record.header.kind, Kind::Update { .. }) {
                progress.done(record.position);
            } else if !progress.is_done(record.position) {
                return Some(record.position);
            }
        }
    }

    /// Delivers one update, with retries.
    async fn deliver(self: Arc<Self>, position: u64, stop: CancellationToken) {
        let mut failed = Failure {
            attempts: 0,
            reason: String::new(),
        };
        loop {
            let pause = tokio::select! {
                pause = self.attempt(position, &mut failed) => pause,
                () = async {
                    stop.cancelled().await;
                    tokio::time::sleep(GRACE).await;
                } => return,
            };
            let Some(pause) = pause else { return };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // Also if the whole receiver stops.
                () = self.hook.disabled.cancelled() => return,
            }
        }
    }

    /// Makes an attempt. Returns the delay before the next one, if one is needed.
    async fn attempt(self: &Arc<Self>, position: u64, failed: &mut Failure) -> Option<Duration> {
        let hook = &self.hook;
        let _permit = tokio::select! {
            biased;
            () = hook.disabled.cancelled() => return None,
            permit = hook.permits.acquire() => permit.ok()?,
        };
        // The update left the journal meanwhile, as a dead letter.
        if self.progress().is_done(position) {
            return None;
        }
        let record = match self.read(position).await {
            Ok(Some(record)) => record,
            Ok(None) => {
                warn!(
                    kind = T::KIND,
                    hook = hook.name,
                    channel = self.channel,
                    position,
                    "update left the journal before delivery"
                );
                self.lose(position);
                return None;
            }
            Err(reason) => {
                self.complain(&reason);
                return Some(DISK_PAUSE);
            }
        };
        let seq = record.header.seq;
        let event = match Event::of(&self.channel, seq, &record.encoded) {
            Ok(event) => event,
            Err(error) => {
                warn!(kind = T::KIND, hook = hook.name, channel = self.channel, seq, %error,
                    "update cannot be delivered");
                self.lose(position);
                return None;
            }
        };
        failed.attempts = failed.attempts.saturating_add(1);
        let verdict = {
            let _running = InFlight::new(&hook.stats.running);
            hook.target.attempt(&event, failed.attempts).await
        };
        drop(event);
        let (reason, after) = match verdict {
            Verdict::Done => {
                add(&hook.stats.delivered, 1);
                if hook.stats.succeed(&self.channel) {
                    info!(kind = T::KIND, hook = hook.name, "hook works again");
                }
                self.done(position);
                return None;
            }
            Verdict::Disable { reason } => {
                hook.disable(&self.channel, &reason);
                return None;
            }
            Verdict::Again { reason, after } => (plain(&reason), after),
        };
        add(&hook.stats.failed, 1);
        self.complain(&reason);
        failed.reason = reason;
        let age = Duration::from_millis((now_ms() as u64).saturating_sub(received_ms(&record)));
        if failed.attempts < hook.patience.attempts && age < hook.patience.max_age {
            return Some(hook.patience.pauses.after(failed.attempts, after));
        }
        self.give_up(position, record, failed).await
    }

    async fn read(&self, position: u64) -> Result<Option<Record>, String> {
        let reader = Arc::clone(&self.reader);
        match spawn_blocking(move || reader.read(position)).await {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Makes the update a dead letter, unless it is one. It stays in progress until the letter is
    /// written.
    async fn give_up(
        self: &Arc<Self>,
        position: u64,
        record: Record,
        failed: &Failure,
    ) -> Option<Duration> {
        let hook = &self.hook;
        let letter = self.letter(&record, failed.attempts, &failed.reason);
        let lane = Arc::clone(self);
        let written = spawn_blocking(move || lane.bury(position, letter)).await;
        match written.map_err(|error| error.to_string()).and_then(|w| w) {
            Ok(()) => {
                self.moved.notify_one();
                None
            }
            Err(reason) => {
                self.complain(&reason);
                let pauses = &hook.patience.pauses;
                Some(pauses.after(failed.attempts, Some(DISK_PAUSE)))
            }
        }
    }

    /// Writes a dead letter, unless the update has one already. Blocks for the disk.
    fn bury(&self, position: u64, letter: Letter) -> Result<(), String> {
        let _giving_up = self.giving_up();
        if self.progress().is_done(position) {
            return Ok(());
        }
        let hook = &self.hook;
        let (seq, attempts, reason) = (letter.seq, letter.attempts, letter.reason.clone());
        hook.dead.append([letter]).map_err(|e| e.to_string())?;
        let path = hook.dead.path().display();
        warn!(kind = T::KIND, hook = hook.name, channel = self.channel, seq, attempts, reason,
            %path, "delivery given up; update is a dead letter");
        add(&hook.stats.dead, 1);
        self.progress().done(position);
        Ok(())
    }

    fn giving_up(&self) -> MutexGuard<'_, ()> {
        self.giving_up
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn letter(&self, record: &Record, attempts: u32, reason: &str) -> Letter {
        let event = feed::payload::event_json(&record.encoded).ok();
        let event = event.and_then(|json| serde_json::from_slice(&json).ok());
        Letter {
            hook: self.hook.name.clone(),
            channel: self.channel.clone(),
            incarnation: record.header.incarnation,
            seq: record.header.seq,
            received_ms: received_ms(record),
            given_up_ms: now_ms() as u64,
            attempts,
            reason: reason.to_owned(),
            event: event.unwrap_or_default(),
        }
    }

    fn complain(&self, reason: &str) {
        self.hook.complain(&self.channel, reason);
    }

    /// Reports updates lost with a damaged part of the journal.
    fn lost(&self, count: u64) {
        if count > 0 {
            error!(
                kind = T::KIND,
                hook = self.hook.name,
                channel = self.channel,
                count,
                "updates lost in a damaged part of the journal"
            );
            add(&self.hook.stats.lost, count);
        }
    }

    fn lose(&self, position: u64) {
        add(&self.hook.stats.lost, 1);
        self.done(position);
    }

    fn done(&self, position: u64) {
        self.progress().done(position);
        self.moved.notify_one();
    }

    /// Writes the offset whenever it changed, until `over`, and once more then.
    async fn keep(self: Arc<Self>, over: CancellationToken) {
        loop {
            tokio::select! {
                () = self.moved.notified() => {}
                () = over.cancelled() => {}
            }
            let last = over.is_cancelled();
            let lane = Arc::clone(&self);
            let stored = spawn_blocking(move || lane.store()).await;
            let stored = stored.map_err(anyhow::Error::from).and_then(|s| s);
            let pause = match stored {
                Ok(()) => {
                    self.is_stuck.store(false, Ordering::Relaxed);
                    SPACING
                }
                Err(error) => {
                    if !self.is_stuck.swap(true, Ordering::Relaxed) {
                        warn!(hook = self.hook.name, %error, "hook offset not written; a crash \
                            would repeat deliveries");
                    }
                    self.moved.notify_one();
                    DISK_PAUSE
                }
            };
            if last {
                return;
            }
            let _ = tokio::time::timeout(pause, over.cancelled()).await;
        }
    }

    /// Writes the offset. Blocks for the disk.
    fn store(&self) -> anyhow::Result<()> {
        let offset = self.progress().offset.clone();
        Ok(self.file.store(&offset, &self.reader)?)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // No change under this lock can be left half done.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn received_ms(record: &Record) -> u64 {
    match record.header.kind {
        Kind::Update { at_ms } => at_ms,
        _ => 0,
    }
}

impl<T: Target> PendingCounter for Lane<T> {
    fn waiting(&self) -> u64 {
        let (position, done) = {
            let progress = self.progress();
            (progress.offset.position, progress.offset.done.count())
        };
        self.reader.updates_from(position).saturating_sub(done)
    }
}

impl<T: Target> Guard for Lane<T> {
    fn leaving(&self, end: u64) -> anyhow::Result<()> {
        let _giving_up = self.giving_up();
        let (mut position, done) = {
            let progress = self.progress();
            (progress.offset.position, progress.offset.done.clone())
        };
        if position >= end {
            return Ok(());
        }
        let reason = if self.hook.disabled.is_cancelled() {
            "the hook is disabled, and the journal is full"
        } else {
            "the hook was too slow, and the journal is full"
        };
        let (mut count, mut lost) = (0, 0);
        // One by one, so that at most one is in memory.
        let letters = std::iter::from_fn(|| {
            while let Some(record) = self.reader.next(position)
                && record.position < end
            {
                let passed_over = (position..record.position).filter(|at| !done.contains(*at));
                lost += passed_over.count() as u64;
                position = record.position + 1;
                let is_update = matches!(record.header.kind, Kind::Update { .. });
                if !is_update || done.contains(record.position) {
                    continue;
                }
                match self.reader.read(record.position) {
                    Ok(Some(record)) => {
                        count += 1;
                        return Some(self.letter(&record, 0, reason));
                    }
                    Ok(None) => lost += 1,
                    // An unreadable file must not delay the other letters.
                    Err(error) => {
                        error!(kind = T::KIND, hook = self.hook.name, channel = self.channel,
                            %error, "update cannot be read for its dead letter");
                        lost += 1;
                    }
                }
            }
            None
        });
        self.hook.dead.append(letters)?;
        let rest = (position..end).filter(|at| !done.contains(*at));
        add(&self.hook.stats.lost, lost + rest.count() as u64);
        if count > 0 {
            let path = self.hook.dead.path().display();
            warn!(kind = T::KIND, hook = self.hook.name, channel = self.channel, count, reason,
                %path, "undelivered updates are dead letters");
            add(&self.hook.stats.dead, count);
        }
        self.progress().skip_to(end);
        self.moved.notify_one();
        Ok(())
    }
}
