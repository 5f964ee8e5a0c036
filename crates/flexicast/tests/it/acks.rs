//! Acknowledgement rates of members (protocol.md sections 4.5 and 4.9).

use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::ack::PathAck;
use flexicast::flow::{FlowConfig, FlowSender, RateControl};
use flexicast::{Cause, PathId, Rung};

use crate::lab::{Lab, flow_config};

const MS: Duration = Duration::from_millis(1);
/// The delay that a source announces for 1,000 members.
const DELAY: Duration = Duration::from_millis(50);
const MEMBERS: u64 = 1000;
const BUDGET: u64 = 20_000;

/// Some of 1,000 members, at 1,000 packets a second: each acknowledges once per announced delay on
/// average, so all of them together keep the budget.
#[test]
fn a_thousand_members_keep_the_budget_of_acknowledgements() {
    const NODES: u64 = 10;
    const SECONDS: u64 = 5;
    for seed in [1, 2] {
        let config = FlowConfig {
            ack_delay: DELAY,
            // A packet for each update from the first one on.
            control: RateControl::fixed(),
            ..flow_config(seed)
        };
        let mut lab = Lab::with_config(seed, NODES as usize, config);
        (0..NODES as usize).for_each(|i| lab.connect(i));
        lab.run(500 * MS);
        (0..NODES as usize)
            .for_each(|i| assert_eq!(lab.moves(i), [(Rung::Multicast, Cause::Joined)]));
        let (acks, packets) = (lab.acks, lab.flow_packets);
        for _ in 0..SECONDS * 1000 {
            lab.publish(900);
            lab.run(MS);
        }
        assert_eq!(lab.flow_packets - packets, SECONDS * 1000);
        let all = (lab.acks - acks) * MEMBERS / NODES / SECONDS;
        assert!(
            (BUDGET * 9 / 10..=BUDGET).contains(&all),
            "{all} acknowledgements a second"
        );
        (0..NODES as usize).for_each(|i| assert_eq!(lab.moves(i).len(), 1, "still a member"));
    }
}

/// Returns the time that a flow waits for a member that acknowledges nothing, with a packet each
/// 100 ms.
fn patience(ack_delay: Duration) -> Duration {
    let (start, path) = (Instant::now(), PathId::new(1, Rung::Multicast));
    let mut flow = FlowSender::new(flow_config(1)).unwrap();
    flow.set_listeners(1, start);
    flow.admit(1, path, 20 * MS, 1, start);
    // As for more members than the delay that was asked for is enough for.
    flow.set_ack_delay(ack_delay, start);
    let mut packet = Vec::new();
    for tick in 0..60_000 {
        let now = start + MS * tick;
        if tick % 100 == 0 {
            flow.push(u64::from(tick / 100) + 1, Bytes::from_static(b"update"));
        }
        flow.handle_timeout(now);
        while flow.poll_transmit(now, &mut packet) {}
        if flow.members() == 0 {
            return now - start;
        }
        // It has acknowledged something before.
        if tick == 30 {
            let ack = PathAck {
                path,
                delay: Duration::ZERO,
                ranges: std::iter::once(0..1).collect(),
                ecn: None,
                rebuilt: Vec::new(),
            };
            flow.on_ack(1, &ack, now).unwrap();
        }
    }
    panic!("still a member");
}

/// A delay that many members have made long leaves room for acknowledgements that get lost, and
/// for the delay itself, however many heartbeats that is.
#[test]
fn a_long_delay_is_no_silence() {
    let config = flow_config(1);
    let usual = patience(config.ack_delay);
    assert!((250..320).contains(&usual.as_millis()), "{usual:?}");
    for delay in [50 * MS, 500 * MS, 5_000 * MS] {
        let long = patience(delay);
        assert!(long >= delay * 3 && long < delay * 4 + usual, "{long:?}");
    }
}

/// Returns the times of PINGs in the second after an update that no member acknowledges, with an
/// acknowledgement delay that many members have made long.
fn pings_after_an_update(ack_delay: Duration) -> Vec<u32> {
    let (start, path) = (Instant::now(), PathId::new(1, Rung::Multicast));
    let mut flow = FlowSender::new(flow_config(1)).unwrap();
    flow.set_listeners(1, start);
    flow.admit(1, path, 20 * MS, 1, start);
    flow.set_ack_delay(ack_delay, start);
    let (mut packet, mut pings) = (Vec::new(), Vec::new());
    // After the time in which PINGs help with proofs.
    const SENT: u32 = 1500;
    for tick in 0..SENT + 900 {
        let now = start + MS * tick;
        if tick == SENT {
            flow.push(1, Bytes::from_static(b"update"));
        }
        flow.handle_timeout(now);
        let before = flow.stats().pings;
        while flow.poll_transmit(now, &mut packet) {}
        if tick > SENT && flow.stats().pings > before {
            pings.push(tick - SENT);
        }
        // The others are acknowledged at once.
        if tick < SENT && flow.next_pn() > 0 {
            let ack = PathAck {
                path,
                delay: Duration::ZERO,
                ranges: std::iter::once(0..flow.next_pn()).collect(),
                ecn: None,
                rebuilt: Vec::new(),
            };
            flow.on_ack(1, &ack, now).unwrap();
        }
    }
    pings
}

/// The first PING shows a lost update soon. Others before it can be acknowledged show nothing.
#[test]
fn trailing_pings_follow_the_acknowledgement_delay() {
    let usual = pings_after_an_update(25 * MS);
    assert!(usual.len() >= 3 && usual[0] <= 50, "{usual:?}");
    let rare = pings_after_an_update(400 * MS);
    assert!((1..=3).contains(&rare.len()) && rare[0] <= 50, "{rare:?}");
    assert!(
        rare.windows(2).all(|two| two[1] - two[0] >= 400),
        "{rare:?}"
    );
}
