#![allow(clippy::unwrap_used, clippy::expect_used)]
//! The whole of it, with a transport that is made up and a database that is not.

mod faulty;

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::source::{
    ChannelBytes, ChannelStatus, Counters, Happening, History, Move, ReceiverChannel,
    ReceiverStatus, SourceStatus, What,
};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use store::{Holder, Leased, MoveFilter, MoveRow, Opened, StateRow};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::*;
use crate::publish::{PublishStatus, Tenure};
use crate::run::board::Shown;
use faulty::{Fault, Faulty};

/// For everything that should happen soon.
const SOON: Duration = Duration::from_secs(60);
const CHANNEL: &str = "lore";

/// A transport to which things happen as the test says.
#[derive(Default)]
struct Made {
    seen: Mutex<Seen>,
    latest: watch::Sender<u64>,
}

#[derive(Default)]
struct Seen {
    head: u64,
    receivers: Vec<ReceiverStatus>,
    history: Vec<Happening>,
    next_session: u64,
}

fn id(n: usize) -> Uuid {
    Uuid::from_u128(n as u128 + 1)
}

impl Made {
    fn add(&self, seen: &mut Seen, what: impl FnOnce(u64, u64) -> What) {
        let number = seen.history.len() as u64 + 1;
        let at_ms = u64::try_from(clock::now_ms()).unwrap();
        seen.history.push(Happening {
            number,
            at_ms,
            what: what(number, at_ms),
        });
        self.latest.send_replace(number);
    }

    fn connect(&self, n: usize) {
        let mut seen = self.seen.lock().unwrap();
        seen.next_session += 1;
        let session = seen.next_session;
        let (name, addr) = (format!("r{n}"), "192.0.2.9:5000".to_owned());
        let mut since = 0;
        self.add(&mut seen, |_, at_ms| {
            since = at_ms;
            What::Connected {
                session,
                receiver: id(n),
                name: name.clone(),
                software: "test".into(),
                addr: addr.clone(),
                channels: vec![CHANNEL.into()],
            }
        });
        seen.receivers.push(ReceiverStatus {
            id: id(n).to_string(),
            name,
            session,
            software: "test".into(),
            addr,
            connected_ms: since,
            rtt_ms: 1.0,
            channels: vec![ReceiverChannel {
                channel: CHANNEL.into(),
                rung: "unicast".into(),
                since_ms: since,
                cause: None,
                cursor: None,
                backlog: 0,
                key_sequence: None,
            }],
        });
    }

    fn step(&self, n: usize, to: &str, cause: &str) {
        let mut seen = self.seen.lock().unwrap();
        let receiver = id(n).to_string();
        let at = seen
            .receivers
            .iter()
            .position(|r| r.id == receiver)
            .unwrap();
        let from = seen.receivers[at].channels[0].rung.clone();
        let name = seen.receivers[at].name.clone();
        let mut since = 0;
        self.add(&mut seen, |number, at_ms| {
            since = at_ms;
            What::Moved(Move {
                number,
                at_ms,
                channel: CHANNEL.into(),
                receiver,
                name,
                from,
                to: to.into(),
                cause: cause.into(),
            })
        });
        let place = &mut seen.receivers[at].channels[0];
        place.rung = to.into();
        place.since_ms = since;
        place.cause = Some(cause.into());
    }

    fn disconnect(&self, n: usize) {
        let mut seen = self.seen.lock().unwrap();
        let receiver = id(n).to_string();
        let at = seen
            .receivers
            .iter()
            .position(|r| r.id == receiver)
            .unwrap();
        let session = seen.receivers.remove(at).session;
        self.add(&mut seen, |_, _| What::Disconnected {
            session,
            receiver: id(n),
            reason: "gone".into(),
        });
    }

    /// All outputs hold everything up to the head.
    fn confirm(&self) {
        let mut seen = self.seen.lock().unwrap();
        let head = seen.head;
        let all = seen.receivers.iter_mut();
        all.for_each(|receiver| receiver.channels[0].cursor = Some(head));
    }
}

#[async_trait]
impl Transport for Made {
    async fn publish(&self, _: &str, _: u64, _: Bytes) {}

    async fn set_first(&self, _: &str, _: u64) {}

    async fn status(&self) -> Option<SourceStatus> {
        let seen = self.seen.lock().unwrap();
        Some(SourceStatus {
            channels: vec![ChannelStatus {
                channel: CHANNEL.into(),
                head: seen.head,
                flow: None,
                bytes: ChannelBytes::default(),
            }],
            receivers: seen.receivers.clone(),
            moves: Vec::new(),
            mass_fall_backs: Vec::new(),
            counters: Counters::default(),
        })
    }

    async fn history(&self, after: u64) -> Option<History> {
        let seen = self.seen.lock().unwrap();
        let new = seen.history.iter().filter(|h| h.number > after);
        Some(History {
            happenings: new.take(1000).cloned().collect(),
            last: seen.history.len() as u64,
            missed: 0,
        })
    }
}

/// A database that outlives sources.
struct Site {
    opened: Opened,
    records: Arc<Faulty>,
    _folder: tempfile::TempDir,
}

/// A source that records.
struct Source {
    made: Arc<Made>,
    metrics: RecordMetrics,
    board: Arc<Board>,
    info: watch::Sender<SourceInfo>,
    polls: mpsc::Sender<PollReport>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flexfeed.db");
        let opened = store::open_file_all(&path).await.unwrap();
        opened.store.open_channel(CHANNEL).await.unwrap();
        Self {
            records: Faulty::new(Arc::clone(&opened.records)),
            opened,
            _folder: folder,
        }
    }

    /// A source that has taken the lease.
    async fn source(&self, number: u128) -> Source {
        let holder = Holder {
            id: Uuid::from_u128(number),
            name: format!("source {number}"),
        };
        let asked = self
            .opened
            .store
            .take_lease(CHANNEL, &holder, Duration::from_millis(1));
        let Leased::Held(lease) = asked.await.unwrap() else {
            panic!("somebody else has it");
        };
        // The next one can have it at once.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let board = Arc::new(Board::default());
        board.show(CHANNEL, Shown::default());
        let tenure = Tenure::made_up(CHANNEL, lease.fence, Duration::from_secs(3600));
        let publisher = watch::Sender::new(PublishStatus {
            head: 0,
            published: 0,
            first: 1,
            store_failure: None,
        });
        board.active(CHANNEL, Uuid::nil(), tenure, publisher.subscribe());
        let made = Arc::new(Made::default());
        let metrics = RecordMetrics::default();
        let (polls, told) = mpsc::channel(16);
        let info = watch::Sender::new(SourceInfo {
            holder: holder.name,
            ..SourceInfo::default()
        });
        let parts = Parts {
            records: Arc::<Faulty>::clone(&self.records),
            store: Arc::clone(&self.opened.store),
            transport: Arc::<Made>::clone(&made),
            latest: made.latest.subscribe(),
            board: Arc::clone(&board),
            metrics: metrics.clone(),
            polls: told,
            info: info.subscribe(),
        };
        let stop = CancellationToken::new();
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

    async fn moves(&self) -> Vec<MoveRow> {
        let mut filter = MoveFilter {
            limit: 10_000,
            ..MoveFilter::default()
        };
        let mut all: Vec<MoveRow> = Vec::new();
        loop {
            let some = self.opened.records.moves(&filter).await.unwrap();
            let Some(last) = some.last() else { return all };
            filter.before = Some(last.id);
            all.extend(some);
        }
    }

    async fn states(&self) -> Vec<StateRow> {
        self.opened.records.snapshot().await.unwrap().states
    }

    async fn until(&self, what: &str, wanted: impl AsyncFn(&Self) -> bool) {
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
    async fn end(self) -> RecordMetrics {
        self.stop.cancel();
        tokio::time::timeout(SOON, self.task)
            .await
            .unwrap()
            .unwrap();
        drop((self.board, self.info, self.polls));
        self.metrics
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mass_fall_back_is_recorded_whole() {
    const MANY: usize = 5_000;
    let site = Site::new().await;
    let source = site.source(1).await;
    (0..MANY).for_each(|n| source.made.connect(n));
    (0..MANY).for_each(|n| source.made.step(n, "multicast", "joined"));
    site.until("all joined", async |site| site.moves().await.len() == MANY)
        .await;
    (0..MANY).for_each(|n| source.made.step(n, "unicast", "ack-timeout"));
    site.until("all fell back", async |site| {
        site.moves().await.len() == 2 * MANY
    })
    .await;
    let moves = site.moves().await;
    let fell: std::collections::BTreeSet<_> = moves
        .iter()
        .filter(|row| row.cause == "ack-timeout" && row.to == "unicast")
        .map(|row| row.receiver)
        .collect();
    assert_eq!(fell.len(), MANY, "each of them once");
    site.until("where they stand", async |site| {
        let states = site.states().await;
        let stands = |row: &&StateRow| row.rung == "unicast" && row.cause == "ack-timeout";
        states.iter().filter(stands).count() == MANY
    })
    .await;
    let metrics = source.end().await;
    assert_eq!(metrics.counted("moves"), (0, 2 * MANY as u64));
    let states = site.states().await;
    assert!(
        states
            .iter()
            .all(|row| !row.connected && row.rung == "offline")
    );
}

/// What happens while the database is away is written when it is back, once; nobody waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_fails_or_hangs_loses_nothing() {
    let site = Site::new().await;
    let source = site.source(1).await;
    source.made.connect(0);
    source.made.step(0, "multicast", "joined");
    site.until("the first", async |site| site.moves().await.len() == 1)
        .await;
    for fault in [Fault::Down, Fault::Hang] {
        let before = site.moves().await.len();
        site.records.set(fault);
        for n in 0..50 {
            let (to, cause) = match n % 2 {
                0 => ("unicast", "ack-timeout"),
                _ => ("multicast", "joined"),
            };
            source.made.step(0, to, cause);
        }
        let writes = site.records.writes.load(Ordering::SeqCst);
        site.until("it is tried", async |site| {
            site.records.writes.load(Ordering::SeqCst) > writes
        })
        .await;
        assert_eq!(site.moves().await.len(), before);
        site.records.set(Fault::None);
        site.until("it is made up for", async |site| {
            site.moves().await.len() == before + 50
        })
        .await;
    }
    let metrics = source.end().await;
    assert_eq!(metrics.counted("moves"), (0, 101));
}

/// A database that writes and cannot say so is not told twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_unheard_is_not_written_again() {
    let site = Site::new().await;
    let source = site.source(1).await;
    source.made.connect(0);
    source.made.step(0, "multicast", "joined");
    site.until("the first", async |site| site.moves().await.len() == 1)
        .await;
    site.records.set(Fault::Unheard);
    source.made.step(0, "unicast", "ack-timeout");
    site.until("the second", async |site| site.moves().await.len() == 2)
        .await;
    source.made.step(0, "multicast", "joined");
    site.until("the third", async |site| site.moves().await.len() >= 3)
        .await;
    source.end().await;
    assert_eq!(site.moves().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_and_another_source_go_on_with_the_history() {
    let site = Site::new().await;
    let first = site.source(1).await;
    (0..3).for_each(|n| first.made.connect(n));
    first.made.step(0, "multicast", "joined");
    site.until("three", async |site| {
        site.states().await.len() == 3 && site.moves().await.len() == 1
    })
    .await;
    first.end().await;
    let sessions = site.opened.records.sessions(id(0), None, 10).await.unwrap();
    assert_eq!(sessions.len(), 1);
    assert_eq!(
        sessions[0].end_cause.as_deref(),
        Some("the source has stopped")
    );

    // Started anew: nothing is told twice.
    let second = site.source(1).await;
    second.made.connect(0);
    site.until("it is back", async |site| {
        let states = site.states().await;
        states.iter().filter(|row| row.connected).count() == 1
    })
    .await;
    assert_eq!(
        (site.moves().await.len(), site.states().await.len()),
        (1, 3)
    );
    assert_eq!(
        site.opened
            .records
            .sessions(id(0), None, 10)
            .await
            .unwrap()
            .len(),
        2
    );

    // Another one takes over; what the one before says from now on counts for nothing.
    let third = site.source(2).await;
    third.made.connect(1);
    site.until("only its own", async |site| {
        let states = site.states().await;
        let connected = states.iter().filter(|row| row.connected);
        connected.map(|row| row.receiver).eq([id(1)])
    })
    .await;
    second.made.step(0, "multicast", "joined");
    third.made.step(1, "amt", "joined");
    site.until("the move", async |site| site.moves().await.len() == 2)
        .await;
    let metrics = second.end().await;
    assert!(metrics.counted("moves").0 > 0, "dropped and counted");
    let moves = site.moves().await;
    assert_eq!((moves.len(), moves[0].to.as_str()), (2, "amt"));
    third.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_and_who_has_them_are_followed() {
    let site = Site::new().await;
    let source = site.source(1).await;
    source.made.connect(0);
    source.made.connect(1);
    site.until("both", async |site| site.states().await.len() == 2)
        .await;
    source.made.seen.lock().unwrap().head = 4;
    site.until("published", async |site| {
        let rows = site
            .opened
            .records
            .progress(CHANNEL, None, 10)
            .await
            .unwrap();
        rows.len() == 4
            && rows
                .iter()
                .all(|row| row.expected == 2 && row.half_ms.is_none())
    })
    .await;
    source.made.confirm();
    site.until("delivered", async |site| {
        let rows = site
            .opened
            .records
            .progress(CHANNEL, None, 10)
            .await
            .unwrap();
        rows.len() == 4
            && rows
                .iter()
                .all(|row| row.delivered == 2 && row.all_ms.is_some())
    })
    .await;
    site.until("the totals", async |site| {
        let pulses = site.opened.records.snapshot().await.unwrap().pulses;
        pulses
            .iter()
            .any(|p| (p.channel.as_str(), p.head, p.delivered) == (CHANNEL, 4, 2))
    })
    .await;
    source.made.disconnect(1);
    site.until("one is away", async |site| {
        let states = site.states().await;
        let away = states.iter().find(|row| row.receiver == id(1)).unwrap();
        (away.connected, away.rung.as_str(), away.cause.as_str()) == (false, "offline", "gone")
            && away.cursor == Some(4)
    })
    .await;
    let info = site.opened.records.snapshot().await.unwrap().info.unwrap();
    assert_eq!(info.holder, "source 1");
    source.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feeds_are_recorded_by_the_hour_and_by_what_changed() {
    let site = Site::new().await;
    let source = site.source(1).await;
    source.made.connect(0);
    site.until("it records", async |site| site.states().await.len() == 1)
        .await;
    let poll = |state, excerpt: Option<&str>| PollReport {
        channel: CHANNEL.into(),
        url: "https://example.org/f".into(),
        at_ms: 7_200_000,
        state,
        detail: "as it was".into(),
        entries: 2,
        excerpt: excerpt.map(str::to_owned),
    };
    use crate::ingest::FeedState::{Challenged, NotModified, Ok};
    for poll in [
        poll(Ok, None),
        poll(NotModified, None),
        poll(Challenged, Some("<h1>Are you human?")),
        poll(Challenged, Some("<h1>Are you human?")),
        poll(Ok, None),
    ] {
        source.polls.send(poll).await.unwrap();
    }
    let url = "https://example.org/f";
    site.until("two events", async |site| {
        let asked = site
            .opened
            .records
            .feed_events(Some((CHANNEL, url)), None, 10);
        asked.await.unwrap().len() == 2
    })
    .await;
    let records = &site.opened.records;
    let events = records.feed_events(None, None, 10).await.unwrap();
    let words: Vec<_> = events.iter().map(|event| event.state.as_str()).collect();
    assert_eq!(words, ["ok", "challenged"], "the newest first");
    assert_eq!(events[1].excerpt.as_deref(), Some("<h1>Are you human?"));
    let hours = records
        .feed_history(CHANNEL, url, 0, i64::MAX)
        .await
        .unwrap();
    let counts: Vec<_> = hours
        .iter()
        .map(|h| (h.polls, h.challenged, h.entries))
        .collect();
    assert_eq!(counts, [(5, 2, 10)]);
    source.end().await;
}

#[test]
fn what_finds_no_room_is_counted_and_the_oldest_goes() {
    let metrics = RecordMetrics::default();
    let outbox = Outbox::new(metrics.clone());
    for n in 0..100_010 {
        outbox.step(
            n,
            MoveRow {
                id: 0,
                at_ms: i64::try_from(n).unwrap(),
                receiver: Uuid::nil(),
                name: String::new(),
                channel: CHANNEL.into(),
                from: "unicast".into(),
                to: "multicast".into(),
                cause: "joined".into(),
                change: 0,
            },
        );
    }
    assert_eq!(metrics.counted("moves"), (10, 0));
    assert!(outbox.take().is_none(), "no lease to write by");
    outbox.set_fences(vec![Fence {
        channel: CHANNEL.into(),
        fence: 1,
    }]);
    let batch = outbox.take().unwrap();
    assert_eq!(batch.moves[0].at_ms, 10);
    assert!(batch.moves.len() < 10_000, "written in parts");
}

#[test]
fn how_far_receivers_are_is_written_within_a_budget() {
    use std::collections::BTreeSet;
    use tokio::time::Instant;
    let mut fleet = fleet::Fleet::default();
    for n in 0..5_000_u64 {
        let session = store::SessionRow {
            id: i64::try_from(n).unwrap(),
            receiver: id(n as usize),
            name: String::new(),
            software: String::new(),
            address: String::new(),
            began_ms: 1,
            ended_ms: None,
            end_cause: None,
        };
        fleet.connected(id(n as usize), (n, session), &[CHANNEL.to_owned()], |_| 0);
    }
    let start = Instant::now();
    let mut count = 0;
    fleet.moves(start, 1, |_| {
        count += 1;
        true
    });
    assert_eq!(count, 5_000, "where they stand is written at once");
    let see = |fleet: &mut fleet::Fleet, cursor: u64| {
        for n in 0..5_000_u64 {
            fleet.seen(
                &ReceiverStatus {
                    id: id(n as usize).to_string(),
                    name: String::new(),
                    session: n,
                    software: String::new(),
                    addr: String::new(),
                    connected_ms: 1,
                    rtt_ms: 0.0,
                    channels: vec![ReceiverChannel {
                        channel: CHANNEL.into(),
                        rung: "unicast".into(),
                        since_ms: 1,
                        cause: None,
                        cursor: Some(cursor),
                        // The last ten are behind.
                        backlog: u64::from(n >= 4_990),
                        key_sequence: None,
                    }],
                },
                2,
            );
        }
    };
    see(&mut fleet, 1);
    let mut rows = Vec::new();
    let write = |fleet: &mut fleet::Fleet, at, rows: &mut Vec<StateRow>| {
        rows.clear();
        fleet.progress(at, 1_000, |row| {
            rows.push(row);
            true
        });
    };
    write(&mut fleet, start, &mut rows);
    assert_eq!(rows.len(), 0, "each every few seconds");
    let mut written = BTreeSet::new();
    for step in 0..5 {
        let at = start + Duration::from_secs(6) + Duration::from_millis(step * 500);
        write(&mut fleet, at, &mut rows);
        assert_eq!(rows.len(), 1_000);
        if step == 0 {
            assert!(
                rows[..10].iter().all(|row| row.backlog > 0),
                "who is behind first"
            );
        }
        written.extend(rows.iter().map(|row| row.receiver));
    }
    assert_eq!(written.len(), 5_000, "everybody has its turn");
    write(&mut fleet, start + Duration::from_secs(60), &mut rows);
    assert_eq!(rows.len(), 0, "nothing has changed");
    // A store without room is asked again later.
    see(&mut fleet, 2);
    fleet.progress(start + Duration::from_secs(70), 1_000, |_| false);
    write(&mut fleet, start + Duration::from_secs(70), &mut rows);
    assert_eq!(rows.len(), 1_000);
}
