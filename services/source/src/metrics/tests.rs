#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::labels::MoveLabels;
use super::transport::RUNGS;
use super::*;
use crate::status::{
    ChannelView, DatabaseState, FeedState, FeedView, IngestStatus, Phase, RelayView, Role,
};
use flexicast_tokio::source::{
    BreakerState, ChannelBytes, ChannelStatus, Counters, FlowStatus, History, HistoryEvent,
    HistoryEventKind, LoadStatus, Move, ReceiverChannel, ReceiverStatus,
};

/// Returns one channel with one feed.
fn seen(ingest: &IngestStatus) -> Snapshot {
    Snapshot {
        phase: Phase::Running,
        database: DatabaseState {
            up: true,
            since_ms: 1,
            error: None,
        },
        relays: vec![RelayView {
            address: "relay.example.org:2268".into(),
            healthy: true,
            ..RelayView::default()
        }],
        channels: vec![ChannelView {
            name: "lore".into(),
            incarnation: None,
            private: false,
            groups: String::new(),
            role: Role::Active { fence: 1 },
            head: 10,
            published: Some(10),
            first: 4,
            store_failure: None,
            feeds: vec![FeedView {
                url: "https://example.org/f".into(),
                title: None,
                ingest: Some(ingest.clone()),
            }],
        }],
    }
}

fn step(number: u64, to: &str) -> Move {
    let from = if to == "unicast" {
        "multicast"
    } else {
        "unicast"
    };
    Move {
        number,
        at_ms: 7,
        channel: "lore".into(),
        receiver: "r".into(),
        name: "r1".into(),
        from: from.into(),
        to: to.into(),
        cause: "joined".into(),
    }
}

fn history(steps: &[(u64, &str)]) -> History {
    let event = |(number, to): &(u64, &str)| HistoryEvent {
        number: *number,
        at_ms: 7,
        what: HistoryEventKind::Moved(step(*number, to)),
    };
    let events: Vec<HistoryEvent> = steps.iter().map(event).collect();
    History {
        last: events.last().map_or(0, |h| h.number),
        missed: 0,
        events,
    }
}

/// A history of one report of forged packets, from a rung to itself.
fn report(number: u64) -> History {
    let mut history = history(&[(number, "unicast")]);
    for event in &mut history.events {
        let mut report = step(number, "unicast");
        report.from = report.to.clone();
        event.what = HistoryEventKind::Reported(report);
    }
    history
}

fn receiver(channels: &[(&str, &str, Option<u64>)]) -> ReceiverStatus {
    let channel = |(channel, rung, cursor): &(&str, &str, Option<u64>)| ReceiverChannel {
        channel: (*channel).into(),
        rung: (*rung).into(),
        since_ms: 0,
        cause: None,
        legs: Vec::new(),
        cursor: *cursor,
        backlog: 0,
        key_sequence: None,
    };
    ReceiverStatus {
        id: String::new(),
        name: String::new(),
        session: 1,
        software: String::new(),
        connected_ms: 0,
        addr: String::new(),
        rtt_ms: 0.0,
        channels: channels.iter().map(channel).collect(),
    }
}

/// Returns one of everything that a transport can report.
fn everything() -> SourceStatus {
    SourceStatus {
        channels: vec![
            ChannelStatus {
                channel: "lore".into(),
                head: 10,
                flow: Some(FlowStatus {
                    id: String::new(),
                    endpoints: Vec::new(),
                    group: String::new(),
                    source: None,
                    next_pn: 7,
                    key_sequence: 3,
                    members: 2,
                    replicas: 1,
                    packets: 7,
                    bytes: 700,
                    outstanding: 1,
                    packet_size: 1442,
                    narrow_members: 1,
                    ecn_ce: 4,
                    fec: None,
                    repair_symbols: 340,
                    rebuilt: 12_030,
                    rate_bps: Some(2_000_000),
                    limited_by: None,
                    breaker: BreakerState::Closed,
                }),
                bytes: ChannelBytes::default(),
            },
            ChannelStatus {
                channel: "net".into(),
                head: 5,
                flow: None,
                bytes: ChannelBytes::default(),
            },
        ],
        receivers: vec![
            receiver(&[("lore", "multicast", Some(9)), ("net", "unicast", Some(1))]),
            receiver(&[("lore", "multicast", Some(10))]),
            receiver(&[("lore", "replicated", Some(4))]),
            receiver(&[("net", "unicast", None)]),
        ],
        moves: vec![step(1, "multicast")],
        mass_fall_backs: vec![],
        replication_queue: 12,
        load: LoadStatus {
            overloaded: true,
            lag_ms: 250.0,
            publish_wait_ms: 1500.0,
            acks_per_s: 20_000,
            overloads: Vec::new(),
        },
        shards: vec![3, 4],
        counters: Counters {
            refused: 3,
            copies_dropped: 8,
            datagrams_dropped: 6,
            overloads: 2,
            unicast_bytes: 9,
            ..Counters::default()
        },
    }
}

fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|l| l.split(' ').next() == Some(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn the_transport_status_is_shown() {
    let metrics = Metrics::default();
    let status = everything();
    metrics.observe(&status);
    metrics.transport.count(&history(&[(1, "multicast")]));
    metrics.transport.count(&report(2));
    metrics.channel("lore").updates.inc_by(5);
    metrics.channel("net").polled(FeedState::Ok);
    let ingest = IngestStatus {
        state: FeedState::NotAFeed,
        last_poll_ms: Some(1500),
        last_success_ms: Some(500),
        ..IngestStatus::default()
    };
    let text = metrics.text(&seen(&ingest)).unwrap();
    for (name, expected) in [
        ("updates_total{channel=\"lore\"}", 5.0),
        ("updates_total{channel=\"net\"}", 0.0),
        ("head_seq{channel=\"lore\"}", 10.0),
        ("first_seq{channel=\"lore\"}", 4.0),
        ("polls_total{channel=\"net\",result=\"ok\"}", 1.0),
        ("receivers{channel=\"lore\",rung=\"multicast\"}", 2.0),
        ("receivers{channel=\"lore\",rung=\"replicated\"}", 1.0),
        ("receivers{channel=\"lore\",rung=\"unicast\"}", 0.0),
        ("receivers{channel=\"net\",rung=\"unicast\"}", 2.0),
        ("receivers{channel=\"net\",rung=\"amt\"}", 0.0),
        ("connected_receivers", 4.0),
        ("shard_sessions{shard=\"1\"}", 4.0),
        ("receiver_lag_max_updates{channel=\"lore\"}", 6.0),
        ("receiver_lag_max_updates{channel=\"net\"}", 4.0),
        ("flow_packets_total{channel=\"lore\"}", 7.0),
        ("flow_ecn_ce_packets_total{channel=\"lore\"}", 4.0),
        ("flow_bytes_total{channel=\"lore\"}", 700.0),
        ("flow_repair_symbols_total{channel=\"lore\"}", 340.0),
        ("flow_rebuilt_packets_total{channel=\"lore\"}", 12_030.0),
        ("flow_members{channel=\"lore\"}", 2.0),
        ("flow_replicas{channel=\"lore\"}", 1.0),
        ("flow_key_sequence{channel=\"lore\"}", 3.0),
        ("refused_total", 3.0),
        ("copies_dropped_total", 8.0),
        ("replication_queue_packets", 12.0),
        ("overloaded", 1.0),
        ("engine_lag_seconds", 0.25),
        ("publish_wait_seconds", 1.5),
        ("datagrams_dropped_total", 6.0),
        ("overloads_total", 2.0),
        ("unicast_bytes_total", 9.0),
        ("feeds{channel=\"lore\",state=\"not-a-feed\"}", 1.0),
        ("feeds{channel=\"lore\",state=\"ok\"}", 0.0),
        ("database_up", 1.0),
        ("lease_held{channel=\"lore\"}", 1.0),
        ("lease_fence{channel=\"lore\"}", 1.0),
        ("published_seq{channel=\"lore\"}", 10.0),
        ("store_failing{channel=\"lore\"}", 0.0),
        ("held_entries{channel=\"lore\"}", 0.0),
        ("admissions_total{result=\"enrolled\"}", 0.0),
        ("last_poll_timestamp_seconds{channel=\"lore\"}", 1.5),
        ("feed_last_success_timestamp_seconds{channel=\"lore\"}", 0.5),
        ("suspected_gaps_total{channel=\"lore\"}", 0.0),
    ] {
        let name = format!("flexfeed_source_{name}");
        assert_eq!(value(&text, &name), Some(expected), "{name} in\n{text}");
    }
    let moves = text
        .lines()
        .filter(|l| l.starts_with("flexfeed_source_moves_total"))
        .count();
    assert_eq!(moves, 1, "a report of forged packets is no move");
    assert!(text.ends_with("# EOF\n"));
    // Each metric has a help text.
    let count = |word: &str| text.lines().filter(|l| l.starts_with(word)).count();
    assert_eq!(count("# HELP"), count("# TYPE"));
}

#[test]
fn the_document_lists_every_metric_as_it_is() {
    let metrics = Metrics::default();
    metrics.observe(&everything());
    metrics.transport.count(&history(&[(1, "multicast")]));
    metrics.channel("lore").polled(FeedState::Ok);
    metrics.certificate_ends(4_000_000_000);
    let ingest = IngestStatus {
        last_poll_ms: Some(1500),
        last_success_ms: Some(500),
        ..IngestStatus::default()
    };
    let text = metrics.text(&seen(&ingest)).unwrap();
    let wrong = openmetrics::forms(&service::exposition::plain(&text), &text);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let families = openmetrics::parse(&text).unwrap();
    let document = include_str!("../../../../docs/metrics.md");
    let found = openmetrics::differences(document, "flexfeed_source_", &families);
    assert!(found.is_empty(), "{}", found.join("\n"));
    let words = FeedState::ALL.map(FeedState::word);
    let rungs = RUNGS.map(|rung| rung.to_string());
    let words = words.iter().chain(&admissions::RESULTS).copied();
    let words = words.chain(KINDS);
    let words = words.chain(records::COMMANDS.into_iter().chain(records::RESULTS));
    for word in words.chain(rungs.iter().map(String::as_str)) {
        assert!(document.contains(&format!("`{word}`")), "{word}");
    }
}

#[test]
fn times_are_absent_until_they_are_known() {
    let metrics = Metrics::default();
    let poll = "flexfeed_source_last_poll_timestamp_seconds{channel=\"lore\"}";
    let end = "flexfeed_source_certificate_not_after_timestamp_seconds";
    let text = metrics.text(&seen(&IngestStatus::default())).unwrap();
    assert_eq!(value(&text, end), None);
    metrics.certificate_ends(4_000_000_000);
    let text = metrics.text(&seen(&IngestStatus::default())).unwrap();
    assert_eq!(value(&text, end), Some(4e9));
    let success = "flexfeed_source_feed_last_success_timestamp_seconds{channel=\"lore\"}";
    let mut ingest = IngestStatus::default();
    let text = metrics.text(&seen(&ingest)).unwrap();
    assert_eq!((value(&text, poll), value(&text, success)), (None, None));
    ingest.last_poll_ms = Some(2000);
    let text = metrics.text(&seen(&ingest)).unwrap();
    assert_eq!(
        (value(&text, poll), value(&text, success)),
        (Some(2.0), None)
    );
}

#[test]
fn removed_objects_disappear() {
    let metrics = Metrics::default();
    metrics.observe(&everything());
    metrics.transport.count(&history(&[(1, "multicast")]));
    let ingest = IngestStatus {
        store_failure: Some("full".into()),
        pending: 7,
        last_success_ms: Some(9000),
        ..IngestStatus::default()
    };
    let mut seen = seen(&ingest);
    // Of several feeds the worst one decides.
    let mut other = seen.channels[0].feeds[0].clone();
    other.ingest = Some(IngestStatus {
        last_success_ms: Some(3000),
        ..ingest
    });
    seen.channels[0].feeds.push(other);
    seen.channels[0].role = Role::Standby { holder: None };
    let text = metrics.text(&seen).unwrap();
    for (name, expected) in [
        ("lease_held{channel=\"lore\"}", Some(0.0)),
        ("lease_fence{channel=\"lore\"}", None),
        ("store_failing{channel=\"lore\"}", Some(1.0)),
        ("held_entries{channel=\"lore\"}", Some(14.0)),
        ("feeds{channel=\"lore\",state=\"paused\"}", Some(2.0)),
        (
            "feed_last_success_timestamp_seconds{channel=\"lore\"}",
            Some(3.0),
        ),
        ("flow_members{channel=\"lore\"}", Some(2.0)),
    ] {
        let name = format!("flexfeed_source_{name}");
        assert_eq!(value(&text, &name), expected, "{name} in\n{text}");
    }
    seen.channels.clear();
    seen.database.up = false;
    metrics.observe(&SourceStatus {
        channels: Vec::new(),
        receivers: Vec::new(),
        ..everything()
    });
    let text = metrics.text(&seen).unwrap();
    openmetrics::parse(&text).unwrap();
    assert_eq!(value(&text, "flexfeed_source_database_up"), Some(0.0));
    for gone in [
        "lease_held{",
        "head_seq{",
        "feeds{",
        "flow_members{",
        "receivers{",
    ] {
        assert!(
            !text.contains(&format!("flexfeed_source_{gone}")),
            "{gone} in\n{text}"
        );
    }
}

#[test]
fn every_admission_result_is_counted() {
    let admissions = Metrics::default().admissions;
    for verdict in [
        store::Verdict::Admitted { enrolled: true },
        store::Verdict::Admitted { enrolled: false },
        store::Verdict::UnknownToken,
        store::Verdict::Expired,
        store::Verdict::Spent,
        store::Verdict::TokenRevoked,
        store::Verdict::Channel("x".into()),
        store::Verdict::Revoked,
        store::Verdict::InUse,
    ] {
        admissions.judged(&verdict);
    }
    admissions.without_credential();
    admissions.unavailable();
    for result in [
        "enrolled",
        "known",
        "used-up",
        "channel",
        "in-use",
        "no-credential",
    ] {
        assert_eq!(admissions.counted(result), 1, "{result}");
    }
}

#[test]
fn every_move_counts_once() {
    let metrics = Metrics::default();
    let count = |steps: &[(u64, &str)]| metrics.transport.count(&history(steps));
    count(&[]);
    count(&[(1, "multicast"), (2, "unicast")]);
    assert_eq!(metrics.transport.counted(), 2);
    count(&[(1, "multicast"), (2, "unicast")]);
    count(&[(2, "unicast"), (3, "multicast")]);
    // Events other than moves have numbers, too.
    count(&[(8, "unicast"), (9, "multicast")]);
    assert_eq!(metrics.transport.counted(), 9);
    let labels = |from: &str, to: &str| MoveLabels {
        channel: "lore".into(),
        from: from.into(),
        to: to.into(),
        cause: "joined".into(),
    };
    let moves = |from, to| metrics.transport.moves(&labels(from, to));
    assert_eq!(moves("unicast", "multicast"), 3);
    assert_eq!(moves("multicast", "unicast"), 2);
}
