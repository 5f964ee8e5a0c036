//! Results of the failure experiment: delays by receiver and by failure.

use std::fmt;

use anyhow::{Context, Result, ensure};

use crate::delay::Report;
use crate::stream::{Arrival, Route, StreamMove, StreamReport};

/// Time around a link's return for which its receiver's messages count as affected by the failure,
/// in ns: the return is part of the failure.
const AFTER_NS: u64 = 2_000_000_000;
/// Whatever arrives later than this counts as delayed, in ms; less is the machine.
const DELAYED_MS: f64 = 10.0;

/// Multicast to one receiver failed.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Index of the receiver, from 0.
    pub link: usize,
    /// Just before the command that cut it.
    pub from_ns: u64,
    /// When that command had done its work.
    pub done_ns: u64,
    /// Planned end; once it is over, the time just before the restoring command.
    pub until_ns: u64,
    /// Time of restoration.
    restored_ns: Option<u64>,
}

impl Cut {
    pub(super) fn new(link: usize, from_ns: u64, done_ns: u64, until_ns: u64) -> Cut {
        Cut {
            link,
            from_ns,
            done_ns,
            until_ns,
            restored_ns: None,
        }
    }

    pub(super) fn open(&self) -> bool {
        self.restored_ns.is_none()
    }

    pub(super) fn restored(&mut self, from_ns: u64, done_ns: u64) {
        self.until_ns = from_ns;
        self.restored_ns = Some(done_ns);
    }

    /// Whether a message of this time, to this link, may be touched by the failure.
    fn touches(&self, link: usize, sent_ns: u64) -> bool {
        // A message that was sent before may be on its way.
        let from = self.from_ns.saturating_sub(AFTER_NS / 10);
        let to = self.restored_ns.unwrap_or(self.until_ns) + AFTER_NS;
        self.link == link && (from..to).contains(&sent_ns)
    }
}

/// Effects of one failure.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The receiver.
    pub name: String,
    /// Seconds after the first message.
    pub at_s: f64,
    /// From the cut to the source's decision, in ms; `None` when it did not fall back.
    pub fallback_ms: Option<f64>,
    /// From the restoration to the source's decision, in ms.
    pub return_ms: Option<f64>,
    /// The longest extra delay of a message around the cut, and when that message was published, in
    /// ms after the cut.
    pub worst: (f64, f64),
    /// When the worst message arrived, in ms after the cut.
    pub worst_arrived_ms: f64,
    /// The longest extra delay of a message around the return.
    pub worst_at_return_ms: f64,
    /// Number of messages that were delayed by more than 10 ms.
    pub delayed: usize,
    /// Moves beyond one down and one up.
    pub flaps: usize,
}

/// Results of a run.
#[derive(Debug)]
pub struct Observations {
    names: Vec<String>,
    /// Extra delay in ms of each message: one-way delay less the receiver's own base.
    extra: Vec<Vec<f64>>,
    arrivals: Vec<Vec<Arrival>>,
    bases: Vec<f64>,
    cuts: Vec<Cut>,
    /// The source's report.
    pub report: StreamReport,
    /// Report of the slow cable.
    pub cable: Report,
}

impl Observations {
    /// Judges that every receiver got every message once and in order, and works the delays out.
    pub(super) fn new(
        names: Vec<String>,
        arrivals: Vec<Vec<Arrival>>,
        count: u64,
        cuts: Vec<Cut>,
        report: StreamReport,
        cable: Report,
    ) -> Result<Observations> {
        for (name, arrivals) in names.iter().zip(&arrivals) {
            require_once_in_order(arrivals, count).with_context(|| name.clone())?;
        }
        ensure!(
            report.complete,
            "not every receiver has confirmed message {count} to the source"
        );
        // Before the first failure everything is as it should be.
        let quiet = cuts.iter().map(|cut| cut.from_ns).min();
        let mut bases = Vec::new();
        let mut extra = Vec::new();
        for arrivals in &arrivals {
            let before = arrivals
                .iter()
                .filter(|one| quiet.is_none_or(|quiet| one.received_ns < quiet));
            let base = percentile(before.map(Arrival::delay_ms).collect(), 50.0)
                .context("no message arrived before the first failure")?;
            bases.push(base);
            extra.push(arrivals.iter().map(|one| one.delay_ms() - base).collect());
        }
        Ok(Observations {
            names,
            extra,
            arrivals,
            bases,
            cuts,
            report,
            cable,
        })
    }

    /// Returns what arrived at each receiver.
    pub fn arrivals(&self) -> &[Vec<Arrival>] {
        &self.arrivals
    }

    /// Returns the link failures.
    pub fn link_failures(&self) -> &[Cut] {
        &self.cuts
    }

    /// Returns the number of link failures.
    pub fn cuts(&self) -> usize {
        self.cuts.len()
    }

    /// The base of all receivers, least and most, in ms.
    pub fn bases(&self) -> (f64, f64) {
        let least = self.bases.iter().copied().fold(f64::INFINITY, f64::min);
        (least, self.bases.iter().copied().fold(0.0, f64::max))
    }

    /// Extra delay of all messages to all receivers: a percentile, in ms.
    pub fn extra_ms(&self, percent: f64) -> f64 {
        let all = self.extra.iter().flatten().copied().collect();
        percentile(all, percent).unwrap_or(0.0)
    }

    /// Extra delay of the messages published to a receiver while its link was cut, or shortly
    /// after: a percentile, in ms.
    pub fn touched_ms(&self, percent: f64) -> f64 {
        percentile(self.part(true), percent).unwrap_or(0.0)
    }

    /// Extra delay of all other messages.
    pub fn untouched_ms(&self, percent: f64) -> f64 {
        percentile(self.part(false), percent).unwrap_or(0.0)
    }

    fn part(&self, touched: bool) -> Vec<f64> {
        let mut part = Vec::new();
        for (link, (arrivals, extra)) in self.arrivals.iter().zip(&self.extra).enumerate() {
            let cuts: Vec<&Cut> = self.cuts.iter().filter(|cut| cut.link == link).collect();
            for (one, extra) in arrivals.iter().zip(extra) {
                if cuts.iter().any(|cut| cut.touches(link, one.sent_ns)) == touched {
                    part.push(*extra);
                }
            }
        }
        part
    }

    /// Returns the effects of each failure, in order.
    pub fn failures(&self) -> Vec<Failure> {
        self.cuts.iter().map(|cut| self.failure(cut)).collect()
    }

    fn failure(&self, cut: &Cut) -> Failure {
        let name = &self.names[cut.link];
        let ms = |ns: u64, from: u64| ns as f64 / 1e6 - from as f64 / 1e6;
        let restored = cut.restored_ns.unwrap_or(cut.until_ns);
        let moves = self.moves_of(name);
        let of_cut: Vec<_> = moves
            .iter()
            .filter(|step| cut.touches(cut.link, step.at_ns))
            .collect();
        let first = |rung: &str, from: u64| {
            // The source's clock is read in whole milliseconds.
            let found = of_cut
                .iter()
                .find(|step| step.to == rung && step.at_ns + 2_000_000 >= from);
            found.map(|step| ms(step.at_ns, from))
        };
        let messages = self.arrivals[cut.link]
            .iter()
            .zip(&self.extra[cut.link])
            .filter(|(one, _)| cut.touches(cut.link, one.sent_ns));
        let longest = |before: bool| {
            let part = messages
                .clone()
                .filter(|(one, _)| (one.sent_ns < cut.until_ns - AFTER_NS / 10) == before);
            part.max_by(|one, other| one.1.total_cmp(other.1))
        };
        let worst = longest(true);
        Failure {
            name: name.clone(),
            at_s: ms(cut.from_ns, self.report.start_ns) / 1e3,
            fallback_ms: first("unicast", cut.from_ns),
            return_ms: first("multicast", cut.until_ns).filter(|_| !cut.open()),
            worst: worst.map_or((0.0, 0.0), |(one, extra)| {
                (*extra, ms(one.sent_ns, cut.from_ns))
            }),
            worst_arrived_ms: worst.map_or(0.0, |(one, _)| ms(one.received_ns, cut.from_ns)),
            worst_at_return_ms: longest(false).map_or(0.0, |(_, extra)| *extra),
            delayed: messages.filter(|(_, extra)| **extra > DELAYED_MS).count(),
            flaps: of_cut
                .iter()
                .filter(|step| step.at_ns < restored + AFTER_NS)
                .count()
                .saturating_sub(2),
        }
    }

    fn moves_of(&self, name: &str) -> Vec<&StreamMove> {
        let mut moves: Vec<_> = self
            .report
            .moves
            .iter()
            .filter(|step| step.name == name)
            .collect();
        moves.sort_by_key(|step| step.at_ns);
        moves
    }

    /// Judges a run: as many failures as planned, each answered by a fall-back; those whose link
    /// never failed stayed members and got all by the flow; and no message was delayed by more than
    /// `limit_ms`.
    pub(super) fn require(
        &self,
        planned: &[(std::time::Duration, usize)],
        limit_ms: f64,
    ) -> Result<()> {
        ensure!(
            !self.cuts.is_empty() && self.cuts.len() <= planned.len(),
            "{} links failed, planned were {planned:?}",
            self.cuts.len()
        );
        let longest = self.extra_ms(100.0);
        ensure!(
            longest < limit_ms,
            "extra delay of {longest:.0} ms although at most {limit_ms:.0} are allowed\n{self}"
        );
        for failure in self.failures() {
            ensure!(
                failure.fallback_ms.is_some(),
                "{}: its link failed and it did not fall back\n{self}",
                failure.name
            );
        }
        for (link, name) in self.names.iter().enumerate() {
            if self.cuts.iter().any(|cut| cut.link == link) {
                continue;
            }
            let moves = self.moves_of(name);
            ensure!(
                moves.iter().all(|step| step.to == "multicast"),
                "{name}: its link held, and yet it moved: {moves:?}\n{self}"
            );
            let all = &self.arrivals[link];
            let repaired = all.iter().filter(|one| one.way != Route::Flow).count();
            // A receiver that gets no processor for a while loses what its socket cannot hold, and
            // gets it again.
            ensure!(
                repaired * 50 <= all.len(),
                "{name}: its link held, and yet {repaired} of {} messages did not come by the flow",
                all.len()
            );
        }
        Ok(())
    }
}

impl fmt::Display for Observations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = self.bases();
        writeln!(f, "bases {least:.1} to {most:.1} ms; extra delay in ms:")?;
        for percent in [50.0, 90.0, 99.0, 99.9, 100.0] {
            writeln!(
                f,
                "  {percent:>5} %: all {:.1}, touched by their own failure {:.1}, others {:.1}",
                self.extra_ms(percent),
                self.touched_ms(percent),
                self.untouched_ms(percent)
            )?;
        }
        writeln!(
            f,
            "publisher at most {:.1} ms late, cable {:.1} and {:.1} ms",
            self.report.latest_us as f64 / 1e3,
            self.cable.there.latest_us as f64 / 1e3,
            self.cable.back.latest_us as f64 / 1e3
        )?;
        let option = |value: Option<f64>| value.map_or("-".to_owned(), |ms| format!("{ms:.0}"));
        for one in self.failures() {
            writeln!(
                f,
                "  {:>5.1} s {:>4}: fell back after {:>4} ms; worst {:>5.1} ms, published {:>5.1}, \
                 arrived {:>5.1} ms after the cut; {} delayed; returned after {:>4} ms, worst then \
                 {:>5.1} ms; {} flaps",
                one.at_s,
                one.name,
                option(one.fallback_ms),
                one.worst.0,
                one.worst.1,
                one.worst_arrived_ms,
                one.delayed,
                option(one.return_ms),
                one.worst_at_return_ms,
                one.flaps
            )?;
        }
        Ok(())
    }
}

fn require_once_in_order(arrivals: &[Arrival], count: u64) -> Result<()> {
    for (expected, arrival) in (1..).zip(arrivals) {
        ensure!(
            arrival.seq == expected,
            "message {} was delivered where {expected} should have been",
            arrival.seq
        );
    }
    ensure!(
        arrivals.len() as u64 == count,
        "{} of {count} messages were delivered",
        arrivals.len()
    );
    Ok(())
}

/// The smallest value that at least `percent` of the values do not exceed.
fn percentile(mut values: Vec<f64>, percent: f64) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(values.clone(), 50.0), Some(100.0));
        assert_eq!(percentile(values.clone(), 99.0), Some(198.0));
        assert_eq!(percentile(values, 100.0), Some(200.0));
        assert_eq!(percentile(vec![], 50.0), None);
    }

    #[test]
    fn a_message_that_comes_twice_or_not_at_all_is_noticed() {
        let arrival = |seq| Arrival {
            seq,
            sent_ns: 0,
            received_ns: 0,
            way: Route::Flow,
        };
        let of = |seqs: &[u64]| seqs.iter().copied().map(arrival).collect::<Vec<_>>();
        assert!(require_once_in_order(&of(&[1, 2, 3]), 3).is_ok());
        for wrong in [
            &[1, 2][..],
            &[1, 1, 2],
            &[1, 3, 2],
            &[1, 2, 3, 4],
            &[2, 3, 4],
        ] {
            assert!(require_once_in_order(&of(wrong), 3).is_err(), "{wrong:?}");
        }
    }
}
