//! Samples: larger steps from smaller ones, and what is kept of everything for how long.

use store::{
    Batch, ProgressRow, ReceiverCounts, RelayRow, SampleRow, SentBytes, SessionRow, Store,
};
use uuid::Uuid;

use crate::migrations::Raw;
use crate::rows::{enrol, moved, state};
use crate::site::{Site, on_both};

on_both! {
    larger_steps_are_the_sums_of_smaller_ones,
    rolling_up_again_changes_nothing,
    late_samples_are_rolled_up,
    samples_that_were_not_rolled_up_stay,
    old_records_are_deleted_in_parts,
}

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const SMALL: i64 = SampleRow::STEPS[0];
const MIDDLE: i64 = SampleRow::STEPS[1];
const LARGE: i64 = SampleRow::STEPS[2];

/// The beginning of an hour.
const START: i64 = 480_000 * HOUR;

/// A sample whose counts follow from its time.
fn sample(channel: &str, at_ms: i64) -> SampleRow {
    let n = u64::try_from((at_ms - START) / SMALL).unwrap();
    SampleRow {
        channel: channel.to_owned(),
        step_ms: SMALL,
        at_ms,
        weight: 10,
        counts: ReceiverCounts {
            receivers: 50,
            connected: 40 + n % 3,
            multicast: 30,
            amt: 4,
            replicated: 3,
            unicast: 2,
            behind: n % 7,
        },
        lag_updates: n % 11,
        lag_ms: n % 13,
        updates: n % 2,
        moves: n % 5,
        bytes: SentBytes {
            flow: 1000 + n,
            copies: 100 + n,
            unicast: 10 + n,
            repairs: n,
            equivalent: 50_000 * n,
        },
    }
}

async fn write(opened: &Store, channel: &str, from: i64, to: i64) {
    let steps = (to - from) / SMALL;
    let batch = Batch {
        samples: (0..steps)
            .map(|n| sample(channel, from + n * SMALL))
            .collect(),
        ..Batch::default()
    };
    opened.records().write(&batch).await.unwrap();
}

async fn read(opened: &Store, channel: &str, step: i64) -> Vec<SampleRow> {
    opened
        .records()
        .samples(channel, step, 0, i64::MAX)
        .await
        .unwrap()
}

/// All of them as one.
fn sum(rows: &[SampleRow]) -> SampleRow {
    let mut all = SampleRow::default();
    for row in rows {
        all.channel.clone_from(&row.channel);
        all.weight += row.weight;
        all.counts += row.counts;
        all.lag_updates = all.lag_updates.max(row.lag_updates);
        all.lag_ms = all.lag_ms.max(row.lag_ms);
        all.updates += row.updates;
        all.moves += row.moves;
        all.bytes += row.bytes;
    }
    all
}

async fn larger_steps_are_the_sums_of_smaller_ones(site: Site) {
    let opened = site.open().await;
    let end = START + 3 * HOUR;
    write(&opened, "lore", START, end + 4 * MINUTE).await;
    write(&opened, "", START + 7 * MINUTE, end).await;
    opened.records().roll_up(end + 4 * MINUTE).await.unwrap();
    for (channel, from) in [("lore", START), ("", START + 7 * MINUTE)] {
        let small = read(&opened, channel, SMALL).await;
        let middle = read(&opened, channel, MIDDLE).await;
        let large = read(&opened, channel, LARGE).await;
        // Steps that are not over are not made yet.
        let over: Vec<_> = small
            .iter()
            .filter(|row| row.at_ms < end)
            .cloned()
            .collect();
        assert_eq!(sum(&middle), sum(&over), "{channel:?}");
        assert_eq!(sum(&large), sum(&over), "{channel:?}");
        assert!(middle.iter().all(|row| row.at_ms % MIDDLE == 0));
        assert_eq!(middle[0].at_ms, from - from % MIDDLE);
        assert!(middle.is_sorted_by_key(|row| row.at_ms));
        let hours: Vec<_> = large.iter().map(|row| row.at_ms).collect();
        assert_eq!(hours, [START, START + HOUR, START + 2 * HOUR]);
    }
    let row = &read(&opened, "lore", MIDDLE).await[1];
    let of: Vec<_> = (0..30)
        .map(|n| sample("lore", START + MIDDLE + n * SMALL))
        .collect();
    assert_eq!(sum(std::slice::from_ref(row)), sum(&of));
    let span = opened
        .records()
        .samples("lore", MIDDLE, START + MIDDLE, START + 3 * MIDDLE)
        .await;
    let span: Vec<_> = span.unwrap().iter().map(|row| row.at_ms).collect();
    assert_eq!(span, [START + MIDDLE, START + 2 * MIDDLE]);
}

async fn rolling_up_again_changes_nothing(site: Site) {
    let opened = site.open().await;
    write(&opened, "lore", START, START + 5 * HOUR).await;
    let mut now = START;
    // Step by step, now and then twice.
    while now < START + 5 * HOUR {
        now += 13 * MINUTE;
        opened.records().roll_up(now).await.unwrap();
        if now % 2 == 0 {
            opened.records().roll_up(now).await.unwrap();
        }
    }
    let small = read(&opened, "lore", SMALL).await;
    let (middle, large) = (
        read(&opened, "lore", MIDDLE).await,
        read(&opened, "lore", LARGE).await,
    );
    assert_eq!((middle.len(), large.len()), (60, 5));
    assert_eq!(sum(&middle), sum(&small));
    assert_eq!(sum(&large), sum(&small));
    opened.records().roll_up(now + 100 * HOUR).await.unwrap();
    assert_eq!(read(&opened, "lore", MIDDLE).await, middle);
    assert_eq!(read(&opened, "lore", LARGE).await, large);
}

async fn late_samples_are_rolled_up(site: Site) {
    let opened = site.open().await;
    write(&opened, "lore", START, START + 4 * MINUTE).await;
    opened.records().roll_up(START + 6 * MINUTE).await.unwrap();
    assert_eq!(read(&opened, "lore", MIDDLE).await[0].weight, 240);
    write(&opened, "lore", START + 4 * MINUTE, START + 10 * MINUTE).await;
    opened.records().roll_up(START + 10 * MINUTE).await.unwrap();
    let middle = read(&opened, "lore", MIDDLE).await;
    assert_eq!(sum(&middle), sum(&read(&opened, "lore", SMALL).await));
}

/// The source was off for days before anything could be rolled up.
async fn samples_that_were_not_rolled_up_stay(site: Site) {
    let opened = site.open().await;
    write(&opened, "lore", START, START + 30 * HOUR).await;
    let all = read(&opened, "lore", SMALL).await;
    let later = START + 10 * DAY;
    opened.records().trim(later).await.unwrap();
    assert_eq!(read(&opened, "lore", SMALL).await, all);
    for _ in 0..3 {
        opened.records().roll_up(later).await.unwrap();
        opened.records().trim(later).await.unwrap();
    }
    let left = read(&opened, "lore", SMALL).await;
    assert!(left.len() < 200, "{}", left.len());
    assert_eq!(sum(&read(&opened, "lore", MIDDLE).await), sum(&all));
    assert_eq!(sum(&read(&opened, "lore", LARGE).await), sum(&all));
    // Rolling up continues, and earlier steps count as before.
    write(&opened, "lore", later, later + HOUR).await;
    opened.records().roll_up(later + HOUR).await.unwrap();
    opened.records().trim(later + HOUR).await.unwrap();
    let new = read(&opened, "lore", SMALL).await;
    let new: Vec<_> = new.into_iter().filter(|row| row.at_ms >= later).collect();
    let both = sum(&[sum(&all), sum(&new)]);
    assert_eq!(sum(&read(&opened, "lore", LARGE).await), both);
    // Years later nothing is left of the smaller ones but what belongs to the last larger one.
    let years = later + 800 * DAY;
    opened.records().trim(years).await.unwrap();
    assert!(read(&opened, "lore", LARGE).await.is_empty());
}

async fn old_records_are_deleted_in_parts(site: Site) {
    let opened = site.open().await;
    let records = &opened;
    opened.channels().open("lore").await.unwrap();
    enrol(&opened, 1).await;
    let now = START + 200 * DAY;
    let session = |n: i64, ended_ms| SessionRow {
        id: SessionRow::number(n, 0),
        receiver: Uuid::from_u128(1),
        name: String::new(),
        software: String::new(),
        address: String::new(),
        began_ms: n,
        ended_ms,
        end_cause: None,
    };
    let progress = |channel: &str, seq| ProgressRow {
        channel: channel.to_owned(),
        seq,
        ..ProgressRow::default()
    };
    let mut stale = state(9, "lore", "amt");
    stale.connected = false;
    let batch = Batch {
        // More than one part of them.
        moves: (0..5000)
            .map(|n| moved(1, START + n, "silent"))
            .chain([moved(1, now - DAY, "silent")])
            .collect(),
        sessions: vec![
            session(START, Some(START + 5)),
            session(START + 1, None),
            session(now - DAY, Some(now)),
            session(now - 5, None),
        ],
        // One without a receiver, and one of an unknown channel.
        states: vec![state(1, "lore", "amt"), stale, state(1, "gone", "amt")],
        progress: (1..=12_000)
            .map(|seq| progress("lore", seq))
            .chain([progress("gone", 1)])
            .collect(),
        relays: vec![
            RelayRow {
                address: "gone".to_owned(),
                gone: true,
                ..RelayRow::default()
            },
            RelayRow {
                address: "here".to_owned(),
                ..RelayRow::default()
            },
        ],
        ..Batch::default()
    };
    records.records().write(&batch).await.unwrap();
    let mut raw = Raw::to(&site.url).await;
    let went = records.records().trim(now).await.unwrap();
    assert_eq!(raw.count("SELECT COUNT(*) FROM moves").await, 1);
    assert_eq!(
        raw.count("SELECT COUNT(*) FROM update_progress").await,
        10_000
    );
    assert_eq!(
        raw.count("SELECT MIN(seq) FROM update_progress").await,
        2001
    );
    assert_eq!(raw.count("SELECT COUNT(*) FROM receiver_states").await, 1);
    assert_eq!(raw.count("SELECT COUNT(*) FROM relay_states").await, 1);
    assert_eq!(went, 5000 + 1 + 2 + 2001 + 1);
    let sessions = records
        .records()
        .sessions(Uuid::from_u128(1), None, 9)
        .await
        .unwrap();
    let ends: Vec<_> = sessions.iter().map(|row| row.ended_ms).collect();
    // The one without a recorded end has ended; the young one continues.
    assert_eq!(ends, [None, Some(now), Some(now)]);
    assert_eq!(records.records().trim(now).await.unwrap(), 0);
    raw.close().await;
}
