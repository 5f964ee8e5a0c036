#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn near(wait: Duration, seconds: f64) -> bool {
    (seconds * 0.89..=seconds * 1.11).contains(&wait.as_secs_f64())
}

fn news(new: usize) -> Outcome {
    Outcome::Read(PollStats {
        new,
        window: 25,
        ..PollStats::default()
    })
}

const NOTHING: Outcome = Outcome::Read(PollStats {
    new: 0,
    window: 0,
    span: None,
    gap: false,
    max_age: None,
    ttl: None,
    retry_after: None,
});

const FAILED: Outcome = Outcome::Failed { retry_after: None };

/// Polls a feed that has an entry every `every` seconds, for a time, and returns the waits.
fn follow(schedule: &mut Schedule, every: f64, hours: u32) -> Vec<Duration> {
    let start = Instant::now();
    let (mut passed, mut waits) = (Duration::ZERO, Vec::new());
    let mut seen = 0;
    schedule.next(news(1), start);
    while passed < HOUR * hours {
        let there = (passed.as_secs_f64() / every) as usize;
        let wait = schedule.next(news(there - seen), start + passed);
        seen = there;
        passed += wait;
        waits.push(wait);
    }
    waits
}

fn adaptive() -> Schedule {
    Schedule::new(Settings::default(), None, 7)
}

#[test]
fn a_feed_is_polled_at_its_own_rate_between_the_limits() {
    for (every, expected) in [
        (1.0, 20.0),
        (20.0, 20.0),
        (400.0, 100.0),
        (3600.0, 900.0),
        (86_400.0, 3600.0),
    ] {
        let waits = follow(&mut adaptive(), every, 200);
        let later = &waits[waits.len() / 2..];
        let mean = later.iter().sum::<Duration>().as_secs_f64() / later.len() as f64;
        assert!(
            mean > expected * 0.6 && mean < expected * 1.7,
            "an entry each {every} s: {mean} s"
        );
    }
}

#[test]
fn waits_follow_the_rate() {
    let mut schedule = adaptive();
    follow(&mut schedule, 86_400.0, 48);
    assert!(schedule.interval() > HOUR / 2);
    // A busy hour shortens the wait within a few polls.
    let start = Instant::now();
    let mut wait = schedule.next(news(0), start);
    for poll in 1..4 {
        wait = schedule.next(news(20), start + HOUR * poll);
    }
    assert!(wait < HOUR / 8, "{wait:?}");
}

#[test]
fn a_burst_shortens_the_wait_at_once() {
    let mut schedule = adaptive();
    follow(&mut schedule, 7200.0, 100);
    let start = Instant::now();
    schedule.next(NOTHING, start);
    let before = schedule.interval();
    schedule.next(news(24), start + before);
    assert!(schedule.interval() < before / 3, "{before:?} {schedule:?}");
}

#[test]
fn the_dates_of_the_first_document_are_a_beginning() {
    let first = |hours: u32| {
        let mut schedule = adaptive();
        let read = PollStats {
            new: 25,
            window: 25,
            span: Some(HOUR * hours),
            ..PollStats::default()
        };
        schedule.next(Outcome::Read(read), Instant::now())
    };
    assert!(near(first(1), 150.0 / 4.0), "{:?}", first(1));
    assert!(near(first(24 * 365), 3600.0));
    assert!(near(first(0), 20.0));
    // Without dates: from the shortest wait on.
    assert!(near(adaptive().next(news(25), Instant::now()), 20.0));
}

#[test]
fn the_learnt_rate_survives_a_restart() {
    let mut again = Schedule::new(Settings::default(), Some(HOUR / 4), 1);
    assert_eq!(again.interval(), HOUR / 4);
    assert!(near(again.next(NOTHING, Instant::now()), 900.0));
    // The remembered wait is better than the dates of the feed's next document.
    let mut again = Schedule::new(Settings::default(), Some(HOUR / 4), 1);
    let read = PollStats {
        new: 2,
        window: 25,
        span: Some(SECOND * 10),
        ..PollStats::default()
    };
    assert!(near(again.next(Outcome::Read(read), Instant::now()), 900.0));
    let beyond = Schedule::new(Settings::default(), Some(HOUR * 9), 1);
    assert_eq!(beyond.interval(), HOUR);
}

#[test]
fn freshness_and_ttl_lengthen_waits_up_to_the_maximum() {
    let with = |max_age: u64, ttl: u64| {
        let some = |s| Some(Duration::from_secs(s)).filter(|d| !d.is_zero());
        let read = PollStats {
            max_age: some(max_age),
            ttl: some(ttl),
            ..PollStats::default()
        };
        adaptive().next(Outcome::Read(read), Instant::now())
    };
    assert!(near(with(0, 0), 20.0));
    assert!(near(with(300, 0), 300.0));
    assert!(near(with(0, 60), 60.0));
    assert!(near(with(0, 86_400), 80.0), "a hint only");
    assert!(near(with(300, 60), 300.0));
    assert!(near(with(86_400, 0), 3600.0));
    assert!(near(with(1, 1), 20.0));
}

#[test]
fn requested_waits_are_honoured() {
    let asked = Duration::from_secs(10_000);
    let fixed = Settings {
        fixed: Some(SECOND),
        ..Settings::default()
    };
    for settings in [Settings::default(), fixed] {
        for gap in [false, true] {
            let read = PollStats {
                gap,
                retry_after: Some(asked),
                ..PollStats::default()
            };
            let failed = Outcome::Failed {
                retry_after: Some(asked),
            };
            for outcome in [Outcome::Read(read), failed] {
                let wait = Schedule::new(settings, None, 3).next(outcome, Instant::now());
                assert!(wait >= asked && wait < asked * 2, "{wait:?}");
            }
        }
    }
}

#[test]
fn failures_wait_longer_and_longer_and_success_ends_that() {
    let mut schedule = adaptive();
    for expected in [20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 900.0, 900.0] {
        let wait = schedule.next(FAILED, Instant::now());
        assert!(near(wait, expected), "{wait:?} {expected}");
    }
    assert_eq!(schedule.failures(), 8);
    assert!(near(schedule.next(NOTHING, Instant::now()), 20.0));
    assert_eq!(schedule.failures(), 0);
    assert!(near(schedule.next(FAILED, Instant::now()), 20.0));
}

#[test]
fn a_rare_feed_that_fails_is_tried_earlier_and_not_much_rarer() {
    let mut schedule = Schedule::new(Settings::default(), Some(HOUR), 3);
    assert!(near(schedule.next(FAILED, Instant::now()), 60.0));
    for _ in 0..100 {
        schedule.next(FAILED, Instant::now());
    }
    assert!(near(schedule.next(FAILED, Instant::now()), 3600.0));
}

#[test]
fn polls_are_frequent_after_a_suspected_gap() {
    let mut schedule = Schedule::new(Settings::default(), Some(HOUR), 5);
    let gap = PollStats {
        new: 1,
        window: 25,
        gap: true,
        max_age: Some(HOUR),
        ..PollStats::default()
    };
    let start = Instant::now();
    schedule.next(NOTHING, start);
    let mut wait = schedule.next(Outcome::Read(gap), start + HOUR);
    let mut hurried = 0;
    while wait <= SECOND * 22 {
        hurried += 1;
        assert!(hurried < 100, "for ever");
        assert!(wait >= SECOND * 20, "{wait:?}");
        wait = schedule.next(NOTHING, start + HOUR + SECOND * 20 * hurried);
    }
    assert_eq!(hurried, HURRY_POLLS);
    assert!(wait > SECOND * 60, "{wait:?}");
}

/// The operator's setting protects the feed's server, also after a gap and for any randomness.
#[test]
fn no_wait_is_shorter_than_the_minimum() {
    let mut schedule = Schedule::new(Settings::default(), None, 7);
    let mut now = Instant::now();
    for n in 0..200 {
        let read = PollStats {
            new: 25,
            window: 25,
            gap: n % 20 == 0,
            ..PollStats::default()
        };
        let wait = schedule.next(Outcome::Read(read), now);
        assert!(wait >= SECOND * 20 && wait <= SECOND * 22, "{n}: {wait:?}");
        now += wait;
    }
    assert!(schedule.is_at_minimum());
}

#[test]
fn a_fixed_wait_is_fixed() {
    let settings = Settings {
        fixed: Some(HOUR * 2),
        ..Settings::default()
    };
    let mut schedule = Schedule::new(settings, Some(SECOND), 1);
    let fresh = PollStats {
        new: 20,
        window: 25,
        max_age: Some(HOUR * 20),
        ttl: Some(HOUR * 20),
        ..PollStats::default()
    };
    for _ in 0..50 {
        assert!(near(
            schedule.next(Outcome::Read(fresh), Instant::now()),
            7200.0
        ));
    }
}

#[test]
fn waits_vary_and_a_seed_repeats_them() {
    let waits = |seed| {
        let mut schedule = Schedule::new(Settings::default(), None, seed);
        let now = Instant::now();
        (0..20)
            .map(|_| schedule.next(NOTHING, now))
            .collect::<Vec<_>>()
    };
    assert_eq!(waits(1), waits(1));
    assert_ne!(waits(1), waits(2));
    let first = waits(1);
    assert!(first.iter().any(|w| *w != first[0]));
}

fn durations() -> impl Strategy<Value = Option<Duration>> {
    prop_oneof![
        Just(None),
        Just(Some(Duration::MAX)),
        (0u64..200_000).prop_map(|s| Some(Duration::from_secs(s))),
    ]
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let read = (
        (0usize..2000, 0usize..1000, durations()),
        (any::<bool>(), durations(), durations(), durations()),
    );
    prop_oneof![
        read.prop_map(|((new, window, span), (gap, max_age, ttl, retry_after))| {
            Outcome::Read(PollStats {
                new,
                window,
                span,
                gap,
                max_age,
                ttl,
                retry_after,
            })
        }),
        durations().prop_map(|retry_after| Outcome::Failed { retry_after }),
    ]
}

proptest! {
    /// For any outcomes, waits are neither shorter than the minimum nor longer than the longest
    /// wait that any party asks for, and nothing overflows.
    #[test]
    fn waits_stay_within_their_limits(
        min in 1u64..1000,
        max in 1u64..100_000,
        fixed in proptest::option::of(1u64..100_000),
        seed: u64,
        polls in proptest::collection::vec((outcomes(), 0u64..100_000), 1..60),
    ) {
        let settings = Settings {
            min: SECOND * u32::try_from(min).unwrap(),
            max: Duration::from_secs(max),
            fixed: fixed.map(Duration::from_secs),
        };
        let mut schedule = Schedule::new(settings, None, seed);
        let mut now = Instant::now();
        for (outcome, pause) in polls {
            now += Duration::from_secs(pause);
            let wait = schedule.next(outcome, now).as_secs_f64();
            let asked = match outcome {
                Outcome::Read(read) => read.retry_after,
                Outcome::Failed { retry_after } => retry_after,
            };
            let asked = asked.unwrap_or_default().as_secs_f64();
            let shortest = settings.fixed.unwrap_or(settings.min).as_secs_f64();
            let longest = settings.fixed.unwrap_or(settings.max.max(settings.min)).as_secs_f64();
            prop_assert!(wait >= asked * 0.999, "{wait} {asked}");
            let least = if settings.fixed.is_some() { 0.899 } else { 0.999 };
            prop_assert!(wait >= shortest * least, "{wait} {shortest}");
            let most = longest.max(LONGEST_FAILURE.as_secs_f64()).max(asked);
            prop_assert!(wait <= most * 1.101, "{wait} {most}");
            let without_gap = matches!(outcome, Outcome::Read(PollStats { gap: false, .. }));
            if !schedule.is_hurrying() && without_gap {
                prop_assert!(schedule.interval().as_secs_f64() >= shortest * 0.999);
            }
        }
    }
}
