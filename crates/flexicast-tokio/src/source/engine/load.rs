//! Load of the engine: how late it is, and whether the source is overloaded.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use flexicast::source::Limits;
use tracing::{info, warn};

use super::Engine;
use super::records::push_within;
use crate::source::shard::Batch;
use crate::source::status::{Lateness, LoadStatus, Overload};
use crate::source::wall_clock::unix_ms_now;

/// Time over which lateness is judged.
const WINDOW: Duration = Duration::from_secs(1);
/// Lateness of a single turn that is ordinary.
const ORDINARY: Duration = Duration::from_millis(20);
/// A window counts where the engine was late in one of so many parts of it.
const LATE_PART: u32 = 4;
/// Wait of an update for the engine that is ordinary.
const ORDINARY_WAIT: Duration = Duration::from_secs(1);
/// The source is overloaded once all windows were late for so long, two of them at least: a single
/// pause is no overload.
const BEGINS_AFTER: Duration = Duration::from_secs(3);
/// An overload is over once no window was late for so long.
const ENDS_AFTER: Duration = Duration::from_secs(5);
/// Least acknowledgements per second that the members of a channel are asked for together.
const LEAST_ACKS: u64 = 1_250;
/// Windows in time after which more are asked for again.
const CALM: u32 = 10;
/// Overloads that are kept for the status.
const OVERLOADS: usize = 32;
/// Lateness of timers that comes from their resolution.
const RESOLUTION: Duration = Duration::from_millis(5);
/// Observations of one window.
#[derive(Debug)]
struct Window {
    since: Instant,
    /// Sum of the lateness of turns beyond the ordinary.
    late: Duration,
    /// Longest lateness of a turn.
    lag: Duration,
    /// Longest wait of an update.
    wait: Duration,
    /// Arrived datagrams that the kernel dropped.
    dropped: u64,
}

impl Window {
    fn new(since: Instant) -> Self {
        Window {
            since,
            late: Duration::ZERO,
            lag: Duration::ZERO,
            wait: Duration::ZERO,
            dropped: 0,
        }
    }

    /// Returns what was late.
    fn late(&self, now: Instant) -> Vec<Lateness> {
        let span = now.saturating_duration_since(self.since);
        let all = [
            (Lateness::Engine, self.late >= span / LATE_PART),
            (Lateness::Publishing, self.wait > ORDINARY_WAIT),
            (Lateness::ReceiveQueue, self.dropped > 0),
        ];
        let late = all.into_iter().filter(|(_, is_late)| *is_late);
        late.map(|(which, _)| which).collect()
    }
}

/// Windows of one kind in a row.
#[derive(Debug, Clone, Copy)]
struct Streak {
    is_late: bool,
    since: Instant,
    windows: u32,
}

/// Acknowledgements per second that the members of a channel are asked for together. Each costs the
/// engine time: half as many after each window in which it was late, and twice as many again after
/// [`CALM`] in which it was not.
#[derive(Debug)]
struct AckBudget {
    per_s: u64,
    calm: u32,
}

impl AckBudget {
    fn most() -> u64 {
        Limits::default().channel_acks_per_s
    }

    /// Adjusts it after a window; returns it if it is another one.
    fn adjust(&mut self, is_late: bool) -> Option<u64> {
        self.calm = if is_late { 0 } else { self.calm + 1 };
        let per_s = match is_late {
            true => (self.per_s / 2).max(LEAST_ACKS),
            false if self.calm >= CALM => {
                self.calm = 0;
                (self.per_s * 2).min(Self::most())
            }
            false => self.per_s,
        };
        let before = std::mem::replace(&mut self.per_s, per_s);
        (per_s != before).then_some(per_s)
    }
}

/// Judges how late the engine is, window by window.
#[derive(Debug)]
pub(super) struct LoadMonitor {
    window: Window,
    streak: Streak,
    /// Longest lateness of a turn and wait of an update in the last window.
    last: (Duration, Duration),
    /// Overloads, the newest last; it goes on while it has no end.
    overloads: VecDeque<Overload>,
    /// The last one, if it has begun or ended since it was taken.
    news: Option<Overload>,
    /// Number of overloads since the start.
    pub(super) begun: u64,
    acks: AckBudget,
}

impl LoadMonitor {
    pub(super) fn new(now: Instant) -> Self {
        LoadMonitor {
            window: Window::new(now),
            streak: Streak {
                is_late: false,
                since: now,
                windows: 0,
            },
            last: (Duration::ZERO, Duration::ZERO),
            overloads: VecDeque::new(),
            news: None,
            begun: 0,
            acks: AckBudget {
                per_s: AckBudget::most(),
                calm: 0,
            },
        }
    }

    /// Takes a number of arrived datagrams that the kernel dropped.
    fn dropped(&mut self, datagrams: u64) {
        self.window.dropped += datagrams;
    }

    /// Takes the lateness of one turn of the engine.
    pub(super) fn turned(&mut self, lag: Duration) {
        self.window.lag = self.window.lag.max(lag);
        if lag > ORDINARY {
            self.window.late += lag;
        }
    }

    /// Takes the time that an update has waited for the engine.
    pub(super) fn waited(&mut self, wait: Duration) {
        self.window.wait = self.window.wait.max(wait);
    }

    fn is_overloaded(&self) -> bool {
        let last = self.overloads.back();
        last.is_some_and(|overload| overload.until_ms.is_none())
    }

    /// Judges the window if it is over. Reports the beginning and the end of an overload. Returns
    /// how many acknowledgements per second the engine bears, if that has changed.
    pub(super) fn judge(&mut self, now: Instant) -> Option<u64> {
        if now < self.window.since + WINDOW {
            return None;
        }
        let window = std::mem::replace(&mut self.window, Window::new(now));
        let late = window.late(now);
        self.last = (window.lag, window.wait);
        let is_late = !late.is_empty();
        let budget = self
            .acks
            .adjust(late.iter().any(|which| *which != Lateness::Publishing));
        if self.streak.is_late != is_late {
            self.streak = Streak {
                is_late,
                since: window.since,
                windows: 0,
            };
        }
        self.streak.windows += 1;
        let lasted = now.saturating_duration_since(self.streak.since);
        let streak_ms = unix_ms_now().saturating_sub(lasted.as_millis() as u64);
        match self.overloads.back_mut().filter(|o| o.until_ms.is_none()) {
            Some(overload) => {
                for which in late {
                    if !overload.late.contains(&which) {
                        overload.late.push(which);
                    }
                }
                if !is_late && lasted >= ENDS_AFTER {
                    // A clock that was set back ends nothing before its beginning.
                    overload.until_ms = Some(streak_ms.max(overload.since_ms));
                    self.news = Some(overload.clone());
                    info!("the source keeps up again");
                }
            }
            None if is_late && lasted >= BEGINS_AFTER && self.streak.windows > 1 => {
                let (lag, wait) = (window.lag, window.wait);
                let dropped = window.dropped;
                warn!(?late, ?lag, publish_wait = ?wait, dropped, "source overloaded");
                self.begun += 1;
                let overload = Overload {
                    since_ms: streak_ms,
                    until_ms: None,
                    late,
                };
                self.news = Some(overload.clone());
                push_within(&mut self.overloads, overload, OVERLOADS);
            }
            None => {}
        }
        budget
    }

    /// Takes an overload that has begun or ended.
    pub(super) fn take_news(&mut self) -> Option<Overload> {
        self.news.take()
    }

    pub(super) fn status(&self) -> LoadStatus {
        let (lag, wait) = self.last;
        LoadStatus {
            overloaded: self.is_overloaded(),
            lag_ms: lag.as_secs_f64() * 1e3,
            publish_wait_ms: wait.as_secs_f64() * 1e3,
            acks_per_s: self.acks.per_s,
            overloads: self.overloads.iter().cloned().collect(),
        }
    }
}

impl Engine {
    /// Has no member blamed for what a shard has not read, or the kernel has dropped before it.
    pub(super) fn note_unread(&mut self, report: &Batch, now: Instant) {
        let lags = [report.unread_since, report.dropped_since];
        for since in lags.into_iter().flatten() {
            self.core.note_lag(since, now);
        }
        self.records.load.dropped(report.counts.datagrams_dropped);
    }

    /// Has no member blamed for the engine's own lateness at `now`. Returns by how much it is later
    /// than `wake`.
    pub(super) fn note_lag(&mut self, wake: Instant, now: Instant) -> Duration {
        let late = now.saturating_duration_since(wake);
        if late > RESOLUTION {
            self.core.note_lag(wake, now);
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    /// The kernel drops another datagram.
    fn drop_one(load: &mut LoadMonitor) {
        load.dropped(1);
    }

    /// An engine with turns of 10 ms, in virtual time.
    struct Engine {
        load: LoadMonitor,
        now: Instant,
    }

    impl Engine {
        fn new() -> Self {
            let now = Instant::now();
            Engine {
                load: LoadMonitor::new(now),
                now,
            }
        }

        /// Runs for a number of seconds, with something done at each turn.
        fn run(&mut self, seconds: u32, mut turn: impl FnMut(&mut LoadMonitor)) -> LoadStatus {
            for _ in 0..seconds * 100 {
                self.now += 10 * MS;
                turn(&mut self.load);
                let _ = self.load.judge(self.now);
            }
            self.load.status()
        }
    }

    #[test]
    fn a_source_that_is_in_time_is_not_overloaded() {
        let mut engine = Engine::new();
        let status = engine.run(60, |load| {
            load.turned(15 * MS);
            load.waited(900 * MS);
        });
        assert!(!status.overloaded && status.overloads.is_empty());
        assert_eq!((status.lag_ms, status.publish_wait_ms), (15.0, 900.0));
    }

    #[test]
    fn each_kind_of_lateness_is_overload_after_three_seconds() {
        type Turn = fn(&mut LoadMonitor);
        let kinds: [(Turn, Lateness); 3] = [
            (|load| load.turned(25 * MS), Lateness::Engine),
            (|load| load.waited(2 * SECOND), Lateness::Publishing),
            (drop_one, Lateness::ReceiveQueue),
        ];
        for (late, which) in kinds {
            let mut engine = Engine::new();
            engine.run(5, |_| {});
            assert!(!engine.run(2, late).overloaded, "{which:?}: too early");
            let status = engine.run(2, late);
            assert!(status.overloaded, "{which:?}");
            let [overload] = &status.overloads[..] else {
                panic!("{which:?}: {status:?}");
            };
            assert_eq!(overload.late, [which]);
            assert!(engine.run(4, |_| {}).overloaded, "{which:?}: not over yet");
            let status = engine.run(2, |_| {});
            assert!(!status.overloaded && status.overloads[0].until_ms.is_some());
            assert_eq!(engine.load.begun, 1, "{which:?}: once");
        }
    }

    #[test]
    fn fewer_acknowledgements_are_asked_for_while_the_engine_is_late() {
        let mut engine = Engine::new();
        let budget = |status: LoadStatus| status.acks_per_s;
        assert_eq!(budget(engine.run(20, |_| {})), 20_000);
        assert_eq!(budget(engine.run(2, drop_one)), 5_000);
        assert_eq!(
            budget(engine.run(60, |load| load.turned(SECOND))),
            LEAST_ACKS
        );
        // Updates that wait are not the members' doing.
        let status = engine.run(11, |load| load.waited(2 * SECOND));
        assert_eq!(budget(status), 2 * LEAST_ACKS);
        assert_eq!(budget(engine.run(60, |_| {})), 20_000);
    }

    /// Each beginning and each end is reported once.
    #[test]
    fn an_overload_is_news_when_it_begins_and_when_it_ends() {
        let mut engine = Engine::new();
        assert_eq!(engine.load.take_news(), None);
        for _ in 0..2 {
            engine.run(4, drop_one);
            let begun = engine.load.take_news().unwrap();
            assert!(begun.since_ms + 3_000 <= unix_ms_now(), "before the report");
            assert_eq!((begun.until_ms, engine.load.take_news()), (None, None));
            engine.run(4, |load| load.turned(SECOND));
            assert_eq!(engine.load.take_news(), None, "it goes on");
            engine.run(6, |_| {});
            let ended = engine.load.take_news().unwrap();
            // Virtual time is shorter on the wall clock than the subtracted 5 s.
            assert_eq!(ended.until_ms, Some(ended.since_ms));
            assert_eq!(
                (ended.since_ms, engine.load.take_news()),
                (begun.since_ms, None)
            );
        }
    }

    #[test]
    fn a_single_pause_is_no_overload() {
        let mut engine = Engine::new();
        for _ in 0..20 {
            engine.run(3, |_| {});
            engine.now += 5 * SECOND;
            engine.load.turned(5 * SECOND);
        }
        assert_eq!(engine.load.begun, 0);
    }

    #[test]
    fn an_overload_goes_on_through_short_relief() {
        let mut engine = Engine::new();
        engine.run(4, drop_one);
        for _ in 0..10 {
            engine.run(3, |_| {});
            engine.run(1, |load| load.turned(SECOND));
        }
        let status = engine.load.status();
        assert!(status.overloaded);
        let both = [Lateness::ReceiveQueue, Lateness::Engine];
        assert_eq!(
            (engine.load.begun, &status.overloads[0].late[..]),
            (1, &both[..])
        );
    }

    #[test]
    fn the_kept_overloads_are_bounded() {
        let mut engine = Engine::new();
        for _ in 0..OVERLOADS + 5 {
            engine.run(4, drop_one);
            engine.run(6, |_| {});
        }
        let status = engine.load.status();
        assert_eq!(status.overloads.len(), OVERLOADS);
        assert_eq!(engine.load.begun, OVERLOADS as u64 + 5);
    }
}
