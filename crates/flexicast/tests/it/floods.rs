//! Floods of forged packets: members of a signed flow step back while they last, which costs the
//! others nothing, and return.

use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{Action, CAPABILITY_SIGNATURES, Control, State};
use flexicast::forgery::{FORGERIES, Forge};
use flexicast::frame::{put_ping, put_stream};
use flexicast::receiver::Rungs;
use flexicast::source::{Source, SourceEvent};
use flexicast::{Cause, PathId, Rung, Via};

use crate::lab::{CHANNEL, Lab, flow_config, signed};
use crate::signed::{
    KEY, LEN, MS, NODES, SEED, forge, inject, inject_frames, members, next_seq, replicating_source,
    said, signer, welcome,
};

/// An update of this number with all right but its signature.
fn forged(seq: u64) -> Vec<u8> {
    let mut forged = signed(&signer(KEY), seq, b"");
    forged
        .iter_mut()
        .last()
        .into_iter()
        .for_each(|last| *last ^= 1);
    forged
}

/// All members get so many forged headers at once, of the next 64 updates in turn.
fn flood(lab: &mut Lab, count: u64) {
    for n in 0..count {
        let seq = next_seq(lab) + n % 64;
        inject(lab, seq, 0, &forged(seq), true);
    }
}

/// Each forged header may cost a check of its signature. Receivers pay for a bounded number of
/// them, are served by unicast meanwhile, and return soon after the attack.
#[test]
fn a_flood_of_forged_headers_costs_few_checks_and_no_update() {
    const ATTACK: u64 = 3;
    const PER_MS: u64 = 10;
    let mut lab = members();
    for ms in 0..ATTACK * 1000 {
        for n in 0..PER_MS {
            let seq = next_seq(&lab) + n;
            inject(&mut lab, seq, 0, &forged(seq), true);
        }
        if ms % 30 == 0 {
            lab.publish(LEN);
        }
        lab.run(MS);
    }
    let end = lab.elapsed();
    for (i, node) in lab.nodes.iter().enumerate() {
        let stats = node.core.stats(CHANNEL).unwrap().reception;
        let sent = ATTACK * 1000 * PER_MS;
        // A burst for each attempt to return, and what each second allows.
        let most = (512 + 1000) * ATTACK;
        assert!(
            (512..=most).contains(&stats.forged),
            "receiver {i} checked {} of {sent}",
            stats.forged
        );
    }
    for _ in 0..100 {
        lab.publish(LEN);
        lab.run(100 * MS);
    }
    lab.assert_complete(1);
    for (i, node) in lab.nodes.iter().enumerate() {
        assert_eq!(node.closes, [], "receiver {i} stays connected");
        let moves = lab.moves(i);
        assert!(moves.contains(&(Rung::Unicast, Cause::Forged)), "{moves:?}");
        let (at, rung, _) = node.moves.last().copied().unwrap();
        assert_eq!(rung, Rung::Multicast, "receiver {i} is back");
        let after = at.saturating_sub(end);
        assert!(after <= 6_000 * MS, "receiver {i} is back {after:?} later");
        // No update waits for the next attempt.
        for (seq, via, got) in &node.got {
            let late = got.saturating_sub(lab.published[*seq as usize - 1]);
            assert!(
                late <= 100 * MS,
                "receiver {i} got {seq} {via} {late:?} later"
            );
        }
    }
    assert!(lab.source.counters().forged_reports >= NODES as u64);
    assert_eq!(lab.forgeries, [], "the moves are the reports");
}

/// Nothing of a signed flow that makes no sense was handed on: it is tried again soon. The source
/// sends no such packets, so they are forged.
#[test]
fn a_signed_flow_with_invalid_frames_is_left_while_they_last() {
    let mut lab = members();
    for _ in 0..100 {
        // CRYPTO has no place on a flow.
        let pn = lab.next_pn() + 1;
        inject_frames(&mut lab, pn, &[0x06, 0, 0]);
    }
    lab.run(100 * MS);
    let left = (Rung::Unicast, Cause::Forged);
    let back = (Rung::Multicast, Cause::Joined);
    for i in 0..NODES {
        assert_eq!(lab.moves(i), [back, left], "receiver {i}");
    }
    for _ in 0..30 {
        lab.publish(LEN);
        lab.run(100 * MS);
    }
    lab.assert_complete(1);
    for i in 0..NODES {
        assert_eq!(lab.moves(i), [back, left, back], "receiver {i}");
    }
    assert_eq!(lab.source.counters().forged_reports, NODES as u64);
    assert_eq!(lab.forgeries, [], "the moves are the reports");
}

/// Bytes that are no header of the update's cost nothing to tell.
#[test]
fn a_flood_of_bytes_that_are_no_header_moves_no_receiver() {
    let mut lab = members();
    lab.publish(LEN);
    for n in 0..300 {
        let mut frames = Vec::new();
        let seq = next_seq(&lab);
        while put_stream(&mut frames, 1100, seq, 0, b"x", false).is_some() {}
        // A number that was sent: another one would be acknowledged.
        let pn = lab.next_pn() - 1;
        inject_frames(&mut lab, pn, &frames);
        if n % 3 == 0 {
            lab.publish(LEN);
        }
        lab.run(10 * MS);
    }
    lab.run(1_000 * MS);
    lab.assert_complete(1);
    for (i, node) in lab.nodes.iter().enumerate() {
        assert_eq!(
            lab.moves(i),
            [(Rung::Multicast, Cause::Joined)],
            "receiver {i}"
        );
        let counted = node.core.stats(CHANNEL).unwrap().reception.forged;
        assert!(counted > 60_000, "receiver {i} got {counted}");
        assert!(
            node.got.iter().all(|got| got.1 == Via::Flow),
            "receiver {i}"
        );
    }
}

/// Receivers that leave ask for what may have been lost to forgeries. That takes them longer than
/// they stay away, and is no reason to send them away again.
#[test]
fn members_that_left_stay_when_they_are_back() {
    for every in [5, 25, 100, 2_000] {
        let mut lab = members();
        flood(&mut lab, 600);
        lab.run(6 * MS);
        for _ in 0..20_000 / every {
            lab.publish(LEN);
            lab.run(Duration::from_millis(every));
        }
        lab.run(1_000 * MS);
        lab.assert_complete(1);
        let (left, back) = (
            (Rung::Unicast, Cause::Forged),
            (Rung::Multicast, Cause::Joined),
        );
        for i in 0..NODES {
            assert_eq!(
                lab.moves(i),
                [back, left, back],
                "receiver {i}, every {every} ms"
            );
        }
        let needs = lab.source.counters().needs;
        assert!(needs > 16 * NODES as u64, "{needs} NEEDs, every {every} ms");
        assert_eq!(lab.forgeries, [], "the moves are the reports");
        assert_eq!(lab.source.counters().rekeys, 0, "none has gone");
    }
}

/// Forged packet numbers 2^32 ahead make no true ones unreadable, also for a receiver that is no
/// member, and so gets no FC_RUNG.
#[test]
fn forged_numbers_far_ahead_have_no_effect() {
    let mut lab = Lab::new(SEED, NODES);
    lab.hostile = true;
    lab.sign_with(KEY);
    for i in 0..NODES {
        lab.nodes[i].says =
            Some(|frame| !matches!(frame, Control::State(state) if state.action == Action::Ready));
        lab.connect(i);
    }
    lab.run(500 * MS);
    for ahead in [(1 << 31) - 2, (1 << 32) - 4] {
        let pn = lab.next_pn() + ahead;
        inject_frames(&mut lab, pn, &[1]);
    }
    lab.run(50 * MS);
    for i in 0..NODES {
        let forged = lab.nodes[i].core.stats(CHANNEL).unwrap().reception.forged;
        assert!(forged >= 1, "receiver {i}");
        assert!(lab.moves(i).is_empty(), "receiver {i} was no member");
        lab.nodes[i].says = None;
    }
    for _ in 0..100 {
        lab.publish(LEN);
        lab.run(100 * MS);
    }
    lab.assert_complete(1);
    for i in 0..NODES {
        assert_eq!(
            lab.moves(i),
            [(Rung::Multicast, Cause::Joined)],
            "receiver {i}"
        );
    }
}

/// A receiver of a private channel at a source, without a lab.
struct Subscriber {
    source: Source,
    sequence: u64,
    start: Instant,
}

impl Subscriber {
    /// The receiver holds the key of a flow that has sent a packet.
    fn new() -> Self {
        let start = Instant::now();
        let mut source = replicating_source(true);
        welcome(&mut source, 1, &[CAPABILITY_SIGNATURES], start);
        let mut new = Subscriber {
            source,
            sequence: 0,
            start,
        };
        assert_eq!(new.say(Action::Join, 0, None), [1], "not used yet");
        new.say(Action::Join, 1, None);
        new.source.publish(0, 1, Bytes::from_static(b"\0{}"));
        let mut packet = Vec::new();
        assert!(new.source.poll_transmit(start, &mut packet).is_some());
        new
    }

    /// Says this. Returns the sequences of the keys that the source answers with.
    fn say(&mut self, action: Action, key_sequence: u64, cause: Option<Cause>) -> Vec<u64> {
        self.say_of(PathId::UNICAST, action, key_sequence, cause)
    }

    /// The same of this path.
    fn say_of(
        &mut self,
        path: PathId,
        action: Action,
        key_sequence: u64,
        cause: Option<Cause>,
    ) -> Vec<u64> {
        self.sequence += 1;
        let state = State {
            flow: flow_config(SEED).flow,
            sequence: self.sequence,
            action,
            path,
            key_sequence,
            cause,
            largest: None,
        };
        let mut bytes = Vec::new();
        Control::State(state).encode(&mut bytes);
        self.source.on_control(1, &bytes, self.start).unwrap();
        let sequence_of = |frame: Control| match frame {
            Control::Key(key) => Some(key.sequence),
            _ => None,
        };
        said(&mut self.source, 1)
            .into_iter()
            .filter_map(sequence_of)
            .collect()
    }

    /// Whether the source begins another key epoch within 11 s.
    fn rekeys(&mut self) -> bool {
        let later = self.start + Duration::from_secs(11);
        self.source.handle_timeout(later);
        let mut events = std::iter::from_fn(|| self.source.poll_event());
        events.any(|event| matches!(event, SourceEvent::SecretWanted { .. }))
    }
}

/// No other receiver has to take another key because one steps back, on a private channel either.
#[test]
fn a_receiver_that_steps_back_keeps_its_key() {
    let mut listener = Subscriber::new();
    let path = PathId::new(1, Rung::Multicast);
    listener.say_of(path, Action::Leave, 1, Some(Cause::Forged));
    assert_eq!(listener.say(Action::Join, 1, None), []);
    assert!(!listener.rekeys());
}

/// A receiver that goes costs a key epoch: also one that steps back first, and one that says with
/// its LEAVE that it does not listen any more.
#[test]
fn a_receiver_that_goes_is_locked_out() {
    let mut gone = Subscriber::new();
    gone.say(Action::Leave, 0, Some(Cause::Left));
    assert!(gone.rekeys());
    let mut gone = Subscriber::new();
    gone.say(Action::Leave, 0, Some(Cause::Left));
    assert_eq!(
        gone.say(Action::Join, 0, None),
        [],
        "the key was used meanwhile"
    );
    let mut gone = Subscriber::new();
    gone.say(Action::Leave, 1, Some(Cause::Forged));
    assert!(gone.rekeys());
    let mut gone = Subscriber::new();
    let path = PathId::new(1, Rung::Multicast);
    gone.say_of(path, Action::Leave, 1, Some(Cause::Forged));
    gone.source.closed(1, gone.start);
    assert!(gone.rekeys());
}

/// Plays an attack with these kinds, each 100 times a second, while an update is published every
/// `every` ms; returns how long after the last forged packet each receiver was a member again.
fn recovery(kinds: &[Forge], seconds: u64, every: u64) -> (Lab, Vec<Duration>) {
    let mut lab = members();
    let mut n = 0;
    let mut run = |lab: &mut Lab, seconds: u64, kinds: &[Forge]| {
        let end = n + seconds * 1000;
        while n < end {
            if n % 10 == 0 {
                for kind in kinds {
                    forge(lab, *kind);
                }
            }
            if n % every == 0 {
                lab.publish(LEN);
            }
            lab.run(MS);
            n += 1;
        }
    };
    run(&mut lab, seconds, kinds);
    let end = lab.elapsed();
    run(&mut lab, 5, &[]);
    lab.run(5_000 * MS);
    lab.assert_complete(1);
    let back = lab.nodes.iter().map(|node| {
        let (at, rung, _) = node.moves.last().copied().unwrap();
        let back = at.saturating_sub(end);
        match rung {
            Rung::Multicast => back,
            _ => Duration::MAX,
        }
    });
    let back = back.collect();
    (lab, back)
}

/// After each attack, short or long, beside few or many updates, members are members again within a
/// heartbeat; an attack that goes on moves them a few times at most.
#[test]
fn members_are_members_again_within_a_heartbeat() {
    let all = FORGERIES.map(|(_, kind)| kind);
    let alone = FORGERIES.map(|(name, kind)| (name, vec![kind], 3));
    let together = [3, 20].map(|seconds| ("all kinds", all.to_vec(), seconds));
    for (name, kinds, seconds) in alone.into_iter().chain(together) {
        for every in [17, 480] {
            let (lab, back) = recovery(&kinds, seconds, every);
            let name = format!("{name}, {seconds} s, every {every} ms");
            for (i, after) in back.iter().enumerate() {
                let moves = &lab.nodes[i].moves;
                assert!(
                    *after <= 1_000 * MS,
                    "{name}: receiver {i} {after:?} later: {moves:?}"
                );
                assert!(moves.len() <= 9, "{name}: receiver {i}: {moves:?}");
            }
            println!("{name}: {back:?}, {} moves", lab.moves(0).len());
        }
    }
}

/// Four members that a relay brings the flow.
fn relayed() -> Lab {
    let mut lab = Lab::new(SEED, 0);
    lab.hostile = true;
    lab.sign_with(KEY);
    lab.rungs = Rungs {
        amt_v4: true,
        ..Rungs::default()
    };
    for i in 0..NODES {
        lab.add_node(i, None);
        (lab.nodes[i].multicast, lab.nodes[i].relay) = (false, true);
        lab.connect(i);
    }
    lab.run(2_000 * MS);
    assert_eq!(lab.moves(0), [(Rung::Amt, Cause::Joined)]);
    lab
}

fn publish_for(lab: &mut Lab, seconds: u64) {
    for _ in 0..seconds * 10 {
        lab.publish(LEN);
        lab.run(100 * MS);
    }
}

/// Members by another rung step back and return like those by native multicast.
#[test]
fn members_by_a_relay_return_to_it() {
    let mut lab = relayed();
    flood(&mut lab, 600);
    publish_for(&mut lab, 2);
    lab.run(1_000 * MS);
    lab.assert_complete(1);
    let (left, back) = ((Rung::Unicast, Cause::Forged), (Rung::Amt, Cause::Joined));
    for i in 0..NODES {
        assert_eq!(lab.moves(i), [back, left, back], "receiver {i}");
    }
}

/// A flow that brings nothing at all after forged packets is asked for by replication.
#[test]
fn members_that_stepped_back_ask_for_replication() {
    let mut lab = Lab::new(SEED, 0);
    lab.rungs = Rungs {
        replicated: true,
        ..Rungs::default()
    };
    lab.offer_replication(SEED);
    lab.hostile = true;
    lab.sign_with(KEY);
    for i in 0..NODES {
        lab.add_node(i, None);
        lab.connect(i);
    }
    lab.run(500 * MS);
    flood(&mut lab, 600);
    lab.run(6 * MS);
    (0..NODES).for_each(|i| lab.nodes[i].multicast = false);
    publish_for(&mut lab, 5);
    lab.assert_complete(1);
    let copies = PathId::new(1, Rung::Replicated);
    for i in 0..NODES {
        assert_eq!(lab.moves(i)[1], (Rung::Unicast, Cause::Forged));
        let mut said = lab.nodes[i].said.iter();
        let asked = said.any(|(_, s)| (s.action, s.path) == (Action::Join, copies));
        assert!(asked, "receiver {i} asks for copies");
    }
}

/// One forged packet on a better rung keeps no receiver off it.
#[test]
fn a_forged_number_on_a_better_rung_is_forgotten() {
    let mut lab = relayed();
    let mut frames = Vec::new();
    put_ping(&mut frames);
    let pn = lab.next_pn() + (1 << 20);
    inject_frames(&mut lab, pn, &frames);
    lab.run(500 * MS);
    (0..NODES).for_each(|i| lab.nodes[i].multicast = true);
    publish_for(&mut lab, 20);
    lab.run(1_000 * MS);
    lab.assert_complete(1);
    for i in 0..NODES {
        let last = lab.moves(i).last().copied();
        assert_eq!(last, Some((Rung::Multicast, Cause::Joined)), "receiver {i}");
    }
}
