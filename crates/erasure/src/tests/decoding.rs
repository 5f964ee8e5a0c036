//! A decoder's answers, packet by packet.

use super::{Random, encoder_of, rebuilt, repairs_of};
use crate::{Decoder, Event, Gain, Intake, MAX_UNKNOWNS, RepairError, Scheme};

#[test]
fn equations_wait_for_packets_and_for_each_other() {
    let packets = Random(9).packets(0, 10, 50);
    let repairs = repairs_of(&mut encoder_of(Scheme::ReedSolomon, &packets), 4);
    let mut decoder = Decoder::new(64, 0);
    for (pn, packet) in packets.range(3..) {
        assert_eq!(decoder.on_packet(*pn, packet), Intake::New);
        assert_eq!(decoder.on_packet(*pn, packet), Intake::Repeat);
    }
    assert_eq!(decoder.on_repair(&repairs[0]), Ok(Gain::New));
    assert_eq!(decoder.unknowns(), (3, 1));
    assert_eq!(decoder.on_repair(&repairs[0]), Ok(Gain::Redundant));
    assert_eq!(decoder.on_repair(&repairs[1]), Ok(Gain::New));
    assert_eq!((decoder.unknowns(), decoder.poll_event()), ((3, 2), None));
    // The packet was overtaken, and is as good as another repair symbol.
    assert_eq!(decoder.on_packet(1, &packets[&1]), Intake::New);
    let both = [0, 2].map(|pn| (pn, packets[&pn].clone()));
    assert_eq!(rebuilt(&mut decoder), both.into());
    assert_eq!((decoder.unknowns(), decoder.held()), ((0, 0), 10));
    assert_eq!(decoder.on_repair(&repairs[2]), Ok(Gain::Redundant));
    assert_eq!(decoder.on_packet(0, &packets[&0]), Intake::Repeat);
}

/// A rebuilt packet takes part in rebuilding others.
#[test]
fn rebuilt_packets_rebuild_others() {
    let packets = Random(10).packets(0, 4, 50);
    let pairs = [&[0, 1][..], &[1, 2], &[2, 3]].map(|pair| {
        let of = pair.iter().map(|pn| (*pn, packets[pn].clone())).collect();
        repairs_of(&mut encoder_of(Scheme::Xor, &of), 1).remove(0)
    });
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut decoder = Decoder::new(64, 0);
        for i in order {
            // The length of a packet that is missing may be more than that of the one it is with.
            decoder.on_repair(&pairs[i]).unwrap();
        }
        assert_eq!(decoder.unknowns(), (4, 3));
        decoder.on_packet(0, &packets[&0]);
        assert_eq!(rebuilt(&mut decoder).len(), 3);
    }
}

/// Beyond 16 missing packets the oldest make room, and no more equations than needed go with them.
#[test]
fn the_oldest_unknowns_make_room() {
    let packets = Random(11).packets(0, 60, 50);
    let repairs = |range| {
        let packets = packets
            .range(range)
            .map(|(pn, packet)| (*pn, packet.clone()));
        repairs_of(&mut encoder_of(Scheme::ReedSolomon, &packets.collect()), 16)
    };
    let (old, new) = (repairs(0..10), repairs(20..36));
    let mut decoder = Decoder::new(64, 0);
    for repair in &old[..9] {
        assert_eq!(decoder.on_repair(repair), Ok(Gain::New));
    }
    assert_eq!(decoder.unknowns(), (10, 9));
    for pn in 22..36 {
        decoder.on_packet(pn, &packets[&pn]);
    }
    assert_eq!(decoder.on_repair(&new[0]), Ok(Gain::New));
    assert_eq!(decoder.unknowns(), (12, 10));
    // Still solvable: only what had to go went.
    assert_eq!(decoder.on_repair(&old[9]), Ok(Gain::New));
    assert_eq!(rebuilt(&mut decoder).len(), 10);

    let mut decoder = Decoder::new(64, 0);
    for repair in &old[..9] {
        decoder.on_repair(repair).unwrap();
    }
    for repair in &new {
        assert_eq!(decoder.on_repair(repair), Ok(Gain::New));
        assert!(decoder.unknowns().0 <= MAX_UNKNOWNS);
    }
    assert_eq!(rebuilt(&mut decoder).len(), 16);
    assert_eq!(decoder.unknowns(), (0, 0));

    // Four of ten have to go, and four equations with them; the other five still count.
    let six = repairs(40..46);
    let mut decoder = Decoder::new(64, 0);
    for repair in old[..9].iter().chain(&six[..1]) {
        decoder.on_repair(repair).unwrap();
    }
    assert_eq!(decoder.unknowns(), (16, 10));
    decoder.on_repair(&repairs(50..54)[0]).unwrap();
    assert_eq!(decoder.unknowns(), (16, 7));
    for pn in 0..4 {
        decoder.on_packet(pn, &packets[&pn]);
    }
    for pn in 4..5 {
        decoder.on_packet(pn, &packets[&pn]);
    }
    let rebuilt = rebuilt(&mut decoder);
    assert!(rebuilt.keys().eq(&[5, 6, 7, 8, 9]), "{:?}", rebuilt.keys());
}

#[test]
fn repair_symbols_that_are_of_no_use_are_refused() {
    let packets = Random(12).packets(0, 40, 50);
    let repair = repairs_of(&mut encoder_of(Scheme::Rlc, &packets), 1).remove(0);
    assert_eq!(
        Decoder::new(39, 0).on_repair(&repair),
        Err(RepairError::Span(40))
    );
    assert_eq!(
        Decoder::new(40, 1).on_repair(&repair),
        Err(RepairError::Epoch(0))
    );
    let mut decoder = Decoder::new(40, 0);
    for (pn, packet) in packets.range(17..) {
        decoder.on_packet(*pn, packet);
    }
    assert_eq!(decoder.on_repair(&repair), Err(RepairError::Unknowns));
    decoder.on_packet(0, &packets[&0]);
    assert_eq!(decoder.on_repair(&repair), Ok(Gain::New));
    assert_eq!(decoder.unknowns(), (16, 1));

    let mut decoder = Decoder::new(40, 0);
    decoder.on_packet(7, &[1; 51]);
    assert_eq!(decoder.on_repair(&repair), Err(RepairError::Short(7)));
}

/// A symbol that the coefficients of none contradicts is not kept.
#[test]
fn contradictions_are_seen() {
    let packets = Random(13).packets(0, 10, 50);
    let repairs = repairs_of(&mut encoder_of(Scheme::ReedSolomon, &packets), 3);
    let mut forged = repairs[0].clone();
    *forged.last_mut().unwrap() ^= 1;
    let mut decoder = Decoder::new(64, 0);
    for (pn, packet) in packets.range(2..) {
        decoder.on_packet(*pn, packet);
    }
    decoder.on_repair(&repairs[0]).unwrap();
    assert_eq!(decoder.on_repair(&forged), Err(RepairError::Contradiction));
    assert_eq!(decoder.unknowns(), (2, 1));
    decoder.on_repair(&repairs[1]).unwrap();
    assert_eq!(rebuilt(&mut decoder).len(), 2);

    // A forged one that came first: the packets that arrive show it.
    let mut decoder = Decoder::new(64, 0);
    for (pn, packet) in packets.range(1..9) {
        decoder.on_packet(*pn, packet);
    }
    decoder.on_repair(&forged).unwrap();
    decoder.on_repair(&repairs[1]).unwrap();
    // The two packets have other bytes now, or such as no packet has.
    while decoder.poll_event().is_some() {}
    for pn in [0, 9] {
        let intake = decoder.on_packet(pn, &packets[&pn]);
        assert!(
            matches!(intake, Intake::Contradiction | Intake::New),
            "{intake:?}"
        );
        // What arrived is what is held.
        assert_eq!(decoder.on_packet(pn, &packets[&pn]), Intake::Repeat);
    }
}

/// A forged packet among genuine repair symbols makes others that no packet has.
#[test]
fn forged_packets_do_not_rebuild_any() {
    let packets = Random(14).packets(0, 10, 50);
    let repairs = repairs_of(&mut encoder_of(Scheme::ReedSolomon, &packets), 2);
    let mut decoder = Decoder::new(64, 0);
    for (pn, packet) in packets.range(3..) {
        decoder.on_packet(*pn, packet);
    }
    for repair in &repairs {
        decoder.on_repair(repair).unwrap();
    }
    assert_eq!(decoder.unknowns(), (3, 2));
    decoder.on_packet(0, b"forged");
    for _ in 0..2 {
        assert!(matches!(decoder.poll_event(), Some(Event::Invalid { .. })));
    }
    assert_eq!((decoder.poll_event(), decoder.unknowns()), (None, (0, 0)));
}

/// Bytes that are determined and are those of no packet: of no length, longer than the symbol, with
/// other padding.
#[test]
fn invalid_packets_are_dropped() {
    for symbol in [
        &[0, 0, 0][..],
        &[0, 2, 1],
        &[0, 1, 7, 1],
        &[5, 219, 1],
        &[255, 255, 1],
    ] {
        let header = [0x10, 0, 0, 7, 0];
        let mut decoder = Decoder::new(64, 0);
        let repair = [&header, symbol].concat();
        assert_eq!(decoder.on_repair(&repair), Ok(Gain::New));
        assert_eq!(decoder.poll_event(), Some(Event::Invalid { pn: 7 }));
        assert_eq!((decoder.held(), decoder.unknowns()), (0, (0, 0)));
        // The packet itself is as welcome as before.
        let valid = [&header[..], &[0, 1, 7]].concat();
        assert_eq!(decoder.on_repair(&valid), Ok(Gain::New));
        assert_eq!(rebuilt(&mut decoder), [(7, vec![7])].into());
    }
}
