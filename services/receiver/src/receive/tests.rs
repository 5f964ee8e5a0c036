#![allow(clippy::unwrap_used, clippy::expect_used)]
mod channels;

use std::collections::VecDeque;

use std::sync::{Arc, Mutex};

use flexicast::Via;
use flexicast::signing::{Era, Lineage, VerifyingKey};
use kit::wait::on_tokio;
use uuid::Uuid;

use super::batch::{BATCH_UPDATES, Batch, FAR_BEHIND};
use super::*;
use crate::board::Identity;
use crate::deliver::tests::{Call, FakeSink, encoded, incarnation};
use crate::deliver::{Item, ItemKind, Step};
use crate::journal::{Missing, OVERHEAD};

const LORE: &str = "lore";
const FAST: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(4));

/// A loop over one channel, with all that it touches in reach.
struct Bench {
    sink: FakeSink,
    board: Arc<Board>,
    confirmed: Arc<Mutex<Vec<u64>>>,
    events: mpsc::Sender<Event>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<(LoopExit, usize)>,
}

fn bench(capacity: usize, ready: impl IntoIterator<Item = Event>) -> Bench {
    bench_of(capacity, Limits::default(), ready)
}

fn bench_of(capacity: usize, batch: Limits, ready: impl IntoIterator<Item = Event>) -> Bench {
    let identity = Identity {
        name: "r1".into(),
        receiver_id: Uuid::from_u128(1),
        source: "h:4433".into(),
    };
    let board = Arc::new(Board::new(identity, &[(LORE.into(), None)]));
    let (sink, confirmed) = (FakeSink::default(), Arc::new(Mutex::new(Vec::new())));
    let (events, mut inbox) = mpsc::channel(capacity);
    for event in ready {
        events.try_send(event).unwrap();
    }
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let task = tokio::spawn({
        let (board, sink, confirmed) = (board.clone(), sink.clone(), confirmed.clone());
        async move {
            let confirm = |_: &str, cursor: Cursor| confirmed.lock().unwrap().push(cursor.seq);
            let end = Loop {
                outlets: vec![Outlet::new(LORE, sink, None)],
                confirm: &confirm,
                again: &|_| panic!("there is no other channel"),
                board: &board,
                batch,
                backoff: FAST,
                source: "h:4433",
                newcomer: None,
            }
            .run(&mut inbox, &stopping)
            .await;
            (end, inbox.len())
        }
    });
    Bench {
        sink,
        board,
        confirmed,
        events,
        stop,
        task,
    }
}

impl Bench {
    async fn until(&self, what: &str, condition: impl Fn(&Bench) -> bool) {
        on_tokio::until(what, async || condition(self)).await;
    }

    async fn confirmed(&self, seq: u64) {
        self.until("confirmation", |b| {
            b.confirmed.lock().unwrap().last() == Some(&seq)
        })
        .await;
    }

    async fn end(self) -> (LoopExit, usize) {
        self.stop.cancel();
        self.task.await.unwrap()
    }
}

fn update(seq: u64) -> Event {
    Event::Update {
        channel: LORE.into(),
        incarnation: incarnation(),
        seq,
        encoded: encoded(seq),
        via: Via::Flow,
    }
}

fn welcome(head: u64) -> Event {
    Event::Welcome {
        channel: LORE.into(),
        incarnation: incarnation(),
        head,
        first: 1,
        resync: false,
    }
}

#[tokio::test]
async fn pending_updates_are_one_batch_confirmed_after_the_cursor() {
    let bench = bench(16, [welcome(2), update(1), update(2), update(3)]);
    bench.confirmed(3).await;
    assert_eq!(
        bench.sink.calls(),
        [
            // The starting position, before anything else.
            Call::Begin(0),
            Call::Log(vec![]),
            Call::Journal,
            Call::Announce,
            Call::Cursor(0),
            Call::Take(1),
            Call::Take(2),
            Call::Take(3),
            Call::Log(vec![1, 2, 3]),
            Call::Journal,
            Call::Announce,
            Call::Cursor(3)
        ]
    );
    bench.events.send(update(4)).await.unwrap();
    bench.confirmed(4).await;
    // A later connection to the same store begins nothing.
    bench.events.send(welcome(4)).await.unwrap();
    bench.events.send(update(5)).await.unwrap();
    bench.confirmed(5).await;
    assert_eq!(*bench.confirmed.lock().unwrap(), [0, 3, 4, 5]);
    bench
        .until("status", |b| b.board.status().channels[0].updates == 5)
        .await;
    assert_eq!(bench.end().await.0, LoopExit::Stopped);
}

/// Keys are stored with the updates that they sign, and move no cursor.
#[tokio::test]
async fn keys_come_before_the_updates_that_follow_them() {
    let keys = || Event::Lineage {
        channel: LORE.into(),
        lineage: Lineage::new(vec![Era {
            first: 1,
            last: None,
            incarnation: incarnation(),
            key: VerifyingKey([7; 32]),
        }])
        .unwrap(),
    };
    let bench = bench(16, [welcome(2), keys(), update(1)]);
    bench.confirmed(1).await;
    let rest = [
        Call::Keys(1),
        Call::Take(1),
        Call::Log(vec![1]),
        Call::Journal,
        Call::Announce,
        Call::Cursor(1),
    ];
    assert_eq!(bench.sink.calls()[5..], rest);
    // Other keys, and nothing else for a while.
    bench.events.send(keys()).await.unwrap();
    let again = |b: &Bench| {
        b.sink
            .calls()
            .iter()
            .filter(|c| **c == Call::Cursor(1))
            .count()
            == 2
    };
    bench.until("the keys are stored", again).await;
    bench.events.send(update(2)).await.unwrap();
    bench.confirmed(2).await;
    assert_eq!(bench.end().await.0, LoopExit::Stopped);
}

#[tokio::test]
async fn the_starting_point_is_stored_at_the_welcome() {
    let bench = bench(
        16,
        [Event::Welcome {
            channel: LORE.into(),
            incarnation: incarnation(),
            head: 140,
            first: 41,
            resync: false,
        }],
    );
    bench.confirmed(40).await;
    assert_eq!(bench.sink.calls().last(), Some(&Call::Cursor(40)));
    assert_eq!(bench.end().await.0, LoopExit::Stopped);
}

#[tokio::test]
async fn a_store_from_an_older_backup_is_followed_again() {
    let restored = Event::Welcome {
        channel: LORE.into(),
        incarnation: incarnation(),
        head: 4,
        first: 3,
        resync: true,
    };
    let before = [welcome(0)].into_iter().chain((1..=6).map(update));
    let bench = bench(32, before);
    bench.confirmed(6).await;
    for event in [restored, update(3), update(4), update(5)] {
        bench.events.send(event).await.unwrap();
    }
    bench.confirmed(5).await;
    let calls = bench.sink.calls();
    let at = calls.iter().position(|c| *c == Call::Begin(2)).unwrap();
    assert_eq!(
        calls[at..at + 5],
        [
            Call::Begin(2),
            Call::Log(vec![]),
            Call::Journal,
            Call::Announce,
            Call::Cursor(2)
        ]
    );
    let logged = calls[at..].iter().filter_map(|call| match call {
        Call::Log(seqs) => Some(seqs.clone()),
        _ => None,
    });
    assert_eq!(logged.flatten().collect::<Vec<_>>(), [3, 4, 5]);
    let confirmed = bench.confirmed.lock().unwrap().clone();
    assert!(confirmed.contains(&2), "{confirmed:?}");
    bench
        .until("status", |b| {
            let channel = b.board.status().channels.remove(0);
            (channel.cursor, channel.head, channel.updates) == (5, 5, 9)
        })
        .await;
    bench.end().await;
}

#[tokio::test]
async fn a_gap_moves_the_cursor_past_it_in_order() {
    let gap = |from, to| Event::Gap {
        channel: LORE.into(),
        from,
        to,
    };
    let first = [welcome(2), update(1), update(2)];
    let bench = bench(16, first);
    bench.confirmed(2).await;
    // Nothing may follow for a long time: what is gone is not asked for again after a restart.
    bench.events.send(gap(3, 6)).await.unwrap();
    bench.confirmed(6).await;
    for event in [update(7), gap(8, 9), update(10)] {
        bench.events.send(event).await.unwrap();
    }
    bench.confirmed(10).await;
    let calls = bench.sink.calls();
    let cursors = calls.iter().filter_map(|call| match call {
        Call::Cursor(seq) => Some(*seq),
        _ => None,
    });
    assert!(cursors.clone().is_sorted() && cursors.clone().any(|seq| seq == 6));
    let taken = calls.iter().filter_map(|call| match call {
        Call::Take(seq) => Some(*seq),
        _ => None,
    });
    assert_eq!(taken.collect::<Vec<_>>(), [1, 2, 7, 10]);
    bench
        .until("status", |b| {
            let channel = b.board.status().channels.remove(0);
            (channel.cursor, channel.missing, channel.gaps.len()) == (10, 6, 2)
        })
        .await;
    assert_eq!(bench.end().await.0, LoopExit::Stopped);
}

#[tokio::test]
async fn a_gap_before_the_cursor_takes_nothing_back() {
    let before = [welcome(5)].into_iter().chain((1..=5).map(update));
    let bench = bench(16, before);
    bench.confirmed(5).await;
    for event in [
        Event::Gap {
            channel: LORE.into(),
            from: 2,
            to: 3,
        },
        update(6),
    ] {
        bench.events.send(event).await.unwrap();
    }
    bench.confirmed(6).await;
    assert!(!bench.confirmed.lock().unwrap().contains(&3));
    bench.end().await;
}

#[tokio::test]
async fn duplicates_of_the_transport_are_logged_twice() {
    // A duplicate appears only if deduplication is broken: then the log has to show it.
    let bench = bench(16, [update(1), update(2), update(1)]);
    bench.confirmed(2).await;
    assert_eq!(
        bench.sink.calls().get(3),
        Some(&Call::Log(vec![1, 2, 1])),
        "{:?}",
        bench.sink.calls()
    );
    bench.end().await;
}

#[tokio::test]
async fn batches_are_bounded() {
    let size = (OVERHEAD + encoded(1).len()) as u64;
    let of = |updates, bytes| Limits { updates, bytes };
    for (most, until, expected) in [
        (
            of(10_000, u64::MAX),
            10_000,
            vec![BATCH_UPDATES, 10_000 - BATCH_UPDATES],
        ),
        (of(3, u64::MAX), 7, vec![3, 3, 1]),
        (of(100, 2 * size), 5, vec![2, 2, 1]),
        (of(1, 0), 2, vec![1, 1]),
    ] {
        let bench = bench_of(10_000, most, (1..=until).map(update));
        bench.confirmed(until).await;
        let calls = bench.sink.calls();
        let logged: Vec<usize> = calls
            .iter()
            .filter_map(|call| match call {
                Call::Log(seqs) => Some(seqs.len()),
                _ => None,
            })
            .collect();
        assert_eq!(logged, expected, "{most:?}");
        bench.end().await;
    }
}

/// A receiver far behind collects more before it writes, and writes everything in the end.
#[tokio::test]
async fn a_part_of_a_backlog_is_written_although_the_rest_does_not_come() {
    let keep = FAR_BEHIND;
    let ready = [welcome(keep + 100)]
        .into_iter()
        .chain((1..=60).map(update));
    let bench = bench(1000, ready);
    bench.confirmed(60).await;
    for seq in 61..=keep + 101 {
        bench.events.send(update(seq)).await.unwrap();
    }
    bench.confirmed(keep + 101).await;
    let calls = bench.sink.calls();
    let all = calls
        .iter()
        .filter(|call| matches!(call, Call::Take(_) | Call::Pass(_)));
    assert_eq!(all.count() as u64, keep + 101);
    bench.end().await;
}

#[test]
fn only_a_receiver_far_behind_collects() {
    let mut batch = Batch::default();
    assert_eq!(batch.gathers(u64::MAX), None, "nothing waits");
    let item = |kind| Item {
        incarnation: incarnation(),
        seq: 1,
        kind,
    };
    batch.push(item(ItemKind::Gap {
        from: 1,
        why: Missing::Gone,
    }));
    assert!(batch.gathers(FAR_BEHIND + 1).is_some());
    assert_eq!(batch.gathers(FAR_BEHIND), None);
    batch.push(item(ItemKind::Begins { resync: false }));
    assert_eq!(
        batch.gathers(u64::MAX),
        None,
        "where it begins is written at once"
    );
}

#[tokio::test]
async fn while_the_disk_is_full_nothing_is_taken_and_nothing_is_lost() {
    let bench = bench(4, []);
    bench.sink.fail(Step::Journal, u32::MAX);
    bench.events.send(update(1)).await.unwrap();
    bench
        .until("the error", |b| b.board.status().error.is_some())
        .await;
    assert_eq!(bench.board.status().error.as_deref(), Some("no room"));
    // One batch gathers, then the channel fills and stays full: the transport has to wait.
    let batch = BATCH_UPDATES as u64;
    let last = 1 + batch + 4;
    for seq in 2..=last {
        bench.events.send(update(seq)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(bench.events.try_send(update(last + 1)).is_err());
    assert!(bench.confirmed.lock().unwrap().is_empty());
    bench.sink.fail(Step::Journal, 0);
    bench.confirmed(last).await;
    let cursors = bench.sink.calls();
    let cursors: VecDeque<_> = cursors
        .iter()
        .filter_map(|call| match call {
            Call::Cursor(seq) => Some(*seq),
            _ => None,
        })
        .collect();
    assert_eq!(cursors, [1, 1 + batch, last]);
    bench
        .until("no error", |b| b.board.status().error.is_none())
        .await;
    assert_eq!(bench.end().await.0, LoopExit::Stopped);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_full_disk() {
    let bench = bench(16, []);
    bench.sink.fail(Step::Cursor, u32::MAX);
    bench.events.send(update(1)).await.unwrap();
    bench
        .until("the error", |b| b.board.status().error.is_some())
        .await;
    let confirmed = bench.confirmed.clone();
    assert_eq!(bench.end().await.0, LoopExit::Stopped);
    assert!(confirmed.lock().unwrap().is_empty());
}

/// Feed files follow in their own time, hold nothing up, and are written at the end.
#[tokio::test]
async fn feed_files_are_written_when_due_and_hold_nothing_up() {
    let due = |bench: &Bench, at: Option<Instant>, failures| {
        *bench.sink.files.lock().unwrap() = (at, failures);
    };
    let bench = bench(16, [welcome(0)]);
    bench.confirmed(0).await;
    let later = Instant::now() + Duration::from_secs(3600);
    due(&bench, Some(later), 0);
    bench.events.send(update(1)).await.unwrap();
    bench.confirmed(1).await;
    assert!(!bench.sink.calls().contains(&Call::Files));
    // Feed files fail for a while: updates go on, and the failure is shown until it is over.
    due(&bench, Some(Instant::now()), 3);
    bench.events.send(update(2)).await.unwrap();
    bench.confirmed(2).await;
    bench.events.send(update(3)).await.unwrap();
    bench.confirmed(3).await;
    bench
        .until("the files", |b| b.sink.calls().contains(&Call::Files))
        .await;
    let failed = |call: &&Call| **call == Call::Failed;
    assert_eq!(bench.sink.calls().iter().filter(failed).count(), 3);
    assert_eq!(bench.board.counts().storage_failures, 3);
    bench
        .until("no error", |b| b.board.status().error.is_none())
        .await;
    // Nothing comes any more, but a moment does.
    let files = |b: &Bench| b.sink.calls().iter().filter(|c| **c == Call::Files).count();
    due(&bench, Some(Instant::now() + Duration::from_millis(50)), 0);
    bench.events.send(update(4)).await.unwrap();
    bench.until("the files again", |b| files(b) == 2).await;
    due(&bench, Some(later), 0);
    let sink = bench.sink.clone();
    assert_eq!(bench.end().await.0, LoopExit::Stopped);
    assert_eq!(sink.calls().last(), Some(&Call::Files));
}

#[tokio::test]
async fn a_fatal_refusal_ends_the_loop_after_earlier_events() {
    let refused = Event::Refused {
        code: 1,
        reason: "no such token".into(),
        fatal: true,
    };
    let bench = bench(16, [update(1), refused, update(2)]);
    let (confirmed, board) = (bench.confirmed.clone(), bench.board.clone());
    let (end, left) = bench.task.await.unwrap();
    assert!(matches!(end, LoopExit::Refused(text) if text.contains("no such token")));
    assert_eq!(left, 1);
    assert_eq!(*confirmed.lock().unwrap(), [1]);
    assert_eq!(board.status().error.as_deref(), Some("no such token"));
}

#[tokio::test]
async fn a_transport_that_ends_is_a_failure() {
    let Bench { events, task, .. } = bench(16, []);
    drop(events);
    assert!(matches!(task.await.unwrap().0, LoopExit::Failed(_)));
}

#[tokio::test]
async fn only_updates_after_the_welcome_are_live() {
    let bench = bench(16, [update(1), welcome(2), update(2), update(3)]);
    bench.confirmed(3).await;
    // The fake updates were stored in 1970: a live one has an enormous latency, others have none.
    bench
        .until("latency", |b| {
            b.board.status().channels[0].latency_ms.last.is_some()
        })
        .await;
    bench.events.send(welcome(9)).await.unwrap();
    bench.events.send(update(4)).await.unwrap();
    bench.confirmed(4).await;
    bench
        .until("status", |b| b.board.status().channels[0].updates == 4)
        .await;
    let latency = bench.board.status().channels[0].latency_ms;
    assert_eq!((latency.p50, latency.p99), (latency.last, latency.last));
    bench.end().await;
}
