//! State of every receiver that the channels of this source know, connected or not, and its written
//! part.

use std::collections::BTreeMap;
use std::time::Duration;

use flexicast_tokio::source::{LegStatus, Move, ReceiverStatus};
use store::{SessionRow, StateRow};
use tokio::time::Instant;
use uuid::Uuid;

/// Rung name of a receiver without a connection.
pub const OFFLINE: &str = "offline";

/// Minimum interval of progress rows per receiver and channel.
const PROGRESS: Duration = Duration::from_secs(5);

/// A round-trip time counts as changed if it differs by a fifth, and by this many microseconds.
const RTT_US: u64 = 2_000;

/// Bound on remembered absences of a receiver: one that comes and goes more often is not counted
/// for updates published in between.
const SPANS: usize = 8;

/// All receivers.
#[derive(Debug, Default)]
pub struct Fleet {
    receivers: BTreeMap<Uuid, Receiver>,
}

#[derive(Debug, Default)]
struct Receiver {
    /// Number of its connection in the transport, and the connection.
    live: Option<(u64, SessionRow)>,
    places: BTreeMap<String, ReceiverChannel>,
}

/// A receiver in a channel.
#[derive(Debug)]
pub struct ReceiverChannel {
    /// Current state.
    pub row: StateRow,
    written: Option<(StateRow, Instant)>,
    /// Number of its last move in the transport's history.
    moved: u64,
    /// First and last seq that were published while it was connected.
    spans: Vec<(u64, u64)>,
    /// Whether the receiver does not request this channel any more.
    left: bool,
}

/// Progress of a receiver's outputs from one seq to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advance {
    /// Channel of the progress.
    pub channel: String,
    /// Updates held of those published while it was connected: first and last seq each.
    pub spans: Vec<(u64, u64)>,
}

/// Receivers of a channel by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// All known receivers.
    pub receivers: u64,
    /// Connected receivers.
    pub connected: u64,
    /// Connected receivers on this rung.
    pub multicast: u64,
    /// Connected receivers on this rung.
    pub amt: u64,
    /// Connected receivers on this rung.
    pub replicated: u64,
    /// Connected receivers on this rung.
    pub unicast: u64,
    /// Connected receivers that hold the head.
    pub delivered: u64,
    /// Connected receivers that lack updates.
    pub behind: u64,
    /// Lowest cursor of the connected receivers that lack updates.
    pub lowest: Option<u64>,
}

impl Tally {
    /// Counts a connected receiver.
    fn on(&mut self, rung: &str, is_behind: bool) {
        self.connected += 1;
        match is_behind {
            true => self.behind += 1,
            false => self.delivered += 1,
        }
        match rung {
            "multicast" => self.multicast += 1,
            "amt" => self.amt += 1,
            "replicated" => self.replicated += 1,
            _ => self.unicast += 1,
        }
    }
}

/// Returns the worse of two rungs.
fn worse<'a>(a: &'a str, b: &'a str) -> &'a str {
    let rank = |rung: &str| match rung {
        "multicast" => 1,
        "amt" => 2,
        "replicated" => 3,
        _ => 4,
    };
    if rank(b) > rank(a) { b } else { a }
}

/// Returns the legs as a word for each, with its state.
fn legs(legs: &[LegStatus]) -> String {
    let words = legs.iter().map(|leg| format!("{}:{}", leg.leg, leg.state));
    words.collect::<Vec<_>>().join(" ")
}

fn ms(unix_ms: u64) -> i64 {
    i64::try_from(unix_ms).unwrap_or(i64::MAX)
}

impl ReceiverChannel {
    fn new(receiver: Uuid, channel: &str, at_ms: i64) -> Self {
        Self {
            row: StateRow {
                receiver,
                channel: channel.to_owned(),
                connected: false,
                rung: OFFLINE.to_owned(),
                since_ms: at_ms,
                cause: String::new(),
                cursor: None,
                backlog: 0,
                key_sequence: None,
                rtt_us: None,
                address: String::new(),
                session: None,
                legs: String::new(),
                updated_ms: at_ms,
                change: 0,
            },
            written: None,
            moved: 0,
            spans: Vec::new(),
            left: false,
        }
    }

    /// Marks the channel as served, from `head` on.
    fn connect(&mut self, session: &SessionRow, head: u64) {
        self.left = false;
        let row = &mut self.row;
        row.connected = true;
        row.rung = "unicast".to_owned();
        row.since_ms = session.began_ms;
        row.cause.clear();
        row.session = Some(session.id);
        row.address.clone_from(&session.address);
        // A connection that replaces another one leaves no gap.
        if self.spans.last().is_none_or(|span| span.1 != u64::MAX) {
            self.spans.push((head + 1, u64::MAX));
        }
        if self.spans.len() > SPANS {
            self.spans.remove(0);
        }
    }

    fn disconnect(&mut self, at_ms: i64, cause: &str, head: u64) {
        let row = &mut self.row;
        row.connected = false;
        row.rung = OFFLINE.to_owned();
        row.since_ms = at_ms;
        row.cause = cause.to_owned();
        row.legs.clear();
        row.session = None;
        row.rtt_us = None;
        if let Some(last) = self.spans.last_mut().filter(|span| span.1 == u64::MAX) {
            last.1 = head;
        }
    }

    /// Marks the channel as left: the receiver has connected without it, and does not count until
    /// it requests it again.
    fn leave(&mut self, at_ms: i64, head: u64) {
        self.left = true;
        if self.row.connected {
            self.disconnect(at_ms, "the receiver does not ask for it any more", head);
        }
    }

    /// Advances the outputs to `cursor`. Returns the new part of the counted updates.
    fn advance(&mut self, cursor: u64) -> Vec<(u64, u64)> {
        let before = self.row.cursor.replace(cursor).unwrap_or(0);
        let spans = self.spans.iter();
        let new = spans.map(|(from, to)| ((*from).max(before + 1), (*to).min(cursor)));
        new.filter(|(from, to)| from <= to).collect()
    }

    /// Whether the state differs from the written one.
    fn has_moved(&self) -> bool {
        fn key(row: &StateRow) -> (bool, i64, Option<i64>, [&str; 4]) {
            let words = [row.rung.as_str(), &row.cause, &row.address, &row.legs];
            (row.connected, row.since_ms, row.session, words)
        }
        let written = self.written.as_ref();
        written.is_none_or(|(written, _)| key(written) != key(&self.row))
    }

    /// Whether the progress exceeds the written one.
    fn has_come_on(&self) -> bool {
        let Some((written, _)) = &self.written else {
            return true;
        };
        let row = &self.row;
        let rtt = match (written.rtt_us, row.rtt_us) {
            (Some(a), Some(b)) => a.abs_diff(b) > (a / 5).max(RTT_US),
            (a, b) => a.is_some() != b.is_some(),
        };
        let is = (row.cursor, row.backlog, row.key_sequence);
        rtt || is != (written.cursor, written.backlog, written.key_sequence)
    }

    fn is_due(&self, now: Instant) -> bool {
        let Some((written, at)) = &self.written else {
            return true;
        };
        // The first RTT of a receiver is of interest at once.
        let is_first = written.rtt_us.is_none() && self.row.rtt_us.is_some();
        is_first || now.saturating_duration_since(*at) >= PROGRESS
    }
}

impl Fleet {
    /// Loads the state that an earlier source recorded of receivers that are not connected here.
    pub fn know(&mut self, rows: Vec<StateRow>) {
        let now = Instant::now();
        for row in rows {
            let receiver = self.receivers.entry(row.receiver).or_default();
            if receiver.live.is_some() || receiver.places.contains_key(&row.channel) {
                continue;
            }
            let mut place = ReceiverChannel::new(row.receiver, &row.channel, row.since_ms);
            place.row = StateRow {
                connected: false,
                rung: OFFLINE.to_owned(),
                session: None,
                ..row
            };
            place.written = Some((place.row.clone(), now));
            receiver.places.insert(place.row.channel.clone(), place);
        }
    }

    /// Keeps only receivers known to the database at `since_ms`, with their requested channels, and
    /// those connected or added later.
    pub fn retain(&mut self, known: &BTreeMap<Uuid, Vec<String>>, since_ms: i64) {
        self.receivers.retain(|id, receiver| {
            let mut places = receiver.places.values();
            let mut is_new = || places.any(|place| place.row.since_ms >= since_ms);
            receiver.live.is_some() || known.contains_key(id) || is_new()
        });
        for (id, receiver) in &mut self.receivers {
            // An empty list carries no information: no receiver is admitted with it.
            let asked = known.get(id).filter(|asked| !asked.is_empty());
            if let (Some(asked), None) = (asked, &receiver.live) {
                for (channel, place) in &mut receiver.places {
                    place.left = !asked.contains(channel);
                }
            }
        }
    }

    /// Marks everything as not written: it has to be recorded again.
    pub fn forget_written(&mut self) {
        let places = self
            .receivers
            .values_mut()
            .flat_map(|r| r.places.values_mut());
        places.for_each(|place| place.written = None);
    }

    /// Records an admitted receiver. Returns its connection.
    pub fn connected(
        &mut self,
        id: Uuid,
        live: (u64, SessionRow),
        channels: &[String],
        head: impl Fn(&str) -> u64,
    ) {
        let receiver = self.receivers.entry(id).or_default();
        if receiver
            .live
            .as_ref()
            .is_some_and(|(newer, _)| *newer > live.0)
        {
            return;
        }
        for (channel, place) in &mut receiver.places {
            if !channels.contains(channel) {
                place.leave(live.1.began_ms, head(channel));
            }
        }
        for channel in channels {
            let new = || ReceiverChannel::new(id, channel, live.1.began_ms);
            let place = receiver.places.entry(channel.clone()).or_insert_with(new);
            place.connect(&live.1, head(channel));
        }
        receiver.live = Some(live);
    }

    /// Records the end of the connection with the transport's number `session`. Returns it, if it
    /// was the receiver's current one.
    pub fn disconnected(
        &mut self,
        id: Uuid,
        session: u64,
        at_ms: u64,
        cause: &str,
        head: impl Fn(&str) -> u64,
    ) -> Option<SessionRow> {
        let receiver = self.receivers.get_mut(&id)?;
        let (_, row) = receiver.live.take_if(|(live, _)| *live == session)?;
        for (channel, place) in &mut receiver.places {
            if place.row.connected {
                place.disconnect(ms(at_ms), cause, head(channel));
            }
        }
        Some(row)
    }

    /// Returns all connected receivers, with the transport's connection numbers.
    pub fn live(&self) -> Vec<(Uuid, u64)> {
        let live = self.receivers.iter();
        live.filter_map(|(id, r)| Some((*id, r.live.as_ref()?.0)))
            .collect()
    }

    /// Records a move of a receiver.
    pub fn moved(&mut self, step: &Move) {
        let Some(place) = self.place(&step.receiver, &step.channel) else {
            return;
        };
        place.moved = step.number;
        // A move older than the current state is ignored.
        if place.row.connected && ms(step.at_ms) >= place.row.since_ms {
            place.row.rung.clone_from(&step.to);
            place.row.since_ms = ms(step.at_ms);
            place.row.cause.clone_from(&step.cause);
        }
    }

    fn place(&mut self, receiver: &str, channel: &str) -> Option<&mut ReceiverChannel> {
        let receiver = self.receivers.get_mut(&receiver.parse::<Uuid>().ok()?)?;
        receiver.places.get_mut(channel)
    }

    /// Takes a sample of a connected receiver, made when the transport's history was at `upto`.
    /// Returns the progress of its outputs.
    pub fn seen(&mut self, status: &ReceiverStatus, upto: u64, at_ms: i64) -> Vec<Advance> {
        let mut advances = Vec::new();
        let Ok(id) = status.id.parse::<Uuid>() else {
            return advances;
        };
        let Some(receiver) = self.receivers.get_mut(&id) else {
            return advances;
        };
        let is_it = |(session, _): &(u64, SessionRow)| *session == status.session;
        if !receiver.live.as_ref().is_some_and(is_it) {
            return advances;
        }
        for seen in &status.channels {
            let Some(place) = receiver.places.get_mut(&seen.channel) else {
                continue;
            };
            let row = &mut place.row;
            // The receiver has moved since; its rung is known better.
            if place.moved <= upto {
                row.rung.clone_from(&seen.rung);
                row.since_ms = ms(seen.since_ms);
                row.cause = seen.cause.clone().unwrap_or_default();
            }
            row.backlog = seen.backlog;
            row.legs = legs(&seen.legs);
            row.key_sequence = seen.key_sequence;
            row.rtt_us = Some((status.rtt_ms * 1e3) as u64).filter(|us| *us > 0);
            row.address.clone_from(&status.addr);
            row.updated_ms = at_ms;
            if let Some(cursor) = seen.cursor {
                let spans = place.advance(cursor);
                if !spans.is_empty() {
                    let channel = seen.channel.clone();
                    advances.push(Advance { channel, spans });
                }
            }
        }
        advances
    }

    /// Emits the state of all receivers that moved, as long as `add` accepts it.
    pub fn moves(&mut self, now: Instant, at_ms: i64, mut add: impl FnMut(StateRow) -> bool) {
        let places = self
            .receivers
            .values_mut()
            .flat_map(|r| r.places.values_mut());
        for place in places.filter(|place| place.has_moved()) {
            place.row.updated_ms = at_ms;
            if !add(place.row.clone()) {
                return;
            }
            place.written = Some((place.row.clone(), now));
        }
    }

    /// Emits progress rows: at most `budget`, every few seconds per receiver; first those that are
    /// behind, then those with the oldest row.
    pub fn progress(&mut self, now: Instant, budget: usize, mut add: impl FnMut(StateRow) -> bool) {
        let places = self
            .receivers
            .values_mut()
            .flat_map(|r| r.places.values_mut());
        let due = |place: &&mut ReceiverChannel| place.is_due(now) && place.has_come_on();
        let mut due: Vec<_> = places.filter(due).collect();
        due.sort_by_key(|place| {
            let at = place.written.as_ref().map(|(_, at)| *at);
            (place.row.backlog == 0, at)
        });
        for place in due.into_iter().take(budget) {
            if !add(place.row.clone()) {
                return;
            }
            place.written = Some((place.row.clone(), now));
        }
    }

    /// Counts the receivers of a channel by state; `head` is its last published seq.
    pub fn tally(&self, channel: &str, head: u64) -> Tally {
        let mut tally = Tally::default();
        for receiver in self.receivers.values() {
            let place = receiver.places.get(channel);
            let Some(ReceiverChannel { row, .. }) = place.filter(|place| !place.left) else {
                continue;
            };
            tally.receivers += 1;
            if !row.connected {
                continue;
            }
            let is_behind = row.cursor.unwrap_or(0) < head;
            tally.on(&row.rung, is_behind);
            if is_behind {
                // A receiver without confirmations starts with the last updates, not the first
                // ones.
                let begin = || head.saturating_sub(row.backlog.max(1));
                let cursor = row.cursor.unwrap_or_else(begin);
                tally.lowest = Some(tally.lowest.map_or(cursor, |l| l.min(cursor)));
            }
        }
        tally
    }

    /// Counts all receivers: each by its worst rung, and behind if so in any channel.
    pub fn tally_all(&self, heads: &BTreeMap<String, u64>) -> Tally {
        let mut tally = Tally::default();
        for receiver in self.receivers.values() {
            let places = receiver.places.iter();
            let mut places = places.filter(|(_, place)| !place.left).peekable();
            if places.peek().is_none() {
                continue;
            }
            tally.receivers += 1;
            let mut rung = None;
            let mut is_behind = false;
            for (channel, place) in places.filter(|(_, place)| place.row.connected) {
                let head = heads.get(channel).copied().unwrap_or(0);
                is_behind |= place.row.cursor.unwrap_or(0) < head;
                let known = rung.unwrap_or("multicast");
                rung = Some(worse(known, &place.row.rung));
            }
            if let Some(rung) = rung {
                tally.on(rung, is_behind);
            }
        }
        tally
    }

    /// Returns the number of connections to a channel.
    pub fn connected_to(&self, channel: &str) -> u64 {
        let places = self
            .receivers
            .values()
            .filter_map(|r| r.places.get(channel));
        places.filter(|place| place.row.connected).count() as u64
    }
}
