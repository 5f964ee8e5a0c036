//! An hour of a busy archive, made from a seed: about 180 mails, most of them single, some in patch
//! series that arrive together, one series longer than the feed's window. Some mails are dated long
//! before they arrive, a few are changed or re-dated afterwards.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Duration of the hour.
const LENGTH: Duration = Duration::from_secs(3600);

/// Mean time between mails that come alone.
const BETWEEN: f64 = 46.0;

/// Patch series: how many, and of how many mails.
const SERIES: u32 = 5;
const SERIES_MAILS: std::ops::Range<u32> = 6..15;

/// The series that no poll of the feed can show whole, and the time within which it arrives: less
/// than the 20 s between two polls.
const LONGEST: u32 = 60;
const LONGEST_WITHIN: f64 = 12.0;

/// Changes of mails, and changes of nothing but the date.
const EDITS: u32 = 9;
const REDATED: u32 = 6;

/// A changed mail has to be seen before it is pushed out: so long before and after a change no
/// series arrives, in s.
const QUIET: f64 = 60.0;

/// Effect on the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A mail arrives, dated this much earlier.
    Arrive {
        /// From its date to its arrival.
        age: Duration,
    },
    /// The text of a shown mail changes.
    Edit,
    /// A shown mail gets another date and stays as it is otherwise.
    Redate,
}

/// Acts with their times, from the hour's beginning.
#[derive(Debug, Clone)]
pub struct Hour {
    acts: Vec<(Duration, Act)>,
}

impl Hour {
    /// The hour that follows from a seed.
    pub fn made_up(seed: u64) -> Hour {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut acts = Vec::new();
        let length = LENGTH.as_secs_f64();
        // The last minutes are quiet, so that the feed's end can be seen by everybody.
        let end = length - 2.0 * QUIET;
        let mut at = 0.0;
        loop {
            at += -BETWEEN * (1.0 - rng.random::<f64>()).ln();
            if at >= end {
                break;
            }
            let act = Act::Arrive { age: age(&mut rng) };
            acts.push((at, act));
        }
        let mut series: Vec<(f64, u32, f64)> = (0..SERIES)
            .map(|n| {
                let slot = end / f64::from(SERIES + 1);
                let begin = slot * (f64::from(n) + rng.random_range(0.1..0.6));
                (begin, rng.random_range(SERIES_MAILS), 10.0)
            })
            .collect();
        // In the last sixth, so that there is a long history before it.
        series.push((end * 0.9, LONGEST, LONGEST_WITHIN));
        for (begin, mails, within) in &series {
            for n in 0..*mails {
                let offset = within * f64::from(n) / f64::from(*mails);
                // Written a second apart and sent in any order.
                let age = Duration::from_secs(rng.random_range(1..40));
                acts.push((begin + offset, Act::Arrive { age }));
            }
        }
        let quiet = |at: f64| {
            series
                .iter()
                .all(|(begin, _, within)| at + QUIET < *begin || at > begin + within + QUIET)
        };
        let mut last = 0.0;
        for n in 0..EDITS + REDATED {
            let slot = (end - QUIET) / f64::from(EDITS + REDATED);
            let mut at = (QUIET + slot * f64::from(n)).max(last + 40.0);
            while !quiet(at) {
                at += 5.0;
            }
            last = at;
            let act = if n % 5 < 3 { Act::Edit } else { Act::Redate };
            acts.push((at, act));
        }
        acts.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let acts = acts.into_iter();
        Hour {
            acts: acts
                .map(|(at, act)| (Duration::from_secs_f64(at), act))
                .collect(),
        }
    }

    /// Returns its duration.
    pub fn length(&self) -> Duration {
        LENGTH
    }

    /// Returns the acts in order, with their times.
    pub fn acts(&self) -> &[(Duration, Act)] {
        &self.acts
    }
}

/// Most mails arrive within a minute; one in ten was held up for hours.
fn age(rng: &mut StdRng) -> Duration {
    Duration::from_secs(match rng.random_range(0..10u32) {
        0..7 => rng.random_range(1..60),
        7..9 => rng.random_range(60..1_200),
        _ => rng.random_range(1_200..6 * 3_600),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_the_shape_of_a_busy_archive() {
        for seed in 0..50 {
            let hour = Hour::made_up(seed);
            let acts = hour.acts();
            assert!(acts.is_sorted_by_key(|(at, _)| *at), "seed {seed}");
            assert!(acts.iter().all(|(at, _)| *at < LENGTH), "seed {seed}");
            let mails: Vec<f64> = acts
                .iter()
                .filter(|(_, act)| matches!(act, Act::Arrive { .. }))
                .map(|(at, _)| at.as_secs_f64())
                .collect();
            // One in 20 s on average, within what chance does.
            assert!(
                (140..240).contains(&mails.len()),
                "seed {seed}: {}",
                mails.len()
            );
            // Some 20 s have more than the feed can show.
            let most = mails.iter().map(|from| {
                mails
                    .iter()
                    .filter(|at| (*from..from + 20.0).contains(at))
                    .count()
            });
            assert!(most.max() > Some(50), "seed {seed}");
            let edits = acts.iter().filter(|(_, act)| *act == Act::Edit).count();
            assert!(edits >= 8, "seed {seed}: {edits}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_hour() {
        assert_eq!(Hour::made_up(3).acts(), Hour::made_up(3).acts());
        assert_ne!(Hour::made_up(3).acts(), Hour::made_up(4).acts());
    }
}
