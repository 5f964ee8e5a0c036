//! The MCQUIC paper's experiments, in short.

use std::time::Duration;

use flexicast::fec::{FecConfig, FecPolicy};
use simulation::mcquic::*;

const MS: Duration = Duration::from_millis(1);
/// A tenth of the paper's file.
const SHORT: File = File {
    bytes: FILE.bytes / 10,
    ..FILE
};

fn reactive() -> Option<FecConfig> {
    Some(FecConfig {
        policy: FecPolicy::Reactive,
        ..FecConfig::default()
    })
}

fn transfer(loss: f64, lifetime: Duration, fec: Option<FecConfig>) -> Report {
    file_transfer(SHORT, loss, lifetime, fec, 1).unwrap()
}

fn call(kind: Kind, lossy: LossyLinks, loss: f64) -> Report {
    video_call(kind, lossy, loss, Duration::from_secs(10), 1).unwrap()
}

#[test]
fn more_receivers_have_the_file_with_a_longer_expiration_timer() {
    let fec = Some(FecConfig::default());
    let ratios = [50, 100, 200, 500].map(|ms| transfer(0.05, MS * ms, fec).ratio());
    assert!(ratios.is_sorted(), "{ratios:?}");
    // Receivers that are no leaves lose nothing.
    assert!((0.5..0.95).contains(&ratios[0]), "{ratios:?}");
    assert_eq!(ratios[2..], [1.0, 1.0]);
}

/// A lost packet makes the first answer about the source's time late: what comes before the next one
/// must not be taken for expired.
#[test]
fn losses_at_the_start_do_not_mislead_about_the_time() {
    let file = File {
        bytes: FILE.chunk * 25,
        ..FILE
    };
    let fec = Some(FecConfig::default());
    let plays = (1..=60).map(|seed| file_transfer(file, 0.05, MS * 200, fec, seed).unwrap());
    let expired: Vec<_> = plays.map(|report| report.expired).collect();
    assert_eq!(expired.iter().sum::<u64>(), 0, "{expired:?}");
}

#[test]
fn losses_are_rebuilt_rather_than_repaired() {
    let without = transfer(0.05, MS * 200, None);
    for fec in [Some(FecConfig::default()), reactive()] {
        let with = transfer(0.05, MS * 200, fec);
        assert_eq!((with.ratio(), without.symbols), (1.0, 0));
        assert!(with.symbols > 0 && with.rebuilt > 0, "{with:?}");
        assert!(with.repairs * 2 < without.repairs, "{with:?}, {without:?}");
        assert!(with.source_bytes < without.source_bytes);
    }
}

#[test]
fn unicast_is_later_and_sends_fifty_times_as_much() {
    let by_flow = call(Kind::Plain, LossyLinks::Leaves, 0.0);
    let unicast = call(Kind::Unicast, LossyLinks::Leaves, 0.0);
    let times = unicast.source_bytes as f64 / by_flow.source_bytes as f64;
    assert!((40.0..60.0).contains(&times), "{times}");
    assert!(by_flow.lateness.quantile(0.99) < 2.0);
    assert!(unicast.lateness.quantile(0.5) > 2.0);
}

#[test]
fn losses_delay_few_frames_of_a_flow() {
    for lossy in [LossyLinks::Leaves, LossyLinks::LeftBranch] {
        let [none, some] = [0.0, 0.05].map(|loss| call(Kind::Signed, lossy, loss));
        let unicast = call(Kind::Unicast, lossy, 0.05);
        for report in [&none, &some] {
            assert_eq!((report.ratio(), report.expired), (1.0, 0), "{lossy:?}");
        }
        let [with, without] = [&some, &none].map(|it| it.lateness.share_within(2.0));
        assert!(
            with > 0.8 && with < without && without > 0.99,
            "{with} and {without}"
        );
        assert!(unicast.lateness.quantile(0.96) > some.lateness.quantile(0.5) + 10.0);
        assert!(some.source_bytes > none.source_bytes);
        assert!(some.receiver_bytes > 0 && some.source_bytes * 20 < unicast.source_bytes);
    }
}

#[test]
fn a_run_is_the_same_twice() {
    let lossy = LossyLinks::LeftBranch;
    assert_eq!(
        call(Kind::Signed, lossy, 0.02),
        call(Kind::Signed, lossy, 0.02)
    );
    assert_eq!(
        call(Kind::Unicast, lossy, 0.02),
        call(Kind::Unicast, lossy, 0.02)
    );
}
