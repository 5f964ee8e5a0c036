//! Changes, as those read them who keep the records in memory.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use store::{Batch, ReceiverEdit};
use uuid::Uuid;

use crate::rows::{enrol, full, moved, pulse, state, written};
use crate::site::{Site, on_both};

on_both! {
    changes_come_once_and_in_their_order,
    changes_that_do_not_fit_come_in_parts_of_whole_changes,
    two_writers_and_a_reader_miss_nothing,
    every_change_of_a_receiver_is_in_the_changes,
    a_forgotten_receiver_is_forgotten_everywhere,
}

async fn changes_come_once_and_in_their_order(site: Site) {
    let opened = site.open().await;
    let start = opened.records().snapshot().await.unwrap().upto;
    let first = opened.records().write(&full()).await.unwrap();
    let second = Batch {
        states: vec![state(2, "lore", "amt")],
        moves: vec![moved(1, 12, "silent")],
        ..Batch::default()
    };
    let second = opened.records().write(&second).await.unwrap();
    let all = opened.records().changes_since(start, 100).await.unwrap();
    assert_eq!(all.upto, second);
    let rungs: Vec<_> = all.states.iter().map(|row| row.rung.as_str()).collect();
    assert_eq!(rungs, ["multicast", "amt"]);
    let at: Vec<_> = all.moves.iter().map(|row| row.at_ms).collect();
    assert_eq!(at, [10, 11, 12]);
    let rest = opened.records().changes_since(first, 100).await.unwrap();
    assert_eq!((rest.states.len(), rest.moves.len()), (1, 1));
    assert!(rest.pulses.is_empty() && rest.info.is_none());
    let nothing = opened.records().changes_since(second, 100).await.unwrap();
    assert_eq!(written(nothing.clone()), Batch::default());
    assert_eq!((nothing.upto, nothing.more), (second, false));
    // The database was set back: its numbers are small, and its epoch may be another one.
    let ahead = opened
        .records()
        .changes_since(second + 10, 100)
        .await
        .unwrap();
    assert_eq!(ahead.upto, second);
}

async fn changes_that_do_not_fit_come_in_parts_of_whole_changes(site: Site) {
    let opened = site.open().await;
    let start = opened.records().snapshot().await.unwrap().upto;
    for n in 0..10 {
        let batch = Batch {
            states: (0..3).map(|r| state(n * 3 + r, "lore", "amt")).collect(),
            // One of them is larger than what is asked for.
            moves: (0..if n == 4 { 50 } else { 1 })
                .map(|_| moved(n, i64::try_from(n).unwrap(), "silent"))
                .collect(),
            ..Batch::default()
        };
        opened.records().write(&batch).await.unwrap();
    }
    let (mut from, mut states, mut moves, mut parts) = (start, 0, Vec::new(), 0);
    loop {
        let part = opened.records().changes_since(from, 7).await.unwrap();
        let within = from + 1..=part.upto;
        assert!(part.states.iter().all(|row| within.contains(&row.change)));
        assert!(part.moves.iter().all(|row| within.contains(&row.change)));
        states += part.states.len();
        moves.extend(part.moves.iter().map(|row| row.at_ms));
        parts += 1;
        assert!(part.upto > from, "no progress at {from}");
        from = part.upto;
        if !part.more {
            break;
        }
    }
    assert_eq!((from, states), (start + 10, 30));
    assert!(parts > 2, "{parts}");
    assert_eq!(moves.len(), 59);
    assert!(moves.is_sorted());
}

/// Several processes' worth of stores write at the same time, and one reads after them. What it has
/// in the end is what is there: no change became visible after a larger one was read.
async fn two_writers_and_a_reader_miss_nothing(site: Site) {
    const ROUNDS: u128 = 60;
    let opened = site.open().await;
    let start = opened.records().snapshot().await.unwrap().upto;
    let mut writers = Vec::new();
    for writer in 0..2_u128 {
        let records = site.open().await;
        writers.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let batch = Batch {
                    states: (0..5)
                        .map(|n| state(writer * 100 + (round + n) % 20, "lore", &round.to_string()))
                        .collect(),
                    moves: vec![moved(writer, i64::try_from(round).unwrap(), "silent")],
                    pulses: vec![pulse("lore", 1)],
                    ..Batch::default()
                };
                records.records().write(&batch).await.unwrap();
                // The other one gets SQLite's lock, too, which has no queue.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }));
    }
    let reader = site.open().await;
    let (mut seen, mut moves, mut from) = (BTreeMap::new(), Vec::new(), start);
    let started = Instant::now();
    while from < start + 2 * u64::try_from(ROUNDS).unwrap() {
        let part = reader.records().changes_since(from, 25).await.unwrap();
        for row in part.states {
            seen.insert(row.receiver, (row.rung, row.change));
        }
        moves.extend(part.moves.into_iter().map(|row| row.id));
        from = part.upto;
        assert!(started.elapsed() < Duration::from_secs(120), "{from}");
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let there: BTreeMap<_, _> = opened
        .records()
        .snapshot()
        .await
        .unwrap()
        .states
        .into_iter()
        .map(|row| (row.receiver, (row.rung, row.change)))
        .collect();
    assert_eq!(there.len(), 40);
    assert_eq!(seen, there);
    assert_eq!(moves.len(), 2 * usize::try_from(ROUNDS).unwrap());
    assert!(moves.is_sorted());
}

async fn every_change_of_a_receiver_is_in_the_changes(site: Site) {
    let opened = site.open().await;
    let records = &opened;
    let start = records.records().snapshot().await.unwrap();
    assert!(start.receivers.is_empty());
    let one = Uuid::from_u128(1);
    enrol(&opened, 1).await;
    // Those who were admitted are numbered by the next change.
    records.records().write(&Batch::default()).await.unwrap();
    let news = records
        .records()
        .changes_since(start.upto, 9)
        .await
        .unwrap();
    assert_eq!(news.receivers.len(), 1);
    assert_eq!((news.receivers[0].id, news.receivers[0].held), (one, false));
    let version = opened.version().await.unwrap();
    let edit = ReceiverEdit {
        label: Some("  Cellar, left ".to_owned()),
        tags: Some(vec!["a".into(), "b".into(), "a".into(), " ".into()]),
        held: None,
    };
    let row = records.receivers().edit(one, &edit).await.unwrap().unwrap();
    assert_eq!(row.label.as_deref(), Some("Cellar, left"));
    assert_eq!(row.tags, ["a", "b"]);
    assert_eq!(opened.version().await.unwrap(), version);
    assert!(records.receivers().held().await.unwrap().is_empty());
    let hold = ReceiverEdit {
        held: Some(true),
        label: Some(String::new()),
        tags: None,
    };
    records.receivers().edit(one, &hold).await.unwrap();
    assert!(opened.version().await.unwrap() > version);
    assert_eq!(records.receivers().held().await.unwrap(), [one]);
    let next = records.records().changes_since(news.upto, 9).await.unwrap();
    assert_eq!(next.receivers.len(), 1);
    let row = &next.receivers[0];
    assert_eq!((row.label.as_deref(), row.held), (None, true));
    assert_eq!(row.tags, ["a", "b"]);
    assert_eq!(opened.receivers().list().await.unwrap()[0], *row);
    // An edit without effect is no change.
    records.receivers().edit(one, &hold).await.unwrap();
    let same = records.records().changes_since(next.upto, 9).await.unwrap();
    assert_eq!(same.upto, next.upto);
    opened.receivers().revoke(one).await.unwrap();
    let revoked = records.records().changes_since(next.upto, 9).await.unwrap();
    assert!(revoked.receivers[0].revoked_ms.is_some());
    let unknown = records.receivers().edit(Uuid::from_u128(9), &edit).await;
    assert_eq!(unknown.unwrap(), None);
}

async fn a_forgotten_receiver_is_forgotten_everywhere(site: Site) {
    let opened = site.open().await;
    let records = &opened;
    let one = Uuid::from_u128(1);
    enrol(&opened, 1).await;
    enrol(&opened, 2).await;
    let batch = Batch {
        moves: vec![moved(1, 1, "silent"), moved(2, 2, "silent")],
        ..full()
    };
    let before = records.records().write(&batch).await.unwrap();
    assert!(opened.receivers().forget(one).await.unwrap());
    assert!(!opened.receivers().forget(one).await.unwrap());
    let changes = records.records().changes_since(before, 9).await.unwrap();
    assert_eq!(changes.forgotten, [one]);
    assert!(changes.receivers.is_empty() && changes.states.is_empty());
    let now = records.records().snapshot().await.unwrap();
    assert_eq!((now.receivers.len(), now.states.len()), (1, 1));
    assert_eq!(now.moves.len(), 1);
    assert!(
        records
            .records()
            .sessions(one, None, 9)
            .await
            .unwrap()
            .is_empty()
    );
    // The receiver returns: a reader that missed its removal does not lose it now.
    enrol(&opened, 1).await;
    records.records().write(&Batch::default()).await.unwrap();
    let back = records.records().changes_since(before, 9).await.unwrap();
    assert!(back.forgotten.is_empty());
    assert_eq!(back.receivers[0].id, one);
}
