//! Acceptance of data packets.

use super::world::*;
use crate::gateway::*;

const A: &str = "198.51.100.1:2268";
const B: &str = "198.51.100.2:2268";

fn connected(wanted: &[Subscription]) -> (World, Vec<SubscriptionId>) {
    let mut world = World::new([(A, ModelRelay::default()), (B, ModelRelay::default())]);
    world.candidates([configured(A)]);
    let ids = wanted.iter().map(|s| world.subscribe(*s)).collect();
    world.run(secs(5));
    assert_eq!(world.using(), Some(addr(A)));
    (world, ids)
}

#[test]
fn packets_of_all_flows_come_out_with_their_sender() {
    let wanted = [
        ssm("10.0.0.1", "239.2.2.2", 5000),
        asm("239.1.1.1", 5000),
        ssm("2001:db8::5", "ff3e::8000:1", 5001),
        asm("ff1e::1", 5002),
        asm("239.2.2.2", 5000),
    ];
    let (mut world, ids) = connected(&wanted);
    for (source, group, payload, id) in [
        ("10.0.0.1:4000", "239.2.2.2:5000", "a source's own", 0),
        ("10.0.0.9:4001", "239.1.1.1:5000", "from any", 1),
        ("[2001:db8::5]:9", "[ff3e::8000:1]:5001", "", 2),
        ("[2001:db8::77]:9", "[ff1e::1]:5002", "six", 3),
        ("10.0.0.7:4000", "239.2.2.2:5000", "another one's", 4),
        ("10.0.0.1:4000", "239.2.2.2:5000", "again", 0),
    ] {
        world.send_data(A, source, group, payload.as_bytes());
        world.run(ms(30));
        let (id_, from, bytes) = world.data.pop().unwrap();
        assert_eq!((id_, from), (ids[id], addr(source)));
        assert_eq!(bytes, payload.as_bytes());
    }
    assert_eq!(world.gateway.counters().data, 6);
    assert!(world.dropped.is_empty());
}

#[test]
fn packets_of_others_are_dropped_and_counted() {
    let (mut world, _) = connected(&[ssm("10.0.0.1", "232.1.1.1", 5000)]);
    let good = data("10.0.0.1:4000", "232.1.1.1:5000", b"good");
    assert!(matches!(world.handle(A, &good), Input::Data { .. }));
    let not_subscribed = [
        data("10.0.0.2:4000", "232.1.1.1:5000", b"another source"),
        data("10.0.0.1:4000", "232.1.1.2:5000", b"another group"),
        data("10.0.0.1:4000", "232.1.1.1:5001", b"another port"),
        data("10.0.0.1:4000", "10.0.0.7:5000", b"no group"),
    ];
    for bytes in &not_subscribed {
        let input = world.handle(A, bytes);
        assert_eq!(input, Input::Dropped(DropReason::NotSubscribed));
    }
    for from in [B, "198.51.100.1:2269", "203.0.113.9:40000", "[::1]:2268"] {
        let input = world.handle(from, &good);
        assert_eq!(input, Input::Dropped(DropReason::NotTheRelay), "{from}");
    }
    let counters: Vec<_> = world.gateway.counters().dropped().collect();
    assert!(counters.contains(&("not-subscribed", 4)));
    assert!(counters.contains(&("not-the-relay", 4)));
    assert_eq!(world.gateway.counters().data, 1);
}

#[test]
fn damaged_packets_are_dropped() {
    for (source, group) in [
        ("10.0.0.1:4000", "232.1.1.1:5000"),
        ("[2001:db8::5]:9", "[ff3e::8000:1]:5000"),
    ] {
        let wanted = [
            ssm("10.0.0.1", "232.1.1.1", 5000),
            ssm("2001:db8::5", "ff3e::8000:1", 5000),
        ];
        let (mut world, _) = connected(&wanted);
        let good = data(source, group, b"a payload of some length");
        assert!(matches!(world.handle(A, &good), Input::Data { .. }));
        for len in 2..good.len() {
            let input = world.handle(A, &good[..len]);
            assert!(
                matches!(input, Input::Dropped(DropReason::BadPacket(_))),
                "{len} bytes: {input:?}"
            );
        }
        // One bit anywhere in the addresses, ports or payload.
        let begin = if source.starts_with('[') {
            2 + 8
        } else {
            2 + 12
        };
        for at in begin..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let input = world.handle(A, &bad);
            assert!(matches!(input, Input::Dropped(_)), "byte {at}: {input:?}");
        }
        let mut longer = good.clone();
        longer.extend_from_slice(b"behind the packet");
        let Input::Data { payload, .. } = world.handle(A, &longer) else {
            panic!("bytes behind the packet are no reason to drop it");
        };
        assert_eq!(&longer[payload], b"a payload of some length");
    }
}

#[test]
fn no_data_is_accepted_after_the_subscription_or_before_the_relay() {
    let (mut world, ids) = connected(&[ssm("10.0.0.1", "232.1.1.1", 5000)]);
    let good = data("10.0.0.1:4000", "232.1.1.1:5000", b"good");
    assert!(matches!(world.handle(A, &good), Input::Data { .. }));
    world.gateway.unsubscribe(ids[0], world.now);
    assert_eq!(
        world.handle(A, &good),
        Input::Dropped(DropReason::NotSubscribed),
        "also right after one that was taken"
    );
    let mut fresh = World::new([]);
    fresh.candidates([configured(A)]);
    fresh.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    fresh.gateway.handle_timeout(fresh.now);
    assert_eq!(
        fresh.handle(A, &good),
        Input::Dropped(DropReason::NotTheRelay)
    );
}

#[test]
fn fragments_are_reassembled() {
    let (mut world, ids) = connected(&[ssm("10.0.0.1", "232.1.1.1", 5000)]);
    let payload: Vec<u8> = (0..3000u16).map(|n| n as u8).collect();
    let cut = |source: &str, group: &str| {
        let whole = data(source, group, &payload);
        let mut fragments = Vec::new();
        // Behind the two bytes of the AMT header.
        crate::ip::fragment_v4(&whole[2..], 1200, |fragment| {
            let mut bytes = Vec::new();
            crate::Message::Data { packet: fragment }.encode(&mut bytes);
            fragments.push(bytes);
        })
        .unwrap();
        fragments
    };
    let ours = cut("10.0.0.1:4000", "232.1.1.1:5000");
    assert_eq!(ours.len(), 3);
    // Fragments from another relay belong to no packet.
    let other = world.handle(B, &ours[2]);
    assert_eq!(other, Input::Dropped(DropReason::NotTheRelay));
    for waiting in [&ours[2], &ours[0]] {
        assert_eq!(world.handle(A, waiting), Input::Fragment);
    }
    for other in [
        cut("10.0.0.1:4000", "232.1.1.2:5000"),
        cut("10.0.0.2:4000", "232.1.1.1:5000"),
    ] {
        let input = world.handle(A, &other[1]);
        assert_eq!(input, Input::Dropped(DropReason::NotSubscribed));
    }
    let whole = Input::Assembled {
        subscription: ids[0],
        from: addr("10.0.0.1:4000"),
        payload: payload.clone(),
    };
    assert_eq!(world.handle(A, &ours[1]), whole);
    // To another port, which shows when the packet is complete.
    let other = cut("10.0.0.1:4000", "232.1.1.1:5001");
    assert_eq!(world.handle(A, &other[0]), Input::Fragment);
    assert_eq!(world.handle(A, &other[1]), Input::Fragment);
    let input = world.handle(A, &other[2]);
    assert_eq!(input, Input::Dropped(DropReason::NotSubscribed));
    let counters = world.gateway.counters();
    assert_eq!((counters.data, counters.data_bytes), (1, 3000));
}
