//! Rows of records, for tests to write, and receivers that have enrolled.

use store::{
    Applicant, Batch, Changes, FeedEvent, MoveRow, OverloadRow, ProgressRow, PulseRow,
    ReceiverCounts, RelayRow, SentBytes, SessionRow, SourceInfo, StateRow, Store,
};
use uuid::Uuid;

use crate::site::{URL, token};

pub fn state(receiver: u128, channel: &str, rung: &str) -> StateRow {
    StateRow {
        receiver: Uuid::from_u128(receiver),
        channel: channel.to_owned(),
        connected: true,
        rung: rung.to_owned(),
        since_ms: 1000,
        cause: "joined".to_owned(),
        cursor: Some(7),
        backlog: 2,
        key_sequence: Some(3),
        rtt_us: Some(1500),
        address: "192.0.2.1:4000".to_owned(),
        session: Some(SessionRow::number(900, 1)),
        legs: "multicast:working amt:lost".to_owned(),
        updated_ms: 2000,
        change: 0,
    }
}

pub fn moved(receiver: u128, at_ms: i64, cause: &str) -> MoveRow {
    MoveRow {
        id: 0,
        at_ms,
        receiver: Uuid::from_u128(receiver),
        name: "cellar".to_owned(),
        channel: "lore".to_owned(),
        from: "multicast".to_owned(),
        to: "unicast".to_owned(),
        cause: cause.to_owned(),
        change: 0,
    }
}

pub fn session(receiver: u128, began_ms: i64) -> SessionRow {
    SessionRow {
        id: SessionRow::number(began_ms, u32::try_from(receiver).unwrap()),
        receiver: Uuid::from_u128(receiver),
        name: "cellar".to_owned(),
        software: "flexfeed 1".to_owned(),
        address: "192.0.2.1:4000".to_owned(),
        began_ms,
        ended_ms: None,
        end_cause: None,
    }
}

pub fn pulse(channel: &str, head: u64) -> PulseRow {
    PulseRow {
        channel: channel.to_owned(),
        at_ms: 5,
        head,
        counts: ReceiverCounts {
            receivers: 1,
            connected: 2,
            multicast: 3,
            amt: 4,
            replicated: 5,
            unicast: 6,
            behind: 8,
        },
        delivered: 7,
        lag_updates: 9,
        lag_ms: 10,
        updates_per_hour: 11,
        bytes: SentBytes {
            flow: 12,
            copies: 13,
            unicast: 14,
            repairs: 15,
            equivalent: u64::MAX,
        },
        flow: r#"{"group":"232.1.1.1:5000"}"#.to_owned(),
        change: 0,
    }
}

pub fn progress(seq: u64) -> ProgressRow {
    ProgressRow {
        channel: "lore".to_owned(),
        seq,
        published_ms: 50,
        expected: 3,
        delivered: 2,
        half_ms: Some(4),
        p99_ms: Some(5),
        all_ms: None,
        change: 0,
    }
}

pub fn relay(address: &str) -> RelayRow {
    RelayRow {
        address: address.to_owned(),
        asked: "192.0.2.9".to_owned(),
        healthy: true,
        since_ms: Some(8),
        answer_us: Some(900),
        detail: String::new(),
        gone: false,
        at_ms: 9,
        change: 0,
    }
}

pub fn event(at_ms: i64) -> FeedEvent {
    FeedEvent {
        id: 0,
        channel: "lore".to_owned(),
        url: URL.to_owned(),
        at_ms,
        state: "challenged".to_owned(),
        detail: "it asks whether one is human".to_owned(),
        excerpt: Some("<h1>Are you human?</h1>".to_owned()),
        change: 0,
    }
}

pub fn info() -> SourceInfo {
    SourceInfo {
        holder: "attic".to_owned(),
        software: "flexfeed-source 1".to_owned(),
        started_ms: 3,
        public_address: vec!["feeds.example.org:4433".to_owned()],
        pins: vec!["sha256-abc".to_owned()],
        listen: "[::]:4433".to_owned(),
        http: "127.0.0.1:9464".to_owned(),
        warnings: vec!["PUBLIC_ADDRESS is private".to_owned()],
        overloads: vec![
            OverloadRow {
                since_ms: 1,
                until_ms: Some(2),
                late: vec!["engine".to_owned(), "publishing".to_owned()],
            },
            OverloadRow {
                since_ms: 3,
                ..OverloadRow::default()
            },
        ],
        draining: true,
        at_ms: 4,
        change: 0,
    }
}

/// Something of everything that is in [`Changes`].
pub fn full() -> Batch {
    Batch {
        states: vec![state(1, "lore", "multicast"), state(2, "lore", "unicast")],
        moves: vec![moved(2, 10, "silent"), moved(2, 11, "joined")],
        sessions: vec![session(1, 900)],
        pulses: vec![pulse("lore", 7)],
        progress: vec![progress(7)],
        relays: vec![relay("relay.example.org")],
        feed_events: vec![event(1)],
        info: Some(info()),
        ..Batch::default()
    }
}

pub async fn enrol(opened: &Store, receiver: u128) {
    opened.tokens().add(&token(1, "all")).await.unwrap();
    let applicant = Applicant {
        token: Some([1; 32]),
        receiver: Uuid::from_u128(receiver),
        credential: [2; 32],
        name: "cellar",
        software: "flexfeed 1",
        address: "192.0.2.1:4000",
        channels: &[],
    };
    opened.receivers().admit(&applicant).await.unwrap();
}

/// As it was written, without the numbers that the store gives.
pub fn written(mut changes: Changes) -> Batch {
    changes.states.iter_mut().for_each(|row| row.change = 0);
    changes.moves.iter_mut().for_each(|row| {
        row.change = 0;
        row.id = 0;
    });
    changes.pulses.iter_mut().for_each(|row| row.change = 0);
    changes.progress.iter_mut().for_each(|row| row.change = 0);
    changes.relays.iter_mut().for_each(|row| row.change = 0);
    changes.feed_events.iter_mut().for_each(|row| {
        row.change = 0;
        row.id = 0;
    });
    Batch {
        states: changes.states,
        moves: changes.moves,
        pulses: changes.pulses,
        progress: changes.progress,
        relays: changes.relays,
        feed_events: changes.feed_events,
        info: changes.info.map(|info| SourceInfo { change: 0, ..info }),
        ..Batch::default()
    }
}
