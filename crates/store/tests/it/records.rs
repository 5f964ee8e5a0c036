//! Records of a source: written in batches, by the holder of the lease.

use std::time::{Duration, Instant};

use store::{
    Batch, FeedEvent, FeedHour, FeedSettings, Fence, Holder, LeaseOutcome, MoveRow, Origin,
    OverloadRow, ProgressRow, PulseRow, RelayRow, SessionRow, SourceInfo, Stamp, StateRow, Store,
    StoreError,
};
use uuid::Uuid;

use crate::rows::{event, full, info, moved, progress, pulse, relay, session, state, written};
use crate::site::{Site, on_both};

on_both! {
    records_are_read_back_whole,
    a_row_written_again_replaces_the_previous_one,
    a_batch_written_again_is_stored_once,
    a_writer_that_lost_the_lease_writes_nothing,
    a_new_holder_marks_all_receivers_disconnected,
    a_new_holder_takes_over_in_parts,
    the_last_event_of_each_feed_is_returned,
    texts_of_any_kind_are_cut_and_stored,
    five_thousand_receivers_fit_into_one_batch,
}

async fn records_are_read_back_whole(site: Site) {
    let opened = site.open().await;
    let empty = opened.records().snapshot().await.unwrap();
    assert_eq!(written(empty.clone()), Batch::default());
    assert!(empty.upto > 1_600_000_000_000, "{}", empty.upto);
    let change = opened.records().write(&full()).await.unwrap();
    assert_eq!(change, empty.upto + 1);
    let mut wanted = full();
    wanted.sessions.clear();
    // No database has larger numbers.
    wanted.pulses[0].bytes.equivalent = u64::try_from(i64::MAX).unwrap();
    let snapshot = opened.records().snapshot().await.unwrap();
    assert_eq!((snapshot.upto, snapshot.epoch), (change, empty.epoch));
    assert_eq!(snapshot.states[0].change, change);
    assert_eq!(written(snapshot), wanted);
    let since = opened
        .records()
        .changes_since(empty.upto, 100)
        .await
        .unwrap();
    assert_eq!((since.upto, since.more), (change, false));
    assert_eq!(written(since), wanted);
    let sessions = opened.records().sessions(Uuid::from_u128(1), None, 9).await;
    assert_eq!(sessions.unwrap(), full().sessions);
    opened.close().await;
    let again = site.open().await.records().snapshot().await.unwrap();
    assert_eq!((again.upto, again.epoch), (change, empty.epoch));
    assert_eq!(written(again), wanted);
}

async fn a_row_written_again_replaces_the_previous_one(site: Site) {
    let opened = site.open().await;
    opened.records().write(&full()).await.unwrap();
    let offline = StateRow {
        connected: false,
        rung: "offline".to_owned(),
        cursor: None,
        key_sequence: None,
        rtt_us: None,
        session: None,
        ..state(1, "lore", "")
    };
    let ended = SessionRow {
        ended_ms: Some(1000),
        end_cause: Some("idle".to_owned()),
        ..session(1, 900)
    };
    let again = Batch {
        // The last one counts.
        states: vec![state(1, "lore", "amt"), offline.clone()],
        sessions: vec![ended.clone()],
        pulses: vec![pulse("lore", 8), pulse("lore", 9)],
        progress: vec![ProgressRow {
            all_ms: Some(77),
            ..progress(7)
        }],
        relays: vec![RelayRow {
            healthy: false,
            since_ms: None,
            ..relay("relay.example.org")
        }],
        ..Batch::default()
    };
    opened.records().write(&again).await.unwrap();
    let now = opened.records().snapshot().await.unwrap();
    assert_eq!(now.states.len(), 2);
    let first = StateRow {
        change: 0,
        ..now.states[0].clone()
    };
    assert_eq!(first, offline);
    assert_eq!((now.pulses.len(), now.pulses[0].head), (1, 9));
    assert_eq!((now.progress.len(), now.progress[0].all_ms), (1, Some(77)));
    assert_eq!((now.relays.len(), now.relays[0].healthy), (1, false));
    assert_eq!(now.moves.len(), 2);
    let sessions = opened.records().sessions(Uuid::from_u128(1), None, 9).await;
    assert_eq!(sessions.unwrap(), [ended]);
}

#[test]
fn connections_are_numbered_in_the_order_of_time() {
    let now = 1_800_000_000_000;
    let numbers = [
        SessionRow::number(-5, 7),
        SessionRow::number(0, 8),
        SessionRow::number(now, 0),
        SessionRow::number(now, 1),
        SessionRow::number(now, 0x000f_ffff),
        SessionRow::number(now + 1, u32::MAX << 20),
        SessionRow::number(i64::MAX, u32::MAX),
    ];
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    assert!(numbers[0] >= 0);
}

/// Its answer was lost, so its writer writes it again, by another connection.
async fn a_batch_written_again_is_stored_once(site: Site) {
    let (opened, again) = (site.open().await, site.open().await);
    let hour = FeedHour {
        channel: "lore".to_owned(),
        url: "https://example.org/".to_owned(),
        polls: 3,
        ..FeedHour::default()
    };
    let stamped = |run: u128, number| Batch {
        stamp: Some(Stamp {
            run: Uuid::from_u128(run),
            number,
        }),
        feed_hours: vec![hour.clone()],
        ..full()
    };
    let first = opened.records().write(&stamped(1, 5)).await.unwrap();
    for _ in 0..3 {
        let (one, other) = (stamped(1, 5), stamped(1, 5));
        let (one, other) =
            tokio::join!(opened.records().write(&one), again.records().write(&other));
        assert_eq!((one.unwrap(), other.unwrap()), (first, first));
    }
    let now = opened.records().snapshot().await.unwrap();
    assert_eq!((now.upto, now.moves.len()), (first, 2));
    assert_eq!(now.feed_events.len(), 1);
    // Others, and later ones, are not the same. Who comes second of two that are written at the
    // same time for the first time finds the first.
    let (one, other) = (stamped(2, 5), stamped(2, 5));
    let (one, other) = tokio::join!(opened.records().write(&one), again.records().write(&other));
    assert_eq!((one.unwrap(), other.unwrap()), (first + 1, first + 1));
    assert_eq!(
        again.records().write(&stamped(1, 6)).await.unwrap(),
        first + 2
    );
    let now = opened.records().snapshot().await.unwrap();
    assert_eq!((now.moves.len(), now.feed_events.len()), (6, 3));
    let hours = opened
        .records()
        .feed_history("lore", &hour.url, 0, 1)
        .await
        .unwrap();
    assert_eq!(hours[0].polls, 9);
}

async fn lease(opened: &Store, holder: u128) -> Fence {
    let holder = Holder {
        id: Uuid::from_u128(holder),
        name: "attic".to_owned(),
    };
    let leased = opened
        .leases()
        .take("lore", &holder, Duration::from_millis(1))
        .await;
    let LeaseOutcome::Held(lease) = leased.unwrap() else {
        panic!("the lease is taken")
    };
    Fence {
        channel: lease.channel,
        fence: lease.fence,
    }
}

async fn a_writer_that_lost_the_lease_writes_nothing(site: Site) {
    let opened = site.open().await;
    opened.channels().open("lore").await.unwrap();
    let first = lease(&opened, 1).await;
    let mine = Batch {
        fences: vec![first.clone()],
        ..full()
    };
    let change = opened.records().write(&mine).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let second = lease(&opened, 2).await;
    assert!(second.fence > first.fence);
    let error = opened.records().write(&mine).await.unwrap_err();
    assert!(matches!(error, StoreError::Fenced { .. }), "{error:?}");
    let first = [first];
    let over = opened.records().take_over(&first, None, 9, 5, "restart");
    let over = over.await;
    assert!(matches!(over, Err(StoreError::Fenced { .. })), "{over:?}");
    let snapshot = opened.records().snapshot().await.unwrap();
    assert_eq!((snapshot.upto, snapshot.moves.len()), (change, 2));
    let both = Batch {
        fences: vec![
            second.clone(),
            Fence {
                channel: "news".to_owned(),
                fence: 1,
            },
        ],
        ..full()
    };
    let error = opened.records().write(&both).await.unwrap_err();
    assert!(
        matches!(error, StoreError::UnknownChannel { .. }),
        "{error:?}"
    );
    let theirs = Batch {
        fences: vec![second],
        ..full()
    };
    // Refused batches have left no gap.
    assert_eq!(opened.records().write(&theirs).await.unwrap(), change + 1);
}

async fn a_new_holder_marks_all_receivers_disconnected(site: Site) {
    let opened = site.open().await;
    opened.channels().open("lore").await.unwrap();
    let elsewhere = StateRow {
        session: Some(7),
        ..state(2, "news", "amt")
    };
    let batch = Batch {
        states: vec![state(1, "lore", "multicast"), elsewhere],
        sessions: vec![
            session(1, 900),
            SessionRow {
                id: 7,
                ..session(2, 901)
            },
        ],
        ..Batch::default()
    };
    let before = opened.records().write(&batch).await.unwrap();
    let fence = lease(&opened, 1).await;
    opened
        .records()
        .take_over(&[fence], None, 9, 5000, "the source was restarted")
        .await
        .unwrap();
    let changes = opened.records().changes_since(before, 10).await.unwrap();
    let row = &changes.states[0];
    assert_eq!(changes.states.len(), 1);
    assert_eq!((row.connected, row.rung.as_str()), (false, "offline"));
    assert_eq!((row.since_ms, row.cursor), (5000, Some(7)));
    assert_eq!(row.cause, "the source was restarted");
    assert!(changes.moves.is_empty());
    let first = opened.records().sessions(Uuid::from_u128(1), None, 9).await;
    assert_eq!(first.unwrap()[0].ended_ms, Some(5000));
    let other = opened.records().sessions(Uuid::from_u128(2), None, 9).await;
    assert_eq!(other.unwrap()[0].ended_ms, None);
}

/// Each part changes its own rows only, and says how they are then.
async fn a_new_holder_takes_over_in_parts(site: Site) {
    const MANY: u128 = 25;
    let opened = site.open().await;
    opened.channels().open("lore").await.unwrap();
    let (mut states, mut sessions) = (vec![state(3, "news", "amt")], Vec::new());
    for n in 1..=MANY {
        let id = i64::try_from(n).unwrap();
        states.push(StateRow {
            session: Some(id),
            ..state(n, "lore", "multicast")
        });
        sessions.push(SessionRow {
            id,
            ..session(n, 900)
        });
    }
    let batch = Batch {
        states,
        sessions,
        ..Batch::default()
    };
    opened.records().write(&batch).await.unwrap();
    let fences = [lease(&opened, 1).await];
    let connected = async || {
        let states = opened.records().snapshot().await.unwrap().states;
        let lore = states.iter().filter(|row| row.channel == "lore");
        lore.filter(|row| row.connected).count()
    };
    let (mut after, mut seen) = (None, 0);
    loop {
        let part = opened
            .records()
            .take_over(&fences, after.as_ref(), 10, 5000, "restart")
            .await
            .unwrap();
        assert!(
            part.iter()
                .all(|row| !row.connected && row.since_ms == 5000)
        );
        seen += part.len();
        assert_eq!(connected().await, 25 - seen);
        if part.len() < 10 {
            break;
        }
        after = part.last().map(|row| (row.receiver, row.channel.clone()));
    }
    assert_eq!(seen, 25, "those of another channel are another source's");
    for n in [1, 10, 11, 25] {
        let sessions = opened.records().sessions(Uuid::from_u128(n), None, 9).await;
        assert_eq!(sessions.unwrap()[0].ended_ms, Some(5000), "{n}");
    }
    let last = opened.records().snapshot().await.unwrap().upto;
    let again = opened
        .records()
        .take_over(&fences, None, 100, 6000, "again");
    assert_eq!(
        again.await.unwrap()[0].since_ms,
        5000,
        "no receiver was connected"
    );
    let now = opened.records().snapshot().await.unwrap();
    assert_eq!(now.upto, last, "nothing has changed by that");
    assert!(
        now.states
            .iter()
            .any(|row| row.channel == "news" && row.connected)
    );
}

async fn the_last_event_of_each_feed_is_returned(site: Site) {
    const A: &str = "https://example.org/a";
    const B: &str = "https://example.org/b";
    let opened = site.open().await;
    for channel in ["lore", "news"] {
        opened.channels().open(channel).await.unwrap();
    }
    let seen = |channel: &str, url: &str, state: &str| FeedEvent {
        channel: channel.to_owned(),
        url: url.to_owned(),
        state: state.to_owned(),
        ..event(5)
    };
    for (channel, url) in [("lore", A), ("lore", B), ("news", A)] {
        let settings = FeedSettings {
            url: url.to_owned(),
            address: url.to_owned(),
            local: false,
            min_interval_ms: None,
            max_interval_ms: None,
            title: None,
            origin: Origin::Managed,
        };
        opened.feeds().put(channel, &settings).await.unwrap();
    }
    let batch = Batch {
        feed_events: vec![
            seen("lore", A, "error"),
            seen("lore", B, "challenged"),
            seen("news", A, "error"),
            seen("lore", A, "ok"),
            seen("lore", "https://example.org/gone", "error"),
        ],
        ..Batch::default()
    };
    opened.records().write(&batch).await.unwrap();
    let mut last = Vec::new();
    let mut after = 0;
    loop {
        let part = opened.records().feed_states(&["lore"], after, 1).await;
        let Some(one) = part.unwrap().pop() else {
            break;
        };
        after = one.id;
        last.push((one.url, one.state));
    }
    let known = [(B, "challenged"), (A, "ok")];
    assert_eq!(
        last,
        known.map(|(url, state)| (url.to_owned(), state.to_owned()))
    );
}

fn overload(since_ms: i64) -> OverloadRow {
    OverloadRow {
        since_ms,
        ..OverloadRow::default()
    }
}

async fn texts_of_any_kind_are_cut_and_stored(site: Site) {
    let records = site.open().await;
    let long = "\u{5d0}\u{202e}<script>🦊\0".repeat(600_000);
    assert!(long.len() > 10_000_000);
    let batch = Batch {
        states: vec![StateRow {
            channel: long.clone(),
            rung: long.clone(),
            cause: long.clone(),
            address: long.clone(),
            ..state(1, "", "")
        }],
        moves: vec![MoveRow {
            name: long.clone(),
            channel: long.clone(),
            from: long.clone(),
            to: long.clone(),
            cause: long.clone(),
            ..moved(1, 1, "")
        }],
        sessions: vec![SessionRow {
            name: long.clone(),
            software: long.clone(),
            address: long.clone(),
            end_cause: Some(long.clone()),
            ..session(1, 1)
        }],
        pulses: vec![PulseRow {
            flow: long.clone(),
            ..pulse(&long, 1)
        }],
        relays: vec![RelayRow {
            detail: long.clone(),
            asked: long.clone(),
            ..relay(&long)
        }],
        feed_events: vec![FeedEvent {
            url: long.clone(),
            state: long.clone(),
            detail: long.clone(),
            excerpt: Some(long.clone()),
            ..event(1)
        }],
        feed_hours: vec![FeedHour {
            url: long.clone(),
            channel: "\0".to_owned(),
            ..FeedHour::default()
        }],
        info: Some(SourceInfo {
            holder: long.clone(),
            warnings: vec![long.clone(); 100],
            pins: (0..100).map(|n| n.to_string()).collect(),
            overloads: (0..100).map(overload).collect(),
            ..info()
        }),
        ..Batch::default()
    };
    records.records().write(&batch).await.unwrap();
    let now = records.records().snapshot().await.unwrap();
    let row = &now.states[0];
    let texts = [&row.channel, &row.rung, &row.cause, &now.moves[0].name];
    for (text, most) in texts.into_iter().zip([255, 32, 255, 255]) {
        assert!(text.len() <= most && text.len() > most - 8, "{text:?}");
        assert!(!text.contains('\0') && text.starts_with("\u{5d0}\u{202e}<"));
    }
    assert!(row.cause.contains('\u{fffd}'), "{:?}", row.cause);
    assert_eq!(now.pulses[0].flow, "{}");
    let excerpt = now.feed_events[0].excerpt.as_ref().unwrap();
    assert!((4000..=4096).contains(&excerpt.len()), "{}", excerpt.len());
    let info = now.info.unwrap();
    assert_eq!((info.warnings.len(), info.pins.len()), (1, 64));
    assert_eq!(info.overloads, (36..100).map(overload).collect::<Vec<_>>());
}

async fn five_thousand_receivers_fit_into_one_batch(site: Site) {
    let opened = site.open().await;
    let start = opened.records().snapshot().await.unwrap().upto;
    let batch = |rung: &str| Batch {
        states: (0..5000).map(|n| state(n, "lore", rung)).collect(),
        moves: (0..5000).map(|n| moved(n, 5, "silent")).collect(),
        ..Batch::default()
    };
    // Generous: each takes well below a second on an idle machine.
    const BOUND: Duration = Duration::from_secs(20);
    for rung in ["multicast", "unicast"] {
        let started = Instant::now();
        opened.records().write(&batch(rung)).await.unwrap();
        assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
        println!("5,000 states and moves: {:?}", started.elapsed());
    }
    let started = Instant::now();
    let news = opened.records().changes_since(start, 20_000).await.unwrap();
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    println!("read: {:?}", started.elapsed());
    assert_eq!((news.states.len(), news.moves.len()), (5000, 10_000));
    assert!(news.states.iter().all(|row| row.rung == "unicast"));
}
