//! Updates for one receiver's unicast path: what it still has to get of a channel, and the bytes
//! that were read from the store for it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::backlog::Backlog;
use super::recent::Recent;
use super::types::{ChannelIndex, LIVE_WITHIN, Unicast, channel_number};
use crate::deadline::{deadline_of, is_past};
use crate::flow::ledger::StreamRange;
use crate::merge::WINDOW;
use crate::range::RangeSet;
use crate::unicast::{RangeHeader, put_catch_up, put_catch_up_item};

/// Maximum of updates per request to the store; its owner has a limit in bytes, too.
const FETCH: usize = 1024;
/// A store that did not answer is asked again after this time.
const RETRY: Duration = Duration::from_secs(1);
/// Ranges of updates beyond the head that a receiver may need by unicast.
const MAX_NEEDED: usize = 256;

/// Pending request to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreRequest {
    /// For the next updates to send.
    Needed,
    /// For updates after those read already.
    Ahead,
}

/// Kind of an item for a unicast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemKind {
    /// Bytes that the flow had not brought.
    Repair,
    /// A whole update, or no update at all.
    Update,
}

/// Delivery of one channel's updates on one receiver's unicast path.
#[derive(Debug)]
pub(super) struct Delivery {
    channel: ChannelIndex,
    pub(super) backlog: Backlog,
    /// Updates that the receiver needs by unicast as soon as they are published.
    needed: RangeSet,
    fetched: BTreeMap<u64, Bytes>,
    request: Option<StoreRequest>,
    /// Time of the next request after one that failed.
    retry_at: Option<Instant>,
    /// Number of fetched updates from which on the next ones are not requested yet.
    enough: usize,
    /// Whether reading ahead brought nothing: what is missing shows when it is needed.
    ahead_failed: bool,
    /// Whether a catch-up stream is open.
    catching_up: bool,
    /// Whether updates are sent without the headers that sign them.
    unsigned: bool,
}

impl Delivery {
    /// A delivery with nothing to send; `unsigned` is for a receiver that knows no signed updates.
    pub(super) fn new(channel: ChannelIndex, unsigned: bool) -> Self {
        Delivery {
            channel,
            backlog: Backlog::default(),
            needed: RangeSet::new(),
            fetched: BTreeMap::new(),
            request: None,
            retry_at: None,
            enough: 0,
            ahead_failed: false,
            catching_up: false,
            unsigned,
        }
    }

    /// Returns the time of the next request to a store that did not answer.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Allows another request to a store that did not answer.
    pub(super) fn retry(&mut self) {
        self.retry_at = None;
    }

    /// Takes note of a new update; returns whether it has to be sent on the unicast path.
    pub(super) fn publish(&mut self, seq: u64) -> bool {
        let needed = self.needed.contains(seq);
        self.needed.remove_below(seq + 1);
        let live = self.backlog.publish(seq);
        if needed && !live {
            self.backlog.repair([StreamRange::whole(seq)]);
        }
        needed || live
    }

    /// Whether the next update may have to be sent on the unicast path.
    pub(super) fn is_direct(&self) -> bool {
        self.backlog.is_live() || !self.needed.is_empty()
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

    /// Returns the deadline of an update in Unix ms, if its bytes are at hand and state one.
    fn deadline(&self, seq: u64, recent: &Recent) -> Option<u64> {
        let encoded = recent.get(seq).or_else(|| self.fetched.get(&seq));
        deadline_of(encoded?)
    }

    /// Returns the deadline of what is next to be sent.
    pub(super) fn next_deadline(&self, recent: &Recent) -> Option<u64> {
        let repair = self.backlog.next_repair().map(|repair| repair.seq);
        self.deadline(repair.or(self.backlog.next_update())?, recent)
    }

    /// Drops what is next to be sent for as long as that has expired; returns those updates.
    pub(super) fn drop_expired(&mut self, recent: &Recent, now_us: u64) -> RangeSet {
        let mut expired = RangeSet::new();
        loop {
            let is_expired = |seq: &u64| {
                let deadline = self.deadline(*seq, recent);
                deadline.is_some_and(|deadline| is_past(deadline, now_us))
            };
            let repair = self.backlog.next_repair().map(|repair| repair.seq);
            let repair = repair.filter(is_expired);
            let update = self.backlog.next_update().filter(is_expired);
            let Some(seq) = repair.or(update) else {
                return expired;
            };
            match repair {
                Some(seq) => self.backlog.drop_repairs(seq),
                None => self.backlog.done_below(seq + 1),
            }
            self.fetched.remove(&seq);
            expired.insert_one(seq);
        }
    }

    /// Returns the bytes of an update, or the item that leads to them.
    fn bytes(&mut self, seq: u64, recent: &Recent, limit: usize) -> Result<Bytes, Unicast> {
        if let Some(bytes) = recent.get(seq).or_else(|| self.fetched.get(&seq)) {
            return Ok(match self.unsigned {
                true => bytes.slice_ref(signing::content(bytes)),
                false => bytes.clone(),
            });
        }
        if self.request.is_some() || self.retry_at.is_some() {
            return Err(Unicast::Idle);
        }
        self.request = Some(StoreRequest::Needed);
        Err(Unicast::Fetch {
            channel: self.channel,
            from: seq,
            limit,
        })
    }

    /// Returns the request that reads ahead, if that is due.
    fn read_ahead(&mut self, recent: &Recent) -> Option<Unicast> {
        if self.request.is_some() || self.ahead_failed || self.fetched.len() >= self.enough {
            return None;
        }
        let last = *self.fetched.last_key_value()?.0;
        let from = self.backlog.next_update_after(last)?;
        if recent.get(from).is_some() {
            return None;
        }
        self.request = Some(StoreRequest::Ahead);
        Some(Unicast::Fetch {
            channel: self.channel,
            from,
            limit: FETCH,
        })
    }

    /// Returns the next item: a repair first, then the updates in order. `ahead` allows to read
    /// the store before its updates are needed.
    pub(super) fn poll(&mut self, recent: &Recent, ahead: bool) -> (Unicast, ItemKind) {
        match self.backlog.next_repair().cloned() {
            Some(repair) => (self.poll_repair(repair, recent), ItemKind::Repair),
            None => (self.poll_update(recent, ahead), ItemKind::Update),
        }
    }

    fn poll_repair(&mut self, repair: StreamRange, recent: &Recent) -> Unicast {
        let StreamRange { seq, range } = repair;
        let bytes = match self.bytes(seq, recent, 1) {
            Ok(bytes) => bytes,
            Err(wait) => return wait,
        };
        self.backlog.repaired();
        self.fetched.remove(&seq);
        // A range beyond the end is answered by that end: the receiver was deceived.
        let within = |offset: u64| offset.min(bytes.len() as u64) as usize;
        let range = within(range.start)..within(range.end);
        self.stream(seq, &bytes, range, ItemKind::Repair)
    }

    fn poll_update(&mut self, recent: &Recent, ahead: bool) -> Unicast {
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
            return self.stream(seq, &bytes, 0..bytes.len(), ItemKind::Update);
        }
        let mut head = Vec::new();
        if !std::mem::replace(&mut self.catching_up, true) {
            put_catch_up(&mut head, channel_number(self.channel));
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

    /// Returns a range of an update on a stream of its own.
    fn stream(&self, seq: u64, bytes: &Bytes, range: Range<usize>, kind: ItemKind) -> Unicast {
        let header = RangeHeader {
            channel: channel_number(self.channel),
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
            is_repair: kind == ItemKind::Repair,
        }
    }

    /// Takes the store's answer. `first` is the oldest `seq` that is known to be stored. Returns
    /// the updates that it shows to be gone for good.
    pub(super) fn provide(
        &mut self,
        from: u64,
        updates: Option<Vec<(u64, Bytes)>>,
        first: u64,
        now: Instant,
    ) -> Option<(u64, u64)> {
        if self.request.take() == Some(StoreRequest::Ahead) {
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
            // Nothing at all where something was stored: the store is out of order, and asking
            // again is all that can be done.
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
        // The next are requested when half of these are sent.
        self.enough = updates.len().min(FETCH) / 2 + 1;
        self.fetched.extend(updates.into_iter().take(FETCH));
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

    fn backlogged() -> (Delivery, Recent, Instant) {
        let now = Instant::now();
        let mut delivery = Delivery::new(0, false);
        delivery.backlog.start(1, HEAD);
        (delivery, Recent::new(HEAD + 1), now)
    }

    /// Takes items until none is left; returns the updates, and the requests to the store.
    fn take(delivery: &mut Delivery, recent: &Recent) -> (Vec<u64>, Vec<u64>) {
        let (mut sent, mut asked) = (Vec::new(), Vec::new());
        loop {
            match delivery.poll(recent, true).0 {
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
        let (mut delivery, recent, now) = backlogged();
        assert_eq!(take(&mut delivery, &recent), (vec![], vec![1]));
        let mut next = 1;
        let mut from = 1;
        while next < 4000 {
            assert_eq!(delivery.provide(from, stored(from, 500), 1, now), None);
            let (sent, asked) = take(&mut delivery, &recent);
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
        let (mut delivery, recent, now) = backlogged();
        take(&mut delivery, &recent);
        delivery.provide(1, stored(1, 500), 1, now);
        for _ in 0..500 {
            let next = delivery.poll(&recent, false).0;
            assert!(matches!(next, Unicast::CatchUp { .. }), "{next:?}");
        }
        let next = delivery.poll(&recent, false).0;
        assert!(matches!(next, Unicast::Fetch { from: 501, .. }), "{next:?}");
    }

    /// Reading ahead beyond the store's end is no gap, and no reason to wait, until the updates are
    /// needed.
    #[test]
    fn a_gap_is_announced_when_it_is_reached() {
        for ahead in [None, Some(Vec::new()), stored(900, 10)] {
            let (mut delivery, recent, now) = backlogged();
            take(&mut delivery, &recent);
            delivery.provide(1, stored(1, 500), 1, now);
            // The question is asked when half of them are sent.
            let mut sent = 0;
            let from = loop {
                match delivery.poll(&recent, true).0 {
                    Unicast::CatchUp { .. } => sent += 1,
                    Unicast::Fetch { from, .. } => break from,
                    other => panic!("{other:?}"),
                }
            };
            assert!((200..300).contains(&sent), "{sent}");
            assert_eq!((from, delivery.provide(from, ahead, 1, now)), (501, None));
            assert_eq!(delivery.retry_at(), None);
            let (rest, asked) = take(&mut delivery, &recent);
            assert_eq!((rest.len(), asked), (500 - sent, vec![501]));
            // The retention has taken 501 to 899.
            let gap = delivery.provide(501, stored(900, 500), 900, now);
            assert_eq!(gap, Some((501, 899)));
            let (sent, asked) = take(&mut delivery, &recent);
            assert_eq!(
                (sent.first(), sent.len(), asked),
                (Some(&900), 500, vec![1400])
            );
        }
    }
}
