//! Several channels.

use super::*;

#[tokio::test]
async fn events_of_unknown_channels_do_nothing() {
    let mut stranger = update(1);
    if let Event::Update { channel, .. } = &mut stranger {
        *channel = "other".into();
    }
    let bench = bench(16, [stranger, update(1)]);
    bench.confirmed(1).await;
    assert_eq!(bench.sink.calls().len(), 5);
    bench.end().await;
}

/// A channel that cannot be written does not hold up another; in the end it gets each update once.
#[tokio::test]
async fn a_channel_that_cannot_be_written_does_not_stop_the_others() {
    const NET: &str = "net";
    let of = |channel: &str, seq| Event::Update {
        channel: channel.into(),
        incarnation: incarnation(),
        seq,
        encoded: encoded(seq),
        via: Via::Flow,
    };
    let begins = |channel: &str| Event::Welcome {
        channel: channel.into(),
        incarnation: incarnation(),
        head: 0,
        first: 1,
        resync: false,
    };
    let identity = Identity {
        name: "r1".into(),
        receiver_id: Uuid::from_u128(1),
        source: "h:4433".into(),
    };
    let channels = [(LORE.to_owned(), None), (NET.to_owned(), None)];
    let board = Arc::new(Board::new(identity, &channels));
    let (bad, good) = (FakeSink::default(), FakeSink::default());
    let (first, mut inbox) = mpsc::channel(4);
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let confirmed = Arc::new(Mutex::new(Vec::new()));
    // Requested cursors of a reconnection, and the events that follow it.
    let (asked, mut asking) = mpsc::channel(8);
    let task = tokio::spawn({
        let (board, bad, good) = (board.clone(), bad.clone(), good.clone());
        let confirmed = confirmed.clone();
        async move {
            let confirm = |name: &str, cursor: Cursor| {
                confirmed
                    .lock()
                    .unwrap()
                    .push((name.to_owned(), cursor.seq));
            };
            let again = |cursors: Cursors| -> Reconnection<'_> {
                let (events, inbox) = mpsc::channel(4);
                asked.try_send((cursors, events)).unwrap();
                Box::pin(std::future::ready(inbox))
            };
            Loop {
                outlets: vec![Outlet::new(LORE, bad, None), Outlet::new(NET, good, None)],
                confirm: &confirm,
                again: &again,
                board: &board,
                batch: Limits {
                    updates: 5,
                    bytes: 1 << 20,
                },
                backoff: FAST,
                source: "h:4433",
                newcomer: None,
            }
            .run(&mut inbox, &stopping)
            .await
        }
    });
    let patience = Duration::from_secs(20);
    let within = |what: &'static str, name: &'static str, seq: u64| {
        let confirmed = confirmed.clone();
        async move {
            let all = async {
                while !confirmed.lock().unwrap().contains(&(name.to_owned(), seq)) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(patience, all).await.expect(what);
        }
    };
    for event in [begins(LORE), begins(NET), of(LORE, 1), of(NET, 1)] {
        first.send(event).await.unwrap();
    }
    within("both begin", LORE, 1).await;
    within("both begin", NET, 1).await;
    bad.fail(Step::Journal, u32::MAX);
    for seq in 2..=60 {
        for name in [LORE, NET] {
            let sent = first.send(of(name, seq));
            tokio::time::timeout(patience, sent)
                .await
                .expect("room")
                .unwrap();
        }
    }
    within("the good one goes on", NET, 60).await;
    let status = board.status();
    assert_eq!(
        status.error.as_deref(),
        Some("no room"),
        "although the other one works"
    );
    assert!(asking.is_empty(), "it cannot be written yet");
    let mut shown = board.live();
    let live = Event::Live {
        channel: LORE.into(),
        incarnation: incarnation(),
        seq: 61,
        encoded: encoded(61),
        via: Via::Flow,
        deadline_ms: 1_800_000_000_000,
        expires_at: None,
    };
    first.send(live).await.unwrap();
    tokio::time::timeout(patience, shown.ready())
        .await
        .expect("what would be late otherwise is shown");
    assert_eq!(shown.take()[0].seq, 61);
    bad.fail(Step::Journal, 0);
    let (cursors, second) = tokio::time::timeout(patience, asking.recv())
        .await
        .expect("the transport reconnects")
        .unwrap();
    let from = cursors[0].1.unwrap().seq;
    assert!((2..20).contains(&from), "{cursors:?}");
    assert_eq!(
        (cursors[1].0.as_str(), cursors[1].1.unwrap().seq),
        (NET, 60)
    );
    assert!(first.is_closed());
    for event in [begins(LORE), begins(NET)] {
        second.send(event).await.unwrap();
    }
    for seq in from + 1..=61 {
        second.send(of(LORE, seq)).await.unwrap();
    }
    second.send(of(NET, 61)).await.unwrap();
    within("the bad one catches up", LORE, 61).await;
    within("the good one goes on", NET, 61).await;
    assert_eq!(board.status().error, None);
    for sink in [bad, good] {
        let calls = sink.calls();
        let logged = calls.iter().filter_map(|call| match call {
            Call::Log(seqs) => Some(seqs.clone()),
            _ => None,
        });
        let logged: Vec<u64> = logged.flatten().collect();
        assert_eq!(logged, (1..=61).collect::<Vec<_>>());
    }
    stop.cancel();
    assert_eq!(task.await.unwrap(), LoopExit::Stopped);
}
