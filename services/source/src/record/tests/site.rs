//! A database, and sources that record in it.

use std::sync::Arc;
use std::time::Duration;

use store::{
    Failure, Fault, FaultRule, Faults, Holder, LeaseOutcome, MoveFilter, MoveRow, SourceInfo,
    StateRow, Store,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::made::FakeTransport;
use super::{CHANNEL, SOON};
use crate::board::{Board, ChannelInfo};
use crate::http::Sample;
use crate::ingest::PollReport;
use crate::metrics::RecordMetrics;
use crate::publish::{LeaseGuard, PublishStatus};
use crate::record::{RecordParts, run};
use crate::status::Phase;
use crate::transport::Transport;

/// Operation that writes a source's records.
pub const WRITE: &str = "write records";
/// Operations that read an earlier source's records, part by part.
pub const TAKE_OVER: &str = "begin to record";
const LIST_RECEIVERS: &str = "list some receivers";

/// A database that outlives sources.
pub struct Site {
    pub opened: Store,
    pub faults: Faults,
    /// Time limit for pending rows at the end of a source.
    pub last_words: Duration,
    _folder: tempfile::TempDir,
}

/// A source that records.
pub struct Source {
    pub made: Arc<FakeTransport>,
    metrics: RecordMetrics,
    board: Arc<Board>,
    info: watch::Sender<SourceInfo>,
    pub polls: mpsc::Sender<PollReport>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Site {
    /// With one channel.
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flexfeed.db");
        let opened = store::open_file(&path).await.unwrap();
        let faults = opened.faults().clone();
        opened.channels().open(CHANNEL).await.unwrap();
        Self {
            opened,
            faults,
            last_words: SOON,
            _folder: folder,
        }
    }

    /// Makes reads over all receivers slow, and one of three fail.
    pub fn slow_down(&self, each: Duration, per_row: Duration) {
        let parts = [TAKE_OVER, LIST_RECEIVERS];
        let failure = FaultRule::new(Fault::Fail(Failure::Unreachable));
        let slow = FaultRule::new(Fault::Slow { each, per_row });
        self.faults.inject(failure.on(&parts).every(3));
        self.faults.inject(slow.on(&parts).at_statement(1));
    }

    /// A source that has taken the lease.
    pub async fn source(&self, number: u128) -> Source {
        let holder = Holder {
            id: Uuid::from_u128(number),
            name: format!("source {number}"),
        };
        let asked = self
            .opened
            .leases()
            .take(CHANNEL, &holder, Duration::from_millis(1));
        let LeaseOutcome::Held(lease) = asked.await.unwrap() else {
            panic!("another source has it");
        };
        // The next one can have it at once.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let board = Arc::new(Board::default());
        board.show(CHANNEL, ChannelInfo::default());
        let lease = LeaseGuard::made_up(CHANNEL, lease.fence, Duration::from_secs(3600));
        let publisher = watch::Sender::new(PublishStatus {
            head: 0,
            published: 0,
            first: 1,
            store_failure: None,
        });
        board.active(CHANNEL, Uuid::nil(), lease, publisher.subscribe());
        self.begin(holder.name, board)
    }

    /// A source that has nothing to publish.
    pub fn idle_source(&self) -> Source {
        let board = Arc::new(Board::default());
        board.set_phase(Phase::Running);
        self.begin("idle".to_owned(), board)
    }

    fn begin(&self, holder: String, board: Arc<Board>) -> Source {
        let made = Arc::new(FakeTransport::default());
        let stop = CancellationToken::new();
        let metrics = RecordMetrics::default();
        let (polls, received) = mpsc::channel(16);
        let info = watch::Sender::new(SourceInfo {
            holder,
            ..SourceInfo::default()
        });
        let parts = RecordParts {
            store: self.opened.clone(),
            transport: Arc::<FakeTransport>::clone(&made),
            samples: sampled(Arc::clone(&made), stop.clone()),
            latest: made.latest.subscribe(),
            board: Arc::clone(&board),
            metrics: metrics.clone(),
            polls: received,
            info: info.subscribe(),
            last_words: self.last_words,
        };
        Source {
            task: tokio::spawn(run(parts, stop.clone())),
            made,
            metrics,
            board,
            info,
            polls,
            stop,
        }
    }

    /// All that are recorded, the last first.
    pub async fn moves(&self) -> Vec<MoveRow> {
        let mut filter = MoveFilter {
            limit: 10_000,
            ..MoveFilter::default()
        };
        let mut all: Vec<MoveRow> = Vec::new();
        loop {
            let some = self.opened.records().moves(&filter).await.unwrap();
            let Some(last) = some.last() else { return all };
            filter.before = Some(last.id);
            all.extend(some);
        }
    }

    /// Returns the recorded states of all receivers.
    pub async fn states(&self) -> Vec<StateRow> {
        self.opened.records().snapshot().await.unwrap().states
    }

    /// Waits until it is so.
    pub async fn until(&self, what: &str, wanted: impl AsyncFn(&Self) -> bool) {
        let waiting = async {
            while !wanted(self).await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(SOON, waiting).await.is_err() {
            panic!("{what}: {:?} {:?}", self.states().await, self.moves().await);
        }
    }
}

impl Source {
    /// Stops it, and waits for its end.
    pub async fn end(self) -> RecordMetrics {
        self.stop.cancel();
        tokio::time::timeout(SOON, self.task)
            .await
            .unwrap()
            .unwrap();
        drop((self.board, self.info, self.polls));
        self.metrics
    }
}

/// As the pages for operators' machines have them.
fn sampled(made: Arc<FakeTransport>, stop: CancellationToken) -> watch::Receiver<Sample> {
    let (samples, seen) = watch::channel(Sample::default());
    tokio::spawn(stop.run_until_cancelled_owned(async move {
        loop {
            let upto = made.seen.lock().unwrap().history.len() as u64;
            let status = made.status().await.map(Arc::new);
            samples.send_replace(Sample { status, upto });
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }));
    seen
}
