//! The legs of a flow that a receiver gets by two ways at once (protocol.md section 8.10).
//!
//! Packets are merged by their numbers: what any leg brings is acknowledged once. [`Merged`] knows
//! which of the newest numbers came by which leg, and from that which legs work, what each of them
//! misses, and how far it is behind.

use std::time::{Duration, Instant};

use super::FlowDriver;
use super::packet::Arrival;
use crate::control::{Control, Leg, LegReport, LegState, Legs};
use crate::receiver::ReceiverEvent;
use crate::receiver::timer::{FlowTimer, Timer};
use crate::{PathId, Rung};

/// Legs that there can be.
const LEGS: [Leg; 3] = [Leg::NATIVE, Leg::RELAY, Leg::SECOND_RELAY];
/// Newest packet numbers of which it is known by which legs they came.
const REMEMBERED: usize = 1024;
/// Packets that other legs have to bring, beyond the last one of a leg, before that is lost: one
/// loss or two say nothing.
const BEHIND: u64 = 3;
/// Interval of reports in which only counts or times have changed.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Change of a leg's lag that is worth a report.
const LAG_STEP: Duration = Duration::from_millis(5);
/// Share of the difference by which the lag of a leg follows shorter ones.
const LAG_DECAY: u32 = 64;

/// A packet number that came by some leg.
#[derive(Debug, Clone, Copy)]
struct Seen {
    pn: u64,
    /// The end of the packet's bytes: a copy has the same.
    tag: [u8; 8],
    at: Instant,
    /// By which legs it came.
    by: [bool; LEGS.len()],
    /// For which legs it counts as missed.
    missed: [bool; LEGS.len()],
}

/// One leg.
#[derive(Debug, Clone, Copy)]
struct LegRecord {
    state: LegState,
    /// Whether it was tried long enough to be reported as lost, or has worked.
    is_judged: bool,
    largest: Option<u64>,
    /// Whether it was tried before all packets were forgotten.
    tried: bool,
    /// Packets beyond its largest that others brought since its last one.
    behind: u64,
    /// When the first of these came.
    behind_since: Option<Instant>,
    missed: u64,
    lag: Duration,
}

impl Default for LegRecord {
    fn default() -> Self {
        LegRecord {
            state: LegState::Trying,
            is_judged: false,
            largest: None,
            tried: false,
            behind: 0,
            behind_since: None,
            missed: 0,
            lag: Duration::ZERO,
        }
    }
}

impl LegRecord {
    /// Whether the leg works, or did before all packets were forgotten.
    fn is_expected(&self) -> bool {
        match self.state {
            LegState::Working => true,
            LegState::Trying => self.tried,
            LegState::Lost => false,
        }
    }
}

/// Result of [`Merged::on_packet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LegInput {
    /// The first packet with this number that came by this leg.
    New {
        /// Whether the leg did not work before.
        begins: bool,
    },
    /// One that came by this leg before, or is too old to tell.
    Repeated,
    /// Another packet with this number came before: one of the two is forged.
    Contradiction,
}

/// Packets of a flow that come by several legs.
#[derive(Debug)]
pub(super) struct Merged {
    seen: Vec<Option<Seen>>,
    records: [LegRecord; LEGS.len()],
    sequence: u64,
    /// The last report, with its time.
    reported: Option<(Instant, Vec<LegReport>)>,
    /// Whether a state has changed since.
    changed: bool,
}

impl Default for Merged {
    fn default() -> Self {
        Merged {
            seen: vec![None; REMEMBERED],
            records: Default::default(),
            sequence: 0,
            reported: None,
            changed: false,
        }
    }
}

fn index(leg: Leg) -> Option<usize> {
    LEGS.iter().position(|known| *known == leg)
}

impl Merged {
    /// Takes a packet that is known to be the source's, or a copy of one. `is_first` says whether
    /// its number is new.
    pub(super) fn on_packet(
        &mut self,
        leg: Leg,
        pn: u64,
        tag: [u8; 8],
        is_first: bool,
        now: Instant,
    ) -> LegInput {
        let Some(at) = index(leg) else {
            return LegInput::Repeated;
        };
        let slot = (pn % REMEMBERED as u64) as usize;
        let known = self.seen[slot];
        match known {
            Some(known) if known.pn > pn => return LegInput::Repeated,
            Some(known) if known.pn == pn && known.tag != tag => return LegInput::Contradiction,
            Some(known) if known.pn == pn && known.by[at] => return LegInput::Repeated,
            Some(known) if known.pn == pn => {
                self.measure(at, now.saturating_duration_since(known.at));
            }
            // A number that was rebuilt, or is older than all that is remembered.
            _ if !is_first => return LegInput::Repeated,
            _ => {
                self.seen[slot] = Some(Seen {
                    pn,
                    tag,
                    at: now,
                    by: [false; LEGS.len()],
                    missed: [false; LEGS.len()],
                });
                self.note_missing(slot, at, pn, now);
            }
        }
        self.pass(at, pn);
        if let Some(seen) = &mut self.seen[slot] {
            seen.by[at] = true;
            if std::mem::take(&mut seen.missed[at]) {
                self.records[at].missed = self.records[at].missed.saturating_sub(1);
            }
        }
        let record = &mut self.records[at];
        (record.behind, record.behind_since) = (0, None);
        record.is_judged = true;
        let begins = std::mem::replace(&mut record.state, LegState::Working) != LegState::Working;
        self.changed |= begins;
        LegInput::New { begins }
    }

    /// Notes a new number for the legs by which it did not come.
    fn note_missing(&mut self, slot: usize, by: usize, pn: u64, now: Instant) {
        for (at, record) in self.records.iter_mut().enumerate() {
            if at == by {
                continue;
            }
            match record.largest {
                Some(largest) if largest > pn => {
                    record.missed += 1;
                    if let Some(seen) = &mut self.seen[slot] {
                        seen.missed[at] = true;
                    }
                }
                None if !record.tried => {}
                _ => {
                    record.behind += 1;
                    record.behind_since.get_or_insert(now);
                }
            }
        }
    }

    /// Moves a leg on to its largest number: what others brought before that, and it did not, it
    /// has missed.
    fn pass(&mut self, at: usize, pn: u64) {
        let record = &mut self.records[at];
        let Some(largest) = record.largest else {
            record.largest = Some(pn);
            return;
        };
        if pn <= largest {
            return;
        }
        record.largest = Some(pn);
        let first = (largest + 1).max(pn.saturating_sub(REMEMBERED as u64 - 1));
        for passed in first..pn {
            let slot = (passed % REMEMBERED as u64) as usize;
            if let Some(seen) = &mut self.seen[slot]
                && seen.pn == passed
                && !seen.by[at]
                && !std::mem::replace(&mut seen.missed[at], true)
            {
                self.records[at].missed += 1;
            }
        }
    }

    /// Follows the time by which a packet came after another leg had brought it.
    fn measure(&mut self, at: usize, late: Duration) {
        let lag = &mut self.records[at].lag;
        *lag = match late.checked_sub(*lag) {
            Some(_) => late,
            None => *lag - (*lag - late) / LAG_DECAY,
        };
    }

    /// Whether a leg that is expected to bring packets is silent while others bring some. A silence
    /// of all of them is none.
    fn is_silent(record: &LegRecord, heartbeat: Duration, now: Instant) -> bool {
        let since = record.behind_since.map(|at| at + heartbeat + heartbeat / 4);
        record.is_expected() && record.behind >= BEHIND && since.is_some_and(|since| since <= now)
    }

    fn has_silent(&self, heartbeat: Duration, now: Instant) -> bool {
        let mut records = self.records.iter();
        records.any(|record| Self::is_silent(record, heartbeat, now))
    }

    /// Takes the legs for lost that are silent while another one works. Returns them.
    fn judge(&mut self, heartbeat: Duration, now: Instant) -> Vec<Leg> {
        let silent: Vec<_> = (0..LEGS.len())
            .filter(|at| Self::is_silent(&self.records[*at], heartbeat, now))
            .collect();
        // One of them at least has brought what the others lack.
        let others = self.works_besides(&silent);
        let lost = silent.into_iter().filter(|_| others);
        lost.filter(|at| self.lose(LEGS[*at]).is_some())
            .map(|at| LEGS[at])
            .collect()
    }

    fn works_besides(&self, but: &[usize]) -> bool {
        let mut records = self.records.iter().enumerate();
        records.any(|(at, record)| record.state == LegState::Working && !but.contains(&at))
    }

    /// Whether a leg is not known to be lost. A further relay that never brought a packet was no
    /// leg.
    pub(super) fn may_lose(&self, leg: Leg) -> bool {
        index(leg).is_some_and(|at| {
            let record = &self.records[at];
            let is_leg = leg.number == 0 || record.is_judged || record.tried;
            is_leg && record.state != LegState::Lost
        })
    }

    /// Takes a leg for lost. Returns its state before, if that is new.
    fn lose(&mut self, leg: Leg) -> Option<LegState> {
        let at = index(leg).filter(|_| self.may_lose(leg))?;
        let record = &mut self.records[at];
        record.is_judged = true;
        self.changed = true;
        Some(std::mem::replace(&mut record.state, LegState::Lost))
    }

    /// Forgets a leg that is given up.
    pub(super) fn end(&mut self, leg: Leg) {
        if let Some(at) = index(leg) {
            let was = std::mem::take(&mut self.records[at]);
            self.changed |= was.state != LegState::Trying;
        }
    }

    /// Forgets all packets: earlier ones prove nothing any more.
    pub(super) fn restart(&mut self) {
        self.seen.fill(None);
        for record in &mut self.records {
            *record = LegRecord {
                missed: record.missed,
                tried: record.tried || record.is_judged,
                ..LegRecord::default()
            };
        }
        self.changed = true;
    }

    /// Grants every leg another heartbeat, because the receiver itself was away.
    pub(super) fn grant_grace(&mut self, now: Instant) {
        for record in &mut self.records {
            record.behind_since = record.behind_since.map(|at| at.max(now));
        }
    }

    /// Returns the state of a leg.
    pub(super) fn state(&self, leg: Leg) -> LegState {
        index(leg).map_or(LegState::Trying, |at| self.records[at].state)
    }

    /// Whether a leg is expected to bring packets.
    pub(super) fn is_expected(&self, leg: Leg) -> bool {
        index(leg).is_some_and(|at| self.records[at].is_expected())
    }

    /// Whether another leg than this one works.
    pub(super) fn works_without(&self, leg: Leg) -> bool {
        index(leg).is_some_and(|at| self.works_besides(&[at]))
    }

    /// Returns the legs that were tried, as they are now.
    fn reports(&self, flow_index: u64) -> Vec<LegReport> {
        let judged = LEGS.iter().zip(&self.records).filter(|(_, r)| r.is_judged);
        let reports = judged.map(|(leg, record)| LegReport {
            path: PathId::new(flow_index, leg.rung),
            number: leg.number,
            state: record.state,
            largest: record.largest,
            missed: record.missed,
            lag: record.lag,
        });
        reports.collect()
    }

    /// Returns when a report is due: at once after a change of state, later for one of counts.
    fn report_at(&self, now: Instant) -> Option<Instant> {
        let Some((at, known)) = &self.reported else {
            return Some(now);
        };
        if self.changed {
            return Some(now);
        }
        let differs =
            |lag: Duration, known: Duration| lag.abs_diff(known) > LAG_STEP.max(known / 4);
        let current = LEGS.iter().zip(&self.records).filter(|(_, r)| r.is_judged);
        let mut pairs = current.zip(known);
        let changed = pairs.any(|((_, record), known)| {
            record.missed != known.missed || differs(record.lag, known.lag)
        });
        changed.then(|| (*at + REPORT_EVERY).max(now))
    }
}

impl FlowDriver<'_> {
    /// Whether the packets of this path are merged with those of the member's own.
    pub(super) fn is_owed(&self, path: PathId) -> bool {
        let own = self.flow.membership.path();
        own.is_some_and(|own| self.flow.tracked(own) == self.flow.tracked(path))
    }

    /// Notes a packet for the leg by which it came. Returns whether it is the first one with this
    /// number there.
    pub(super) fn heard_on_leg(
        &mut self,
        arrival: Arrival,
        pn: u64,
        tag: Option<[u8; 8]>,
        is_first: bool,
    ) -> bool {
        let now = arrival.now;
        let is_suspect = self.flow.opener.is_none() && self.flow.suspicion.is_on();
        let counts = self.flow.proof.counts(pn) && !is_suspect;
        let (Some(legs), Some(tag)) = (&mut self.flow.merged, tag.filter(|_| counts)) else {
            return false;
        };
        let leg = arrival.leg();
        if leg == Leg::SECOND_RELAY && !self.flow.tunnels.has_second() {
            // Packets that were under way when it was given up.
            return false;
        }
        let LegInput::New { begins } = legs.on_packet(leg, pn, tag, is_first, now) else {
            return false;
        };
        let heartbeat = self.flow.announce.heartbeat;
        let due = begins || legs.has_silent(heartbeat, now);
        if begins {
            self.leg_changed(leg, LegState::Working, now);
        }
        match due {
            true => self.set(FlowTimer::Legs, now),
            false => self.plan_report(now),
        }
        true
    }

    /// Sets the timer of the next report, where one is due.
    fn plan_report(&mut self, now: Instant) {
        let is_member = self.is_merging();
        let legs = self.flow.merged.as_ref().filter(|_| is_member);
        let Some(at) = legs.and_then(|legs| legs.report_at(now)) else {
            return;
        };
        let timer = Timer::Flow(self.id, FlowTimer::Legs);
        let known = self.timers.get(timer);
        self.timers
            .set(timer, known.map_or(at, |known| known.min(at)));
    }

    /// Whether this receiver is a member by one of its legs.
    fn is_merging(&self) -> bool {
        self.flow.merged.is_some() && matches!(self.flow.rung(), Rung::Multicast | Rung::Amt)
    }

    fn leg_changed(&mut self, leg: Leg, state: LegState, now: Instant) {
        self.show_leg(leg, state);
        self.follow_second_tunnel(now);
    }

    /// Queues the event of a leg's new state.
    pub(super) fn show_leg(&mut self, leg: Leg, state: LegState) {
        self.events.push_back(ReceiverEvent::Leg {
            channel: self.channel.name.clone(),
            leg,
            state,
        });
    }

    /// Forgets by which legs packets came, and shows that: each has to prove itself again.
    pub(super) fn forget_legs(&mut self) {
        let Some(merged) = &mut self.flow.merged else {
            return;
        };
        let known = LEGS.into_iter();
        let known: Vec<_> = known
            .filter(|leg| merged.state(*leg) != LegState::Trying)
            .collect();
        merged.restart();
        for leg in known {
            self.show_leg(leg, LegState::Trying);
        }
    }

    /// Judges the legs, and reports them to the source.
    pub(super) fn on_legs_timer(&mut self, now: Instant) {
        let heartbeat = self.flow.announce.heartbeat;
        let Some(legs) = &mut self.flow.merged else {
            return;
        };
        for leg in legs.judge(heartbeat, now) {
            self.channel.stats.reception.legs_lost += 1;
            self.leg_changed(leg, LegState::Lost, now);
        }
        self.report_legs(now);
    }

    /// Takes a leg for lost, which its owner found out, or which brought nothing from the
    /// beginning.
    pub(super) fn lose_leg(&mut self, leg: Leg, now: Instant) {
        let Some(legs) = &mut self.flow.merged else {
            return;
        };
        if let Some(was) = legs.lose(leg) {
            self.channel.stats.reception.legs_lost += u64::from(was == LegState::Working);
            self.leg_changed(leg, LegState::Lost, now);
            self.set(FlowTimer::Legs, now);
        }
    }

    /// Reports the legs to the source, if a report is due.
    fn report_legs(&mut self, now: Instant) {
        let is_member = self.is_merging();
        let (flow, index) = (self.flow.announce.flow, self.flow.announce.flow_index);
        let Some(legs) = self.flow.merged.as_mut().filter(|_| is_member) else {
            return;
        };
        if legs.report_at(now).is_some_and(|at| at <= now) {
            let reports = legs.reports(index);
            legs.sequence += 1;
            legs.changed = false;
            legs.reported = Some((now, reports.clone()));
            let frame = Legs {
                flow,
                sequence: legs.sequence,
                legs: reports,
            };
            Control::Legs(frame).encode(self.out);
        }
        self.plan_report(now);
    }

    /// Reports all legs to the source that has made this receiver a member.
    pub(super) fn announce_legs(&mut self, now: Instant) {
        if let Some(legs) = &mut self.flow.merged {
            legs.changed = true;
            self.set(FlowTimer::Legs, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);
    const TAG: [u8; 8] = [7; 8];

    /// Takes a packet by a leg, as the source sent it.
    fn take(legs: &mut Merged, leg: Leg, pn: u64, is_first: bool, now: Instant) -> LegInput {
        legs.on_packet(leg, pn, TAG, is_first, now)
    }

    fn missed(legs: &Merged, leg: Leg) -> u64 {
        legs.records[index(leg).unwrap()].missed
    }

    #[test]
    fn packets_count_once_for_each_leg() {
        let (now, mut legs) = (Instant::now(), Merged::default());
        let begins = |begins| LegInput::New { begins };
        assert_eq!(take(&mut legs, Leg::NATIVE, 5, true, now), begins(true));
        assert_eq!(
            take(&mut legs, Leg::NATIVE, 5, false, now),
            LegInput::Repeated
        );
        assert_eq!(take(&mut legs, Leg::RELAY, 5, false, now), begins(true));
        assert_eq!(take(&mut legs, Leg::RELAY, 6, true, now), begins(false));
        let other = legs.on_packet(Leg::NATIVE, 6, [8; 8], false, now);
        assert_eq!(other, LegInput::Contradiction);
        assert_eq!(
            take(&mut legs, Leg::NATIVE, 3, false, now),
            LegInput::Repeated,
            "rebuilt"
        );
        assert!(legs.works_without(Leg::NATIVE) && legs.works_without(Leg::RELAY));
    }

    #[test]
    fn a_leg_that_lags_misses_nothing() {
        let (start, mut legs) = (Instant::now(), Merged::default());
        for pn in 0..100u32 {
            let now = start + pn * 5 * MS;
            take(&mut legs, Leg::NATIVE, pn.into(), true, now);
            if let Some(late) = pn.checked_sub(20) {
                take(&mut legs, Leg::RELAY, late.into(), false, now);
            }
        }
        assert_eq!(
            (missed(&legs, Leg::NATIVE), missed(&legs, Leg::RELAY)),
            (0, 0)
        );
        assert_eq!(legs.records[1].lag, 100 * MS);
        assert!(!legs.has_silent(HEARTBEAT, start + 500 * MS));
    }

    #[test]
    fn each_leg_misses_what_only_the_other_brings() {
        let (now, mut legs) = (Instant::now(), Merged::default());
        for pn in 0..10 {
            let first = pn != 4;
            if first {
                take(&mut legs, Leg::NATIVE, pn, true, now);
            }
            if pn != 7 {
                take(&mut legs, Leg::RELAY, pn, !first, now);
            }
        }
        assert_eq!(
            (missed(&legs, Leg::NATIVE), missed(&legs, Leg::RELAY)),
            (1, 1)
        );
        // Late, but there.
        take(&mut legs, Leg::RELAY, 7, false, now);
        take(&mut legs, Leg::NATIVE, 4, false, now);
        assert_eq!(
            (missed(&legs, Leg::NATIVE), missed(&legs, Leg::RELAY)),
            (0, 0)
        );
    }

    #[test]
    fn a_leg_is_lost_while_the_other_brings_packets_and_comes_back() {
        let (start, mut legs) = (Instant::now(), Merged::default());
        take(&mut legs, Leg::NATIVE, 0, true, start);
        take(&mut legs, Leg::RELAY, 0, false, start);
        let late = start + HEARTBEAT * 2;
        assert!(legs.judge(HEARTBEAT, late).is_empty(), "nothing was sent");
        for pn in 1..BEHIND {
            take(&mut legs, Leg::RELAY, pn, true, late);
        }
        let later = late + HEARTBEAT * 5 / 4;
        assert!(legs.judge(HEARTBEAT, later).is_empty(), "few packets");
        take(&mut legs, Leg::RELAY, BEHIND, true, late);
        assert!(legs.judge(HEARTBEAT, late).is_empty(), "both were silent");
        let late = later;
        assert!(legs.has_silent(HEARTBEAT, late));
        assert_eq!(legs.judge(HEARTBEAT, late), [Leg::NATIVE]);
        assert!(legs.judge(HEARTBEAT, late).is_empty(), "once");
        assert!(legs.works_without(Leg::NATIVE) && !legs.works_without(Leg::RELAY));
        let back = take(&mut legs, Leg::NATIVE, BEHIND + 1, true, late);
        assert_eq!(back, LegInput::New { begins: true });
        assert_eq!(missed(&legs, Leg::NATIVE), BEHIND);
    }

    /// A leg that is dead after everything was forgotten is lost as if it had not been.
    #[test]
    fn a_leg_that_was_tried_is_lost_if_it_brings_nothing_again() {
        let (start, mut legs) = (Instant::now(), Merged::default());
        take(&mut legs, Leg::NATIVE, 0, true, start);
        take(&mut legs, Leg::RELAY, 0, false, start);
        legs.restart();
        for pn in 10..20 {
            take(&mut legs, Leg::RELAY, pn, true, start);
        }
        assert!(legs.judge(HEARTBEAT, start).is_empty(), "it has time");
        let late = start + HEARTBEAT * 5 / 4;
        assert_eq!(legs.judge(HEARTBEAT, late), [Leg::NATIVE]);
        legs.end(Leg::NATIVE);
        legs.restart();
        take(&mut legs, Leg::RELAY, 20, true, late);
        (21..30).for_each(|pn| {
            take(&mut legs, Leg::RELAY, pn, true, late);
        });
        assert!(
            legs.judge(HEARTBEAT, late + HEARTBEAT * 9).is_empty(),
            "given up"
        );
    }

    #[test]
    fn an_absence_of_the_receiver_is_no_silence() {
        let (start, mut legs) = (Instant::now(), Merged::default());
        take(&mut legs, Leg::NATIVE, 0, true, start);
        take(&mut legs, Leg::RELAY, 0, false, start);
        let back = start + HEARTBEAT * 9;
        (1..100).for_each(|pn| {
            take(&mut legs, Leg::NATIVE, pn, true, back);
        });
        legs.grant_grace(back);
        assert!(legs.judge(HEARTBEAT, back).is_empty());
    }

    #[test]
    fn numbers_far_ahead_cost_a_bounded_time() {
        let (now, mut legs) = (Instant::now(), Merged::default());
        take(&mut legs, Leg::NATIVE, 0, true, now);
        take(&mut legs, Leg::NATIVE, u64::MAX >> 2, true, now);
        take(&mut legs, Leg::RELAY, 1 << 40, true, now);
        assert_eq!(legs.seen.len(), REMEMBERED);
    }
}
