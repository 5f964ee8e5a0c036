//! The engine's shards: one inside its own task, or several on threads.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::UdpSocket as StdSocket;
use std::sync::Arc;
use std::sync::mpsc::{Receiver as StdReceiver, TryRecvError as StdTryRecvError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use netio::UdpSocket;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tracing::warn;

use crate::source::shard::{Batch, Shard, ShardContext, ShardThread, Work};

/// A shard on a thread is asked so often whether it reads what arrives, while receivers may be
/// blamed for silence.
const SYNC_EVERY: Duration = Duration::from_millis(20);
/// The same at other times, so that one that hangs is noticed.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// A shard hangs that has not answered for so long while the engine ran.
const HUNG_AFTER: Duration = Duration::from_secs(10);
/// Threads of replaced shards that hang at a time: beyond it, shards are not replaced.
const MAX_HUNG: usize = 8;
/// A shard that ended sooner than this after its start is restarted only then.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Time that the end of a source waits for the threads of shards to end.
const FREE_WITHIN: Duration = Duration::from_secs(1);
/// Time for the shards to say goodbye.
const GOODBYE_WITHIN: Duration = Duration::from_secs(5);

/// The shards of a source.
pub(super) enum Shards {
    Inline(Box<Shard>),
    Threads(Box<Threads>),
}

/// Shards on threads of their own.
pub(super) struct Threads {
    context: ShardContext,
    slots: Vec<Slot>,
    arrived: VecDeque<(usize, Batch)>,
    /// Shards whose end was not taken notice of yet.
    ended: VecDeque<(usize, ShardEnd)>,
    /// Threads that were given up; each of these disconnects when its thread ends after all.
    hung: Vec<StdReceiver<()>>,
    failed: Option<io::Error>,
    last_sync: u64,
    synced_at: Option<Instant>,
    #[cfg(feature = "fault-injection")]
    leave_failed: bool,
}

/// Kind of end of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShardEnd {
    /// By a panic.
    Failed,
    /// Its thread goes on, but does not answer.
    Hung,
}

/// A [`Work::Sync`] that is not answered.
#[derive(Debug, Clone, Copy)]
struct Silence {
    number: u64,
    since: Instant,
    looked_at: Instant,
    /// Its duration, as far as the engine ran: a process that is paused answers nothing.
    counted: Duration,
}

impl Silence {
    fn new(number: u64, now: Instant) -> Self {
        Silence {
            number,
            since: now,
            looked_at: now,
            counted: Duration::ZERO,
        }
    }

    /// Whether it has lasted too long.
    fn is_hang(&mut self, now: Instant) -> bool {
        let since = std::mem::replace(&mut self.looked_at, now);
        // The engine looks once in this time.
        self.counted += now.saturating_duration_since(since).min(2 * BEAT_EVERY);
        self.counted >= HUNG_AFTER
    }
}

/// Place of a shard.
struct Slot {
    /// Kept open, so that what arrives while the shard is restarted is not lost.
    socket: StdSocket,
    /// `None` until it is restarted.
    thread: Option<ShardThread>,
    started: Instant,
    /// Work that did not fit into the shard's queue.
    pending: VecDeque<Work>,
    silence: Option<Silence>,
}

impl Shards {
    /// Starts a shard for each socket; a single one runs inside the engine's task.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub(super) fn start(
        first: StdSocket,
        others: Vec<StdSocket>,
        context: ShardContext,
    ) -> io::Result<Self> {
        if others.is_empty() {
            let shard = Shard::new(0, UdpSocket::pausable(first)?, context, Arc::default());
            return Ok(Shards::Inline(Box::new(shard)));
        }
        let started = Instant::now();
        let sockets = [first].into_iter().chain(others).enumerate();
        let slots = sockets.map(|(number, socket)| {
            Ok(Slot {
                thread: Some(ShardThread::start(number as u8, &socket, context.clone())?),
                socket,
                started,
                pending: VecDeque::new(),
                silence: None,
            })
        });
        let slots = slots.collect::<io::Result<_>>()?;
        Ok(Shards::Threads(Box::new(Threads {
            context,
            slots,
            arrived: VecDeque::new(),
            ended: VecDeque::new(),
            hung: Vec::new(),
            failed: None,
            last_sync: 0,
            synced_at: None,
            #[cfg(feature = "fault-injection")]
            leave_failed: false,
        })))
    }

    /// Waits until [`Shards::collect`] has something to do. Cancel safe.
    ///
    /// # Errors
    /// A socket is unusable.
    pub(super) async fn ready(&mut self) -> io::Result<()> {
        match self {
            Shards::Inline(shard) if shard.has_report() => Ok(()),
            Shards::Inline(shard) => shard.readable().await,
            Shards::Threads(threads) => {
                poll_fn(|cx| threads.poll(cx)).await;
                Ok(())
            }
        }
    }

    /// Waits until answers can be sent without waiting.
    ///
    /// # Errors
    /// The socket is unusable.
    pub(super) async fn writable(&mut self) -> io::Result<()> {
        match self {
            Shards::Inline(shard) => shard.writable().await,
            Shards::Threads(_) => Ok(()),
        }
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    /// A socket is unusable.
    pub(super) fn collect(&mut self) -> io::Result<()> {
        match self {
            Shards::Inline(shard) => shard.receive(),
            Shards::Threads(threads) => threads.collect(),
        }
    }

    /// Takes the next report, with its shard.
    pub(super) fn next_report(&mut self) -> Option<(usize, Batch)> {
        match self {
            Shards::Inline(shard) => shard.has_report().then(|| (0, shard.take_report())),
            Shards::Threads(threads) => threads.arrived.pop_front(),
        }
    }

    /// Leaves shards that fail as they are, and takes no notice of it.
    #[cfg(feature = "fault-injection")]
    pub(super) fn leave_failed(&mut self) {
        if let Shards::Threads(threads) = self {
            threads.leave_failed = true;
        }
    }

    /// Takes notice of a shard that has ended and lost its sessions.
    pub(super) fn next_ended(&mut self) -> Option<(usize, ShardEnd)> {
        match self {
            Shards::Inline(_) => None,
            #[cfg(feature = "fault-injection")]
            Shards::Threads(threads) if threads.leave_failed => {
                threads.ended.clear();
                None
            }
            Shards::Threads(threads) => threads.ended.pop_front(),
        }
    }

    /// Restarts the shards that have ended, after [`Shards::next_ended`].
    pub(super) fn restart(&mut self, now: Instant) {
        if let Shards::Threads(threads) = self {
            threads.restart(now);
        }
    }

    /// Whether a shard takes work. It reports when it does again.
    pub(super) fn has_room(&self, shard: usize) -> bool {
        match self {
            Shards::Inline(_) => true,
            Shards::Threads(threads) => threads
                .slots
                .get(shard)
                .is_some_and(|slot| slot.thread.is_some() && slot.pending.is_empty()),
        }
    }

    /// Sends work to a shard. Session work should wait for [`Shards::has_room`].
    pub(super) fn send(&mut self, shard: usize, work: Work, now: Instant) {
        match self {
            Shards::Inline(only) => only.execute(work, now),
            Shards::Threads(threads) => {
                if let Some(slot) = threads.slots.get_mut(shard) {
                    slot.pending.push_back(work);
                    slot.send_pending();
                }
            }
        }
    }

    /// Reports delivered sessions from now on.
    pub(super) fn drain(&mut self, now: Instant) {
        for shard in 0..self.len() {
            self.send(shard, Work::Drain, now);
        }
    }

    /// Returns the number of shards.
    pub(super) fn len(&self) -> usize {
        match self {
            Shards::Inline(_) => 1,
            Shards::Threads(threads) => threads.slots.len(),
        }
    }

    /// Returns when the engine has to wake for its shards. `judging` says that receivers may be
    /// blamed for silence.
    pub(super) fn next_timeout(&self, judging: bool, now: Instant) -> Option<Instant> {
        match self {
            Shards::Inline(shard) => shard.next_timeout(),
            Shards::Threads(threads) => {
                let sync = threads.next_sync(judging);
                let dead = threads.slots.iter().filter(|slot| slot.thread.is_none());
                let restart = dead.map(|slot| slot.started + RESTART_AFTER).min();
                #[cfg(feature = "fault-injection")]
                let restart = restart.filter(|_| !threads.leave_failed);
                // What was due while there was no reason to wake is not late.
                let next = [sync, restart].into_iter().flatten().min();
                next.map(|at| at.max(now))
            }
        }
    }

    /// Does what is due inside the engine's task.
    pub(super) fn expire(&mut self, now: Instant) {
        if let Shards::Inline(shard) = self {
            shard.expire(now);
        }
    }

    /// Serves a connection inside the engine's task; `false` if there is nothing to do.
    ///
    /// # Errors
    /// The socket is unusable.
    pub(super) async fn flush_next(&mut self, now: Instant) -> io::Result<bool> {
        match self {
            Shards::Inline(shard) => shard.flush_next(now).await,
            Shards::Threads(_) => Ok(false),
        }
    }

    /// Asks the threads whether they read what arrives, gives up those that hang, and returns for
    /// how long one of them has not answered: what its receivers have sent meanwhile may still be
    /// to be read.
    pub(super) fn lag(&mut self, judging: bool, now: Instant) -> Duration {
        match self {
            Shards::Inline(_) => Duration::ZERO,
            Shards::Threads(threads) => threads.lag(judging, now),
        }
    }

    /// Says goodbye to all receivers. Returns whether all shards have ended.
    pub(super) async fn shutdown(self) -> io::Result<bool> {
        match self {
            Shards::Inline(mut shard) => {
                let now = Instant::now();
                shard.execute(Work::Shutdown, now);
                while shard.flush_next(now).await? {}
                Ok(true)
            }
            Shards::Threads(mut threads) => {
                let goodbye = threads.say_goodbye();
                let ended = tokio::time::timeout(GOODBYE_WITHIN, goodbye).await;
                Ok(ended.is_ok())
            }
        }
    }
}

impl Threads {
    async fn say_goodbye(&mut self) {
        let threads = self
            .slots
            .iter_mut()
            .filter_map(|slot| slot.thread.as_mut());
        let mut threads: Vec<_> = threads.collect();
        for thread in &mut threads {
            let _ = thread.works.send(Work::Shutdown).await;
        }
        for thread in &mut threads {
            while thread.reports.recv().await.is_some() {}
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for number in 0..self.slots.len() {
            let thread = self.slots.get_mut(number).and_then(|s| s.thread.as_mut());
            if let Some(thread) = thread
                && let Poll::Ready(report) = thread.reports.poll_recv(cx)
            {
                self.take(number, report);
            }
        }
        let is_quiet = self.arrived.is_empty() && self.ended.is_empty() && self.failed.is_none();
        if is_quiet {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    /// Takes a report of a shard, or notes its end.
    fn take(&mut self, number: usize, report: Option<io::Result<Batch>>) {
        let Some(slot) = self.slots.get_mut(number) else {
            return;
        };
        match report {
            Some(Ok(report)) => {
                let asked = slot.silence.map(|silence| silence.number);
                if asked.is_some() && report.synced == asked {
                    slot.silence = None;
                }
                self.arrived.push_back((number, report));
            }
            Some(Err(error)) => self.failed = Some(error),
            None => {
                slot.clear();
                self.ended.push_back((number, ShardEnd::Failed));
            }
        }
    }

    /// Returns when the shards are to be asked again.
    fn next_sync(&self, judging: bool) -> Option<Instant> {
        let every = if judging { SYNC_EVERY } else { BEAT_EVERY };
        self.synced_at.map(|at| at + every)
    }

    /// Gives up a shard that hangs, as if it had failed. Its thread ends by itself if it ever goes
    /// on.
    fn give_up(&mut self, number: usize) {
        let hangs = |one: &StdReceiver<()>| one.try_recv() == Err(StdTryRecvError::Empty);
        self.hung.retain(hangs);
        let Some(slot) = self.slots.get_mut(number) else {
            return;
        };
        if self.hung.len() >= MAX_HUNG {
            warn!(
                shard = number,
                "the shard hangs and is not replaced: too many others do"
            );
            slot.silence = slot.silence.map(|s| Silence::new(s.number, s.looked_at));
            return;
        }
        self.hung.extend(slot.clear().map(ShardThread::end));
        self.ended.push_back((number, ShardEnd::Hung));
    }

    fn collect(&mut self) -> io::Result<()> {
        for number in 0..self.slots.len() {
            for _ in 0..ShardThread::REPORTS {
                let thread = self.slots.get_mut(number).and_then(|s| s.thread.as_mut());
                let report = match thread.map(|thread| thread.reports.try_recv()) {
                    Some(Ok(report)) => Some(report),
                    Some(Err(TryRecvError::Disconnected)) => None,
                    Some(Err(TryRecvError::Empty)) | None => break,
                };
                self.take(number, report);
            }
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.slots.iter_mut().for_each(Slot::send_pending);
        Ok(())
    }

    fn restart(&mut self, now: Instant) {
        #[cfg(feature = "fault-injection")]
        if self.leave_failed {
            return;
        }
        let dead = |slot: &Slot| slot.thread.is_none() && now >= slot.started + RESTART_AFTER;
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if dead(slot) {
                slot.started = now;
                match ShardThread::start(number as u8, &slot.socket, self.context.clone()) {
                    Ok(thread) => slot.thread = Some(thread),
                    Err(error) => warn!(shard = number, %error, "the shard cannot be restarted"),
                }
            }
        }
    }

    fn lag(&mut self, judging: bool, now: Instant) -> Duration {
        if self.next_sync(judging).is_none_or(|at| at <= now) {
            self.synced_at = Some(now);
            self.last_sync += 1;
            let alive = self.slots.iter_mut().filter(|slot| slot.thread.is_some());
            for slot in alive.filter(|slot| slot.silence.is_none()) {
                slot.silence = Some(Silence::new(self.last_sync, now));
                slot.pending.push_back(Work::Sync(self.last_sync));
                slot.send_pending();
            }
        }
        for number in 0..self.slots.len() {
            let silence = self.slots.get_mut(number).and_then(|s| s.silence.as_mut());
            if silence.is_some_and(|silence| silence.is_hang(now)) {
                self.give_up(number);
            }
        }
        let silences = self.slots.iter().filter_map(|slot| slot.silence);
        silences
            .map(|silence| now.saturating_duration_since(silence.since))
            .max()
            .unwrap_or_default()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // The port is free for the next source as soon as this one has ended.
        let threads = self.slots.drain(..).filter_map(|slot| slot.thread);
        let ends: Vec<_> = threads.map(ShardThread::end).collect();
        let until = Instant::now() + FREE_WITHIN;
        for ended in ends {
            let left = until.saturating_duration_since(Instant::now());
            let _ = ended.recv_timeout(left);
        }
    }
}

impl Slot {
    /// Removes a thread that has ended or hangs, with everything that was meant for it.
    fn clear(&mut self) -> Option<ShardThread> {
        self.pending.clear();
        self.silence = None;
        self.thread.take()
    }

    fn send_pending(&mut self) {
        let Some(thread) = &self.thread else {
            return;
        };
        while let Some(work) = self.pending.pop_front() {
            match thread.works.try_send(work) {
                Ok(()) => {}
                Err(TrySendError::Full(work)) => return self.pending.push_front(work),
                // Its end is about to be noticed.
                Err(TrySendError::Closed(_)) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_the_engine_ran_makes_a_hang() {
        const SECOND: Duration = Duration::from_secs(1);
        let start = Instant::now();
        let mut silence = Silence::new(1, start);
        // A process that was stopped for an hour.
        assert!(!silence.is_hang(start + 3600 * SECOND));
        let resumed = start + 3600 * SECOND;
        let at = (1..).find(|second| silence.is_hang(resumed + *second * SECOND));
        assert_eq!(at, Some(8), "two seconds of the pause count");
    }
}
