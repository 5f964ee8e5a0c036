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
use super::place::PlaceFile;
use super::progress::Progress;
use super::stats::{Running, Waiting, add};
use super::{Hook, Letter, Target, Verdict};
use crate::board::now_ms;
use crate::journal::{Guard, Kind, Record, Tape};
use service::peer_text::plain;

/// At the end, an attempt in hand may go on for so long.
const GRACE: Duration = Duration::from_secs(2);

/// A place is written down at most so often. What is done in between is done again after a kill.
const SPACING: Duration = Duration::from_millis(200);

/// Between attempts to read or write on a disk that fails.
const DISK_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Lane<T> {
    hook: Arc<Hook<T>>,
    channel: String,
    tape: Arc<Tape>,
    file: PlaceFile,
    progress: Mutex<Progress>,
    /// Who makes dead letters: what leaves the journal while its last attempt fails is one of them.
    giving_up: Mutex<()>,
    /// The place is not as it is on disk.
    moved: Notify,
    /// The place cannot be written down.
    is_stuck: AtomicBool,
}

/// What is to be done with an update that failed.
struct Failure {
    attempts: u32,
    reason: String,
}

impl<T: Target> Lane<T> {
    /// Finds its place, and writes it down. Blocks for the disk.
    pub(super) fn open(
        data: &Path,
        hook: Arc<Hook<T>>,
        channel: &str,
        tape: Arc<Tape>,
    ) -> anyhow::Result<Self> {
        let file = PlaceFile::new(data, &hook.name, channel);
        let (place, forgotten) = file.load(&tape)?;
        add(&hook.stats.lost, forgotten);
        let lane = Self {
            hook,
            channel: channel.to_owned(),
            tape,
            file,
            giving_up: Mutex::default(),
            progress: Mutex::new(Progress {
                next: place.position,
                place,
            }),
            moved: Notify::new(),
            is_stuck: AtomicBool::new(false),
        };
        // A new hook that is killed before its first update must not begin later at the next start.
        if let Err(error) = lane.store() {
            warn!("{error}; it is tried again");
            lane.moved.notify_one();
        }
        Ok(lane)
    }

    /// Tells the hook of what comes, until `stop`.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let over = CancellationToken::new();
        let keeping = tokio::spawn(Arc::clone(&self).keep(over.clone()));
        let mut end = self.tape.watch();
        let mut in_hand: JoinSet<()> = JoinSet::new();
        loop {
            end.mark_unchanged();
            while in_hand.len() < self.hook.window
                && let Some(position) = self.take_next()
            {
                in_hand.spawn(Arc::clone(&self).tell(position, stop.clone()));
            }
            tokio::select! {
                () = self.hook.disabled.cancelled() => break,
                changed = end.changed() => if changed.is_err() { break },
                Some(_) = in_hand.join_next() => {}
            }
        }
        while in_hand.join_next().await.is_some() {}
        // What is disabled stays so until the end; until then, its updates leave the journal.
        stop.cancelled().await;
        over.cancel();
        if keeping.await.is_err() {
            error!(
                "the place of the hook {} is not kept any more",
                self.hook.name
            );
        }
    }

    /// The next update that nobody has in hand.
    fn take_next(&self) -> Option<u64> {
        if self.hook.disabled.is_cancelled() {
            return None;
        }
        let mut progress = self.progress();
        loop {
            let place = self.tape.next(progress.next)?;
            // What lies between was lost with a damaged file.
            let mut lost = 0;
            for position in progress.next..place.position {
                lost += u64::from(!progress.is_done(position));
                progress.done(position);
            }
            self.lost(lost);
            progress.next = place.position + 1;
            if !matches!(place.mark.kind, Kind::Update { .. }) {
                progress.done(place.position);
            } else if !progress.is_done(place.position) {
                return Some(place.position);
            }
        }
    }

    /// Tells the hook of one update, however often it takes.
    async fn tell(self: Arc<Self>, position: u64, stop: CancellationToken) {
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
                // Also where the whole receiver stops.
                () = self.hook.disabled.cancelled() => return,
            }
        }
    }

    /// One attempt. Returns how long to wait for the next one, if there has to be one.
    async fn attempt(self: &Arc<Self>, position: u64, failed: &mut Failure) -> Option<Duration> {
        let hook = &self.hook;
        let _place = tokio::select! {
            biased;
            () = hook.disabled.cancelled() => return None,
            place = hook.places.acquire() => place.ok()?,
        };
        // It left the journal in the meantime, as a dead letter.
        if self.progress().is_done(position) {
            return None;
        }
        let record = match self.read(position).await {
            Ok(Some(record)) => record,
            Ok(None) => {
                warn!(
                    "the hook {} is not told of the update at position {position} of {}'s journal: it is not there any more",
                    hook.name, self.channel
                );
                self.lose(position);
                return None;
            }
            Err(reason) => {
                self.complain(&reason);
                return Some(DISK_PAUSE);
            }
        };
        let seq = record.mark.seq;
        let event = match Event::of(&self.channel, seq, &record.encoded) {
            Ok(event) => event,
            Err(error) => {
                warn!(
                    "the hook {} is not told of update {seq} of {}: {error}",
                    hook.name, self.channel
                );
                self.lose(position);
                return None;
            }
        };
        failed.attempts = failed.attempts.saturating_add(1);
        let verdict = {
            let _running = Running::new(&hook.stats.running);
            hook.target.attempt(&event, failed.attempts).await
        };
        drop(event);
        let (reason, after) = match verdict {
            Verdict::Done => {
                add(&hook.stats.delivered, 1);
                if hook.stats.succeed(&self.channel) {
                    info!("the {} {} works again", T::KIND, hook.name);
                }
                self.done(position);
                return None;
            }
            Verdict::Disable { reason } => {
                add(&hook.stats.failed, 1);
                hook.stats.fail(&self.channel, &reason);
                hook.stats.disable();
                hook.disabled.cancel();
                error!(
                    "the {} {} is not told of updates any more until this receiver starts again: {reason}",
                    T::KIND,
                    hook.name
                );
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
        let tape = Arc::clone(&self.tape);
        match spawn_blocking(move || tape.read(position)).await {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Makes it a dead letter, if it is none yet. While that cannot be written, the update stays in
    /// hand.
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

    /// Writes a dead letter, unless the update is one already. Blocks for the disk.
    fn bury(&self, position: u64, letter: Letter) -> Result<(), String> {
        let _giving_up = self.giving_up();
        if self.progress().is_done(position) {
            return Ok(());
        }
        let hook = &self.hook;
        let told = format!(
            "the {} {} could not be told of update {} of {} in {} attempts ({}); it is in {}",
            T::KIND,
            hook.name,
            letter.seq,
            self.channel,
            letter.attempts,
            letter.reason,
            hook.dead.path().display()
        );
        hook.dead.append([letter]).map_err(|e| e.to_string())?;
        warn!("{told}");
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
            incarnation: record.mark.incarnation,
            seq: record.mark.seq,
            received_ms: received_ms(record),
            given_up_ms: now_ms() as u64,
            attempts,
            reason: reason.to_owned(),
            event: event.unwrap_or_default(),
        }
    }

    /// Logs what is wrong where nothing was; the rest is counted.
    fn complain(&self, reason: &str) {
        if self.hook.stats.fail(&self.channel, reason) {
            warn!(
                "the {} {} fails: {reason}; its updates wait, and it is tried again",
                T::KIND,
                self.hook.name
            );
        }
    }

    /// So many updates were lost with a damaged part of the journal.
    fn lost(&self, count: u64) {
        if count > 0 {
            error!(
                "the {} {} is not told of up to {count} updates of {}: the part of the journal that they were in was damaged",
                T::KIND,
                self.hook.name,
                self.channel
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

    /// Writes the place down whenever it changed, until it is over and once more then.
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
                        warn!(
                            "{error}; after a crash, the hook {} would be told of its last updates again",
                            self.hook.name
                        );
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

    /// Blocks for the disk.
    fn store(&self) -> anyhow::Result<()> {
        let place = self.progress().place.clone();
        Ok(self.file.store(&place, &self.tape)?)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing is changed half under this lock.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn received_ms(record: &Record) -> u64 {
    match record.mark.kind {
        Kind::Update { at_ms } => at_ms,
        _ => 0,
    }
}

impl<T: Target> Waiting for Lane<T> {
    fn waiting(&self) -> u64 {
        let (position, done) = {
            let progress = self.progress();
            (progress.place.position, progress.place.done.count())
        };
        self.tape.updates_from(position).saturating_sub(done)
    }
}

impl<T: Target> Guard for Lane<T> {
    fn leaving(&self, end: u64) -> anyhow::Result<()> {
        let _giving_up = self.giving_up();
        let (mut position, done) = {
            let progress = self.progress();
            (progress.place.position, progress.place.done.clone())
        };
        if position >= end {
            return Ok(());
        }
        let reason = if self.hook.disabled.is_cancelled() {
            "the hook is disabled, and the journal had no room for it any more"
        } else {
            "the hook was too slow, and the journal had no room for it any more"
        };
        let (mut count, mut lost) = (0, 0);
        // One after the other, so that never more than one is held.
        let letters = std::iter::from_fn(|| {
            while let Some(place) = self.tape.next(position)
                && place.position < end
            {
                let passed_over = (position..place.position).filter(|at| !done.contains(*at));
                lost += passed_over.count() as u64;
                position = place.position + 1;
                let is_update = matches!(place.mark.kind, Kind::Update { .. });
                if !is_update || done.contains(place.position) {
                    continue;
                }
                match self.tape.read(place.position) {
                    Ok(Some(record)) => {
                        count += 1;
                        return Some(self.letter(&record, 0, reason));
                    }
                    Ok(None) => lost += 1,
                    // A file that cannot be read must not hold up those that can be written.
                    Err(error) => {
                        error!(
                            "{error}: the {} {} is not told of an update of {}",
                            T::KIND,
                            self.hook.name,
                            self.channel
                        );
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
            warn!(
                "{count} updates of {} that the {} {} was not told of are in {}: {reason}",
                self.channel,
                T::KIND,
                self.hook.name,
                self.hook.dead.path().display()
            );
            add(&self.hook.stats.dead, count);
        }
        self.progress().skip_to(end);
        self.moved.notify_one();
        Ok(())
    }
}
