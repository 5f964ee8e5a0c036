//! The stream of events.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_live_and_continue_after_the_last_id() {
    let mut bench = Bench::start(&["lore"]).await;
    bench.put("lore", 1..=3);
    let mut stream = bench.listen("/events", None).await;
    assert_eq!(stream.id, Some(id(3)));
    bench.put("lore", 4..=6);
    let (kind, event) = stream.next().await;
    assert_eq!((kind.as_str(), &event["id"]), ("", &Value::from(id(4))));
    assert_eq!(event["specversion"], "1.0");
    assert_eq!(event["data"]["id"], "urn:4");
    assert_eq!(stream.id, Some(id(4)));
    drop(stream);
    bench.put("lore", 7..=9);
    let mut stream = bench.listen("/events?channel=lore", Some(&id(4))).await;
    assert_eq!(stream.seqs(5).await, [5, 6, 7, 8, 9]);
    // From the beginning of what is kept; the header counts more.
    let mut stream = bench.listen("/events?last_event_id=0", None).await;
    assert_eq!(stream.seqs(9).await, (1..=9).collect::<Vec<_>>());
    let mut stream = bench.listen("/events?last_event_id=0", Some(&id(8))).await;
    assert_eq!(stream.seqs(1).await, [9]);
    // At the end of the receiver the stream ends, and does not hold it up.
    bench.stop.cancel();
    while let Ok(Some(_)) = stream.response.chunk().await {}
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_and_restarted_numbering_are_announced() {
    let mut bench = Bench::start(&["lore"]).await;
    bench.put("lore", 1..=2);
    let mut stream = bench.listen("/events", None).await;
    bench.files("lore").miss(incarnation(), 3, 5, Missing::Gone);
    bench.put("lore", [6]);
    let (kind, gap) = stream.next().await;
    assert_eq!(
        (kind.as_str(), &gap["from"], &gap["to"]),
        ("gap", &3.into(), &5.into())
    );
    assert_eq!(gap["reason"], "gone at the source");
    assert_eq!(stream.id, Some(id(5)));
    assert_eq!(stream.seqs(1).await, [6]);
    let other = Uuid::from_u128(9);
    let begin = Cursor {
        incarnation: other,
        seq: 40,
    };
    bench.files("lore").begin(begin, true);
    write(bench.files("lore"));
    let (kind, resync) = stream.next().await;
    assert_eq!((kind.as_str(), &resync["after"]), ("resync", &40.into()));
    assert_eq!(resync["incarnation"], other.to_string());
    assert_eq!(stream.id, Some(format!("{other}/40")));
    drop(stream);
    // A client absent during all changes gets all announcements.
    let mut stream = bench.listen("/events", Some(&id(1))).await;
    assert_eq!(stream.seqs(1).await, [2]);
    assert_eq!(stream.next().await.0, "gap");
    assert_eq!(stream.seqs(1).await, [6]);
    assert_eq!(stream.next().await.0, "resync");
}

/// An update with a deadline comes as soon as it is whole, and again in order; the client's
/// position moves only then. What expired is passed over.
#[tokio::test(flavor = "multi_thread")]
async fn updates_with_a_deadline_come_at_once() {
    let mut bench = Bench::start(&["lore", "net.x"]).await;
    bench.put("lore", 1..=2);
    let mut stream = bench.listen("/events?channel=lore", None).await;
    assert_eq!(stream.id, Some(id(2)));
    for (channel, seq, expires_at) in [
        ("net.x", 9, None),
        ("lore", 4, Some(Instant::now())),
        ("lore", 5, None),
    ] {
        bench.board.apply(&Event::Live {
            channel: channel.into(),
            incarnation: incarnation(),
            seq,
            encoded: encoded(seq),
            via: flexicast::Via::Flow,
            deadline_ms: 1_800_000_000_000,
            expires_at,
        });
    }
    let (kind, event) = stream.next().await;
    assert_eq!((kind.as_str(), &event["id"]), ("live", &Value::from(id(5))));
    assert_eq!(event["data"]["id"], "urn:5");
    assert_eq!(stream.id, Some(id(2)), "the position stays");
    bench
        .files("lore")
        .miss(incarnation(), 3, 4, Missing::Expired);
    bench.put("lore", [5]);
    let (kind, expired) = stream.next().await;
    assert_eq!(
        (kind.as_str(), &expired["from"], &expired["to"]),
        ("expired", &3.into(), &4.into())
    );
    assert_eq!(stream.id, Some(id(4)));
    assert_eq!(stream.seqs(1).await, [5]);
    // A client that was away gets the same from the journal, but for what is over.
    let mut stream = bench
        .listen(
            "/events",
            Some(&format!("lore:{}", id(2).replace('/', ":"))),
        )
        .await;
    assert_eq!(stream.next().await.0, "expired");
    assert_eq!(stream.seqs(1).await, [5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_position_is_announced_and_kept_updates_follow() {
    let limits = Limits {
        updates: 32,
        bytes: 1 << 20,
    };
    let mut bench = Bench::with(&["lore"], limits).await;
    for seq in 1..=100 {
        bench.put("lore", [seq]);
    }
    let mut stream = bench.listen("/events", Some(&id(10))).await;
    let (kind, gap) = stream.next().await;
    assert_eq!((kind.as_str(), &gap["from"]), ("gap", &11.into()));
    let first = gap["to"].as_u64().unwrap() + 1;
    assert!(first >= 69, "{gap}");
    let count = (100 - first + 1) as usize;
    assert_eq!(stream.seqs(count).await, (first..=100).collect::<Vec<_>>());
    // Of a store that this receiver does not know, and nonsense.
    for (last, from) in [
        (format!("{}/4", Uuid::from_u128(3)), 5.into()),
        ("x".into(), Value::Null),
    ] {
        let mut stream = bench.listen("/events", Some(&last)).await;
        let (kind, gap) = stream.next().await;
        assert_eq!(
            (kind.as_str(), &gap["from"], &gap["to"]),
            ("gap", &from, &Value::Null)
        );
        if last != "x" {
            assert_eq!(stream.next().await.0, "resync");
        }
        assert_eq!(stream.seqs(count).await, (first..=100).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_channels_resume_by_one_id() {
    let mut bench = Bench::start(&["lore", "net.x"]).await;
    bench.put("lore", 1..=2);
    bench.put("net.x", 1..=4);
    let mut stream = bench.listen("/events", None).await;
    let i = incarnation();
    assert_eq!(stream.id, Some(format!("lore:{i}:2,net.x:{i}:4")));
    bench.put("net.x", [5]);
    assert_eq!(stream.seqs(1).await, [5]);
    let last = stream.id.clone().unwrap();
    assert_eq!(last, format!("lore:{i}:2,net.x:{i}:5"));
    drop(stream);
    bench.put("lore", 3..=4);
    bench.put("net.x", 6..=7);
    let mut stream = bench.listen("/events", Some(&last)).await;
    let mut seqs = stream.seqs(4).await;
    seqs.sort_unstable();
    assert_eq!(seqs, [3, 4, 6, 7]);
    // One of them, by the id of both.
    let mut stream = bench.listen("/events?channel=net.x", Some(&last)).await;
    assert_eq!(stream.seqs(2).await, [6, 7]);
    assert_eq!(stream.id, Some(format!("{i}/7")));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_bounded_and_those_that_take_nothing_are_dropped() {
    let mut bench = Bench::start(&["lore"]).await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(bench.listen("/events", None).await);
    }
    let refused = bench.get("/events").await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    // There still is room for the rest.
    assert_eq!(bench.get("/healthz").await.status(), 200);
    let mut lazy = streams.pop().unwrap();
    drop(streams);
    // More than the buffers on the way hold, while the client does not look.
    let files = bench.files("lore");
    for seq in 1..=3000u64 {
        let entry = feed::Entry {
            id: format!("urn:{seq}"),
            content_text: Some((0..600).map(|n| format!("{} ", n * seq)).collect()),
            ..feed::Entry::default()
        };
        let now = jiff::Timestamp::UNIX_EPOCH;
        let kind = feed::Kind::Created;
        let encoded = Bytes::from(payload::encode(&entry, kind, "u", incarnation(), seq, now));
        files.take(incarnation(), payload::decode(&encoded).unwrap(), &encoded);
        if seq % 100 == 0 {
            write(files);
        }
    }
    let begun = Instant::now();
    loop {
        let text = bench.get("/metrics").await.text().await.unwrap();
        // The counter changes a moment before the connection count.
        if text.contains("flexfeed_receiver_event_clients_dropped_total 1\n")
            && text.contains("flexfeed_receiver_event_clients 0\n")
        {
            assert!(
                text.contains("flexfeed_receiver_event_clients_refused_total 1\n"),
                "{text}"
            );
            break;
        }
        assert!(begun.elapsed() < TIME, "{text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A dropped client gets what was in flight, and the rest after its return.
    let mut seqs = Vec::new();
    let read = async {
        while let Ok(Some(chunk)) = lazy.response.chunk().await {
            lazy.text.push_str(&String::from_utf8_lossy(&chunk));
        }
    };
    tokio::time::timeout(TIME, read).await.unwrap();
    let (whole, _) = lazy.text.rsplit_once("\n\n").unwrap();
    let mut last = None;
    for block in whole.split("\n\n") {
        for line in block.lines() {
            if let Some(data) = line.strip_prefix("data: ") {
                seqs.push(seq_of(&serde_json::from_str(data).unwrap()));
            }
            if let Some(id) = line.strip_prefix("id: ") {
                last = Some(id.to_owned());
            }
        }
    }
    assert!(seqs.len() < 3000);
    let mut stream = bench.listen("/events", last.as_deref()).await;
    seqs.extend(stream.seqs(3000 - seqs.len()).await);
    assert_eq!(seqs, (1..=3000).collect::<Vec<_>>());
}

/// A message comes at once, without an id; the client's position stays. One that has expired or is
/// none is not shown.
#[tokio::test(flavor = "multi_thread")]
async fn messages_are_shown_at_once() {
    let mut bench = Bench::start(&["lore", "net.x"]).await;
    bench.put("lore", 1..=2);
    let mut stream = bench.listen("/events?channel=lore", None).await;
    let message = feed::message::Message {
        id: "m1".into(),
        time_ms: 1_800_000_000_000,
        content_type: "text/plain".into(),
        subject: Some("river".into()),
        body: b"two\nlines".to_vec(),
    };
    let message = bytes::Bytes::from(message.encode());
    let nothing = bytes::Bytes::from_static(b"no message");
    for (channel, number, encoded, expires_at) in [
        ("net.x", 7, &message, None),
        ("lore", 8, &message, Some(Instant::now())),
        ("lore", 9, &nothing, None),
        ("lore", 10, &message, None),
    ] {
        bench.board.apply(&Event::Message {
            channel: channel.into(),
            number,
            encoded: encoded.clone(),
            deadline_ms: None,
            expires_at,
        });
    }
    let (kind, event) = stream.next().await;
    assert_eq!(kind, "live-message");
    assert_eq!(
        (&event["id"], &event["sequence"]),
        (&"m1".into(), &"10".into())
    );
    assert_eq!(event["type"], "org.flexfeed.message.v1");
    assert_eq!(
        (&event["data"], &event["subject"]),
        (&"two\nlines".into(), &"river".into())
    );
    assert_eq!(stream.id, Some(id(2)), "the position stays");
    bench.put("lore", [3]);
    assert_eq!(stream.seqs(1).await, [3]);
}
