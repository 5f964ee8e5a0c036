//! One CUBIC controller (RFC 9438), in packets and in seconds of the time in which the flow used
//! its window.

/// Multiplicative decrease (RFC 9438 section 4.6).
pub(super) const BETA: f64 = 0.7;
/// Aggressiveness in packets per second cubed (RFC 9438 section 5).
const C: f64 = 0.4;
/// Additive increase of the Reno-friendly region (RFC 9438 section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Initial window in packets (RFC 9002 section 7.2).
pub(super) const INITIAL_WINDOW: f64 = 10.0;
/// Minimum window in packets (RFC 9002 section 7.2).
pub(super) const MIN_WINDOW: f64 = 2.0;
/// Bound of the window in packets: what no path holds.
const MAX_WINDOW: f64 = 1e7;

/// Growth of one congestion window.
#[derive(Debug, Clone)]
pub(super) struct Cubic {
    window: f64,
    slow_start_threshold: f64,
    /// `W_max`: the window before the last reduction.
    w_max: f64,
    /// `K`: seconds from the reduction back to `W_max`.
    k: f64,
    /// Begin of the current stage of congestion avoidance.
    epoch: Option<f64>,
    /// `W_est`: the window that Reno would have.
    w_est: f64,
    /// `cwnd_prior`: the window before the last reduction, without fast convergence.
    prior: f64,
    /// Packets below this number were sent before the last reduction.
    recovery: u64,
    /// Time of the last acknowledgement.
    last: f64,
}

impl Cubic {
    /// A controller at the begin of slow start.
    pub(super) fn new() -> Self {
        Cubic {
            window: INITIAL_WINDOW,
            slow_start_threshold: f64::INFINITY,
            w_max: 0.0,
            k: 0.0,
            epoch: None,
            w_est: 0.0,
            prior: 0.0,
            recovery: 0,
            last: 0.0,
        }
    }

    /// A controller that goes on with a window that others have proven.
    pub(super) fn with_window(window: f64, slow_start: bool) -> Self {
        let window = window.clamp(MIN_WINDOW, MAX_WINDOW);
        Cubic {
            window,
            slow_start_threshold: if slow_start { f64::INFINITY } else { window },
            ..Cubic::new()
        }
    }

    /// The window in packets.
    pub(super) fn window(&self) -> f64 {
        self.window
    }

    /// Whether the window doubles per round trip.
    pub(super) fn is_in_slow_start(&self) -> bool {
        self.window < self.slow_start_threshold
    }

    /// Ends slow start, because something else than this window limits the flow. What the last
    /// round trip added is not proven.
    pub(super) fn end_slow_start(&mut self) {
        if self.is_in_slow_start() {
            self.window = (self.window / 2.0).max(MIN_WINDOW);
            self.slow_start_threshold = self.window;
        }
    }

    /// Goes on with a round trip that is longer by this factor: what was proven is the rate.
    pub(super) fn rescale(&mut self, factor: f64) {
        for packets in [
            &mut self.window,
            &mut self.slow_start_threshold,
            &mut self.w_max,
            &mut self.prior,
        ] {
            *packets *= factor;
        }
        self.window = self.window.clamp(MIN_WINDOW, MAX_WINDOW);
        self.epoch = None;
    }

    /// The first packet number whose loss is another congestion event.
    pub(super) fn recovery(&self) -> u64 {
        self.recovery
    }

    /// Grows by `acked` packets that were sent after the last reduction (RFC 9438 sections 4.2 to
    /// 4.5, 4.10).
    pub(super) fn on_acked(&mut self, acked: f64, rtt: f64, now: f64) {
        self.last = now;
        if acked <= 0.0 {
            return;
        }
        if self.is_in_slow_start() {
            self.window = (self.window + acked).min(MAX_WINDOW);
            return;
        }
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => {
                self.begin_epoch(now);
                now
            }
        };
        let t = (now - epoch).max(0.0);
        let alpha = if self.w_est >= self.prior { 1.0 } else { ALPHA };
        self.w_est += alpha * acked / self.window;
        if self.cubic(t) < self.w_est {
            self.window = self.window.max(self.w_est);
        } else {
            let most = 1.5 * self.window;
            let target = self.cubic(t + rtt).clamp(self.window, most);
            let grown = self.window + (target - self.window) / self.window * acked;
            self.window = grown.min(target);
        }
        self.window = self.window.min(MAX_WINDOW);
    }

    fn begin_epoch(&mut self, now: f64) {
        self.epoch = Some(now);
        self.w_est = self.window;
        if self.window < self.w_max {
            self.k = ((self.w_max - self.window) / C).cbrt();
        } else {
            self.k = 0.0;
            self.w_max = self.window;
        }
    }

    /// `W_cubic(t)` (RFC 9438 section 4.2).
    fn cubic(&self, t: f64) -> f64 {
        C * (t - self.k).powi(3) + self.w_max
    }

    /// Takes note of acknowledgements of a window that the flow does not use: it does not grow, and
    /// the time does not count (RFC 9438 section 5.8, RFC 7661 section 4.3).
    pub(super) fn on_unused(&mut self, now: f64) {
        if let Some(epoch) = &mut self.epoch {
            *epoch += (now - self.last).max(0.0);
        }
        self.last = now;
    }

    /// Reduces the window for a congestion event (RFC 9438 sections 4.6, 4.7), not below `floor`.
    /// `used` is the part of the window that the flow used (RFC 7661 section 4.4.1), `next_pn` the
    /// first packet to be sent after the reduction.
    pub(super) fn on_congestion(&mut self, used: f64, floor: f64, next_pn: u64) {
        let window = self.window.min(used.max(MIN_WINDOW));
        self.w_max = if window < self.w_max {
            window * (1.0 + BETA) / 2.0
        } else {
            window
        };
        self.prior = window;
        self.window = (window * BETA).max(floor.max(MIN_WINDOW).min(window));
        self.slow_start_threshold = self.window;
        self.epoch = None;
        self.recovery = next_pn;
    }

    /// Reduces the window further, to `fraction` of what it was before the last reduction: its
    /// losses turned out to be worse.
    pub(super) fn deepen(&mut self, fraction: f64) {
        let window = (self.prior * fraction).max(MIN_WINDOW);
        if window < self.window {
            self.window = window;
            self.slow_start_threshold = window;
            self.epoch = None;
        }
    }

    /// Restores the state from before a reduction for losses that were none (RFC 9438 section
    /// 4.9.2).
    pub(super) fn restore(&mut self, before: Cubic) {
        if before.window > self.window {
            *self = Cubic {
                recovery: self.recovery,
                last: self.last,
                ..before
            };
        }
    }

    /// Halves a window that was not validated for long, with slow start back to three quarters
    /// (RFC 7661 section 4.4.2).
    pub(super) fn on_idle(&mut self) {
        let back = self.window * 0.75;
        let half = (self.window / 2.0).max(INITIAL_WINDOW.min(self.window));
        if !self.is_in_slow_start() {
            self.slow_start_threshold = back;
        }
        self.window = half;
        self.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of `rtt` seconds without loss, from `from` on.
    fn rounds(cubic: &mut Cubic, from: f64, rounds: usize, rtt: f64) -> f64 {
        (0..rounds).fold(from, |now, _| {
            cubic.on_acked(cubic.window(), rtt, now + rtt);
            now + rtt
        })
    }

    #[test]
    fn slow_start_doubles_and_ends_with_a_loss() {
        let mut cubic = Cubic::new();
        rounds(&mut cubic, 0.0, 3, 0.1);
        assert_eq!(cubic.window(), 80.0);
        cubic.on_congestion(f64::INFINITY, 0.0, 100);
        assert_eq!((cubic.window(), cubic.recovery()), (56.0, 100));
        assert!(!cubic.is_in_slow_start());
    }

    /// RFC 9438 section 4.2: with a long round trip the window is back at `W_max` after `K`, slow
    /// around it, and faster and faster beyond.
    #[test]
    fn the_window_follows_the_cubic_function() {
        let mut cubic = Cubic::with_window(1000.0, false);
        cubic.on_congestion(f64::INFINITY, 0.0, 1);
        let k = (300.0f64 / 0.4).cbrt();
        let rtt = 0.1;
        let now = rounds(&mut cubic, 0.0, (k / rtt) as usize, rtt);
        assert!((cubic.window() - 1000.0).abs() < 10.0, "{}", cubic.window());
        let now = rounds(&mut cubic, now, 20, rtt);
        assert!(cubic.window() < 1010.0, "plateau: {}", cubic.window());
        rounds(&mut cubic, now, 80, rtt);
        let expected = 1000.0 + 0.4 * 10.0f64.powi(3);
        assert!((cubic.window() / expected - 1.0).abs() < 0.05);
    }

    /// RFC 9438 section 4.3: with a short round trip, Reno's increase is faster.
    #[test]
    fn the_reno_friendly_region_grows_by_alpha_per_round_trip() {
        let mut cubic = Cubic::with_window(20.0, false);
        cubic.on_congestion(f64::INFINITY, 0.0, 1);
        rounds(&mut cubic, 0.0, 10, 0.01);
        let grown = cubic.window() - 14.0;
        assert!((grown / (10.0 * ALPHA) - 1.0).abs() < 0.2, "{grown}");
        rounds(&mut cubic, 0.1, 100, 0.01);
        let later = cubic.window();
        rounds(&mut cubic, 1.1, 10, 0.01);
        assert!((cubic.window() - later - 10.0).abs() < 1.0, "alpha is 1");
    }

    #[test]
    fn fast_convergence_releases_bandwidth() {
        let mut cubic = Cubic::with_window(100.0, false);
        cubic.on_congestion(f64::INFINITY, 0.0, 1);
        assert_eq!(cubic.w_max, 100.0);
        cubic.on_congestion(f64::INFINITY, 0.0, 2);
        assert_eq!(cubic.w_max, 70.0 * 0.85);
    }

    #[test]
    fn time_in_which_the_window_is_not_used_does_not_count() {
        let mut cubic = Cubic::with_window(1000.0, false);
        cubic.on_congestion(f64::INFINITY, 0.0, 1);
        let now = rounds(&mut cubic, 0.0, 5, 0.1);
        let before = cubic.window();
        cubic.on_unused(now + 1000.0);
        assert_eq!(cubic.window(), before);
        rounds(&mut cubic, now + 1000.0, 1, 0.1);
        assert!(cubic.window() < before * 1.05);
    }

    #[test]
    fn a_loss_reduces_what_was_used() {
        let mut cubic = Cubic::with_window(1000.0, false);
        cubic.on_congestion(100.0, 0.0, 1);
        assert_eq!(cubic.window(), 70.0);
        cubic.deepen(0.5);
        assert_eq!(cubic.window(), 50.0);
        cubic.on_congestion(f64::INFINITY, INITIAL_WINDOW, 2);
        cubic.on_congestion(f64::INFINITY, 60.0, 2);
        assert_eq!(cubic.window(), 35.0, "a floor never raises the window");
        (0..100).for_each(|pn| cubic.on_congestion(f64::INFINITY, 0.0, pn));
        assert_eq!(cubic.window(), MIN_WINDOW);
    }

    #[test]
    fn slow_start_that_something_else_ends_keeps_what_is_proven() {
        let mut cubic = Cubic::with_window(100.0, true);
        cubic.end_slow_start();
        cubic.end_slow_start();
        assert_eq!(cubic.window(), 50.0);
        assert!(!cubic.is_in_slow_start());
    }

    #[test]
    fn idleness_halves_once_and_keeps_the_initial_window() {
        let mut cubic = Cubic::with_window(100.0, false);
        cubic.on_idle();
        assert_eq!(cubic.window(), 50.0);
        assert!(cubic.is_in_slow_start());
        let mut small = Cubic::with_window(5.0, false);
        small.on_idle();
        assert_eq!(small.window(), 5.0);
    }
}
