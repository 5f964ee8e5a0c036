//! A check that cannot fail proves nothing: each promise that is broken on purpose has to be
//! noticed.

use simulation::runner::{Plan, run};
use simulation::{Fault, Promise};

/// Within how many seeds.
const SEEDS: u64 = 150;

#[test]
fn every_broken_promise_is_noticed() {
    for fault in Fault::ALL {
        let plan = Plan {
            seeds: 0..SEEDS,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            twice: u64::from(fault == Fault::Dice),
            fault: Some(fault),
            most_violations: 8,
        };
        let summary = run(&plan, |_, _| {});
        let found: Vec<_> = summary.violations.iter().map(|v| v.promise).collect();
        let expected: &[Promise] = match fault {
            Fault::RepairOff => &[Promise::Delivery],
            Fault::DedupeOff => &[Promise::Order],
            Fault::StoreCorrupts | Fault::FlowBelieved => &[Promise::Bytes],
            Fault::NoRekey | Fault::NotPrivate | Fault::SpyGetsKey => &[Promise::Secrecy],
            Fault::WindowAcrossEpochs => &[Promise::Secrecy],
            Fault::NotToldOfAddresses => &[Promise::Reflection],
            Fault::NeverClosed => &[Promise::Memory],
            Fault::DeafTimers => &[Promise::Timers],
            Fault::LossyStreams => &[Promise::Protocol, Promise::Delivery],
            Fault::PacketsBelieved => &[Promise::Protocol, Promise::Bytes],
            Fault::RelayedIsNative | Fault::NoOtherRelay => &[Promise::Rung],
            Fault::Dice => &[Promise::Determinism],
        };
        let right = found.iter().any(|p| expected.contains(p));
        assert!(
            right,
            "{fault:?} was not noticed as it should be in {} seeds: {:?}",
            summary.runs, summary.violations
        );
        let first = summary
            .violations
            .iter()
            .find(|v| expected.contains(&v.promise));
        println!("{fault:?}: {first:?}");
    }
}
