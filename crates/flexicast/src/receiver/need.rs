//! Updates that the flow brought wrong: their bytes are asked for again (protocol.md section 4.4).

use std::time::{Duration, Instant};

use super::timer::Timer;
use super::trust::TOLERATED;
use super::{Receiver, ReceiverEvent};
use crate::control::{Control, NEEDS_PER_S, Need};
use crate::pace::TokenBucket;

/// An update that later ones wait for is asked for after this time: repairs that are under way
/// take less.
const OVERDUE: Duration = Duration::from_secs(3);
/// Findings that wait for the application.
const MAX_FINDINGS: usize = 64;

/// An update that later ones wait for: requested when [`Timer::Blocked`] expires without progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockedUpdate {
    seq: u64,
    /// Bytes of it that the unicast path has brought.
    progress: usize,
}

/// The pacing of requests.
pub(super) fn limit() -> TokenBucket {
    TokenBucket::new(NEEDS_PER_S * 8, NEEDS_PER_S as usize)
}

impl Receiver {
    /// Reports what the merges found, and asks the source for what they dropped.
    pub(super) fn request_bytes(&mut self, now: Instant) {
        self.report_distrust(now);
        self.timers.stop(Timer::Need);
        if !self.welcomed {
            return;
        }
        for at in 0..self.channels.len() {
            self.clear(at);
            self.find_missing_ranges(at, now);
        }
        for at in 0..self.channels.len() {
            while self.channels[at].merge.has_need() {
                let ready = self.need_limit.ready_at(now);
                if ready > now {
                    self.timers.set(Timer::Need, ready);
                    return;
                }
                let channel = &mut self.channels[at];
                let (Some(number), Some(missing)) = (channel.number, channel.merge.pop_need())
                else {
                    break;
                };
                self.need_limit.take(1);
                let range = missing.range;
                let need = Need {
                    channel: number,
                    seq: missing.seq,
                    offset: range.start,
                    length: (range.end < u64::MAX).then(|| range.end - range.start),
                    reason: missing.reason as u64,
                };
                Control::Need(need).encode(&mut self.control_out);
            }
        }
    }

    fn report_distrust(&mut self, now: Instant) {
        let mut lost = Vec::new();
        for (at, channel) in self.channels.iter_mut().enumerate() {
            while let Some(found) = channel.merge.pop_distrust() {
                let waiting = self.events.iter().filter(|e| is_finding(e)).count();
                // The unicast path may have brought it meanwhile.
                let lacks = channel.merge.is_distrusted(found.seq);
                if lacks && !channel.merge.does_source_answer() && !lost.contains(&at) {
                    lost.push(at);
                    self.events.push_back(ReceiverEvent::Reconnect {
                        channel: channel.name.clone(),
                        seq: found.seq,
                    });
                }
                if waiting < MAX_FINDINGS {
                    self.events.push_back(ReceiverEvent::Distrusted {
                        channel: channel.name.clone(),
                        found,
                    });
                }
            }
        }
        for channel in lost {
            self.lose_trust(channel, TOLERATED, now);
        }
    }

    /// Takes back what counts towards leaving a flow for updates that the source has sent as well:
    /// they were not forged.
    fn clear(&mut self, channel: usize) {
        let cleared = self.channels[channel].merge.stats().cleared;
        let before = std::mem::replace(&mut self.channels[channel].cleared, cleared);
        let flows = self.flows.values_mut().filter(|f| f.channel() == channel);
        for flow in flows {
            flow.clear_invalid(cleared - before);
        }
    }

    /// Requests ranges that later updates are waiting for: a forged packet number hides the loss
    /// of the real one.
    fn find_missing_ranges(&mut self, at: usize, now: Instant) {
        let (channel, timer) = (&mut self.channels[at], Timer::Blocked(at));
        let blocked = channel.merge.waits_for();
        let blocked = blocked.map(|(seq, progress)| BlockedUpdate { seq, progress });
        if blocked != channel.blocked {
            channel.blocked = blocked;
            self.timers.put(timer, blocked.map(|_| now + OVERDUE));
        }
        if self.timers.is_expired(timer, now) {
            channel.merge.seek();
            channel.blocked = None;
            self.timers.stop(timer);
        }
    }
}

fn is_finding(event: &ReceiverEvent) -> bool {
    matches!(event, ReceiverEvent::Distrusted { .. })
}
