//! Histories, listed in pages, and what is set about feeds.

use store::{
    Batch, FeedEvent, FeedHour, FeedSettings, ForgeryRow, MoveFilter, MoveRow, ProgressRow,
    SampleRow, SessionRow, StoreError,
};
use uuid::Uuid;

use crate::rows::{event, moved, progress, pulse, session, state};
use crate::site::{Site, URL, drafts, encode, on_both};

on_both! {
    histories_are_listed_in_pages,
    reports_of_forged_packets_of_the_last_day_are_in_a_snapshot,
    the_last_event_of_each_feed_is_known_at_once,
    updates_are_listed_without_their_bytes,
    a_paused_feed_says_so,
    a_removed_channel_takes_its_records_along,
}

async fn reports_of_forged_packets_of_the_last_day_are_in_a_snapshot(site: Site) {
    const HOUR: i64 = 3_600_000;
    let opened = site.open().await;
    let records = opened.records();
    assert_eq!(records.snapshot().await.unwrap().forgeries, []);
    let of_news = MoveRow {
        channel: "news".to_owned(),
        ..moved(1, 40 * HOUR, "forged")
    };
    let batch = Batch {
        moves: vec![
            moved(1, HOUR, "forged"),
            moved(1, 30 * HOUR, "forged"),
            moved(1, 35 * HOUR, "forged"),
            of_news,
            moved(2, 40 * HOUR, "forged"),
            moved(3, 48 * HOUR, "joined"),
        ],
        ..Batch::default()
    };
    records.write(&batch).await.unwrap();
    let mut found = records.snapshot().await.unwrap().forgeries;
    found.sort_by_key(|row| (row.receiver, row.channel.clone()));
    let row = |receiver, channel: &str, hours: [i64; 2], reports| ForgeryRow {
        receiver: Uuid::from_u128(receiver),
        channel: channel.to_owned(),
        first_ms: hours[0] * HOUR,
        last_ms: hours[1] * HOUR,
        reports,
    };
    let expected = [
        row(1, "lore", [30, 35], 2),
        row(1, "news", [40, 40], 1),
        row(2, "lore", [40, 40], 1),
    ];
    assert_eq!(found, expected);
}

async fn histories_are_listed_in_pages(site: Site) {
    let opened = site.open().await;
    let records = &opened;
    let hour = |hour_ms, polls| FeedHour {
        channel: "lore".to_owned(),
        url: URL.to_owned(),
        hour_ms,
        polls,
        ok: 1,
        not_modified: 2,
        failed: 3,
        challenged: 4,
        entries: 5,
    };
    let batch = Batch {
        moves: (0..30_i64)
            .map(|n| MoveRow {
                channel: if n % 3 == 0 { "news" } else { "lore" }.to_owned(),
                to: if n % 2 == 0 { "unicast" } else { "amt" }.to_owned(),
                ..moved(u128::try_from(n % 5).unwrap(), n * 10, "silent")
            })
            .chain([moved(1, 300, "joined")])
            .collect(),
        sessions: (0..5).map(|n| session(1, 100 * n)).collect(),
        progress: (1..=9).map(progress).collect(),
        feed_hours: vec![hour(3_600_000, 6), hour(0, 4), hour(0, 3)],
        feed_events: (0..4).map(event).collect(),
        ..Batch::default()
    };
    records.records().write(&batch).await.unwrap();
    records
        .records()
        .write(&Batch {
            feed_hours: vec![hour(0, 1)],
            ..Batch::default()
        })
        .await
        .unwrap();
    let times = async |filter: MoveFilter| {
        let moves = records.records().moves(&filter).await.unwrap();
        (
            moves.iter().map(|row| row.at_ms).collect::<Vec<_>>(),
            moves.last().map(|row| row.id),
        )
    };
    let all = MoveFilter {
        limit: 4,
        ..MoveFilter::default()
    };
    let (first, before) = times(all.clone()).await;
    assert_eq!(first, [300, 290, 280, 270]);
    let (second, _) = times(MoveFilter {
        before,
        ..all.clone()
    })
    .await;
    assert_eq!(second, [260, 250, 240, 230]);
    let of = |filter: MoveFilter| MoveFilter {
        limit: 100,
        ..filter
    };
    let (one, _) = times(of(MoveFilter {
        receiver: Some(Uuid::from_u128(1)),
        ..MoveFilter::default()
    }))
    .await;
    assert_eq!(one, [300, 260, 210, 160, 110, 60, 10]);
    let (both, _) = times(of(MoveFilter {
        receiver: Some(Uuid::from_u128(1)),
        channel: Some("news".to_owned()),
        ..MoveFilter::default()
    }))
    .await;
    assert_eq!(both, [210, 60]);
    let (channel, _) = times(of(MoveFilter {
        channel: Some("news".to_owned()),
        rung: Some("amt".to_owned()),
        to_ms: Some(200),
        ..MoveFilter::default()
    }))
    .await;
    assert_eq!(channel, [150, 90, 30]);
    let (cause, _) = times(of(MoveFilter {
        cause: Some("joined".to_owned()),
        ..MoveFilter::default()
    }))
    .await;
    assert_eq!(cause, [300]);
    let (span, _) = times(of(MoveFilter {
        from_ms: Some(20),
        to_ms: Some(50),
        ..MoveFilter::default()
    }))
    .await;
    assert_eq!(span, [40, 30, 20]);
    let began = |sessions: Vec<SessionRow>| -> Vec<i64> {
        sessions.iter().map(|row| row.began_ms).collect()
    };
    let page = records
        .records()
        .sessions(Uuid::from_u128(1), None, 2)
        .await
        .unwrap();
    let before = page.last().map(|row| row.id);
    assert_eq!(began(page), [400, 300]);
    let page = records
        .records()
        .sessions(Uuid::from_u128(1), before, 9)
        .await;
    assert_eq!(began(page.unwrap()), [200, 100, 0]);
    let seqs: Vec<_> = records
        .records()
        .progress("lore", Some(8), 3)
        .await
        .unwrap();
    let seqs: Vec<_> = seqs.iter().map(|row| row.seq).collect();
    assert_eq!(seqs, [7, 6, 5]);
    let hours = records
        .records()
        .feed_history("lore", URL, 0, 3_600_000)
        .await
        .unwrap();
    assert_eq!(
        hours,
        [FeedHour {
            polls: 8,
            ok: 3,
            not_modified: 6,
            failed: 9,
            challenged: 12,
            entries: 15,
            ..hour(0, 0)
        }]
    );
    let events = records
        .records()
        .feed_events(Some(("lore", URL)), None, 2)
        .await
        .unwrap();
    let at: Vec<_> = events.iter().map(|row| row.at_ms).collect();
    assert_eq!(at, [3, 2]);
    let events = records
        .records()
        .feed_events(None, Some(events[1].id), 9)
        .await
        .unwrap();
    assert_eq!(events.len(), 2);
    let none = records
        .records()
        .feed_events(Some(("lore", "x")), None, 9)
        .await;
    assert!(none.unwrap().is_empty());
}

/// Others may have had more of them since than are read of all.
async fn the_last_event_of_each_feed_is_known_at_once(site: Site) {
    let opened = site.open().await;
    opened.channels().open("lore").await.unwrap();
    let url = |feed: u32| format!("https://example.org/{feed}");
    for feed in 0..3 {
        let settings = FeedSettings {
            url: url(feed),
            address: url(feed),
            ..FeedSettings::default()
        };
        opened.feeds().put("lore", &settings).await.unwrap();
    }
    let switched = opened.feeds().set_active("lore", &url(1), false).await;
    assert!(switched.unwrap());
    let of = |feed, at_ms| FeedEvent {
        url: url(feed),
        ..event(at_ms)
    };
    let mut events = vec![of(0, 1), of(0, 2), of(1, 3)];
    events.extend((0..250).map(|n| of(2, 10 + n)));
    let batch = Batch {
        feed_events: events,
        ..Batch::default()
    };
    opened.records().write(&batch).await.unwrap();
    let seen = opened.records().snapshot().await.unwrap().feed_events;
    let at: Vec<i64> = seen.iter().map(|event| event.at_ms).collect();
    // The last one of the first feed, none of the one that is not polled, and the last 200.
    let wanted: Vec<i64> = std::iter::once(2).chain(60..260).collect();
    assert_eq!(at, wanted);
    assert_eq!(seen[0].url, url(0));
}

async fn updates_are_listed_without_their_bytes(site: Site) {
    let opened = site.open().await;
    opened.channels().open("lore").await.unwrap();
    let new = drafts(0, 5);
    let stored = opened
        .updates()
        .append("lore", URL, None, &new, None, &encode)
        .await;
    assert_eq!(stored.unwrap().len(), 5);
    let list = opened.updates().list("lore", Some(5), 3).await.unwrap();
    let seqs: Vec<_> = list.iter().map(|row| row.seq).collect();
    assert_eq!(seqs, [4, 3, 2]);
    let first = &list[0];
    assert_eq!((first.entry_id.as_str(), first.url.as_str()), ("e3", URL));
    assert!(first.is_new && first.created_ms > 0);
    assert_eq!(first.bytes, encode(4, &new[3]).len() as u64);
    let all = opened.updates().list("lore", None, 99).await.unwrap();
    assert_eq!(all.len(), 5);
    let unknown = opened.updates().list("news", None, 9).await;
    assert!(matches!(unknown, Err(StoreError::UnknownChannel { .. })));
}

async fn a_paused_feed_says_so(site: Site) {
    let opened = site.open().await;
    opened.channels().open("lore").await.unwrap();
    let none = opened.feeds().set_paused("lore", URL, true).await;
    assert!(!none.unwrap());
    let stored = opened
        .updates()
        .append("lore", URL, None, &drafts(0, 1), None, &encode)
        .await;
    stored.unwrap();
    assert!(!opened.feeds().list(None).await.unwrap()[0].paused);
    let version = opened.version().await.unwrap();
    let paused = opened.feeds().set_paused("lore", URL, true).await;
    assert!(paused.unwrap());
    assert!(opened.feeds().list(None).await.unwrap()[0].paused);
    assert!(opened.version().await.unwrap() > version);
    // It stays so when it is put again, as a source does with those of its flags, and is forgotten
    // with a feed that is removed.
    let settings = FeedSettings {
        url: URL.to_owned(),
        address: URL.to_owned(),
        ..FeedSettings::default()
    };
    for title in ["one", "other"] {
        let settings = FeedSettings {
            title: Some(title.to_owned()),
            ..settings.clone()
        };
        let row = opened.feeds().put("lore", &settings).await.unwrap();
        assert!(row.paused, "{title}");
    }
    let off = opened.feeds().set_active("lore", URL, false).await;
    assert!(off.unwrap());
    let row = opened.feeds().put("lore", &settings).await.unwrap();
    assert!(row.active && !row.paused);
}

async fn a_removed_channel_takes_its_records_along(site: Site) {
    let opened = site.open().await;
    let records = &opened;
    for channel in ["lore", "news"] {
        opened.channels().open(channel).await.unwrap();
        let batch = Batch {
            // More than go at once.
            states: (0..4100).map(|n| state(n, channel, "amt")).collect(),
            progress: vec![ProgressRow {
                channel: channel.to_owned(),
                ..progress(1)
            }],
            pulses: vec![pulse(channel, 1)],
            samples: vec![SampleRow {
                channel: channel.to_owned(),
                step_ms: SampleRow::STEPS[0],
                ..SampleRow::default()
            }],
            feed_hours: vec![FeedHour {
                channel: channel.to_owned(),
                ..FeedHour::default()
            }],
            ..Batch::default()
        };
        records.records().write(&batch).await.unwrap();
    }
    assert!(opened.channels().remove("lore").await.unwrap());
    let left = records.records().snapshot().await.unwrap();
    assert_eq!((left.states.len(), left.pulses.len()), (4100, 1));
    assert_eq!(left.progress.len(), 1);
    for (channel, rows) in [("lore", 0), ("news", 1)] {
        let samples = records
            .records()
            .samples(channel, SampleRow::STEPS[0], 0, 1)
            .await;
        assert_eq!(samples.unwrap().len(), rows, "{channel}");
        let hours = records.records().feed_history(channel, "", 0, 1).await;
        assert_eq!(hours.unwrap().len(), rows, "{channel}");
        assert_eq!(left.pulses[0].channel == channel, rows == 1);
    }
}
