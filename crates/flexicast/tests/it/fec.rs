//! Repair symbols on the flow: what they save, what they must not do, and which receivers have them
//! (protocol.md section 5.6).

use std::time::Duration;

use bytes::Bytes;
use flexicast::authentication::{AuthenticationConfig, PacketAuthentication};
use flexicast::control::{CAPABILITY_APART_SYMBOLS, Control};
use flexicast::fec::{FecConfig, FecPolicy, FecScheme, SymbolPath};
use flexicast::flow::{FlowConfig, FlowStats};
use flexicast::forgery::{FORGERIES, Knowledge};
use flexicast::frame::{Frame, Frames};
use flexicast::message::{MAX_FRAGMENT, MAX_MESSAGE};
use flexicast::protect::{FlowSecret, PacketKey};
use flexicast::source::Faults;
use flexicast::{Rung, Via};

use crate::lab::{CHANNEL, Lab, flow_config};

const MS: Duration = Duration::from_millis(1);
const LEN: usize = 1_000;

fn config(seed: u64, fec: FecConfig) -> FlowConfig {
    FlowConfig {
        fec: Some(fec),
        ..flow_config(seed)
    }
}

fn policy(policy: FecPolicy) -> FecConfig {
    FecConfig {
        policy,
        ..FecConfig::default()
    }
}

fn lab(seed: u64, nodes: usize, fec: FecConfig) -> Lab {
    joined(Lab::with_config(seed, nodes, config(seed, fec)))
}

/// All receivers become members, before any packet is lost.
fn joined(mut lab: Lab) -> Lab {
    (0..lab.nodes.len()).for_each(|i| lab.connect(i));
    lab.run(1500 * MS);
    for (i, node) in lab.nodes.iter().enumerate() {
        let rung = node.moves.last().map(|(_, rung, _)| *rung);
        assert_eq!(rung, Some(Rung::Multicast), "receiver {i}");
    }
    lab
}

/// Publishes `bursts` of so many updates each, a packet each.
fn publish_bursts(lab: &mut Lab, bursts: usize, updates: usize, every: Duration) {
    for _ in 0..bursts {
        (0..updates).for_each(|_| lab.publish(LEN));
        lab.run(every);
    }
}

fn rebuilt(lab: &Lab, i: usize) -> u64 {
    lab.nodes[i].core.stats(CHANNEL).unwrap().reception.rebuilt
}

fn flow_stats(lab: &Lab) -> FlowStats {
    lab.source.flow(0).unwrap().stats()
}

fn all_rebuilt(lab: &Lab) -> u64 {
    (0..lab.nodes.len()).map(|i| rebuilt(lab, i)).sum()
}

/// Each scheme and policy: everything arrives, and far less of it by unicast.
#[test]
fn lost_packets_are_rebuilt_by_each_scheme_and_policy() {
    let proactive = FecPolicy::Proactive {
        symbols: 1,
        packets: 5,
    };
    let policies = [
        (FecPolicy::Tail, 2),
        (proactive, 3),
        (FecPolicy::Reactive, 3),
        (FecPolicy::Adaptive, 3),
    ];
    for (kind, saves) in policies {
        for scheme in FecScheme::ALL {
            let fec = FecConfig {
                policy: kind,
                scheme,
                ..FecConfig::default()
            };
            let mut repairs = [0; 2];
            for (with, repairs) in [false, true].into_iter().zip(&mut repairs) {
                let mut flow = config(3, fec);
                flow.fec = flow.fec.filter(|_| with);
                let mut lab = joined(Lab::with_config(3, 20, flow));
                lab.nodes.iter_mut().for_each(|node| node.loss = 3);
                publish_bursts(&mut lab, 200, 5, 30 * MS);
                lab.nodes.iter_mut().for_each(|node| node.loss = 0);
                lab.run(2000 * MS);
                lab.assert_complete(1);
                let counters = lab.source.counters();
                assert_eq!(counters.fall_backs, 0, "{fec}");
                *repairs = counters.repairs;
                let stats = flow_stats(&lab);
                assert_eq!(all_rebuilt(&lab) > 0, with, "{fec}");
                assert_eq!(stats.repair_symbols > 0, with, "{fec}");
                assert!(stats.rebuilt <= all_rebuilt(&lab), "{fec}");
            }
            println!("{fec}: {repairs:?}");
            assert!(repairs[1] * saves <= repairs[0], "{fec}: {repairs:?}");
        }
    }
}

/// A receiver that alone loses a packet of a burst has it without a round trip.
#[test]
fn a_symbol_behind_a_burst_saves_the_round_trip() {
    let mut delays = [Duration::ZERO; 2];
    for (with, longest) in [false, true].into_iter().zip(&mut delays) {
        let mut flow = config(4, policy(FecPolicy::Tail));
        flow.fec = flow.fec.filter(|_| with);
        let mut lab = Lab::with_config(4, 2, flow);
        lab.delay = 25 * MS;
        let mut lab = joined(lab);
        let first = lab.store.len();
        lab.nodes[0].loss = 2;
        for burst in 0..300 {
            publish_bursts(&mut lab, 1, 2 + burst % 5, 200 * MS);
        }
        lab.nodes[0].loss = 0;
        lab.run(2000 * MS);
        lab.assert_complete(1);
        let published = &lab.published;
        let delays = lab.nodes[0]
            .got
            .iter()
            .filter(|(seq, ..)| *seq as usize > first);
        let mut delays: Vec<_> = delays
            .map(|(seq, _, at)| *at - published[*seq as usize - 1] - 25 * MS)
            .collect();
        delays.sort_unstable();
        *longest = delays[delays.len() * 97 / 100];
    }
    println!("97th percentile {delays:?}");
    assert!(delays[1] * 10 <= delays[0] * 3, "{delays:?}");
}

/// A burst of losses takes the symbols on the flow with the packets, and none that travel on the
/// members' connections.
#[test]
fn symbols_on_connections_outlive_a_burst_of_losses() {
    let fec = |path| FecConfig {
        path,
        ..policy(FecPolicy::Proactive {
            symbols: 2,
            packets: 10,
        })
    };
    let (mut waits, mut repairs) = ([Duration::ZERO; 2], Vec::new());
    for (path, wait) in [SymbolPath::Flow, SymbolPath::Unicast]
        .into_iter()
        .zip(&mut waits)
    {
        let mut flow = config(21, fec(path));
        flow.control.max_loss = 1.0;
        let mut lab = Lab::with_config(21, 2, flow);
        lab.delay = 5 * MS;
        let mut lab = joined(lab);
        let symbols = flow_stats(&lab).repair_symbols;
        // The last two packets of each burst, and the symbols behind them, which are longer still.
        lab.drops = Some(|node, packet| node == 0 && packet.len() > LEN);
        for _ in 0..20 {
            (0..8).for_each(|_| lab.publish(LEN - 100));
            (0..2).for_each(|_| lab.publish(LEN));
            lab.run(300 * MS);
        }
        lab.drops = None;
        lab.run(2000 * MS);
        lab.assert_complete(1);
        let counters = lab.source.counters();
        assert_eq!(counters.fall_backs, 0, "{path:?}");
        assert!(flow_stats(&lab).repair_symbols > symbols, "{path:?}");
        assert_eq!(
            rebuilt(&lab, 0) >= 20,
            path == SymbolPath::Unicast,
            "{path:?}"
        );
        repairs.push(counters.repairs);
        let late = lab.nodes[0].got.iter();
        let late = late.map(|(seq, _, at)| *at - lab.published[*seq as usize - 1] - 5 * MS);
        *wait = late.max().unwrap_or_default();
    }
    println!("longest delays {waits:?}, repairs {repairs:?}");
    assert!(waits[1] * 2 < waits[0], "{waits:?}");
    assert!(repairs[0] > 0 && repairs[1] == 0, "{repairs:?}");
}

/// Each policy works on connections as it does on the flow; none of its symbols takes of the flow.
#[test]
fn each_policy_sends_symbols_on_connections() {
    for kind in [FecPolicy::Adaptive, FecPolicy::Reactive, FecPolicy::Tail] {
        let fec = FecConfig {
            path: SymbolPath::Unicast,
            ..policy(kind)
        };
        let mut lab = lab(22, 6, fec);
        // Receivers that lose nothing get none of them with the adaptive policy.
        (0..3).for_each(|i| lab.nodes[i].loss = 3);
        publish_bursts(&mut lab, 300, 5, 30 * MS);
        (0..3).for_each(|i| lab.nodes[i].loss = 0);
        lab.run(2000 * MS);
        lab.assert_complete(1);
        let (counters, stats) = (lab.source.counters(), flow_stats(&lab));
        assert_eq!(counters.fall_backs, 0, "{kind}");
        let rebuilt: Vec<_> = (0..6).map(|i| rebuilt(&lab, i)).collect();
        println!(
            "{kind}: {rebuilt:?}, {} repairs, {stats:?}",
            counters.repairs
        );
        let all: u64 = rebuilt.iter().sum();
        assert!(rebuilt[..3].iter().all(|n| *n > 10), "{kind}: {rebuilt:?}");
        assert!(counters.repairs * 2 < all, "{kind}: {all} {counters:?}");
        assert!(stats.repair_symbols > 0, "{kind}");
    }
}

/// The first packets of a key epoch are as good as any others: the symbol says where it begins.
#[test]
fn symbols_on_connections_bring_the_first_packets_of_an_epoch() {
    let fec = FecConfig {
        path: SymbolPath::Unicast,
        ..policy(FecPolicy::Tail)
    };
    let mut lab = lab(24, 2, fec);
    publish_bursts(&mut lab, 3, 1, 30 * MS);
    let before = rebuilt(&lab, 0);
    lab.source.rekey(0, FlowSecret::from([200; 32]), lab.now);
    lab.run(3000 * MS);
    // Nothing but PINGs was sent under the new key, and the receiver has none of them.
    lab.source.rekey(0, FlowSecret::from([201; 32]), lab.now);
    lab.drops = Some(|node, _| node == 0);
    let begun = lab.now;
    while flow_stats(&lab).epochs < 3 && lab.now < begun + 5000 * MS {
        lab.run(MS);
    }
    assert_eq!(flow_stats(&lab).epochs, 3);
    // One symbol of two packets, which are lost; the first packet that arrives, and its symbol.
    (0..2).for_each(|_| lab.publish(LEN));
    lab.run(8 * MS);
    lab.drops = None;
    assert_eq!(rebuilt(&lab, 0), before);
    lab.publish(LEN);
    lab.run(20 * MS);
    assert_eq!(rebuilt(&lab, 0), before + 2);
    lab.run(2000 * MS);
    lab.assert_complete(1);
}

/// Receivers that know repair symbols on the flow alone get none of the others, and are repaired.
#[test]
fn receivers_that_know_symbols_on_the_flow_alone_are_repaired() {
    let fec = FecConfig {
        path: SymbolPath::Unicast,
        ..policy(FecPolicy::Tail)
    };
    let mut lab = Lab::with_config(23, 2, config(23, fec));
    lab.hides = vec![CAPABILITY_APART_SYMBOLS];
    let mut lab = joined(lab);
    lab.nodes.iter_mut().for_each(|node| node.loss = 5);
    publish_bursts(&mut lab, 100, 5, 30 * MS);
    lab.nodes.iter_mut().for_each(|node| node.loss = 0);
    lab.run(2000 * MS);
    lab.assert_complete(1);
    assert_eq!((all_rebuilt(&lab), flow_stats(&lab).repair_symbols), (0, 0));
    assert!(lab.source.counters().repairs > 10);
}

/// Symbols begin as soon as the first losses are reported, whenever members were looked at before:
/// until then each loss costs a repair, and a round trip.
#[test]
fn symbols_begin_with_the_first_losses() {
    for idle in 0..5 {
        let mut lab = lab(6, 20, policy(FecPolicy::Adaptive));
        lab.run(idle * 45 * MS);
        lab.nodes.iter_mut().for_each(|node| node.loss = 10);
        let (mut begun, step) = (Duration::ZERO, 5 * MS);
        while flow_stats(&lab).repair_symbols == 0 && begun < 1_000 * MS {
            lab.publish(LEN);
            lab.run(step);
            begun += step;
        }
        assert!(begun < 150 * MS, "{begun:?}, {idle}");
    }
}

/// Rate control sees what was lost on the way, whether it was rebuilt or not (RFC 9265).
#[test]
fn rebuilt_packets_count_as_lost() {
    for sabotaged in [false, true] {
        let fec = policy(FecPolicy::Proactive {
            symbols: 1,
            packets: 4,
        });
        let mut lab = Lab::with_config(5, 1, config(5, fec));
        // A packet that another overtakes may be rebuilt before it arrives.
        lab.jitter = Duration::ZERO;
        let mut lab = joined(lab);
        lab.nodes[0].core.set_rebuilt_proves(sabotaged);
        lab.nodes[0].loss = 5;
        publish_bursts(&mut lab, 200, 4, 25 * MS);
        let (counters, losses) = (lab.source.counters(), rebuilt(&lab, 0));
        assert_eq!(counters.fall_backs, 0);
        let seen = flow_stats(&lab).rebuilt;
        assert!(losses > 20, "{losses}");
        assert!(counters.repairs * 3 < losses, "{counters:?}");
        assert_eq!(seen * 2 > losses, !sabotaged, "{seen} of {losses}");
    }
}

/// A rebuilt packet proves nothing, neither a rung nor that a member is there.
#[test]
fn an_update_that_was_rebuilt_came_by_the_flow() {
    let mut lab = lab(6, 1, policy(FecPolicy::Tail));
    let second = |_: usize, packet: &[u8]| (LEN..LEN + 40).contains(&packet.len());
    lab.publish(LEN);
    lab.run(500 * MS);
    lab.drops = Some(second);
    lab.publish(LEN);
    lab.run(60 * MS);
    let (seq, via, _) = *lab.nodes[0].got.last().unwrap();
    assert_eq!((seq, via, rebuilt(&lab, 0)), (2, Via::Flow, 1));
}

/// Old receivers stay members and lose nothing; the flow is for both.
#[test]
fn receivers_without_fec_are_members_like_others() {
    let mut lab = Lab::with_config(7, 4, config(7, policy(FecPolicy::Adaptive)));
    lab.rebuilds = false;
    (4..8).for_each(|i| lab.add_node(i, None));
    let mut lab = joined(lab);
    lab.nodes.iter_mut().for_each(|node| node.loss = 5);
    publish_bursts(&mut lab, 200, 5, 30 * MS);
    lab.nodes.iter_mut().for_each(|node| node.loss = 0);
    lab.run(2000 * MS);
    lab.assert_complete(1);
    let counters = lab.source.counters();
    assert_eq!(counters.fall_backs, 0);
    assert!((0..4).all(|i| rebuilt(&lab, i) > 10));
    assert!((4..8).all(|i| rebuilt(&lab, i) == 0));
    let of = |nodes: std::ops::Range<usize>| -> usize {
        let got = nodes.flat_map(|i| &lab.nodes[i].got);
        got.filter(|(_, via, _)| *via != Via::Flow).count()
    };
    assert!(of(0..4) * 3 < of(4..8), "{} and {}", of(0..4), of(4..8));
}

/// Packets that are rebuilt on a flow whose packets are authenticated.
#[test]
fn authenticated_flows_rebuild_what_is_lost() {
    for packets in [
        PacketAuthentication::Signature,
        PacketAuthentication::Tags,
        PacketAuthentication::Stream,
    ] {
        let proactive = FecPolicy::Proactive {
            symbols: 1,
            packets: 5,
        };
        let flow = FlowConfig {
            authentication: Some(AuthenticationConfig {
                packets,
                secret: FlowSecret::from([0x5a; 32]),
            }),
            ..config(12, policy(proactive))
        };
        let mut lab = joined(Lab::with_config(12, 6, flow));
        lab.nodes.iter_mut().for_each(|node| node.loss = 4);
        publish_bursts(&mut lab, 150, 5, 30 * MS);
        lab.nodes.iter_mut().for_each(|node| node.loss = 0);
        lab.run(2000 * MS);
        lab.assert_complete(1);
        let counters = lab.source.counters();
        assert_eq!(counters.fall_backs, 0, "{packets:?}");
        let rebuilt = all_rebuilt(&lab);
        assert!(counters.repairs * 3 < rebuilt, "{rebuilt}: {counters:?}");
    }
}

/// A forged repair symbol rebuilds nothing that is handed on, and makes no member leave.
#[test]
fn forged_symbols_move_no_member() {
    const KEY: u8 = 7;
    let mut lab = Lab::new(13, 4);
    lab.sign_with(KEY);
    let mut lab = joined(lab);
    lab.hostile = true;
    lab.nodes.iter_mut().for_each(|node| node.loss = 5);
    let forgeries = FORGERIES
        .iter()
        .filter(|(name, _)| name.contains("repair symbol"));
    let forgeries: Vec<_> = forgeries.map(|(_, forge)| *forge).collect();
    assert_eq!(forgeries.len(), 2);
    let unsigned = |seq| Lab::content(seq, LEN);
    for round in 0..400 {
        let (last, seq) = (lab.store.last().cloned(), lab.store.len() as u64 + 1);
        let known = Knowledge {
            seq,
            pn: lab.next_pn(),
            last: &last.unwrap_or_default(),
            changed: &[],
            unsigned: &unsigned,
            signed: &unsigned,
        };
        // The number of the source's own next packet: its content is taken as well.
        let packets = forgeries.iter().filter_map(|forge| forge(&known));
        for forged in packets.filter(|_| round % 4 == 3).collect::<Vec<_>>() {
            let pn = forged.pn.min(lab.next_pn());
            let packet = lab.forge(13, pn, false, &forged.frames);
            (0..4).for_each(|i| lab.inject(i, packet.clone()));
        }
        lab.publish(LEN);
        lab.run(10 * MS);
    }
    lab.nodes.iter_mut().for_each(|node| node.loss = 0);
    lab.run(30_000 * MS);
    lab.assert_complete(1);
    for (i, node) in lab.nodes.iter().enumerate() {
        assert_eq!(node.moves.len(), 1, "receiver {i}: {:?}", node.moves);
        assert_eq!(node.closes, []);
    }
}

/// A message that takes a whole packet is sent while packets are protected, and holds up nothing.
#[test]
fn the_longest_message_is_sent_under_each_policy() {
    for kind in [FecPolicy::Tail, FecPolicy::Reactive, FecPolicy::Adaptive] {
        let mut lab = lab(14, 3, policy(kind));
        lab.nodes.iter_mut().for_each(|node| node.loss = 5);
        publish_bursts(&mut lab, 100, 4, 30 * MS);
        lab.nodes.iter_mut().for_each(|node| node.loss = 0);
        let message = vec![7; MAX_MESSAGE];
        let fragments = MAX_MESSAGE.div_ceil(MAX_FRAGMENT) as u64;
        lab.source.send_message(0, 1, &message, lab.now).unwrap();
        let (sent, first) = (lab.flow_packets, lab.store.len() as u64 + 1);
        lab.publish(LEN);
        lab.run(500 * MS);
        let packets = lab.flow_packets - sent;
        assert!(packets < fragments + 30, "{kind}: {packets}");
        let sent = flow_stats(&lab).datagrams;
        assert!((fragments..fragments + 3).contains(&sent), "{kind}: {sent}");
        for node in &lab.nodes {
            assert_eq!(node.messages, [(1, Bytes::from(message.clone()))], "{kind}");
            assert_eq!(node.got.last().map(|(seq, ..)| *seq), Some(first), "{kind}");
        }
    }
}

/// Without losses nothing is sent, and packets are as large as without.
#[test]
fn an_adaptive_flow_without_losses_is_as_one_without_symbols() {
    let mut sent = Vec::new();
    for fec in [None, Some(FecConfig::default())] {
        let flow = FlowConfig {
            fec,
            ..flow_config(8)
        };
        let mut lab = joined(Lab::with_config(8, 10, flow));
        for _ in 0..50 {
            lab.publish(20_000);
            lab.run(50 * MS);
        }
        lab.run(500 * MS);
        lab.assert_complete(1);
        let stats = flow_stats(&lab);
        assert_eq!(stats.repair_symbols, 0);
        sent.push((stats.packets, stats.bytes));
    }
    assert_eq!(sent[0], sent[1]);
}

/// Symbols of a window, as a holder of the second key alone reads them.
fn windows_after_rekey(sabotaged: bool) -> Vec<(u64, u64)> {
    let proactive = FecPolicy::Proactive {
        symbols: 1,
        packets: 8,
    };
    let mut lab = lab(9, 3, policy(proactive));
    lab.source.inject_faults(Faults {
        window_across_epochs: sabotaged,
        ..Faults::default()
    });
    lab.recording = true;
    (0..4).for_each(|_| lab.publish(LEN));
    lab.run(MS);
    let secret = FlowSecret::from([200; 32]);
    lab.source.rekey(0, secret.clone(), lab.now);
    let mut windows = Vec::new();
    // A member that does not confirm the key delays the switch, until hardly any number is left
    // out.
    lab.nodes[0].says = Some(|frame| !matches!(frame, Control::State(_)));
    for _ in 0..3500 {
        lab.publish(100);
        lab.run(MS / 5);
    }
    lab.run(3000 * MS);
    lab.assert_complete(1);
    let mut key = PacketKey::new(lab.config.algorithm, &secret).unwrap();
    let begin = lab.source.flow(0).unwrap().epoch().first_pn;
    for mut packet in std::mem::take(&mut lab.recorded) {
        let Ok(opened) = key.open(begin, &mut packet) else {
            continue;
        };
        for frame in Frames::new(opened.frames).flatten() {
            if let Frame::Repair { symbol } = frame {
                let (header, _) = erasure::RepairHeader::parse(symbol).unwrap();
                windows.push((header.window.first(), begin));
            }
        }
    }
    windows
}

/// A receiver that joins a private channel must not rebuild what was sent before.
#[test]
fn no_window_reaches_into_an_older_key_epoch() {
    let windows = windows_after_rekey(false);
    assert!(windows.len() > 10);
    assert!(windows.iter().all(|(first, begin)| first >= begin));
    let windows = windows_after_rekey(true);
    assert!(
        windows.iter().any(|(first, begin)| first < begin),
        "the fault shows"
    );
}

/// Whoever joins within a window lacks most of its packets, and needs none of them.
#[test]
fn a_receiver_that_joins_within_a_window_gets_everything_once() {
    let mut lab = lab(
        10,
        3,
        policy(FecPolicy::Proactive {
            symbols: 1,
            packets: 8,
        }),
    );
    lab.add_node(3, None);
    lab.nodes.iter_mut().for_each(|node| node.loss = 4);
    for step in 0..300 {
        lab.publish(LEN);
        if step == 50 {
            lab.connect(3);
        }
        lab.run(3 * MS);
    }
    lab.nodes.iter_mut().for_each(|node| node.loss = 0);
    lab.run(2000 * MS);
    lab.assert_complete(1);
    let rung = lab.nodes[3].moves.last().map(|(_, rung, _)| *rung);
    assert_eq!(rung, Some(Rung::Multicast));
    assert!(rebuilt(&lab, 3) > 0);
}

/// Bursts of loss, longer than what symbols make good, and shared ones.
#[test]
fn bursts_of_loss_are_repaired_after_the_symbols() {
    for kind in [FecPolicy::Adaptive, FecPolicy::Reactive, FecPolicy::Tail] {
        let mut lab = lab(11, 5, policy(kind));
        for round in 0..60 {
            (0..4).for_each(|_| lab.publish(LEN));
            let loss = if round % 6 == 5 { 100 } else { 0 };
            lab.nodes[round % 5].loss = loss;
            (0..6).for_each(|_| lab.publish(LEN));
            lab.run(MS);
            lab.nodes[round % 5].loss = 0;
            lab.run(40 * MS);
        }
        lab.run(2000 * MS);
        lab.assert_complete(1);
        assert_eq!(lab.source.counters().fall_backs, 0, "{kind}");
    }
}
