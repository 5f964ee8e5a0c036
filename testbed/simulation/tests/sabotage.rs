//! A check that cannot fail proves nothing: each promise that is broken on purpose has to be noticed.

use simulation::runner::{Plan, run};
use simulation::{Promise, Sabotage};

/// Within how many seeds.
const SEEDS: u64 = 150;

#[test]
fn every_broken_promise_is_noticed() {
    for sabotage in Sabotage::ALL {
        let plan = Plan {
            seeds: 0..SEEDS,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            twice: u64::from(sabotage == Sabotage::Dice),
            sabotage: Some(sabotage),
            most_violations: 8,
        };
        let summary = run(&plan, |_, _| {});
        let found: Vec<_> = summary.violations.iter().map(|v| v.promise).collect();
        let expected: &[Promise] = match sabotage {
            Sabotage::RepairOff => &[Promise::Delivery],
            Sabotage::DedupeOff => &[Promise::Order],
            Sabotage::StoreCorrupts | Sabotage::FlowBelieved => &[Promise::Bytes],
            Sabotage::NoRekey | Sabotage::NotPrivate | Sabotage::SpyGetsKey => &[Promise::Secrecy],
            Sabotage::NotToldOfAddresses => &[Promise::Reflection],
            Sabotage::NeverClosed => &[Promise::Memory],
            Sabotage::DeafTimers => &[Promise::Timers],
            Sabotage::LossyStreams => &[Promise::Protocol, Promise::Delivery],
            Sabotage::RelayedIsNative | Sabotage::NoOtherRelay => &[Promise::Rung],
            Sabotage::Dice => &[Promise::Determinism],
        };
        let right = found.iter().any(|p| expected.contains(p));
        assert!(
            right,
            "{sabotage:?} was not noticed as it should be in {} seeds: {:?}",
            summary.runs, summary.violations
        );
        let first = summary
            .violations
            .iter()
            .find(|v| expected.contains(&v.promise));
        println!("{sabotage:?}: {first:?}");
    }
}
