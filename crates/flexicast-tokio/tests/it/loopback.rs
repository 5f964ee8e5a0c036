//! Real QUIC and real multicast on the loopback interface.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use flexicast_tokio::receiver::{Event, Verify};
use flexicast_tokio::source::{MessageError, PacketAuthentication, SourceHandle};
use flexicast_tokio::{Error, Rung, Via};
use tokio::sync::mpsc;

use crate::site::{Probe, Site, any_port};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_get_updates_by_the_flow_and_catch_up_from_the_store() {
    for asm in [false, true] {
        let site = Site::new();
        let mut config = site.config(any_port());
        if let Some(flow) = &mut config.channels[0].flow {
            flow.endpoints[0].asm = asm;
        }
        let source = site.start(config).await;
        let mut first = site.receiver(source.addr);
        first.until_rung(Rung::Multicast).await;
        site.publish(&source.handle, 300).await;
        first.until_seq(300).await;
        let by_flow = first.by_flow("lore");
        assert!(by_flow >= 280, "{by_flow} of 300 by the flow (asm {asm})");
        // One that was away for long: everything from the store, then the flow.
        site.publish(&source.handle, 2000).await;
        let mut config = site.receiver_config(source.addr);
        config.channels[0].1 = site.cursor(5);
        let mut late = site.start_receiver(config);
        late.until_seq(2300).await;
        late.until_rung(Rung::Multicast).await;
        first.until_seq(2300).await;
        source
            .until("both cursors arrive", |status| {
                assert_eq!((status.channels[0].head, status.receivers.len()), (2300, 2));
                let at_head = |r: &flexicast_tokio::source::ReceiverStatus| {
                    r.channels.iter().all(|c| c.cursor == Some(2300))
                };
                status.receivers.iter().all(at_head)
            })
            .await;
        first.handle.shutdown().await;
        late.handle.shutdown().await;
    }
}

/// Packets with their tags, and signed streams, come by multicast, and replicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flows_are_authenticated_by_each_type() {
    let auto = PacketAuthentication::Auto { tags_up_to: 1 };
    let types = [PacketAuthentication::Signature, PacketAuthentication::Tags];
    for packets in types
        .into_iter()
        .chain([auto, PacketAuthentication::Stream])
    {
        let site = Site::new();
        let mut config = site.config(any_port());
        if let Some(flow) = &mut config.channels[0].flow {
            flow.authentication = Some(packets);
        }
        let source = site.start(config).await;
        let mut native = site.receiver(source.addr);
        native.until_rung(Rung::Multicast).await;
        site.publish(&source.handle, 100).await;
        native.until_seq(100).await;
        let mut behind = site.behind(source.addr);
        behind.until_rung(Rung::Replicated).await;
        site.publish(&source.handle, 200).await;
        for probe in [&mut native, &mut behind] {
            probe.until_seq(300).await;
            let by_flow = probe.by_flow("lore");
            assert!(by_flow >= 180, "{by_flow} by the flow ({packets:?})");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_source_is_noticed_by_its_reset_and_nothing_is_lost() {
    let site = Site::new();
    let source = site.source().await;
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    site.publish(&source.handle, 50).await;
    probe.until_seq(50).await;
    // As by kill -9: no goodbye.
    source.task.abort();
    let _ = source.task.await;
    let source = site.start(site.config(source.addr)).await;
    site.publish(&source.handle, 50).await;
    let reason = probe.until_reason().await;
    assert!(reason.contains("restarted"), "{reason}");
    probe.until_seq(100).await;
    probe.until_rung(Rung::Multicast).await;
    source.handle.shutdown().await;
    let reason = probe.until_reason().await;
    assert!(reason.contains("shuts down"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_token_and_a_wrong_pin_are_named() {
    let site = Site::new();
    let source = site.source().await;
    let mut config = site.receiver_config(source.addr);
    config.token = b"bad".to_vec();
    let reason = site.start_receiver(config).until_reason().await;
    assert!(reason.contains("this token is not valid"), "{reason}");
    let mut config = site.receiver_config(source.addr);
    config.verify = Verify::Pins(vec![[1; 32]]);
    let reason = site.start_receiver(config).until_reason().await;
    assert!(reason.contains("wrong pin"), "{reason}");
    let mut config = site.receiver_config(source.addr);
    config.verify = Verify::Roots;
    let reason = site.start_receiver(config).until_reason().await;
    assert!(!reason.is_empty());
    let status = source.status().await;
    assert_eq!(
        (status.receivers.len(), status.counters.refused),
        (0, 1),
        "no token was shown to a source with another key"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_harmless_and_unicast_alone_suffices() {
    let site = Site::new();
    let source = site.source().await;
    let mut member = site.receiver(source.addr);
    let mut config = site.receiver_config(source.addr);
    (config.verify, config.multicast) = (Verify::Insecure, false);
    let mut unicast = site.start_receiver(config);
    member.until_rung(Rung::Multicast).await;
    let flow = source.status().await.channels.remove(0).flow.unwrap();
    let id: Vec<u8> = (0..8)
        .map(|i| u8::from_str_radix(&flow.id[i * 2..i * 2 + 2], 16).unwrap())
        .collect();
    let noise = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut seed = 1u32;
    for round in 0..500 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut junk: Vec<u8> = (0..(seed >> 20) as usize % 1300)
            .map(|i| (seed >> (i % 24)) as u8 ^ i as u8)
            .collect();
        noise.send_to(&junk, source.addr).unwrap();
        if junk.len() > 20 {
            junk[0] = 0x40;
            junk[1..9].copy_from_slice(&id);
        }
        let _ = noise.send_to(&junk, site.group(0));
        if round % 50 == 0 {
            site.publish(&source.handle, 5).await;
        }
    }
    member.until_seq(50).await;
    unicast.until_seq(50).await;
    assert!(unicast.via["lore"].iter().all(|v| *v == Via::Unicast));
    assert!(member.by_flow("lore") >= 40);
    let status = source.status().await;
    assert_eq!(status.receivers.len(), 2);
    assert!(status.counters.stray_datagrams > 0);
}

/// An application that does not read events stops the transport, and loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_application_loses_nothing() {
    let site = Site::new();
    let source = site.source().await;
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    site.publish(&source.handle, 1500).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    probe.until_seq(1500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_channels_share_a_connection_and_nothing_else() {
    let site = Site::new();
    let mut config = site.config(any_port());
    config.channels.push(site.channel("news", 1));
    let source = site.start(config).await;
    let mut wanted = site.receiver_config(source.addr);
    wanted.channels.push(("news".into(), None));
    let mut both = site.start_receiver(wanted);
    let mut one = site.receiver(source.addr);
    both.until_rung_of("lore", Rung::Multicast).await;
    both.until_rung_of("news", Rung::Multicast).await;
    one.until_rung(Rung::Multicast).await;
    for _ in 0..20 {
        site.publish_on(&source.handle, "lore", 10).await;
        site.publish_on(&source.handle, "news", 5).await;
    }
    both.until_seq_of("lore", 200).await;
    both.until_seq_of("news", 100).await;
    one.until_seq(200).await;
    let (lore, news) = (both.by_flow("lore"), both.by_flow("news"));
    assert!(
        lore >= 180 && news >= 90,
        "{lore} {news} {:?}",
        source.status().await
    );
    let status = source.status().await;
    let flows: Vec<_> = status.channels.iter().flat_map(|c| &c.flow).collect();
    assert_ne!(flows[0].id, flows[1].id);
    assert_eq!((flows[0].members, flows[1].members), (2, 1));
    let mut served: Vec<_> = status.receivers.iter().map(|r| r.channels.len()).collect();
    served.sort_unstable();
    assert_eq!((served, status.receivers.len()), (vec![1, 2], 2));
}

/// A member that leaves is not given the next key; one that stays loses nothing while keys change
/// under traffic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_change_under_traffic_and_nothing_is_lost() {
    let site = Site::new();
    let source = site.source().await;
    let mut stays = site.receiver(source.addr);
    let mut config = site.receiver_config(source.addr);
    let thrown_out = config.receiver_id;
    config.name = "thrown out".into();
    let mut goes = site.start_receiver(config);
    stays.until_rung(Rung::Multicast).await;
    goes.until_rung(Rung::Multicast).await;
    let key = |status: &flexicast_tokio::source::SourceStatus| {
        status.channels[0].flow.as_ref().unwrap().key_sequence
    };
    let first = key(&source.status().await);
    let publish = async {
        for round in 0..40 {
            site.publish(&source.handle, 5).await;
            if round == 10 {
                source.handle.eject(thrown_out).await;
            }
            if round == 25 {
                source.handle.rekey("lore").await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let removed = async { goes.until_reason().await };
    let (_, (), reason) = tokio::join!(publish, stays.until_seq(200), removed);
    assert!(!reason.is_empty());
    source
        .until("two more keys", |status| key(status) >= first + 2)
        .await;
    assert!(stays.disconnected.is_empty(), "{:?}", stays.disconnected);
    assert!(stays.by_flow("lore") >= 150, "{}", stays.by_flow("lore"));
}

/// Updates removed by retention are announced as a gap in their place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_updates_are_a_gap_in_their_place() {
    let site = Site::new();
    let source = site.source().await;
    site.publish(&source.handle, 1500).await;
    source
        .until("all is published", |s| s.channels[0].head == 1500)
        .await;
    site.store.retain("lore", 1101);
    source.handle.set_first("lore", 1101).await;
    let mut config = site.receiver_config(source.addr);
    config.channels[0].1 = site.cursor(3);
    let mut probe = site.start_receiver(config);
    probe.until_seq(1500).await;
    assert_eq!(probe.gaps, [("lore".into(), 4, 1100)]);
}

/// A flow that is withdrawn takes nothing with it, the one in its place is joined by itself, and
/// messages come by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_is_withdrawn_replaced_and_carries_messages() {
    let site = Site::new();
    let source = site.source().await;
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    let id = |status: &flexicast_tokio::source::SourceStatus| {
        let flow = status.channels[0].flow.as_ref();
        flow.map(|flow| flow.id.clone())
    };
    let first = id(&source.status().await);
    source.handle.withdraw("lore").await;
    probe.until_rung(Rung::Unicast).await;
    assert_eq!(id(&source.status().await), None);
    site.publish(&source.handle, 20).await;
    probe.until_seq(20).await;
    source.handle.replace_flow("lore").await;
    probe.until_rung(Rung::Multicast).await;
    let second = id(&source.status().await);
    assert!(second.is_some() && second != first);
    site.publish(&source.handle, 20).await;
    probe.until_seq(40).await;
    assert!(probe.by_flow("lore") >= 15, "{}", probe.by_flow("lore"));
    messages_arrive(&source.handle, &mut probe, 1..=3).await;
    source.handle.withdraw("lore").await;
    probe.until_rung(Rung::Unicast).await;
    messages_arrive(&source.handle, &mut probe, 4..=6).await;
    let late = source.handle.message("lore", 6, b"again".as_slice().into());
    assert!(matches!(
        late.await,
        Err(Error::Message(MessageError::Number { .. }))
    ));
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
}

/// A receiver far behind is not limited by the pace of its own connection: at that alone this would
/// take twice the permitted time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_gets_a_share_of_the_unicast_rate() {
    let site = Site::new();
    let mut config = site.config(any_port());
    config.rate_bps = 1_000_000;
    config.unicast_rate_bps = Some(200_000_000);
    let source = site.start(config).await;
    site.publish(&source.handle, 4000).await;
    source
        .until("all is published", |s| s.channels[0].head == 4000)
        .await;
    let mut config = site.receiver_config(source.addr);
    config.multicast = false;
    config.channels[0].1 = site.cursor(1);
    let mut late = site.start_receiver(config);
    let begun = std::time::Instant::now();
    late.until_seq(4000).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(70), "{took:?}");
    assert!(late.disconnected.is_empty(), "{:?}", late.disconnected);
}

/// A thread with a runtime of its own, which can be brought to a stop as if it got no processor, or
/// as if its process paused.
struct Thread {
    stall: mpsc::Sender<Duration>,
    begun: mpsc::Receiver<()>,
}

impl Thread {
    /// Begins with what `begin` does there, and returns what that makes.
    async fn start<T, F>(begin: impl FnOnce() -> F + Send + 'static) -> (Self, T)
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        let (ready, notified) = tokio::sync::oneshot::channel();
        let (stall, mut stalls) = mpsc::channel(1);
        let (begins, begun) = mpsc::channel(1);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let _ = ready.send(begin().await);
                while let Some(span) = stalls.recv().await {
                    let _ = begins.send(()).await;
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "to stop the worker is the point"
                    )]
                    std::thread::sleep(span);
                }
            });
        });
        (Thread { stall, begun }, notified.await.unwrap())
    }

    /// Nothing happens there for this time. Returns when that begins.
    async fn stall(&mut self, span: Duration) {
        self.stall.send(span).await.unwrap();
        self.begun.recv().await.unwrap();
    }
}

/// The source's thread gets no processor for longer than a member may be silent, while updates are
/// on their way: what members answered meanwhile is read before they are judged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_was_suspended_moves_no_member() {
    let site = Site::new();
    let mut config = site.config(any_port());
    config.fall_back = Duration::from_secs(2);
    config.heartbeat = Duration::from_secs(3);
    let site = Arc::new(site);
    let its = site.clone();
    let (mut thread, source) = Thread::start(async move || its.start(config).await).await;
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    for round in 1..=4 {
        site.publish(&source.handle, 5).await;
        // The packets are out, and not all of them can have been answered.
        tokio::time::sleep(Duration::from_millis(10)).await;
        thread.stall(Duration::from_millis(2_500)).await;
        probe.until_seq(round * 5).await;
        let status = source.status().await;
        assert_eq!(status.counters.protocol.fall_backs, 0, "round {round}");
    }
    probe.handle.shutdown().await;
    source.handle.shutdown().await;
}

/// The machine of both ends stalls, for longer than either may be silent: neither gives the other
/// up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_machine_moves_no_member() {
    let site = Arc::new(Site::new());
    let mut config = site.config(any_port());
    config.heartbeat = Duration::from_secs(1);
    let its = site.clone();
    let begin = async move || {
        let source = its.start(config).await;
        let probe = its.receiver(source.addr);
        (source, probe)
    };
    let (mut machine, (source, mut probe)) = Thread::start(begin).await;
    probe.until_rung(Rung::Multicast).await;
    for round in 1..=3 {
        site.publish(&source.handle, 5).await;
        machine.stall(Duration::from_secs(5)).await;
        probe.until_seq(round * 10 - 5).await;
        // Nor does it follow somewhat later.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        site.publish(&source.handle, 5).await;
        probe.until_seq(round * 10).await;
        assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
        assert_eq!(probe.rung_of("lore"), Rung::Multicast, "round {round}");
        let status = source.status().await;
        assert_eq!(status.counters.protocol.fall_backs, 0, "round {round}");
    }
    source.handle.shutdown().await;
}

/// A receiver's thread gets no processor for longer than the source may be silent: the source is
/// not given up for what was sent meanwhile and not read yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_was_suspended_keeps_its_source() {
    let site = Arc::new(Site::new());
    let mut config = site.config(any_port());
    config.heartbeat = Duration::from_millis(500);
    let source = site.start(config).await;
    let mut config = site.receiver_config(source.addr);
    config.multicast = false;
    let its = site.clone();
    let (mut thread, mut probe) = Thread::start(async move || its.start_receiver(config)).await;
    for round in 1..=6 {
        site.publish(&source.handle, 5).await;
        probe.until_seq(round * 10 - 5).await;
        thread.stall(Duration::from_secs(2)).await;
        site.publish(&source.handle, 5).await;
        probe.until_seq(round * 10).await;
        assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
    }
    probe.handle.shutdown().await;
    source.handle.shutdown().await;
}

/// Sends messages of several sizes, and waits for each.
async fn messages_arrive(
    handle: &SourceHandle,
    probe: &mut Probe,
    numbers: std::ops::RangeInclusive<u64>,
) {
    for number in numbers {
        let said = bytes::Bytes::from(vec![number as u8; number as usize * 10_000]);
        handle.message("lore", number, said.clone()).await.unwrap();
        loop {
            if let Event::Message {
                channel,
                number: got,
                encoded,
                ..
            } = probe.event().await
            {
                assert_eq!((channel.as_str(), got), ("lore", number));
                assert!(encoded == said, "message {number}");
                break;
            }
        }
    }
}
