//! Deadlines at a receiver: the source's clock, what has expired, and updates that are handed on as
//! soon as they are whole (protocol.md section 7.6).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::timer::Timer;
use super::{Channel, Receiver};
use crate::WireError;
use crate::control::{Clock, Control, Expired};
use crate::deadline::UnixClock;
use crate::merge::Delivered;

/// Questions for the time that wait for no more than the answer before and an update with a
/// deadline: an answer that a lost packet held up is wrong by tens of milliseconds.
const FIRST_QUESTIONS: u64 = 4;
/// Time until the next question, which doubles from each to the next, and the longest such time.
const SOON: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(30);
/// Part of the time since an answer by which two clocks may have drifted apart.
const DRIFT: u32 = 5_000;
/// Ends of expired updates that were not passed over yet. Later ones make up for those that are
/// forgotten.
const MAX_ENDS: usize = 64;

/// An estimate of the source's clock.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    clock: UnixClock,
    /// By how much it may be wrong either way: half of the round trip.
    error: Duration,
    at: Instant,
}

impl Estimate {
    fn error(&self, now: Instant) -> Duration {
        self.error + now.saturating_duration_since(self.at) / DRIFT
    }

    /// Whether both cannot be right: one of the clocks was adjusted.
    fn contradicts(&self, other: &Estimate, now: Instant) -> bool {
        let apart = self.clock.us(now).abs_diff(other.clock.us(now));
        Duration::from_micros(apart) > self.error(now) + other.error(now)
    }
}

/// The source's clock, as the answers to questions show it: of each, the answer's time is taken for
/// that of the middle between question and answer.
#[derive(Debug, Default)]
pub(super) struct SourceClock {
    /// Whether the source of this connection answers.
    answers: bool,
    /// The last question of this connection that was not answered.
    open: Option<(u64, Instant)>,
    /// Questions on this connection.
    questions: u64,
    last_question: Option<Instant>,
    /// Deadlines that were read when it was asked last.
    seen: u64,
    estimate: Option<Estimate>,
}

impl SourceClock {
    /// Handles the beginning of a connection. The last estimate counts until there is another one.
    pub(super) fn connected(&mut self, answers: bool) {
        *self = SourceClock {
            answers,
            estimate: self.estimate,
            ..SourceClock::default()
        };
    }

    /// Returns the Unix time in µs by the source's clock, once it is known.
    pub(super) fn us(&self, now: Instant) -> Option<u64> {
        Some(self.estimate?.clock.us(now))
    }

    /// Makes a question; `seen` is the number of deadlines that were read so far.
    fn ask(&mut self, seen: u64, now: Instant) -> Clock {
        self.questions += 1;
        self.open = Some((self.questions, now));
        (self.last_question, self.seen) = (Some(now), seen);
        Clock {
            question: self.questions,
            time_us: None,
        }
    }

    /// Takes an answer. Of two that do not contradict each other, the more precise one counts.
    fn on_answer(&mut self, answer: Clock, now: Instant) {
        let open = self
            .open
            .take_if(|(question, _)| *question == answer.question);
        let Some(((_, asked), time_us)) = open.zip(answer.time_us) else {
            return;
        };
        let error = now.saturating_duration_since(asked) / 2;
        let unix = Duration::from_micros(time_us);
        let new = Estimate {
            clock: UnixClock::new(asked + error, unix),
            error,
            at: now,
        };
        let is_better = |old: &Estimate| new.error <= old.error(now) || new.contradicts(old, now);
        if self.estimate.as_ref().is_none_or(is_better) {
            self.estimate = Some(new);
        }
    }

    /// Returns when to ask next, if the time is wanted and no question is open: `seen` deadlines
    /// were read so far.
    fn next_question(&self, seen: u64) -> Option<Instant> {
        // The control stream loses no answer; another question would make this one's worthless.
        let wanted = self.answers && self.open.is_none() && seen > self.seen;
        let span = match self.questions.checked_sub(FIRST_QUESTIONS) {
            None => Duration::ZERO,
            Some(asked) => LATEST.min(SOON * 2_u32.pow(asked.min(5) as u32)),
        };
        self.last_question
            .filter(|_| wanted)
            .map(|last| last + span)
    }
}

/// Where the flow is at the ends of expired updates that were not passed over.
#[derive(Debug, Default)]
pub(super) struct ExpiredEnds(BTreeMap<u64, u64>);

impl ExpiredEnds {
    fn insert(&mut self, seq: u64, offset: u64) {
        self.0.insert(seq, offset);
        if self.0.len() > MAX_ENDS {
            self.0.pop_first();
        }
    }

    /// Takes the last end up to an update that was handed on or passed over.
    pub(super) fn take(&mut self, up_to: u64) -> Option<(u64, u64)> {
        let mut last = None;
        while let Some(first) = self.0.first_entry().filter(|e| *e.key() <= up_to) {
            last = Some(first.remove_entry());
        }
        last
    }
}

impl Receiver {
    /// Hands on what is late, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_expired_delivered(&mut self, on: bool) {
        for channel in &mut self.channels {
            channel.merge.set_expired_delivered(on);
        }
    }

    /// Returns the newest update with a deadline that is whole, was not handed on yet and has not
    /// expired, with its channel's name and incarnation. [`Receiver::poll_update`] returns it again
    /// in its place, and those as expired that were not handed on in time: call this one first.
    pub fn poll_live(&mut self, now: Instant) -> Option<(&str, Uuid, Delivered)> {
        let now_us = self.clock.us(now);
        let mut found = None;
        for (at, channel) in self.channels.iter_mut().enumerate() {
            channel.merge.set_time(now_us);
            if let Some(update) = channel.merge.pop_live() {
                found = Some((at, channel.incarnation?, update));
                break;
            }
        }
        let (at, incarnation, update) = found?;
        let channel = &mut self.channels[at];
        channel.stats.reception.live += 1;
        Some((&channel.name, incarnation, update))
    }

    /// Returns the first instant at which a deadline has passed by the source's clock; `None` while
    /// the time is not known, and for a deadline beyond what can be counted.
    pub fn passes_at(&self, deadline_ms: u64) -> Option<Instant> {
        self.clock.estimate?.clock.passes_at(deadline_ms)
    }

    /// Begins to ask a source for its time that answers.
    pub(super) fn begin_clock(&mut self, answers: bool, now: Instant) {
        self.clock.connected(answers);
        if answers {
            self.ask_for_time(now);
        }
    }

    fn ask_for_time(&mut self, now: Instant) {
        let question = self.clock.ask(self.deadlines_seen(), now);
        Control::Clock(question).encode(&mut self.control_out);
    }

    fn deadlines_seen(&self) -> u64 {
        let of_messages = |c: &Channel| c.stats.messages.taken + c.stats.messages.late;
        let of_channel = |c: &Channel| c.merge.deadlines_seen() + of_messages(c);
        let seen = self.channels.iter().map(of_channel);
        seen.sum()
    }

    /// Takes the source's answer to a question for its time.
    pub(super) fn on_clock(&mut self, answer: Clock, now: Instant) {
        self.clock.on_answer(answer, now);
    }

    /// Passes over what has expired, and asks for the time if that is due.
    pub(super) fn keep_deadlines(&mut self, now: Instant) {
        if self
            .clock
            .next_question(self.deadlines_seen())
            .is_some_and(|at| at <= now)
        {
            self.ask_for_time(now);
        }
        let question_at = self.clock.next_question(self.deadlines_seen());
        self.timers.put(Timer::Clock, question_at);
        let now_us = self.clock.us(now);
        for (at, channel) in self.channels.iter_mut().enumerate() {
            channel.merge.set_time(now_us);
            let deadline = channel.merge.next_deadline();
            let estimate = self.clock.estimate.zip(deadline);
            let expires = estimate.and_then(|(e, deadline)| e.clock.passes_at(deadline));
            self.timers.put(Timer::Deadline(at), expires);
        }
    }

    /// Takes the source's notice that updates have expired.
    pub(super) fn on_expired(&mut self, expired: Expired) -> Result<(), WireError> {
        let invalid = |reason| Err(WireError::invalid("EXPIRED", reason));
        if !self.config.deadlines {
            return invalid("the receiver did not say that it knows deadlines");
        }
        let number = Some(expired.channel);
        let Some(channel) = self.channels.iter_mut().find(|c| c.number == number) else {
            return invalid("a channel that WELCOME did not name");
        };
        channel.stats.head = channel.stats.head.max(expired.last);
        if let Some(offset) = expired.offset {
            channel.expired_ends.insert(expired.last, offset);
        }
        if !channel
            .merge
            .expire(expired.first..expired.last.saturating_add(1))
        {
            return invalid("more ranges than a receiver takes");
        }
        Ok(())
    }

    /// Takes the end of a unicast stream that the source has reset: what it brought is kept, and no
    /// more of it comes.
    pub fn on_unicast_reset(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }
}

impl Channel {
    /// Returns how far the flow is at the end of the last expired update up to one that was handed
    /// on or passed over.
    pub(super) fn take_expired_end(&mut self, up_to: u64) -> Option<(u64, u64)> {
        self.expired_ends.take(up_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Credential;
    use crate::receiver::ReceiverConfig;

    const MS: Duration = Duration::from_millis(1);
    const BASE_US: u64 = 1_800_000_000_000_000;

    /// Asks at an instant, and answers after two delays with the source's time, which is `ahead` of
    /// the receiver's.
    fn exchange(clock: &mut SourceClock, at: Instant, delays: [u32; 2], true_us: u64) {
        let question = clock.ask(0, at);
        let time_us = Some(true_us + u64::from(delays[0]) * 1000);
        let answer = Clock {
            time_us,
            ..question
        };
        clock.on_answer(answer, at + MS * (delays[0] + delays[1]));
    }

    #[test]
    fn the_most_precise_answer_counts() {
        let start = Instant::now();
        let mut clock = SourceClock::default();
        clock.connected(true);
        assert_eq!(clock.us(start), None);
        let error = |clock: &SourceClock, at: Instant| {
            let true_us = BASE_US + (at - start).as_micros() as u64;
            clock.us(at).unwrap().abs_diff(true_us)
        };
        // The question was lost once and came 200 ms late: wrong by 95 ms, as it says.
        exchange(&mut clock, start, [200, 10], BASE_US);
        assert_eq!(error(&clock, start + MS * 300), 95_000);
        exchange(&mut clock, start + MS * 1000, [10, 10], BASE_US + 1_000_000);
        assert_eq!(error(&clock, start + MS * 1100), 0);
        exchange(
            &mut clock,
            start + MS * 2000,
            [10, 300],
            BASE_US + 2_000_000,
        );
        assert_eq!(error(&clock, start + MS * 2500), 0);
        // An hour later the clocks may have drifted apart by 720 ms.
        let hour = Duration::from_secs(3600);
        let late = BASE_US + hour.as_micros() as u64 + 50_000;
        exchange(&mut clock, start + hour, [20, 20], late);
        assert_eq!(error(&clock, start + hour), 50_000);
    }

    #[test]
    fn an_adjusted_clock_is_followed() {
        let start = Instant::now();
        let mut clock = SourceClock::default();
        clock.connected(true);
        exchange(&mut clock, start, [5, 5], BASE_US);
        exchange(&mut clock, start, [50, 50], BASE_US + 3_000_000);
        let us = clock.us(start).unwrap();
        assert_eq!(us, BASE_US + 3_000_000);
    }

    #[test]
    fn answers_without_a_question_mean_nothing() {
        let start = Instant::now();
        let mut clock = SourceClock::default();
        clock.connected(true);
        let answer = |question| Clock {
            question,
            time_us: Some(BASE_US),
        };
        clock.on_answer(answer(1), start);
        clock.ask(0, start);
        clock.on_answer(answer(7), start);
        assert_eq!(clock.us(start), None);
        let silent = Clock {
            time_us: None,
            ..answer(1)
        };
        clock.on_answer(silent, start);
        clock.on_answer(answer(1), start);
        assert_eq!(clock.us(start), None, "answered once");
    }

    #[test]
    fn the_time_is_asked_for_while_updates_have_deadlines() {
        let start = Instant::now();
        let mut clock = SourceClock::default();
        clock.connected(false);
        assert_eq!(clock.next_question(5), None);
        clock.connected(true);
        exchange(&mut clock, start, [1, 1], BASE_US);
        assert_eq!(clock.next_question(0), None);
        let mut waits = Vec::new();
        for _ in 0..10 {
            let at = clock.next_question(1).unwrap();
            waits.push((at - start).as_secs());
            exchange(&mut clock, start, [1, 1], BASE_US);
        }
        assert_eq!(waits, [0, 0, 0, 1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(clock.next_question(0), None);
        let open = clock.ask(1, start);
        assert_eq!(clock.next_question(2), None, "one question is open");
        clock.on_answer(
            Clock {
                time_us: Some(BASE_US),
                ..open
            },
            start + MS,
        );
        assert_eq!(clock.next_question(1), None);
        assert_eq!(clock.next_question(2), Some(start + LATEST));
    }

    /// What a source said of a flow says nothing of the next connection's.
    #[test]
    fn ends_go_with_their_connection() {
        let config = ReceiverConfig::new(
            Uuid::from_u128(1),
            Credential::None,
            vec![("lore".into(), None)],
        );
        let mut receiver = Receiver::new(config);
        receiver.channels[0].number = Some(1);
        receiver
            .on_expired(Expired {
                channel: 1,
                first: 5,
                last: 9,
                offset: Some(9000),
            })
            .unwrap();
        receiver.disconnected();
        assert_eq!(receiver.channels[0].take_expired_end(9), None);
    }

    #[test]
    fn few_ends_are_kept() {
        let mut ends = ExpiredEnds::default();
        (1..=1000).for_each(|seq| ends.insert(seq, seq * 10));
        assert_eq!(ends.0.len(), MAX_ENDS);
        assert_eq!(ends.take(900), None);
        assert_eq!(ends.take(980), Some((980, 9800)));
        assert_eq!(ends.take(2000), Some((1000, 10_000)));
        assert_eq!(ends.take(2000), None);
    }
}
