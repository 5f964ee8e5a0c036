//! Acknowledgement rates of members (protocol.md sections 4.5 and 4.9).

use std::time::Duration;

use flexicast::flow::{FlowConfig, RateControl};
use flexicast::{Cause, Rung};

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
