//! Losses in bursts: the Gilbert–Elliott model.

use rand::RngExt;
use rand::rngs::SmallRng;

/// Markov chain of a good and a bad state, with a transition before each packet (Elliott,
/// "Estimates of error rates for codes on burst-noise channels", 1963). The names are those of the
/// literature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GilbertElliott {
    /// Probability of a transition from good to bad.
    pub p: f64,
    /// Probability of a transition from bad to good.
    pub r: f64,
    /// Probability that a packet arrives in the good state.
    pub k: f64,
    /// Probability that a packet arrives in the bad state.
    pub h: f64,
}

impl GilbertElliott {
    /// Returns the model of two states: in the good one everything arrives, in the bad one nothing.
    #[must_use]
    pub fn two_states(p: f64, r: f64) -> Self {
        GilbertElliott {
            p,
            r,
            k: 1.0,
            h: 0.0,
        }
    }

    /// Returns the share of time in the good and in the bad state.
    fn shares(&self) -> [f64; 2] {
        let bad = if self.p > 0.0 {
            self.p / (self.p + self.r)
        } else {
            0.0
        };
        [1.0 - bad, bad]
    }

    fn losses(&self) -> [f64; 2] {
        [1.0 - self.k, 1.0 - self.h]
    }

    /// Returns the share of packets that are lost in the long run.
    #[must_use]
    pub fn loss_rate(&self) -> f64 {
        let ([good, bad], [in_good, in_bad]) = (self.shares(), self.losses());
        good * in_good + bad * in_bad
    }

    /// Returns the mean number of successive packets that are lost; 0 if none ever is.
    #[must_use]
    pub fn mean_burst(&self) -> f64 {
        let [in_good, in_bad] = self.losses();
        let [good, bad] = self.shares();
        // A burst begins with a loss behind a packet that arrived, one transition later.
        let behind_good = (1.0 - self.p) * in_good + self.p * in_bad;
        let behind_bad = (1.0 - self.r) * in_bad + self.r * in_good;
        let begins = good * self.k * behind_good + bad * self.h * behind_bad;
        if begins > 0.0 {
            self.loss_rate() / begins
        } else {
            0.0
        }
    }

    /// Makes the transition of a packet, and returns whether the packet is lost.
    pub(crate) fn loses(&self, is_bad: &mut bool, rng: &mut SmallRng) -> bool {
        let turns = if *is_bad { self.r } else { self.p };
        *is_bad ^= rng.random_bool(turns);
        let loss = self.losses()[usize::from(*is_bad)];
        loss > 0.0 && rng.random_bool(loss)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// Share of packets that are lost, and mean length of bursts, of so many packets.
    fn sample(model: GilbertElliott, packets: u32, seed: u64) -> (f64, f64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut is_bad, mut was_lost) = (false, false);
        let (mut lost, mut bursts) = (0_u32, 0_u32);
        for _ in 0..packets {
            let is_lost = model.loses(&mut is_bad, &mut rng);
            lost += u32::from(is_lost);
            bursts += u32::from(is_lost && !was_lost);
            was_lost = is_lost;
        }
        let mean = f64::from(lost) / f64::from(bursts.max(1));
        (f64::from(lost) / f64::from(packets), mean)
    }

    fn is_near(measured: f64, expected: f64) -> bool {
        (measured / expected - 1.0).abs() < 0.05
    }

    #[test]
    fn the_two_states_have_the_figures_of_the_literature() {
        let model = GilbertElliott::two_states(0.01, 0.25);
        assert!((model.loss_rate() - 0.01 / 0.26).abs() < 1e-12);
        assert!((model.mean_burst() - 4.0).abs() < 1e-12);
        let never = GilbertElliott::two_states(0.0, 0.25);
        assert_eq!((never.loss_rate(), never.mean_burst()), (0.0, 0.0));
    }

    /// Losses that do not depend on the state are independent ones.
    #[test]
    fn states_without_a_difference_make_independent_losses() {
        let model = GilbertElliott {
            p: 0.02,
            r: 0.3,
            k: 0.9,
            h: 0.9,
        };
        assert!((model.loss_rate() - 0.1).abs() < 1e-12);
        assert!((model.mean_burst() - 1.0 / 0.9).abs() < 1e-12);
    }

    /// Over the ranges of the thesis, and beyond.
    #[test]
    fn losses_and_bursts_are_those_of_the_stationary_chain() {
        let models = [
            GilbertElliott::two_states(0.01, 0.5),
            GilbertElliott::two_states(0.005, 0.25),
            GilbertElliott::two_states(0.01, 0.025),
            GilbertElliott {
                p: 0.005,
                r: 0.25,
                k: 0.98,
                h: 0.05,
            },
            GilbertElliott {
                p: 0.01,
                r: 0.025,
                k: 0.97,
                h: 0.4,
            },
            GilbertElliott {
                p: 0.1,
                r: 0.4,
                k: 0.999,
                h: 0.5,
            },
        ];
        for model in models {
            let (loss, burst) = sample(model, 4_000_000, 1);
            let case = format!("{model:?}: {loss}, {burst}");
            assert!(is_near(loss, model.loss_rate()), "{case}");
            assert!(is_near(burst, model.mean_burst()), "{case}");
        }
    }

    /// The same share of losses alone makes no bursts: the test above tells models apart.
    #[test]
    fn bursts_are_longer_than_those_of_independent_losses() {
        let bursty = GilbertElliott::two_states(0.01, 0.1);
        let loss = bursty.loss_rate();
        let independent = GilbertElliott {
            k: 1.0 - loss,
            h: 1.0 - loss,
            ..bursty
        };
        let (seen, burst) = sample(independent, 1_000_000, 2);
        assert!(is_near(seen, loss), "{seen}");
        assert!(is_near(burst, 1.0 / (1.0 - loss)), "{burst}");
        assert!(sample(bursty, 1_000_000, 2).1 > 5.0 * burst);
    }
}
