//! The experiments of the thesis on forward erasure correction with QUIC, in a short form.

use std::time::Duration;

use simulation::fec::thesis::{
    Conditions, Model, Outcome, Reading, Sender, play, play_file, space, space_with_rates,
    univariate,
};
use simulation::{GilbertElliott, Loss};

const WIDE: Reading = Reading { buffer: 4 };
const NARROW: Reading = Reading { buffer: 2 };
const SOLOMON: &str = "proactive:10/20,reed-solomon";
const RLC: &str = "proactive:1/2";

fn sender(fec: Option<&str>, is_reliable: bool) -> Sender {
    Sender {
        fec: fec.map(|fec| fec.parse().unwrap()),
        is_reliable,
        receivers: 1,
    }
}

/// Sums over some conditions of a model.
#[derive(Debug, Default)]
struct Sum {
    received: f64,
    waits: f64,
    narrow_waits: f64,
    sent: u64,
}

fn sum(model: Model, fec: Option<&str>, is_reliable: bool) -> Sum {
    let mut sum = Sum::default();
    for (conditions, seed) in space(model, 6, 1).into_iter().zip(1..) {
        let course = play(conditions, sender(fec, is_reliable), seed).unwrap();
        let outcome = course.outcome(WIDE);
        sum.received += outcome.received / 6.0;
        sum.waits += outcome.rebuffering;
        sum.narrow_waits += course.outcome(NARROW).rebuffering;
        sum.sent += outcome.sent;
    }
    sum
}

/// Figures 5.11 and 5.12: with independent losses nearly everything is rebuilt, and soon.
#[test]
fn codes_rebuild_independent_losses() {
    let plain = sum(Model::Uniform, None, false);
    assert!((0.96..0.99).contains(&plain.received), "{plain:?}");
    for code in [SOLOMON, RLC] {
        let seen = sum(Model::Uniform, Some(code), false);
        assert!(seen.received > 0.9995, "{code}: {seen:?}");
        assert!(seen.waits * 50.0 < plain.waits, "{code}: {seen:?}");
    }
    let xor = sum(Model::Uniform, Some("proactive:1/2,xor"), false);
    let solomon = sum(Model::Uniform, Some(SOLOMON), false);
    assert!(xor.received < solomon.received, "{xor:?}, {solomon:?}");
}

/// Figures 5.6, 5.7 and 5.8.
#[test]
fn codes_make_readers_wait_less_than_repairs_do() {
    let model = Model::GilbertElliott;
    let [plain, solomon] = [None, Some(SOLOMON)].map(|fec| sum(model, fec, false));
    let reliable = sum(model, None, true);
    assert!((reliable.received - 1.0).abs() < 1e-9, "{reliable:?}");
    assert!(solomon.received > plain.received, "{solomon:?}, {plain:?}");
    assert!(solomon.received < 1.0, "bursts are longer than blocks");
    assert!(solomon.waits * 2.0 < plain.waits, "{solomon:?}, {plain:?}");
    assert!(solomon.waits * 2.0 < reliable.waits, "{reliable:?}");
    let cost = solomon.sent as f64 / plain.sent as f64;
    assert!((1.4..1.65).contains(&cost), "{cost}");
    assert!(reliable.narrow_waits > reliable.waits, "{reliable:?}");
}

/// Figure 5.10: repairs come in time while the round trip is short, symbols at any delay.
#[test]
fn only_repairs_depend_on_the_delay() {
    let waits = |fec: Option<&str>, delay: u64| {
        let conditions = univariate(Duration::from_millis(delay));
        let course = play(conditions, sender(fec, fec.is_none()), 1).unwrap();
        course.outcome(WIDE).rebuffering
    };
    assert!(waits(None, 10) < 1.0, "{}", waits(None, 10));
    assert!(waits(None, 100) > 5.0, "{}", waits(None, 100));
    let near = [10, 100].map(|delay| waits(Some(SOLOMON), delay));
    assert!(near.iter().all(|waits| *waits < 1.0), "{near:?}");
}

/// Section 5.8: a burst does not reach the symbols on another path.
#[test]
fn symbols_by_another_path_outlive_bursts() {
    let [mut same, mut apart] = [0.0; 2];
    for (conditions, seed) in space(Model::TwoStates, 6, 1).into_iter().zip(1..) {
        let received = |fec: &str| {
            let course = play(conditions, sender(Some(fec), false), seed).unwrap();
            course.outcome(WIDE).received
        };
        same += 1.0 - received(SOLOMON);
        apart += 1.0 - received("proactive:10/20,reed-solomon,unicast");
    }
    assert!(same > 0.0 && apart < same, "{apart}, {same}");
}

/// Every policy gives every reader all of it; the costs differ.
#[test]
fn policies_complete_messages_and_files() {
    let loss = Loss::GilbertElliott(GilbertElliott::two_states(0.01, 0.3));
    let conditions = Conditions {
        delay: Duration::from_millis(60),
        loss,
    };
    let outcome = |fec: Option<&str>| -> Outcome {
        let course = play(conditions, sender(fec, true), 1).unwrap();
        course.outcome(WIDE)
    };
    let off = outcome(None);
    for policy in ["tail", RLC, "reactive", "adaptive"] {
        let seen = outcome(Some(policy));
        assert_eq!(seen.received, 1.0, "{policy}");
        assert!(seen.sent > off.sent, "{policy}: {seen:?}");
    }
    let proactive = outcome(Some(RLC));
    assert!(proactive.rebuffering * 2.0 < off.rebuffering, "{off:?}");
    assert!(proactive.mean_ms < off.mean_ms, "{proactive:?}, {off:?}");
    // A file whose end is lost waits for a repair, unless a symbol follows it.
    let files = space_with_rates(Model::TwoStates, (1e6, 20e6), 8, 1);
    let time = |fec: Option<&str>| -> f64 {
        let each = files.iter().zip(1..).map(|((conditions, rate), seed)| {
            let course = play_file(*conditions, sender(fec, true), (30, *rate), seed).unwrap();
            let outcome = course.outcome(WIDE);
            // The pacer lets the first packets go at once.
            let least = 30.0 * 8e6 / *rate as f64 + conditions.delay.as_secs_f64() * 1e3;
            assert!(outcome.mean_ms > least * 0.5, "{outcome:?}, {least}");
            outcome.mean_ms
        });
        each.sum()
    };
    assert!(time(Some("tail")) < time(None));
}

/// The space of table 5.1 is filled, and what is drawn is within it.
#[test]
fn conditions_are_within_the_ranges_of_the_thesis() {
    for model in Model::ALL {
        let space = space(model, 30, 1);
        assert_eq!(space.len(), 30);
        let delays = space.iter().map(|it| it.delay.as_secs_f64());
        let (least, most) = delays.fold((1.0_f64, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)));
        assert!(
            least < 0.025 && most > 0.075 && most < 0.1,
            "{least} {most}"
        );
        for conditions in space {
            match (model, conditions.loss) {
                (Model::Uniform, Loss::Uniform(loss)) => assert!((0.0..=0.03).contains(&loss)),
                (_, Loss::GilbertElliott(GilbertElliott { p, r, k, h })) => {
                    assert!((0.0..=0.01).contains(&p) && (0.025..=0.5).contains(&r));
                    assert!((0.97..=1.0).contains(&k) && (0.0..=0.4).contains(&h));
                    let plain = model == Model::TwoStates;
                    assert_eq!(plain, k == 1.0 && h == 0.0);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A run is decided by its seed, and readers that read later wait less.
#[test]
fn runs_are_the_same_twice() {
    let conditions = space(Model::GilbertElliott, 3, 2)[1];
    let once = play(conditions, sender(Some("adaptive"), true), 5).unwrap();
    assert_eq!(
        once,
        play(conditions, sender(Some("adaptive"), true), 5).unwrap()
    );
    let (wide, narrow) = (once.outcome(WIDE), once.outcome(NARROW));
    assert!(wide.rebuffering <= narrow.rebuffering);
    assert_eq!(WIDE.delay(), Duration::from_millis(100));
}
