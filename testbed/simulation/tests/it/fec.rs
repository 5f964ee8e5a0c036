//! A flow with repair symbols over modelled paths.

use std::time::Duration;

use flexicast::fec::{FecConfig, FecPolicy, FecScheme};
use flexicast::flow::RateControl;
use simulation::fec::*;
use simulation::{GilbertElliott, Loss};

const MS: Duration = Duration::from_millis(1);

fn plan() -> FecPlan {
    FecPlan {
        members: 20,
        plain: 0,
        fec: Some(FecConfig::default()),
        delays: (MS * 5, MS * 25),
        jitter: Duration::ZERO,
        loss: Loss::Uniform(0.02),
        shared_loss: Loss::NONE,
        single_loss: 0.0,
        traffic: Traffic {
            bursts: 300,
            every: MS * 20,
            updates: (3, 9),
            len: 1_000,
        },
        warm_up: MS * 1_000,
        control: RateControl::fixed(),
        rate: 20_000_000,
        seed: 1,
    }
}

fn repairs(plan: &FecPlan) -> (FecReport, FecReport) {
    let off = FecPlan { fec: None, ..*plan };
    (play(plan).unwrap(), play(&off).unwrap())
}

#[test]
fn few_losses_of_many_members_need_few_repairs() {
    let seen = unicast_repairs(200, 1_000, 0.01, 5_000, 1).unwrap();
    assert!(seen.with.without_repair() >= 0.95, "{:?}", seen.with);
    assert!(seen.overhead() <= 0.06, "{}", seen.overhead());
    assert!(seen.all_bytes() < 0.6, "{}", seen.all_bytes());
}

#[test]
fn slow_flows_are_not_doubled() {
    for rate in [50, 200, 500] {
        let seen = unicast_repairs(200, rate, 0.01, 1_000, 1).unwrap();
        let (share, overhead) = (seen.with.without_repair(), seen.overhead());
        assert!(share >= 0.95, "{rate} packets/s: {share}");
        assert!(overhead <= 0.6, "{rate} packets/s: {overhead}");
    }
}

#[test]
fn many_losses_of_few_members_need_few_repairs() {
    let seen = unicast_repairs(100, 1_000, 0.05, 4_000, 1).unwrap();
    assert!(seen.ratio() <= 0.1, "{:?}", seen.with);
}

#[test]
fn a_symbol_behind_each_burst_comes_before_a_repair() {
    let seen = tail_delays(1).unwrap();
    assert!(seen.with * 10 <= seen.without * 3, "{seen:?}");
}

/// Each policy and scheme saves repairs of each kind of loss, by the same path.
#[test]
fn every_kind_of_loss_is_rebuilt() {
    let bursts = Loss::GilbertElliott(GilbertElliott {
        p: 0.01,
        r: 0.4,
        k: 1.0,
        h: 0.2,
    });
    let losses = [
        (Loss::Uniform(0.02), Loss::NONE),
        (bursts, Loss::NONE),
        (Loss::NONE, Loss::Uniform(0.02)),
    ];
    let proactive = FecPolicy::Proactive {
        symbols: 2,
        packets: 10,
    };
    let policies = [FecPolicy::Adaptive, FecPolicy::Reactive, proactive];
    for policy in policies {
        for scheme in FecScheme::ALL {
            for (loss, shared_loss) in losses {
                let fec = Some(FecConfig {
                    policy,
                    scheme,
                    ..FecConfig::default()
                });
                let (with, without) = repairs(&FecPlan {
                    fec,
                    loss,
                    shared_loss,
                    ..plan()
                });
                let case = format!("{policy} {scheme:?} {loss:?}: {with:?}, {without:?}");
                let settled = |report: &FecReport| report.repaired + report.shared;
                assert!(with.rebuilt > 0 && without.rebuilt == 0, "{case}");
                // Windows of the others do not overlap, and mostly have one symbol.
                if scheme == FecScheme::Rlc {
                    assert!(settled(&with) * 3 < settled(&without) * 2, "{case}");
                }
            }
        }
    }
}

#[test]
fn members_without_fec_are_repaired_as_ever() {
    let (with, without) = repairs(&FecPlan {
        plain: 10,
        ..plan()
    });
    assert!(with.rebuilt > 0);
    let half = without.repaired / 2;
    let range = half * 8 / 10..half * 13 / 10;
    assert!(range.contains(&with.repaired), "{with:?}, {without:?}");
}

/// A packet that others overtake is no lost one for long.
#[test]
fn late_packets_are_not_repaired() {
    let late = FecPlan {
        jitter: MS * 20,
        loss: Loss::Uniform(0.01),
        ..plan()
    };
    let (with, without) = repairs(&late);
    assert!(with.repairs < without.repairs, "{with:?}, {without:?}");
    assert_eq!(with.fall_backs, 0);
}

#[test]
fn a_run_is_the_same_twice() {
    assert_eq!(play(&plan()), play(&plan()));
}
