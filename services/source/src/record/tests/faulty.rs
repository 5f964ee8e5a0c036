//! Records that hang or fail at will.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use store::{
    Batch, Changes, Command, FeedEvent, FeedHour, Fence, MoveFilter, MoveRow, NewCommand,
    ProgressRow, ReceiverEdit, ReceiverRow, Records, SampleRow, SessionRow, StateRow, StoreError,
    Topic, UpdateItem, Watch,
};
use uuid::Uuid;

/// Fault of the store's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Every write fails.
    Down,
    /// No answer, ever.
    Hang,
    /// Writes succeed and are reported as failed, once.
    Unheard,
    /// Slow for each row read, and failing at every third attempt.
    Slow,
}

pub struct Faulty {
    inner: Arc<dyn Records>,
    fault: AtomicU8,
    pub writes: AtomicUsize,
    /// The most states that a single write brought.
    pub largest: AtomicUsize,
    /// Take-overs: after which receiver, and with how many rows.
    pub taken: Mutex<Vec<(Option<Uuid>, usize)>>,
    tries: AtomicUsize,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Records>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            fault: AtomicU8::new(Fault::None as u8),
            writes: AtomicUsize::new(0),
            largest: AtomicUsize::new(0),
            taken: Mutex::default(),
            tries: AtomicUsize::new(0),
        })
    }

    pub fn set(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault.load(Ordering::SeqCst) == fault as u8
    }

    /// As long as it takes to read so many rows.
    async fn wait_for(&self, rows: usize) -> Result<(), StoreError> {
        if !self.is(Fault::Slow) {
            return Ok(());
        }
        let rows = u32::try_from(rows).unwrap();
        tokio::time::sleep(Duration::from_micros(2_500) * rows).await;
        match self.tries.fetch_add(1, Ordering::SeqCst) % 3 {
            2 => Err(away()),
            _ => Ok(()),
        }
    }
}

fn away() -> StoreError {
    StoreError::Unavailable {
        url: "postgres://there".to_owned(),
        detail: "nobody answers".to_owned(),
    }
}

#[async_trait]
impl Records for Faulty {
    async fn write(&self, batch: &Batch) -> Result<u64, StoreError> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.largest.fetch_max(batch.states.len(), Ordering::SeqCst);
        if self.is(Fault::Hang) {
            std::future::pending::<()>().await;
        }
        if self.is(Fault::Down) {
            return Err(away());
        }
        let written = self.inner.write(batch).await?;
        if self.is(Fault::Unheard) && !batch.moves.is_empty() {
            self.set(Fault::None);
            return Err(away());
        }
        Ok(written)
    }
    async fn take_over(
        &self,
        fences: &[Fence],
        after: Option<&(Uuid, String)>,
        limit: usize,
        at_ms: i64,
        cause: &str,
    ) -> Result<Vec<StateRow>, StoreError> {
        self.wait_for(limit).await?;
        let asked = self.inner.take_over(fences, after, limit, at_ms, cause);
        let part = asked.await?;
        let receiver = after.map(|(receiver, _)| *receiver);
        self.taken.lock().unwrap().push((receiver, part.len()));
        Ok(part)
    }
    async fn feed_states(
        &self,
        channels: &[&str],
        after: i64,
        limit: usize,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        self.inner.feed_states(channels, after, limit).await
    }
    async fn receivers_after(
        &self,
        after: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<ReceiverRow>, StoreError> {
        self.wait_for(limit).await?;
        self.inner.receivers_after(after, limit).await
    }
    async fn snapshot(&self) -> Result<Changes, StoreError> {
        self.inner.snapshot().await
    }
    async fn changes_since(&self, change: u64, limit: usize) -> Result<Changes, StoreError> {
        self.inner.changes_since(change, limit).await
    }
    async fn moves(&self, filter: &MoveFilter) -> Result<Vec<MoveRow>, StoreError> {
        self.inner.moves(filter).await
    }
    async fn sessions(
        &self,
        receiver: Uuid,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.inner.sessions(receiver, before, limit).await
    }
    async fn samples(
        &self,
        channel: &str,
        step_ms: i64,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SampleRow>, StoreError> {
        self.inner.samples(channel, step_ms, from_ms, to_ms).await
    }
    async fn progress(
        &self,
        channel: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<ProgressRow>, StoreError> {
        self.inner.progress(channel, before, limit).await
    }
    async fn feed_history(
        &self,
        channel: &str,
        url: &str,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<FeedHour>, StoreError> {
        self.inner.feed_history(channel, url, from_ms, to_ms).await
    }
    async fn feed_events(
        &self,
        feed: Option<(&str, &str)>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        self.inner.feed_events(feed, before, limit).await
    }
    async fn roll_up(&self, now_ms: i64) -> Result<u64, StoreError> {
        self.inner.roll_up(now_ms).await
    }
    async fn trim(&self, now_ms: i64) -> Result<u64, StoreError> {
        self.inner.trim(now_ms).await
    }
    async fn ask(&self, command: &NewCommand) -> Result<i64, StoreError> {
        self.inner.ask(command).await
    }
    async fn take_commands(&self, f: &[Fence], limit: usize) -> Result<Vec<Command>, StoreError> {
        self.inner.take_commands(f, limit).await
    }
    async fn finish_command(
        &self,
        id: i64,
        outcome: Result<&str, &str>,
    ) -> Result<bool, StoreError> {
        self.inner.finish_command(id, outcome).await
    }
    async fn expire_commands(&self) -> Result<u64, StoreError> {
        self.inner.expire_commands().await
    }
    async fn command(&self, id: i64) -> Result<Option<Command>, StoreError> {
        self.inner.command(id).await
    }
    async fn commands(&self, b: Option<i64>, limit: usize) -> Result<Vec<Command>, StoreError> {
        self.inner.commands(b, limit).await
    }
    async fn set_receiver(
        &self,
        id: Uuid,
        edit: &ReceiverEdit,
    ) -> Result<Option<ReceiverRow>, StoreError> {
        self.inner.set_receiver(id, edit).await
    }
    async fn held(&self) -> Result<Vec<Uuid>, StoreError> {
        self.inner.held().await
    }
    async fn set_feed_paused(&self, c: &str, url: &str, p: bool) -> Result<bool, StoreError> {
        self.inner.set_feed_paused(c, url, p).await
    }
    async fn update_list(
        &self,
        channel: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<UpdateItem>, StoreError> {
        self.inner.update_list(channel, before, limit).await
    }
    fn watch(&self, topic: Topic) -> Watch {
        self.inner.watch(topic)
    }
}
