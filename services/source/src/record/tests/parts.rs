//! Very many receivers, and a database that takes its time.

use std::time::Duration;

use store::{Applicant, Batch, NewToken, StateRow};

use super::CHANNEL;
use super::made::id;
use super::site::{Site, TAKE_OVER};
use crate::record::parts::ReceiverScan;

/// A thousand rows take too long.
const PER_ROW: Duration = Duration::from_millis(4);

fn state(n: usize) -> StateRow {
    StateRow {
        receiver: id(n),
        channel: CHANNEL.into(),
        connected: true,
        rung: "multicast".into(),
        since_ms: 1,
        cause: "joined".into(),
        cursor: Some(7),
        backlog: 0,
        key_sequence: None,
        rtt_us: None,
        address: String::new(),
        session: None,
        legs: String::new(),
        updated_ms: 1,
        change: 0,
    }
}

/// A part that took too long is split, and parts already read are not read again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_database_is_taken_over_part_by_part() {
    const MANY: usize = 1_100;
    let site = Site::new().await;
    let batch = Batch {
        states: (0..MANY).map(state).collect(),
        ..Batch::default()
    };
    site.opened.records().write(&batch).await.unwrap();
    site.slow_down(Duration::ZERO, PER_ROW);
    let source = site.source(1).await;
    source.made.connect(MANY);
    site.until("its own receiver, and none of those before", async |site| {
        let states = site.states().await;
        let connected = states.iter().filter(|row| row.connected);
        connected.map(|row| row.receiver).eq([id(MANY)])
    })
    .await;
    source.end().await;
    let taken = site.faults.committed_rows(TAKE_OVER);
    let rows: usize = taken.iter().sum();
    assert_eq!(rows, MANY, "each row once: {taken:?}");
    assert!(taken.len() >= 4, "a thousand take too long: {taken:?}");
    let states = site.states().await;
    let cause = "the source that served it has ended";
    let ended = states.iter().filter(|row| row.cause == cause);
    assert_eq!(ended.count(), MANY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_receivers_are_known_however_slow_the_database_is() {
    const MANY: usize = 600;
    let site = Site::new().await;
    let store = &site.opened;
    let token = NewToken {
        hash: [1; 32],
        label: "all".into(),
        limit: None,
        expires_ms: None,
        public: false,
        channels: Vec::new(),
    };
    store.tokens().add(&token).await.unwrap();
    for n in 0..MANY {
        let applicant = Applicant {
            token: Some([1; 32]),
            receiver: id(n),
            credential: [2; 32],
            name: "cellar",
            software: "test",
            address: "192.0.2.1:4000",
            channels: &[],
        };
        store.receivers().admit(&applicant).await.unwrap();
    }
    store.receivers().revoke(id(3)).await.unwrap();
    site.slow_down(Duration::ZERO, PER_ROW);
    let mut knowing = ReceiverScan::new(5);
    let mut tries = 0;
    while !matches!(knowing.go_on(&site.opened).await, Ok(true)) {
        tries += 1;
        assert!(tries < 50, "{knowing:?}");
    }
    assert!(
        tries >= 2,
        "a thousand take too long, and a call has a time limit"
    );
    let (known, since_ms) = knowing.known();
    assert_eq!((known.len(), since_ms), (MANY - 1, 5));
    assert!(!known.contains_key(&id(3)), "it was revoked");
}

/// Both ends of an overload are in the source's description, and stay there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overloads_are_recorded_when_they_begin_and_end() {
    let site = Site::new().await;
    let source = site.source(1).await;
    let says = async |wanted: &[(i64, Option<i64>)]| {
        site.until("the overloads", async |site| {
            let info = site.opened.records().snapshot().await.unwrap().info;
            let overloads = info.map(|info| info.overloads).unwrap_or_default();
            let found = overloads.iter().map(|one| (one.since_ms, one.until_ms));
            found.eq(wanted.iter().copied())
        })
        .await;
    };
    source.made.overload(1_000, None);
    says(&[(1_000, None)]).await;
    source.made.overload(1_000, Some(9_000));
    says(&[(1_000, Some(9_000))]).await;
    source.made.overload(20_000, None);
    says(&[(1_000, Some(9_000)), (20_000, None)]).await;
    let info = site
        .opened
        .records()
        .snapshot()
        .await
        .unwrap()
        .info
        .unwrap();
    assert_eq!(info.overloads[0].late, ["engine", "receive-queue"]);
    source.end().await;
}
