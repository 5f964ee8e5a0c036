#![allow(clippy::unwrap_used)]
use std::time::Duration;

use flexicast::Cause;
use flexicast::control::{Leg, LegState};
use flexicast::receiver::ChannelStats;

use super::channel::MOVES;
use super::*;
use crate::delivery_log::Record;
use crate::status::model::{Latency, Move, Paths};

const LORE: &str = "lore";

fn board() -> Board {
    let identity = Identity {
        name: "r1".into(),
        receiver_id: Uuid::from_u128(1),
        source: "h:4433".into(),
    };
    let cursor = Cursor {
        incarnation: Uuid::from_u128(7),
        seq: 5,
    };
    Board::new(identity, &[(LORE.into(), Some(cursor))])
}

fn welcome(incarnation: u128, head: u64, resync: bool) -> Event {
    Event::Welcome {
        channel: LORE.into(),
        incarnation: Uuid::from_u128(incarnation),
        head,
        first: 1,
        resync,
    }
}

fn rung(rung: Rung, cause: Cause, at: u64) -> Event {
    Event::Rung {
        channel: LORE.into(),
        rung,
        cause,
        at: UNIX_EPOCH + Duration::from_millis(at),
    }
}

fn outcome(incarnation: u128, seq: u64, via: Via, live: bool, latency_ms: f64) -> Outcome {
    let record = Record {
        seq,
        id: "x".into(),
        via,
        at_ms: 0.0,
        latency_ms,
    };
    Outcome {
        delivered: vec![(record, live)],
        undecodable: 1,
        cursor: Some(Cursor {
            incarnation: Uuid::from_u128(incarnation),
            seq,
        }),
    }
}

fn lost(reason: &str) -> Event {
    Event::Disconnected {
        reason: reason.into(),
        retry_in: Duration::from_secs(1),
    }
}

#[test]
fn connected_means_welcomed() {
    let board = board();
    board.apply(&Event::Connected {
        addr: ([127, 0, 0, 1], 4433).into(),
    });
    let status = board.status();
    assert_eq!((status.connected, status.channels[0].head), (false, 0));
    board.apply(&welcome(7, 9, false));
    let status = board.status();
    assert!(status.connected);
    assert_eq!(status.address.as_deref(), Some("127.0.0.1:4433"));
    assert_eq!((status.channels[0].cursor, status.channels[0].head), (5, 9));
    board.apply(&lost("it is\ngone"));
    let status = board.status();
    assert_eq!(status.error.as_deref(), Some("it is gone"));
    assert_eq!((status.connected, status.address), (false, None));
    board.apply(&welcome(7, 9, false));
    board.apply(&welcome(7, 9, false));
    assert_eq!(board.status().error, None);
    board.storage_failed(LORE, "full".into());
    let counts = Counts {
        connections: 2,
        disconnects: 1,
        refusals: 0,
        storage_failures: 1,
    };
    assert_eq!(board.counts(), counts);
}

#[test]
fn moves_are_kept_and_bounded() {
    let board = board();
    board.apply(&rung(Rung::Unicast, Cause::ProbeTimeout, 1));
    assert!(board.status().channels[0].moves.is_empty());
    for n in 0..50 {
        board.apply(&rung(Rung::Multicast, Cause::Joined, 2 * n));
        board.apply(&rung(Rung::Unicast, Cause::AckTimeout, 2 * n + 1));
    }
    board.apply(&rung(Rung::Multicast, Cause::Joined, 100));
    assert_eq!(
        board.moved(LORE).into_values().collect::<Vec<_>>(),
        [51, 50]
    );
    let channel = board.status().channels.remove(0);
    assert_eq!(
        (channel.rung.as_str(), channel.rung_since_ms),
        ("multicast", 100)
    );
    assert_eq!(channel.moves.len(), MOVES);
    let last = Move {
        at_ms: 100,
        from: "unicast".into(),
        to: "multicast".into(),
        cause: "joined".into(),
    };
    assert_eq!(channel.moves.last(), Some(&last));
    // Each connection begins on unicast.
    board.apply(&lost("x"));
    let channel = board.status().channels.remove(0);
    assert_eq!(
        (channel.rung.as_str(), channel.moves.last()),
        ("unicast", Some(&last))
    );
}

fn explained(rung: Rung, on: Rung, cause: Cause, at: u64) -> Event {
    Event::Explained {
        channel: LORE.into(),
        rung,
        on,
        cause,
        at: UNIX_EPOCH + Duration::from_millis(at),
    }
}

#[test]
fn a_failed_attempt_is_listed_and_is_no_move() {
    let board = board();
    board.apply(&explained(
        Rung::Multicast,
        Rung::Unicast,
        Cause::ProbeTimeout,
        3,
    ));
    let channel = board.status().channels.remove(0);
    let tried = Move {
        at_ms: 3,
        from: "multicast".into(),
        to: "unicast".into(),
        cause: "probe-timeout".into(),
    };
    assert_eq!(
        (channel.rung.as_str(), &channel.moves[..]),
        ("unicast", &[tried][..])
    );
    assert!(board.moved(LORE).is_empty());
}

#[test]
fn a_lost_relay_explains_the_last_move_from_there() {
    let board = board();
    let lost = explained(Rung::Amt, Rung::Replicated, Cause::RelayLost, 9);
    board.apply(&lost);
    assert!(board.status().channels[0].moves.is_empty());
    for (to, cause, at) in [
        (Rung::Amt, Cause::Joined, 1),
        (Rung::Unicast, Cause::AckTimeout, 2),
        (Rung::Amt, Cause::Joined, 3),
        (Rung::Unicast, Cause::HeartbeatLost, 4),
        (Rung::Replicated, Cause::Joined, 5),
    ] {
        board.apply(&rung(to, cause, at));
    }
    board.apply(&lost);
    let channel = board.status().channels.remove(0);
    let causes: Vec<_> = channel.moves.iter().map(|m| m.cause.as_str()).collect();
    assert_eq!(
        causes,
        ["joined", "ack-timeout", "joined", "relay-lost", "joined"]
    );
    assert_eq!(channel.rung, "replicated");
}

#[test]
fn updates_are_counted_by_path_and_only_live_ones_have_latency() {
    let board = board();
    board.delivered(LORE, &outcome(7, 6, Via::Unicast, false, 1e9));
    board.delivered(LORE, &outcome(7, 7, Via::Flow, true, 2.5));
    board.delivered(LORE, &outcome(7, 8, Via::Repaired, true, 7.5));
    let channel = board.status().channels.remove(0);
    let paths = Paths {
        flow: 1,
        repaired: 1,
        unicast: 1,
    };
    assert_eq!((channel.updates, channel.via), (3, paths));
    assert_eq!(
        (channel.cursor, channel.head, channel.undecodable),
        (8, 0, 3)
    );
    let latency = Latency {
        last: Some(7.5),
        p50: Some(2.5),
        p99: Some(7.5),
    };
    assert_eq!(channel.latency_ms, latency);
}

#[test]
fn a_resync_restarts_the_count() {
    let board = board();
    board.apply(&welcome(8, 3, true));
    // Updates sent before the move carry no evidence about the new rung.
    board.delivered(LORE, &outcome(7, 6, Via::Unicast, false, 1.0));
    let channel = board.status().channels.remove(0);
    assert_eq!((channel.cursor, channel.head), (0, 3));
    board.delivered(LORE, &outcome(8, 2, Via::Unicast, false, 1.0));
    assert_eq!(board.status().channels[0].cursor, 2);
}

#[test]
fn a_head_below_the_cursor_is_accepted() {
    let board = board();
    board.apply(&welcome(7, 3, true));
    let channel = board.status().channels.remove(0);
    assert_eq!((channel.cursor, channel.head), (0, 3));
    board.apply(&Event::Update {
        channel: LORE.into(),
        incarnation: Uuid::from_u128(7),
        seq: 4,
        encoded: bytes::Bytes::new(),
        via: Via::Unicast,
    });
    let channel = board.status().channels.remove(0);
    assert_eq!((channel.cursor, channel.head), (0, 4));
}

#[test]
fn both_kinds_of_errors_are_reported() {
    let board = board();
    board.storage_failed(LORE, "disk full".into());
    board.apply(&lost("gone"));
    assert_eq!(board.status().error.as_deref(), Some("disk full; gone"));
    board.delivered(LORE, &Outcome::default());
    assert_eq!(board.status().error.as_deref(), Some("gone"));
}

#[test]
fn only_the_last_gaps_are_kept() {
    let board = board();
    for from in 1..=40 {
        board.apply(&Event::Gap {
            channel: LORE.into(),
            from,
            to: from,
        });
    }
    let channel = board.status().channels.remove(0);
    assert_eq!((channel.missing, channel.gaps.len()), (40, 16));
    assert_eq!(channel.gaps[15].to, 40);
}

#[test]
fn gaps_and_counters() {
    let board = board();
    board.apply(&Event::Gap {
        channel: LORE.into(),
        from: 6,
        to: 8,
    });
    board.apply(&Event::Gap {
        channel: LORE.into(),
        from: 0,
        to: u64::MAX,
    });
    let mut stats = ChannelStats::default();
    stats.head = 20;
    stats.reception.flow_invalid = 2;
    stats.reception.refetched = 10;
    board.apply(&Event::Stats {
        channel: LORE.into(),
        stats,
    });
    let channel = board.status().channels.remove(0);
    assert_eq!((channel.missing, channel.head), (u64::MAX, 20));
    let gaps: Vec<_> = channel.gaps.iter().map(|gap| (gap.from, gap.to)).collect();
    assert_eq!(gaps, [(6, 8), (0, u64::MAX)]);
    assert_eq!(channel.reception, stats.reception);
    board.apply(&Event::Stats {
        channel: "other".into(),
        stats: ChannelStats::default(),
    });
    assert_eq!(board.status().channels.len(), 1);
}

#[test]
fn the_relay_is_shown_until_it_or_the_connection_is_gone() {
    let board = board();
    let relay: std::net::SocketAddr = "192.0.2.7:2268".parse().unwrap();
    let relay_event = |relay, text: &str| Event::Relay {
        channel: LORE.into(),
        number: 0,
        relay,
        text: text.into(),
        at: SystemTime::now(),
    };
    let seen = || {
        let channel = board.status().channels.remove(0);
        (channel.relay, channel.relay_detail)
    };
    assert_eq!(seen(), (None, None));
    board.apply(&relay_event(Some(relay), "it answered"));
    assert_eq!(seen(), (Some(relay), Some("it answered".to_owned())));
    board.apply(&relay_event(None, "it does not answer"));
    assert_eq!(seen(), (None, Some("it does not answer".to_owned())));
    board.apply(&relay_event(Some(relay), "another one"));
    board.apply(&Event::Disconnected {
        reason: "gone".into(),
        retry_in: std::time::Duration::ZERO,
    });
    assert_eq!(seen(), (None, None));
}

#[test]
fn each_leg_has_its_relay_until_it_is_given_up() {
    let board = board();
    let [first, second] = ["192.0.2.7:2268", "192.0.2.8:2268"].map(|one| one.parse().unwrap());
    let found = |number, relay| Event::Relay {
        channel: LORE.into(),
        number,
        relay,
        text: "found".into(),
        at: SystemTime::now(),
    };
    let leg = |leg, state| Event::Leg {
        channel: LORE.into(),
        leg,
        state,
        at: SystemTime::now(),
    };
    for (at, relay) in [(Leg::RELAY, first), (Leg::SECOND_RELAY, second)] {
        board.apply(&found(at.number, Some(relay)));
        board.apply(&leg(at, LegState::Working));
    }
    let labels = || {
        let channel = board.status().channels.remove(0);
        let legs = channel.legs.iter();
        let legs = legs.map(|leg| format!("{} {}", leg.label(), leg.state));
        (channel.relay, legs.collect::<Vec<_>>())
    };
    let both = [
        "amt by 192.0.2.7:2268 working",
        "amt-2 by 192.0.2.8:2268 working",
    ];
    assert_eq!(labels(), (Some(first), both.map(String::from).to_vec()));
    board.apply(&found(0, None));
    board.apply(&leg(Leg::RELAY, LegState::Lost));
    let one = ["amt lost", "amt-2 by 192.0.2.8:2268 working"];
    assert_eq!(labels(), (Some(second), one.map(String::from).to_vec()));
    board.apply(&leg(Leg::SECOND_RELAY, LegState::Trying));
    assert_eq!(labels().1, ["amt lost"]);
}
