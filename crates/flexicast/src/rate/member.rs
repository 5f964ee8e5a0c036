//! A member as the rate controller sees it.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::controller::Controller;
use super::cubic::Cubic;
use super::friendly::LossHistory;
use super::loss_window::{LossWindow, Tally};
use super::sent::{Amount, SentLog};
use super::{MAX_RTT, MIN_RTT, NEWCOMER_ROUNDS};

/// Estimate of what a member's path takes.
#[derive(Debug)]
pub(super) enum Estimator {
    None,
    Cubic(Box<Controller>),
    History(Box<LossHistory>),
}

impl Estimator {
    /// A controller that inherits a window.
    pub(super) fn cubic(window: f64, slow_start: bool) -> Self {
        let cubic = Cubic::with_window(window, slow_start);
        Estimator::Cubic(Box::new(Controller::new(cubic)))
    }

    /// No losses before the packet with this ordinal.
    pub(super) fn history(start: u64) -> Self {
        Estimator::History(Box::new(LossHistory::new(start)))
    }
}

/// Seconds for which a reason to evict a member has to last.
const EVICT_AFTER: f64 = 2.0;

/// A reason to evict a member.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Condition {
    since: Option<f64>,
    is_due: bool,
}

impl Condition {
    /// Takes whether it holds at `now`, which is in seconds; returns the same.
    pub(super) fn observe(&mut self, holds: bool, now: f64) -> bool {
        let since = *self.since.get_or_insert(now);
        self.is_due = holds && now - since >= EVICT_AFTER;
        if !holds {
            self.since = None;
        }
        holds
    }

    /// Whether it has held long enough.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }
}

/// New packets in an acknowledgement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) acked: Amount,
    pub(super) lost: Amount,
}

/// A member of the flow.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) rtt: Duration,
    admitted: Instant,
    /// Packets below are not its own.
    pub(super) cut: u64,
    /// Packets below this number are reported or lost.
    pub(super) reported_to: u64,
    /// Whether it may limit the flow.
    pub(super) counts: bool,
    /// Whether a scan has found that it counts.
    pub(super) was_scanned: bool,
    /// Whether its eviction was reported.
    pub(super) evicted: bool,
    /// Bytes a second that its path takes; infinite while nothing limits it.
    pub(super) rate: f64,
    /// Highest rate, in bytes a second, that the flow has used since it is a member, without a
    /// reduction for most members since.
    pub(super) proven: f64,
    /// Whether it holds the flow below the minimum rate.
    pub(super) slow: Condition,
    /// Whether it loses more than it may.
    pub(super) lossy: Condition,
    pub(super) loss: LossWindow,
    /// Round of all members' ECN marks in which it last reported some.
    pub(super) marked_in: u64,
    /// For the circuit breaker.
    pub(super) measured: Tally,
    pub(super) estimator: Estimator,
}

impl Member {
    pub(super) fn new(rtt: Duration, cut: u64, now: Instant, estimator: Estimator) -> Self {
        Member {
            rtt,
            admitted: now,
            cut,
            reported_to: cut,
            counts: false,
            was_scanned: false,
            evicted: false,
            rate: f64::INFINITY,
            proven: 0.0,
            slow: Condition::default(),
            lossy: Condition::default(),
            loss: LossWindow::default(),
            marked_in: 0,
            measured: Tally::default(),
            estimator,
        }
    }

    /// Whether it has been a member for some round trips.
    pub(super) fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.admitted) >= self.rtt * NEWCOMER_ROUNDS
    }

    /// Its own CUBIC controller, if the policy gives it one.
    pub(super) fn cubic(&self) -> Option<&Cubic> {
        match &self.estimator {
            Estimator::Cubic(controller) => Some(&controller.cubic),
            _ => None,
        }
    }

    /// Reduces windows that were not used for long.
    pub(super) fn on_idle(&mut self) {
        if let Estimator::Cubic(controller) = &mut self.estimator {
            controller.cubic.on_idle();
        }
    }

    /// Goes on with packets that are shorter by this factor: what was proven is the rate.
    pub(super) fn rescale(&mut self, factor: f64) {
        match &mut self.estimator {
            Estimator::Cubic(controller) => controller.rescale(factor),
            Estimator::History(history) => {
                if let Some(congestion) = &mut history.congestion {
                    congestion.controller.rescale(factor);
                }
            }
            Estimator::None => {}
        }
    }

    /// Sums up an acknowledgement.
    pub(super) fn take_report(
        &mut self,
        acked: &[Range<u64>],
        lost: &[Range<u64>],
        rtt: Duration,
        sent: &SentLog,
    ) -> Report {
        self.rtt = rtt.clamp(MIN_RTT, MAX_RTT);
        let next = sent.next_pn();
        for range in acked.iter().chain(lost) {
            self.reported_to = self.reported_to.max(range.end.min(next));
        }
        Report {
            acked: sum(acked, self.cut, sent),
            lost: sum(lost, self.cut, sent),
        }
    }
}

/// Returns what was sent in these ranges from `from` on.
pub(super) fn sum(ranges: &[Range<u64>], from: u64, sent: &SentLog) -> Amount {
    let mut total = Amount::default();
    for range in ranges {
        let amount = sent.amount(range.start.max(from)..range.end);
        total.packets += amount.packets;
        total.bytes += amount.bytes;
    }
    total
}
