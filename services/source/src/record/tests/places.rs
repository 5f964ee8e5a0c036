//! States of receivers, and when they are written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flexicast_tokio::source::{Move, ReceiverChannel, ReceiverStatus};
use store::{SessionRow, StateRow};
use tokio::time::Instant;

use super::CHANNEL;
use super::made::id;
use crate::record::fleet::Fleet;

/// One of many receivers that are connected.
fn connected(fleet: &mut Fleet, n: usize) {
    connect(fleet, n, n as u64, &[CHANNEL]);
}

/// A receiver connects, and asks for these channels.
fn connect(fleet: &mut Fleet, n: usize, number: u64, channels: &[&str]) {
    let session = SessionRow {
        id: i64::try_from(n).unwrap(),
        receiver: id(n),
        name: String::new(),
        software: String::new(),
        address: String::new(),
        began_ms: 1,
        ended_ms: None,
        end_cause: None,
    };
    let channels: Vec<String> = channels.iter().map(|&name| name.to_owned()).collect();
    fleet.connected(id(n), (number, session), &channels, |_| 0);
}

/// Returns the transport's status of it.
fn status(n: usize, cursor: u64, rtt_ms: f64) -> ReceiverStatus {
    ReceiverStatus {
        id: id(n).to_string(),
        name: String::new(),
        session: n as u64,
        software: String::new(),
        addr: String::new(),
        connected_ms: 1,
        rtt_ms,
        channels: vec![ReceiverChannel {
            channel: CHANNEL.into(),
            rung: "unicast".into(),
            since_ms: 1,
            cause: None,
            legs: Vec::new(),
            cursor: Some(cursor),
            // The last ten lag.
            backlog: u64::from(n >= 4_990),
            key_sequence: None,
        }],
    }
}

fn progress(fleet: &mut Fleet, at: Instant) -> Vec<StateRow> {
    let mut rows = Vec::new();
    fleet.progress(at, 1_000, |row| {
        rows.push(row);
        true
    });
    rows
}

fn moves(fleet: &mut Fleet, at: Instant) -> Vec<StateRow> {
    let mut rows = Vec::new();
    fleet.moves(at, 1, |row| {
        rows.push(row);
        true
    });
    rows
}

#[test]
fn receiver_progress_is_written_within_a_budget() {
    let mut fleet = Fleet::default();
    (0..5_000).for_each(|n| connected(&mut fleet, n));
    let start = Instant::now();
    let count = moves(&mut fleet, start).len();
    assert_eq!(count, 5_000, "states are written at once");
    let see = |fleet: &mut Fleet, cursor: u64| {
        for n in 0..5_000 {
            fleet.seen(&status(n, cursor, 0.0), 0, 2);
        }
    };
    see(&mut fleet, 1);
    let rows = progress(&mut fleet, start);
    assert_eq!(rows.len(), 0, "each every few seconds");
    let mut written = BTreeSet::new();
    for step in 0..5 {
        let at = start + Duration::from_secs(6) + Duration::from_millis(step * 500);
        let rows = progress(&mut fleet, at);
        assert_eq!(rows.len(), 1_000);
        if step == 0 {
            assert!(
                rows[..10].iter().all(|row| row.backlog > 0),
                "first those that lag"
            );
        }
        written.extend(rows.iter().map(|row| row.receiver));
    }
    assert_eq!(written.len(), 5_000, "every receiver has its turn");
    let rows = progress(&mut fleet, start + Duration::from_secs(60));
    assert_eq!(rows.len(), 0, "nothing has changed");
    // A store without room is asked again later.
    see(&mut fleet, 2);
    fleet.progress(start + Duration::from_secs(70), 1_000, |_| false);
    let rows = progress(&mut fleet, start + Duration::from_secs(70));
    assert_eq!(rows.len(), 1_000);
}

/// First rows are urgent; later changes are not.
#[test]
fn the_first_round_trip_time_is_written_at_once() {
    let mut fleet = Fleet::default();
    connected(&mut fleet, 0);
    let start = Instant::now();
    let first = moves(&mut fleet, start);
    assert_eq!(first[0].rtt_us, None, "it is not known yet");
    fleet.seen(&status(0, 0, 12.5), 0, 2);
    let rows = progress(&mut fleet, start);
    let times: Vec<_> = rows.iter().map(|row| row.rtt_us).collect();
    assert_eq!(times, [Some(12_500)]);
    fleet.seen(&status(0, 0, 99.0), 0, 3);
    assert_eq!(progress(&mut fleet, start).len(), 0);
    let later = start + Duration::from_secs(6);
    assert_eq!(progress(&mut fleet, later)[0].rtt_us, Some(99_000));
}

/// A sample taken before a move, and received after it, does not undo the move.
#[test]
fn an_older_sample_does_not_undo_a_move() {
    let mut fleet = Fleet::default();
    connected(&mut fleet, 0);
    let start = Instant::now();
    moves(&mut fleet, start);
    fleet.moved(&Move {
        number: 7,
        at_ms: 5,
        channel: CHANNEL.into(),
        receiver: id(0).to_string(),
        name: String::new(),
        from: "unicast".into(),
        to: "multicast".into(),
        cause: "joined".into(),
    });
    assert_eq!(moves(&mut fleet, start)[0].rung, "multicast");
    fleet.seen(&status(0, 3, 1.0), 6, 6);
    assert_eq!(moves(&mut fleet, start), []);
    let later = start + Duration::from_secs(6);
    let rows = progress(&mut fleet, later);
    assert_eq!(
        (rows[0].rung.as_str(), rows[0].cursor),
        ("multicast", Some(3))
    );
    // By the next one it may have gone back: that counts.
    fleet.seen(&status(0, 3, 1.0), 7, 7);
    assert_eq!(moves(&mut fleet, later)[0].rung, "unicast");
}

/// An absent receiver is away, not behind: it catches up after its return.
#[test]
fn only_connected_receivers_are_behind_or_hold_everything() {
    let mut fleet = Fleet::default();
    for n in 0..5 {
        connected(&mut fleet, n);
        let cursor = if n == 0 { 7 } else { 10 };
        fleet.seen(&status(n, cursor, 1.0), 0, 2);
    }
    for n in 3..5 {
        let session = fleet.disconnected(id(n), n as u64, 5, "gone", |_| 10);
        assert!(session.is_some());
    }
    let heads = |head| BTreeMap::from([(CHANNEL.to_owned(), head)]);
    for (head, delivered, behind) in [(10, 2, 1), (12, 0, 3)] {
        let tally = fleet.tally(CHANNEL, head);
        assert_eq!((tally.receivers, tally.connected), (5, 3));
        assert_eq!((tally.delivered, tally.behind), (delivered, behind));
        assert_eq!(tally.lowest, Some(7));
        let all = fleet.tally_all(&heads(head));
        assert_eq!((all.receivers, all.connected), (5, 3));
        assert_eq!((all.delivered, all.behind), (delivered, behind));
    }
}

/// Updates from long before it connected are not expected of it.
#[test]
fn a_new_receiver_is_behind_by_its_backlog() {
    let mut fleet = Fleet::default();
    connected(&mut fleet, 0);
    let mut seen = status(0, 0, 1.0);
    (seen.channels[0].cursor, seen.channels[0].backlog) = (None, 8);
    fleet.seen(&seen, 0, 2);
    let tally = fleet.tally(CHANNEL, 1_000);
    assert_eq!((tally.behind, tally.lowest), (1, Some(992)));
}

#[test]
fn a_channel_that_is_not_asked_for_any_more_counts_no_longer() {
    let (mut fleet, start) = (Fleet::default(), Instant::now());
    connect(&mut fleet, 0, 1, &[CHANNEL, "news"]);
    moves(&mut fleet, start);
    assert_eq!(fleet.tally("news", 0).receivers, 1);
    // The new connection replaces the old one, whose end was not reported.
    connect(&mut fleet, 0, 2, &[CHANNEL]);
    let rows = moves(&mut fleet, start);
    let news = rows.iter().find(|row| row.channel == "news").unwrap();
    assert_eq!((news.connected, news.rung.as_str()), (false, "offline"));
    assert_eq!(fleet.tally("news", 9).receivers, 0);
    assert_eq!(fleet.connected_to("news"), 0);
    let heads = BTreeMap::from([("news".to_owned(), 9)]);
    let all = fleet.tally_all(&heads);
    assert_eq!((all.receivers, all.connected, all.behind), (1, 1, 0));
    connect(&mut fleet, 0, 3, &[CHANNEL, "news"]);
    let tally = fleet.tally("news", 9);
    assert_eq!((tally.receivers, tally.connected, tally.behind), (1, 1, 1));
    // Another source has seen it since, and knows its current request.
    let known = |channels: &[&str]| {
        let channels = channels.iter().map(|&name| name.to_owned());
        BTreeMap::from([(id(0), channels.collect::<Vec<_>>())])
    };
    fleet.retain(&known(&[CHANNEL]), 9);
    assert_eq!(fleet.tally("news", 9).receivers, 1, "it is connected here");
    fleet.disconnected(id(0), 3, 5, "gone", |_| 9);
    fleet.retain(&known(&[]), 9);
    assert_eq!(fleet.tally("news", 9).receivers, 1, "nothing is known");
    fleet.retain(&known(&[CHANNEL]), 9);
    assert_eq!(fleet.tally("news", 9).receivers, 0);
    assert_eq!(fleet.tally(CHANNEL, 9).receivers, 1);
    fleet.retain(&BTreeMap::new(), 5);
    assert_eq!(fleet.tally(CHANNEL, 9).receivers, 1, "it was there since");
    fleet.retain(&BTreeMap::new(), 9);
    assert_eq!(fleet.tally(CHANNEL, 9).receivers, 0);
}
