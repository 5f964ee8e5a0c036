//! Invalid answers, and garbage.

use super::world::*;
use crate::gateway::*;
use crate::report::{GeneralQuery, write_query};
use crate::{Mac, Message};

const A: &str = "198.51.100.1:2268";

fn query(nonce: u32, mld: bool, limited: bool) -> Vec<u8> {
    let general = GeneralQuery {
        qrv: 2,
        qqic: secs(20),
        max_response: secs(1),
    };
    let own = if mld { "fe80::1" } else { "192.0.2.1" };
    let mut packet = Vec::new();
    write_query(mld, own.parse().unwrap(), &general, &mut packet);
    let mut bytes = Vec::new();
    Message::Query {
        limited,
        mac: Mac([6; 6]),
        nonce,
        packet: &packet,
        gateway: None,
    }
    .encode(&mut bytes);
    bytes
}

/// Returns a gateway that has just sent its first Request, and the nonce of it.
fn asked() -> (World, u32) {
    let mut world = World::new([]);
    world.candidates([configured(A)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.gateway.handle_timeout(world.now);
    let mut sent = Vec::new();
    assert_eq!(world.gateway.poll_transmit(&mut sent), Some(addr(A)));
    let Ok(Message::Request { nonce, mld: false }) = Message::parse(&sent) else {
        panic!("not a Request: {sent:?}");
    };
    (world, nonce)
}

#[test]
fn only_the_answer_of_the_relay_that_was_asked_counts() {
    let (mut world, nonce) = asked();
    let good = query(nonce, false, false);
    for (from, bytes, why) in [
        ("198.51.100.1:2269", &good, DropReason::NotTheRelay),
        ("198.51.100.9:2268", &good, DropReason::NotTheRelay),
        (A, &query(nonce ^ 1, false, false), DropReason::UnknownNonce),
        (A, &query(nonce, true, false), DropReason::BadQuery),
    ] {
        assert_eq!(world.handle(from, bytes), Input::Dropped(why), "{from}");
        assert_eq!(world.using(), None);
    }
    let mut broken = good.clone();
    let last = broken.len() - 1;
    broken[last] ^= 1;
    let dropped = Input::Dropped(DropReason::BadQuery);
    assert_eq!(world.handle(A, &broken), dropped, "a wrong checksum");
    assert_eq!(world.handle(A, &good), Input::Control);
    assert_eq!(world.using(), Some(addr(A)));
    let replayed = Input::Dropped(DropReason::UnknownNonce);
    assert_eq!(world.handle(A, &good), replayed, "it was answered");
}

#[test]
fn messages_of_gateways_are_not_for_gateways() {
    let (mut world, nonce) = asked();
    let gateway = addr("203.0.113.9:40000");
    let mac = Mac([0; 6]);
    for message in [
        Message::Discovery { nonce },
        Message::Request { nonce, mld: false },
        Message::Update {
            mac,
            nonce,
            packet: &[],
        },
        Message::Teardown {
            mac,
            nonce,
            gateway,
        },
    ] {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let input = world.handle(A, &bytes);
        assert_eq!(input, Input::Dropped(DropReason::WrongDirection));
    }
    for bytes in [&[][..], &[0x14, 0, 0], &[0x0f, 0, 0, 0], &[0x04, 0]] {
        let input = world.handle(A, bytes);
        assert!(matches!(input, Input::Dropped(DropReason::Malformed(_))));
    }
}

/// Bytes that resemble messages, from the relay itself: nothing grows, and the gateway goes on.
#[test]
fn garbage_changes_nothing() {
    let mut world = World::new([(A, ModelRelay::default())]);
    world.candidates([configured(A)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(2));
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    let good = data("10.0.0.1:4000", "232.1.1.1:5000", b"good");
    let seeds = [query(7, false, true), query(9, true, false), good];
    for round in 0..30_000 {
        let mut bytes = seeds[round % 3].clone();
        for _ in 0..1 + random() % 4 {
            let at = usize::from(random()) % bytes.len();
            bytes[at] = random();
        }
        if random() % 8 == 0 {
            bytes.truncate(usize::from(random()) % bytes.len());
        }
        world.handle(A, &bytes);
        if round % 100 == 0 {
            world.run(ms(100));
        }
    }
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.tunnel(A).len(), 1);
    let requests = world.relay(A).requests.len();
    assert!(requests < 10, "{requests}");
}

/// A sender of queries with the right nonce is the relay; whatever they contain, the gateway stays
/// within its bounds.
#[test]
fn a_query_interval_of_zero_does_not_cause_a_request_loop() {
    let relay = ModelRelay {
        query: GeneralQuery {
            qrv: 7,
            qqic: secs(1),
            max_response: secs(0),
        },
        ..ModelRelay::default()
    };
    let mut world = World::new([(A, relay)]);
    world.candidates([configured(A)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(100));
    let requests = world.relay(A).requests.len();
    assert!(requests < 120, "{requests}");
}

#[test]
fn untaken_events_are_bounded() {
    let mut gateway = Gateway::new(Timing::default(), [3; 32]);
    let mut now = std::time::Instant::now();
    gateway.subscribe(asm("239.1.1.1", 5000), now).unwrap();
    gateway.set_candidates([configured(A)], now);
    for _ in 0..5000 {
        if let Some(at) = gateway.poll_timeout() {
            now = at;
        }
        gateway.handle_timeout(now);
    }
    let mut events = 0;
    while gateway.poll_event().is_some() {
        events += 1;
    }
    assert!(events <= 64, "{events}");
    assert!(gateway.counters().unsent > 0);
    let mut out = Vec::new();
    let mut waiting = 0;
    while gateway.poll_transmit(&mut out).is_some() {
        waiting += 1;
    }
    assert!(waiting <= 128, "{waiting}");
}
