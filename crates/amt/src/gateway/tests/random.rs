//! Random histories: in the end, every wanted flow arrives.

use super::world::*;
use crate::gateway::*;

const RELAYS: [&str; 3] = [
    "198.51.100.1:2268",
    "[2001:db8::2]:2268",
    "198.51.100.3:2268",
];
const FLOWS: [(&str, &str); 4] = [
    ("10.0.0.1:4000", "232.1.1.1:5000"),
    ("10.0.0.2:4000", "239.1.1.2:5000"),
    ("[2001:db8::5]:4000", "[ff3e::8000:1]:5000"),
    ("[2001:db8::6]:4000", "[ff1e::2]:5000"),
];

fn subscription(at: usize) -> Subscription {
    let (source, group) = FLOWS[at];
    let any = addr(group).to_string().contains("239.") || group.contains("ff1e");
    Subscription {
        source: (!any).then(|| addr(source).ip()),
        group: addr(group).ip(),
        port: 5000,
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// Runs a second in which each flow has ten packets; then the application suspects the relay if a
/// wanted flow brought none.
fn second(world: &mut World, wanted: &[Option<SubscriptionId>; 4]) {
    world.data.clear();
    for _ in 0..10 {
        for (source, group) in FLOWS {
            world.multicast(source, group, b"packet");
        }
        world.run(ms(100));
    }
    let came = |id: &SubscriptionId| world.data.iter().any(|(other, ..)| other == id);
    if !wanted.iter().flatten().all(came) {
        world.gateway.suspect(world.now);
    }
}

#[test]
fn every_wanted_flow_arrives_in_the_end() {
    for seed in 1..9_u8 {
        let mut random = Random(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let one_nonce = seed % 3 == 0;
        let relays = RELAYS.map(|at| {
            let relay = ModelRelay {
                one_nonce,
                tells_address: !one_nonce,
                reads_p: match seed % 3 {
                    0 => ReadsP::Linux,
                    1 => ReadsP::Rfc,
                    _ => ReadsP::Either,
                },
                ..ModelRelay::default()
            };
            (at, relay)
        });
        let mut world = World::seeded(seed, relays);
        world.delay = ms(1 + random.below(150));
        world.candidates(RELAYS.map(configured));
        let mut wanted = [None; 4];
        for _ in 0..120 {
            let which = random.below(4) as usize;
            let relay = RELAYS[random.below(3) as usize];
            match random.below(14) {
                0 | 1 => match wanted[which].take() {
                    Some(id) => world.gateway.unsubscribe(id, world.now),
                    None => wanted[which] = Some(world.subscribe(subscription(which))),
                },
                2 => world.relay(relay).deaf ^= true,
                3 => world.relay(relay).answers ^= true,
                4 => world.relay(relay).limited ^= true,
                5 => world.relay(relay).joins_within = ms(random.below(3000)),
                6 => world.here.set_port(40_000 + random.below(1000) as u16),
                7 => world.gateway.network_changed(world.now),
                8 => world.gateway.unreachable(addr(relay), world.now),
                9 => world.lose_every = [None, Some(2), Some(5)][random.below(3) as usize],
                10 => world.run(secs(random.below(40))),
                _ => second(&mut world, &wanted),
            }
        }
        world.lose_every = None;
        for at in RELAYS {
            let relay = world.relay(at);
            (relay.deaf, relay.answers, relay.limited) = (false, true, false);
        }
        for (at, wanted) in wanted.iter_mut().enumerate() {
            wanted.get_or_insert_with(|| world.subscribe(subscription(at)));
        }
        // Failed relays are held down for a minute, and silence lasts for two at most.
        for _ in 0..200 {
            second(&mut world, &wanted);
        }
        world.events.clear();
        for _ in 0..20 {
            second(&mut world, &wanted);
            for (id, flow) in wanted.iter().zip(FLOWS) {
                let came = world.data.iter().filter(|(of, ..)| Some(*of) == *id);
                assert!(came.count() >= 8, "seed {seed}: {flow:?}");
            }
        }
        assert_eq!(world.lost(), [], "seed {seed}");
        let at = world.using().unwrap().to_string();
        assert_eq!(world.tunnel(&at).len(), 4, "seed {seed}");
        world.gateway.stop();
        world.run(secs(1));
        assert!(world.tunnel(&at).is_empty(), "seed {seed}");
        assert_eq!(world.gateway.poll_timeout(), None);
    }
}
