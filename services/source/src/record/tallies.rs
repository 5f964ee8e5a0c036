//! Totals of channels each second, and counts in steps of 10 s.

use std::collections::BTreeMap;

use flexicast_tokio::source::{ChannelBytes, ChannelStatus};
use store::{PulseRow, ReceiverCounts, SampleRow, SentBytes};

use super::fleet::Tally;

/// Step that is written; the store makes the larger ones.
const STEP_MS: i64 = SampleRow::STEPS[0];

/// Counters of a channel, or of all together.
#[derive(Debug, Default)]
struct ChannelCounters {
    row: SampleRow,
    bytes: Option<ChannelBytes>,
    head: Option<u64>,
}

/// Counts for all channels.
#[derive(Debug, Default)]
pub struct Tallies {
    by_channel: BTreeMap<String, ChannelCounters>,
    /// Moves since the last sample, by channel.
    moves: BTreeMap<String, u64>,
}

/// Sample of a channel.
#[derive(Debug, Clone, Default)]
pub struct ChannelSample {
    /// Receivers by state.
    pub tally: Tally,
    /// Lag of the last connected receiver: in updates, and in milliseconds.
    pub lag: (u64, u64),
    /// Last published seq.
    pub head: u64,
    /// Bytes sent since the channel was added.
    pub bytes: ChannelBytes,
}

impl ChannelSample {
    /// Returns the totals of a channel.
    pub fn pulse(&self, status: &ChannelStatus, updates_per_hour: u64, at_ms: i64) -> PulseRow {
        let (tally, bytes) = (&self.tally, &self.bytes);
        let flow = status.flow.as_ref().map(serde_json::to_string);
        let flow = flow.and_then(Result::ok);
        PulseRow {
            channel: status.channel.clone(),
            at_ms,
            head: self.head,
            counts: counts(tally),
            delivered: tally.delivered,
            lag_updates: self.lag.0,
            lag_ms: self.lag.1,
            updates_per_hour,
            bytes: SentBytes {
                flow: bytes.flow,
                copies: bytes.copies,
                unicast: bytes.unicast,
                repairs: bytes.repairs,
                equivalent: bytes.by_unicast_alone,
            },
            flow: flow.unwrap_or_else(|| "{}".to_owned()),
            change: 0,
        }
    }
}

impl Tallies {
    /// Counts a move of a receiver of a channel.
    pub fn moved(&mut self, channel: &str) {
        *self.moves.entry(channel.to_owned()).or_default() += 1;
    }

    /// Adds samples of the channels, and of all together under the empty name. Completed steps are
    /// passed to `add`.
    pub fn look(
        &mut self,
        looks: &BTreeMap<String, ChannelSample>,
        all: Tally,
        now_ms: i64,
        mut add: impl FnMut(SampleRow),
    ) {
        let at_ms = now_ms - now_ms.rem_euclid(STEP_MS);
        for (channel, counting) in &mut self.by_channel {
            if counting.row.at_ms != at_ms {
                let next = new_row(channel, at_ms);
                let done = std::mem::replace(&mut counting.row, next);
                if done.weight > 0 {
                    add(done);
                }
            }
        }
        let moves = std::mem::take(&mut self.moves);
        let mut total = ChannelCounters {
            row: new_row("", at_ms),
            ..ChannelCounters::default()
        };
        for (channel, look) in looks {
            let counting = self.counting(channel, at_ms);
            let step = counting.step(look, moves.get(channel).copied().unwrap_or(0));
            add_up(&mut total.row, &step);
        }
        self.by_channel
            .retain(|channel, _| channel.is_empty() || looks.contains_key(channel));
        // A receiver of several channels is one receiver.
        total.row.counts = counts(&all);
        let counting = self.counting("", at_ms);
        add_up(&mut counting.row, &total.row);
        counting.row.weight += 1;
    }

    fn counting(&mut self, channel: &str, at_ms: i64) -> &mut ChannelCounters {
        let new = || ChannelCounters {
            row: new_row(channel, at_ms),
            ..ChannelCounters::default()
        };
        self.by_channel
            .entry(channel.to_owned())
            .or_insert_with(new)
    }
}

fn new_row(channel: &str, at_ms: i64) -> SampleRow {
    SampleRow {
        channel: channel.to_owned(),
        step_ms: STEP_MS,
        at_ms,
        ..SampleRow::default()
    }
}

fn counts(tally: &Tally) -> ReceiverCounts {
    ReceiverCounts {
        receivers: tally.receivers,
        connected: tally.connected,
        multicast: tally.multicast,
        amt: tally.amt,
        replicated: tally.replicated,
        unicast: tally.unicast,
        behind: tally.behind,
    }
}

/// Adds one sample, or one channel, to another.
fn add_up(row: &mut SampleRow, one: &SampleRow) {
    row.counts += one.counts;
    row.lag_updates = row.lag_updates.max(one.lag_updates);
    row.lag_ms = row.lag_ms.max(one.lag_ms);
    row.updates += one.updates;
    row.moves += one.moves;
    row.bytes += one.bytes;
}

impl ChannelCounters {
    /// Adds a sample to the current step, and returns the addition.
    fn step(&mut self, look: &ChannelSample, moves: u64) -> SampleRow {
        let mut one = SampleRow {
            counts: counts(&look.tally),
            ..SampleRow::default()
        };
        (one.lag_updates, one.lag_ms) = look.lag;
        one.moves = moves;
        let head = self.head.replace(look.head);
        one.updates = head.map_or(0, |head| look.head.saturating_sub(head));
        // A channel that was removed and added again begins at 0.
        let bytes = look.bytes;
        let known = self.bytes.replace(bytes).unwrap_or(bytes);
        let grown = |is: u64, was: u64| if is < was { is } else { is - was };
        one.bytes = SentBytes {
            flow: grown(bytes.flow, known.flow),
            copies: grown(bytes.copies, known.copies),
            unicast: grown(bytes.unicast, known.unicast),
            repairs: grown(bytes.repairs, known.repairs),
            equivalent: grown(bytes.by_unicast_alone, known.by_unicast_alone),
        };
        add_up(&mut self.row, &one);
        self.row.weight += 1;
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(head: u64, connected: u64, flow: u64) -> ChannelSample {
        ChannelSample {
            tally: Tally {
                receivers: 4,
                connected,
                unicast: connected,
                ..Tally::default()
            },
            lag: (head, head * 10),
            head,
            bytes: ChannelBytes {
                flow,
                ..ChannelBytes::default()
            },
        }
    }

    #[test]
    fn samples_hold_sums_and_increments() {
        let mut tallies = Tallies::default();
        let mut done = Vec::new();
        let mut sample = |channels: &[(&str, ChannelSample)], at_ms| {
            let looks = channels
                .iter()
                .map(|(name, look)| ((*name).to_owned(), look.clone()));
            let all = Tally {
                receivers: 5,
                connected: 3,
                ..Tally::default()
            };
            tallies.moved("a");
            tallies.look(&looks.collect(), all, at_ms, |row| done.push(row));
        };
        sample(&[("a", look(10, 2, 500)), ("b", look(3, 1, 70))], 20_100);
        sample(&[("a", look(12, 4, 900)), ("b", look(3, 1, 80))], 21_100);
        // The flow was replaced, and its count restarted.
        sample(&[("a", look(12, 4, 30)), ("b", look(3, 1, 80))], 29_999);
        sample(&[("b", look(3, 1, 80))], 30_000);
        let of = |name: &str| done.iter().find(|row| row.channel == name).unwrap();
        assert_eq!(done.len(), 3);
        let a = of("a");
        assert_eq!((a.at_ms, a.step_ms, a.weight), (20_000, 10_000, 3));
        assert_eq!(
            (a.counts.receivers, a.counts.connected, a.counts.unicast),
            (12, 10, 10)
        );
        assert_eq!((a.updates, a.bytes.flow, a.moves), (2, 430, 3));
        assert_eq!((a.lag_updates, a.lag_ms), (12, 120));
        let all = of("");
        assert_eq!(
            (all.weight, all.counts.receivers, all.counts.connected),
            (3, 15, 9)
        );
        assert_eq!((all.updates, all.bytes.flow, all.moves), (2, 440, 3));
    }
}
