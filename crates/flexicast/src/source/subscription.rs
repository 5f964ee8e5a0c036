//! One receiver's subscription to one channel, as the source sees it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::backlog::Backlog;
use super::overdue::Progress;
use super::recent::Recent;
use super::session::Unicast;
use super::{ChannelIndex, LIVE_WITHIN};
use crate::control::{Anchor, RungNotice};
use crate::flow::ledger::StreamRange;
use crate::merge::WINDOW;
use crate::range::RangeSet;
use crate::unicast::{RangeHeader, put_catch_up, put_catch_up_item};
use crate::{Cause, Cursor, FlowId, PathId, Rung};

/// Maximum of updates per request to the store; its owner has a limit in bytes, too.
const FETCH: usize = 1024;
/// A store that did not answer is asked again after this time.
const RETRY: Duration = Duration::from_secs(1);
/// A proof counts for this time: a receiver for which a rung works says so again every 5 s.
const PROVED: Duration = Duration::from_secs(12);

/// Ranges of updates beyond the head that a receiver may need by unicast.
const MAX_NEEDED: usize = 256;

/// Consecutive failures of a rung, and the end of its back-off.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flaps {
    pub(super) count: u32,
    pub(super) until: Option<Instant>,
    /// Whether it was a member by this rung before, on this connection.
    pub(super) returned: bool,
}

/// Pending request to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreRequest {
    /// For the next updates to send.
    Needed,
    /// For updates after those read already.
    Ahead,
}

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) channel: ChannelIndex,
    pub(super) backlog: Backlog,
    /// First update that WELCOME promised.
    pub(super) first: u64,
    pub(super) progress: Progress,
    pub(super) cursor: Option<Cursor>,
    /// The `seq` of the cursor in its HELLO, of whichever history; 0 for none.
    pub(super) hello_cursor: u64,
    /// Updates that it needs by unicast as soon as they are published.
    pub(super) needed: RangeSet,
    /// Whether it asked to join and listens natively.
    pub(super) joined: bool,
    /// Whether it asked to join and listens through an AMT relay.
    pub(super) tunnelled: bool,
    /// Whether it asked for replication and gets it.
    pub(super) replicated: bool,
    /// Whether it was counted as listening, and as getting copies.
    pub(super) counted: (bool, bool),
    /// Copies end here unless they are proved to arrive.
    pub(super) copies_until: Option<Instant>,
    /// The highest key epoch that was sent to it; 0 for none.
    pub(super) key_sent: u64,
    /// Whether it waits for the next key epoch of a private channel.
    pub(super) awaits_key: bool,
    /// The newest key epoch that it says it holds; 0 for none.
    pub(super) confirmed: u64,
    /// The path that it proved, and when, until it is promoted.
    pub(super) ready: Option<(PathId, Instant)>,
    /// By rung: it said that it tried it and got nothing.
    pub(super) tried: [bool; 4],
    /// From where it fell back last.
    pub(super) fell_from: Option<Rung>,
    pub(super) member: Option<PathId>,
    /// The head when it became a member: everything up to there is its unicast path's.
    pub(super) cut_head: u64,
    /// Since when it stands where it stands.
    pub(super) since: Instant,
    pub(super) state_sequence: Option<u64>,
    pub(super) window_sequence: Option<u64>,
    notice_sequence: u64,
    /// By rung, 1 to 3.
    pub(super) flaps: [Flaps; 4],
    pub(super) last_cause: Cause,
    /// Why it stands where it stands, if that is known.
    pub(super) cause: Option<Cause>,
    pub(super) retry_at: Option<Instant>,
    fetched: BTreeMap<u64, Bytes>,
    asked: Option<StoreRequest>,
    /// From how many fetched updates on the next ones are not asked for yet.
    enough: usize,
    /// Reading ahead brought nothing: what is missing is found out when it is needed.
    ahead_failed: bool,
    catching_up: bool,
    /// Whether the last item handed out was a repair.
    repairing: bool,
}

impl Subscription {
    pub(super) fn new(channel: ChannelIndex, now: Instant) -> Self {
        Subscription {
            channel,
            backlog: Backlog::default(),
            first: 1,
            progress: Progress::default(),
            cursor: None,
            hello_cursor: 0,
            needed: RangeSet::new(),
            joined: false,
            tunnelled: false,
            replicated: false,
            counted: (false, false),
            copies_until: None,
            key_sent: 0,
            awaits_key: false,
            confirmed: 0,
            ready: None,
            tried: [false; 4],
            fell_from: None,
            member: None,
            cut_head: 0,
            since: now,
            state_sequence: None,
            window_sequence: None,
            notice_sequence: 0,
            flaps: Default::default(),
            last_cause: Cause::Left,
            cause: None,
            retry_at: None,
            fetched: BTreeMap::new(),
            asked: None,
            enough: 0,
            ahead_failed: false,
            catching_up: false,
            repairing: false,
        }
    }

    pub(super) fn rung(&self) -> Rung {
        self.member.and_then(PathId::rung).unwrap_or(Rung::Unicast)
    }

    /// Whether the flow's packets are sent to where it listens by this rung.
    pub(super) fn listens_by(&self, rung: Rung) -> bool {
        match rung {
            Rung::Multicast => self.joined,
            Rung::Amt => self.tunnelled,
            Rung::Replicated => self.replicated,
            Rung::Unicast => false,
        }
    }

    /// The path of which it has proved lately that packets arrive by it.
    pub(super) fn proved(&mut self, now: Instant) -> Option<PathId> {
        self.ready = self.ready.filter(|(_, at)| now < *at + PROVED);
        self.ready.map(|(path, _)| path)
    }

    /// Whether it listens to the flow in any way.
    pub(super) fn listens(&self) -> bool {
        self.joined || self.tunnelled || self.replicated
    }

    /// Marks it as not listening by any path.
    pub(super) fn leave_all_paths(&mut self) {
        (self.joined, self.tunnelled, self.replicated) = (false, false, false);
    }

    /// Whether what [`Subscription::poll_unicast`] handed out last was a repair of what the flow had not brought.
    pub(super) fn is_repairing(&self) -> bool {
        self.repairing
    }

    pub(super) fn is_backing_off(&self, rung: Rung, now: Instant) -> bool {
        let flaps = self.flaps.get(rung as usize);
        flaps.and_then(|f| f.until).is_some_and(|until| now < until)
    }

    /// The flow that it was on, or on the way to, is gone.
    pub(super) fn forget_flow(&mut self) {
        self.leave_all_paths();
        self.copies_until = None;
        (self.key_sent, self.awaits_key, self.confirmed) = (0, false, 0);
        self.ready = None;
        (self.tried, self.fell_from) = ([false; 4], None);
        (self.state_sequence, self.window_sequence) = (None, None);
        self.notice_sequence = 0;
        self.flaps.iter_mut().for_each(|f| f.until = None);
    }

    /// The next FC_RUNG for it.
    pub(super) fn notice(
        &mut self,
        flow: FlowId,
        path: PathId,
        first_pn: u64,
        cause: Cause,
        anchor: Option<Anchor>,
    ) -> RungNotice {
        self.notice_sequence += 1;
        RungNotice {
            flow,
            sequence: self.notice_sequence,
            path,
            first_pn,
            cause,
            anchor,
        }
    }

    /// Takes note of a new update; returns whether it has to be sent on the unicast path.
    pub(super) fn publish(&mut self, seq: u64) -> bool {
        let needed = self.needed.contains(seq);
        self.needed.remove_below(seq + 1);
        let live = self.backlog.publish(seq);
        if needed && !live {
            let range = 0..u64::MAX;
            self.backlog.repair([StreamRange { seq, range }]);
        }
        needed || live
    }

    /// Notes an update beyond `head` that is needed by unicast. Returns whether there was room.
    pub(super) fn need_later(&mut self, seq: u64, head: u64) -> bool {
        let is_known = self.needed.contains(seq);
        let is_near = seq <= head.saturating_add(WINDOW);
        if !is_known && is_near && self.needed.len() < MAX_NEEDED {
            return self.needed.insert_one(seq);
        }
        is_known
    }

    /// The bytes of an update, or what to do to get them.
    fn bytes(&mut self, seq: u64, recent: &Recent, limit: usize) -> Result<Bytes, Unicast> {
        if let Some(bytes) = recent.get(seq).or_else(|| self.fetched.get(&seq)) {
            return Ok(bytes.clone());
        }
        if self.asked.is_some() || self.retry_at.is_some() {
            return Err(Unicast::Idle);
        }
        self.asked = Some(StoreRequest::Needed);
        Err(Unicast::Fetch {
            channel: self.channel,
            from: seq,
            limit,
        })
    }

    /// Returns the request that reads ahead, if that is due.
    fn read_ahead(&mut self, recent: &Recent) -> Option<Unicast> {
        if self.asked.is_some() || self.ahead_failed || self.fetched.len() >= self.enough {
            return None;
        }
        let last = *self.fetched.last_key_value()?.0;
        let from = self.backlog.next_update_after(last)?;
        if recent.get(from).is_some() {
            return None;
        }
        self.asked = Some(StoreRequest::Ahead);
        Some(Unicast::Fetch {
            channel: self.channel,
            from,
            limit: FETCH,
        })
    }

    pub(super) fn poll_unicast(&mut self, number: u64, recent: &Recent, ahead: bool) -> Unicast {
        if let Some(StreamRange { seq, range }) = self.backlog.next_repair().cloned() {
            let bytes = match self.bytes(seq, recent, 1) {
                Ok(bytes) => bytes,
                Err(wait) => return wait,
            };
            self.backlog.repaired();
            self.fetched.remove(&seq);
            let range = range.start.min(bytes.len() as u64) as usize
                ..range.end.min(bytes.len() as u64) as usize;
            // A range beyond the end is answered by that end: the receiver was deceived.
            self.repairing = true;
            return stream(number, seq, &bytes, range);
        }
        self.repairing = false;
        let Some(seq) = self.backlog.next_update() else {
            return self.end_catch_up();
        };
        let many = self.backlog.len() > LIVE_WITHIN;
        if self.catching_up && !many {
            return self.end_catch_up();
        }
        if ahead
            && many
            && let Some(fetch) = self.read_ahead(recent)
        {
            return fetch;
        }
        let bytes = match self.bytes(seq, recent, FETCH) {
            Ok(bytes) => bytes,
            Err(wait) => return wait,
        };
        while let Some(entry) = self.fetched.first_entry().filter(|e| *e.key() <= seq) {
            entry.remove();
        }
        self.backlog.done_below(seq + 1);
        if !many {
            return stream(number, seq, &bytes, 0..bytes.len());
        }
        let mut head = Vec::new();
        if !std::mem::replace(&mut self.catching_up, true) {
            put_catch_up(&mut head, number);
        }
        put_catch_up_item(&mut head, seq, bytes.len());
        Unicast::CatchUp {
            channel: self.channel,
            head,
            body: bytes,
        }
    }

    fn end_catch_up(&mut self) -> Unicast {
        if std::mem::take(&mut self.catching_up) {
            Unicast::CatchUpEnd {
                channel: self.channel,
            }
        } else {
            Unicast::Idle
        }
    }

    /// Takes the store's answer. `first` is the oldest `seq` that is known to be stored. Returns the updates that it shows to be gone for good.
    pub(super) fn provide(
        &mut self,
        from: u64,
        updates: Option<Vec<(u64, Bytes)>>,
        first: u64,
        now: Instant,
    ) -> Option<(u64, u64)> {
        if self.asked.take() == Some(StoreRequest::Ahead) {
            let begins = |updates: &Vec<(u64, Bytes)>| updates.first().is_some_and(|u| u.0 == from);
            let updates = updates.filter(begins);
            self.ahead_failed = updates.is_none();
            self.take_fetched(updates.unwrap_or_default());
            return None;
        }
        self.ahead_failed = false;
        let Some(updates) = updates else {
            self.retry_at = Some(now + RETRY);
            return None;
        };
        let oldest = updates.iter().map(|(seq, _)| *seq).min();
        let available = oldest.unwrap_or(first);
        if oldest.is_none() && first <= from {
            // Nothing at all where something was stored: the store is out of order, and asking again is all that can be done.
            self.retry_at = Some(now + RETRY);
            return None;
        }
        let mut gap = None;
        if available > from {
            // The retention has overtaken this receiver.
            let lowest = self.backlog.drop_below(available).unwrap_or(from);
            gap = Some((lowest.min(from), available - 1));
        }
        self.take_fetched(updates);
        gap
    }

    fn take_fetched(&mut self, updates: Vec<(u64, Bytes)>) {
        // The next are asked for when half of these are sent.
        self.enough = updates.len().min(FETCH) / 2 + 1;
        self.fetched.extend(updates.into_iter().take(FETCH));
    }
}

/// A range of an update on a stream of its own.
fn stream(channel: u64, seq: u64, bytes: &Bytes, range: std::ops::Range<usize>) -> Unicast {
    let header = RangeHeader {
        channel,
        seq,
        encoding: bytes.first().copied().unwrap_or(0),
        total: bytes.len() as u64,
        offset: range.start as u64,
    };
    let mut head = Vec::new();
    header.encode(&mut head);
    Unicast::Stream {
        head,
        body: bytes.slice(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: u64 = 5000;

    fn update(seq: u64) -> Bytes {
        Bytes::from(seq.to_be_bytes().to_vec())
    }

    fn stored(from: u64, count: u64) -> Option<Vec<(u64, Bytes)>> {
        Some((from..from + count).map(|seq| (seq, update(seq))).collect())
    }

    fn behind() -> (Subscription, Recent, Instant) {
        let now = Instant::now();
        let mut subscription = Subscription::new(0, now);
        subscription.backlog.start(1, HEAD);
        (subscription, Recent::new(HEAD + 1), now)
    }

    /// Takes what can be taken; returns the updates, and what is asked of the store behind them.
    fn take(subscription: &mut Subscription, recent: &Recent) -> (Vec<u64>, Vec<u64>) {
        let (mut sent, mut asked) = (Vec::new(), Vec::new());
        loop {
            match subscription.poll_unicast(1, recent, true) {
                Unicast::CatchUp { body, .. } => {
                    sent.push(u64::from_be_bytes(body[..].try_into().unwrap()))
                }
                Unicast::Fetch { from, .. } => asked.push(from),
                Unicast::Idle => return (sent, asked),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_store_is_read_ahead_and_each_update_is_sent_once() {
        let (mut subscription, recent, now) = behind();
        assert_eq!(take(&mut subscription, &recent), (vec![], vec![1]));
        let mut next = 1;
        let mut from = 1;
        while next < 4000 {
            assert_eq!(subscription.provide(from, stored(from, 500), 1, now), None);
            let (sent, asked) = take(&mut subscription, &recent);
            assert_eq!(sent, (next..next + sent.len() as u64).collect::<Vec<_>>());
            next += sent.len() as u64;
            assert_eq!(
                asked,
                [from + 500],
                "one question at a time, of what comes next"
            );
            from += 500;
        }
    }

    #[test]
    fn without_leave_nothing_is_read_ahead() {
        let (mut subscription, recent, now) = behind();
        take(&mut subscription, &recent);
        subscription.provide(1, stored(1, 500), 1, now);
        for _ in 0..500 {
            let next = subscription.poll_unicast(1, &recent, false);
            assert!(matches!(next, Unicast::CatchUp { .. }), "{next:?}");
        }
        let next = subscription.poll_unicast(1, &recent, false);
        assert!(matches!(next, Unicast::Fetch { from: 501, .. }), "{next:?}");
    }

    /// Reading ahead beyond the store's end is no gap, and no reason to wait, until the updates are
    /// needed.
    #[test]
    fn a_gap_is_announced_when_it_is_reached() {
        for ahead in [None, Some(Vec::new()), stored(900, 10)] {
            let (mut subscription, recent, now) = behind();
            take(&mut subscription, &recent);
            subscription.provide(1, stored(1, 500), 1, now);
            // The question is asked when half of them are sent.
            let mut sent = 0;
            let from = loop {
                match subscription.poll_unicast(1, &recent, true) {
                    Unicast::CatchUp { .. } => sent += 1,
                    Unicast::Fetch { from, .. } => break from,
                    other => panic!("{other:?}"),
                }
            };
            assert!((200..300).contains(&sent), "{sent}");
            assert_eq!(
                (from, subscription.provide(from, ahead, 1, now)),
                (501, None)
            );
            assert_eq!(subscription.retry_at, None);
            let (rest, asked) = take(&mut subscription, &recent);
            assert_eq!((rest.len(), asked), (500 - sent, vec![501]));
            // The retention has taken 501 to 899.
            let gap = subscription.provide(501, stored(900, 500), 900, now);
            assert_eq!(gap, Some((501, 899)));
            let (sent, asked) = take(&mut subscription, &recent);
            assert_eq!(
                (sent.first(), sent.len(), asked),
                (Some(&900), 500, vec![1400])
            );
        }
    }
}
