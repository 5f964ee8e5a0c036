//! Records of a source about its receivers, relays and feeds, for the console.
//!
//! Texts are cut where they are stored, and NULs in them replaced: nothing that a peer says makes a
//! record fail.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ReceiverRow;

/// Proof that a channel is the writer's: the number of its [`Lease`](crate::Lease).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The channel.
    pub channel: String,
    /// The lease's number.
    pub fence: u64,
}

/// Identity of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of this run of the writing program.
    pub run: Uuid,
    /// Which of their batches it is: larger than those of the batches before.
    pub number: u64,
}

/// Records that are written together: all of them, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// With it, the same batch can be written again until its success is known: it
    /// is stored once.
    pub stamp: Option<Stamp>,
    /// The leases by which it is written; it is refused if one of them is an old one.
    pub fences: Vec<Fence>,
    /// States of receivers. Each replaces the one of the same receiver and channel.
    pub states: Vec<StateRow>,
    /// Moves between rungs, in their order.
    pub moves: Vec<MoveRow>,
    /// Connections that began or ended. Each replaces the one of the same id.
    pub sessions: Vec<SessionRow>,
    /// Totals of channels. Each replaces the one of the same channel.
    pub pulses: Vec<PulseRow>,
    /// Delivery progress of updates. Each replaces the one of the same channel and seq.
    pub progress: Vec<ProgressRow>,
    /// Relays. Each replaces the one of the same address.
    pub relays: Vec<RelayRow>,
    /// Counts of steps of time. Each replaces the one of the same channel, step and time.
    pub samples: Vec<SampleRow>,
    /// Polls, which are added to those of the same feed and hour.
    pub feed_hours: Vec<FeedHour>,
    /// Events of feeds, in that order.
    pub feed_events: Vec<FeedEvent>,
    /// Self-description of the source.
    pub info: Option<SourceInfo>,
}

impl Batch {
    /// Returns the number of its rows.
    pub fn len(&self) -> usize {
        self.states.len()
            + self.moves.len()
            + self.sessions.len()
            + self.pulses.len()
            + self.progress.len()
            + self.relays.len()
            + self.samples.len()
            + self.feed_hours.len()
            + self.feed_events.len()
            + usize::from(self.info.is_some())
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// State of a receiver in a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRow {
    /// Receiver.
    pub receiver: Uuid,
    /// In which channel; cut to 255 bytes.
    pub channel: String,
    /// Whether it is connected.
    pub connected: bool,
    /// The rung; cut to 32 bytes.
    pub rung: String,
    /// Since when it stands there, in Unix milliseconds.
    pub since_ms: i64,
    /// Why; cut to 255 bytes.
    pub cause: String,
    /// The last seq that its outputs hold.
    pub cursor: Option<u64>,
    /// Number of updates it is behind.
    pub backlog: u64,
    /// The key epoch of the flow that it has confirmed.
    pub key_sequence: Option<u64>,
    /// Its smoothed round-trip time, in microseconds.
    pub rtt_us: Option<u64>,
    /// Address it connects from; cut to 255 bytes.
    pub address: String,
    /// The [`SessionRow::id`] of its connection.
    pub session: Option<i64>,
    /// Its legs, if it takes the flow by two, each with its state: `multicast:working amt:lost`;
    /// cut to 255 bytes.
    pub legs: String,
    /// When this was so, in Unix milliseconds.
    pub updated_ms: i64,
    /// The number of the change by which it was stored. Not looked at when it is written.
    pub change: u64,
}

/// A move of a receiver between rungs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveRow {
    /// Its number in the store, which grows; not looked at when it is written.
    pub id: i64,
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// Receiver.
    pub receiver: Uuid,
    /// Display name; cut to 255 bytes.
    pub name: String,
    /// In which channel; cut to 255 bytes.
    pub channel: String,
    /// From which rung; cut to 32 bytes.
    pub from: String,
    /// Rung after the move; cut to 32 bytes.
    pub to: String,
    /// Why; cut to 255 bytes.
    pub cause: String,
    /// The number of the change by which it was stored. Not looked at when it is written.
    pub change: u64,
}

/// A connection of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// Its number: see [`SessionRow::number`].
    pub id: i64,
    /// Receiver.
    pub receiver: Uuid,
    /// Display name; cut to 255 bytes.
    pub name: String,
    /// Its program and version; cut to 255 bytes.
    pub software: String,
    /// Address it connects from; cut to 255 bytes.
    pub address: String,
    /// When it began, in Unix milliseconds.
    pub began_ms: i64,
    /// When it ended, in Unix milliseconds; `None` while it lasts.
    pub ended_ms: Option<i64>,
    /// Why it ended; cut to 255 bytes.
    pub end_cause: Option<String>,
}

impl SessionRow {
    /// A number for a connection that began at `began_ms` (Unix milliseconds): later ones have
    /// larger numbers. `salt` tells those of one millisecond apart, by its lowest 20 bits.
    pub fn number(began_ms: i64, salt: u32) -> i64 {
        let began = began_ms.clamp(0, (1 << 42) - 1);
        (began << 20) | i64::from(salt & 0x000f_ffff)
    }
}

/// Receivers of a channel by state, or sums of such counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverCounts {
    /// Known receivers.
    pub receivers: u64,
    /// Connected ones.
    pub connected: u64,
    /// Those on the rung `multicast`.
    pub multicast: u64,
    /// … on the rung `amt`.
    pub amt: u64,
    /// … on the rung `replicated`.
    pub replicated: u64,
    /// … on the rung `unicast`.
    pub unicast: u64,
    /// Connected ones that do not hold the head.
    pub behind: u64,
}

impl AddAssign for ReceiverCounts {
    fn add_assign(&mut self, more: Self) {
        self.receivers += more.receivers;
        self.connected += more.connected;
        self.multicast += more.multicast;
        self.amt += more.amt;
        self.replicated += more.replicated;
        self.unicast += more.unicast;
        self.behind += more.behind;
    }
}

/// Bytes of UDP payload that were sent for a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentBytes {
    /// On the flow, each packet counted once.
    pub flow: u64,
    /// As copies of flow packets.
    pub copies: u64,
    /// By unicast to receivers that are not on the flow.
    pub unicast: u64,
    /// By unicast to repair what members of the flow missed.
    pub repairs: u64,
    /// Bytes that unicast to every receiver would have taken.
    pub equivalent: u64,
}

impl AddAssign for SentBytes {
    fn add_assign(&mut self, more: Self) {
        self.flow += more.flow;
        self.copies += more.copies;
        self.unicast += more.unicast;
        self.repairs += more.repairs;
        self.equivalent += more.equivalent;
    }
}

/// The present totals of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PulseRow {
    /// The channel; cut to 255 bytes.
    pub channel: String,
    /// When this was so, in Unix milliseconds.
    pub at_ms: i64,
    /// The last published seq.
    pub head: u64,
    /// Receivers by state.
    pub counts: ReceiverCounts,
    /// Number of connected receivers that hold the head.
    pub delivered: u64,
    /// Number of updates that the last of the connected ones is behind.
    pub lag_updates: u64,
    /// For how long, in milliseconds.
    pub lag_ms: u64,
    /// Number of updates published in the last hour.
    pub updates_per_hour: u64,
    /// Bytes sent since the source began to publish the channel.
    pub bytes: SentBytes,
    /// More about its flow, as a JSON object; one longer than 8 KiB is stored as `{}`.
    pub flow: String,
    /// The number of the change by which it was stored. Not looked at when it is written.
    pub change: u64,
}

/// Delivery progress of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressRow {
    /// The channel; cut to 255 bytes.
    pub channel: String,
    /// The update.
    pub seq: u64,
    /// When it was published, in Unix milliseconds.
    pub published_ms: i64,
    /// Number of receivers it was meant for.
    pub expected: u64,
    /// Number of them that hold it.
    pub delivered: u64,
    /// After how many milliseconds half of them held it.
    pub half_ms: Option<u64>,
    /// … 99 of 100.
    pub p99_ms: Option<u64>,
    /// … all of them.
    pub all_ms: Option<u64>,
    /// The number of the change by which it was stored. Not looked at when it is written.
    pub change: u64,
}

/// A relay, as the source sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayRow {
    /// Address that receivers use; cut to 255 bytes.
    pub address: String,
    /// Address that is probed; cut to 255 bytes.
    pub asked: String,
    /// Whether it answers and is announced to receivers.
    pub healthy: bool,
    /// Since when that is so, in Unix milliseconds; `None` before the first answer is known.
    pub since_ms: Option<i64>,
    /// Round-trip time of its last answer, in microseconds.
    pub answer_us: Option<u64>,
    /// Why it is not announced; cut to 1,024 bytes.
    pub detail: String,
    /// Whether it is no longer configured. Such a relay is forgotten a day later.
    pub gone: bool,
    /// When this was so, in Unix milliseconds.
    pub at_ms: i64,
    /// The number of the change by which it was stored. Not looked at when it is written.
    pub change: u64,
}

/// Counts of one step of time.
///
/// The counts of receivers are sums over [`weight`](Self::weight) looks at them: divided by it they
/// are averages, and larger steps are sums of smaller ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleRow {
    /// The channel, cut to 255 bytes; empty for all of them together.
    pub channel: String,
    /// Length of the step, in milliseconds: [`SampleRow::STEPS`].
    pub step_ms: i64,
    /// When it began, in Unix milliseconds: a multiple of the step.
    pub at_ms: i64,
    /// Number of observations.
    pub weight: u64,
    /// Receivers by state, summed over the observations.
    pub counts: ReceiverCounts,
    /// Number of updates that the last of them was behind, at worst.
    pub lag_updates: u64,
    /// For how long, in milliseconds, at worst.
    pub lag_ms: u64,
    /// Updates that were published.
    pub updates: u64,
    /// Moves between rungs.
    pub moves: u64,
    /// Bytes sent within the step.
    pub bytes: SentBytes,
}

impl SampleRow {
    /// The steps, in milliseconds. The first one is written, the others are made of it by
    /// [`Records::roll_up`](crate::Records::roll_up).
    pub const STEPS: [i64; 3] = [10_000, 300_000, 3_600_000];
}

/// Polls of a feed within an hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedHour {
    /// The feed's channel; cut to 255 bytes.
    pub channel: String,
    /// The feed's URL as it is shown; cut to 2,048 bytes.
    pub url: String,
    /// When the hour began, in Unix milliseconds.
    pub hour_ms: i64,
    /// Number of polls.
    pub polls: u64,
    /// Number of polls that returned a document.
    pub ok: u64,
    /// Number of polls answered with "not modified".
    pub not_modified: u64,
    /// Number of failed polls.
    pub failed: u64,
    /// Number of polls answered with a challenge page.
    pub challenged: u64,
    /// Number of new versions of entries.
    pub entries: u64,
}

/// A change of a feed's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedEvent {
    /// Its number in the store, which grows; not looked at when it is written.
    pub id: i64,
    /// The feed's channel; cut to 255 bytes.
    pub channel: String,
    /// The feed's URL as it is shown; cut to 2,048 bytes.
    pub url: String,
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// The new state, such as `ok` or `challenged`; cut to 64 bytes.
    pub state: String,
    /// The same in a sentence; cut to 1,024 bytes.
    pub detail: String,
    /// The beginning of what was seen instead of a feed, as text; cut to 4 KiB.
    pub excerpt: Option<String>,
    /// The number of the change by which it was stored. Not looked at when it is written.
    pub change: u64,
}

/// A time in which the publishing source could not keep up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverloadRow {
    /// Its beginning, in Unix milliseconds.
    pub since_ms: i64,
    /// Its end, in Unix milliseconds; `None` while it goes on.
    pub until_ms: Option<i64>,
    /// Kinds of lateness, such as `engine`.
    pub late: Vec<String>,
}

/// Self-description of the publishing source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceInfo {
    /// Its name among sources; cut to 255 bytes.
    pub holder: String,
    /// Its program and version; cut to 255 bytes.
    pub software: String,
    /// When it began to run, in Unix milliseconds.
    pub started_ms: i64,
    /// The addresses by which receivers reach it; at most 64, cut to 255 bytes each.
    pub public_address: Vec<String>,
    /// The pins of its certificate, as enrolment links have them; at most 64, cut to 255 bytes
    /// each.
    pub pins: Vec<String>,
    /// Address for receivers; cut to 255 bytes.
    pub listen: String,
    /// Address of its HTTP; cut to 255 bytes.
    pub http: String,
    /// Warnings for the operator; at most 64, cut to 1,024 bytes each.
    pub warnings: Vec<String>,
    /// Its overloads, the oldest first; the last 64 are kept.
    pub overloads: Vec<OverloadRow>,
    /// Whether it is draining: no new receivers, and then its end.
    pub draining: bool,
    /// When this was so, in Unix milliseconds.
    pub at_ms: i64,
    /// The number of the change by which it was stored. Not looked at when it is written.
    pub change: u64,
}

/// Changes since a number, or all current records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Which database it is: another number says that it was made again or restored, and that what
    /// was read before counts for nothing.
    pub epoch: i64,
    /// Everything up to this number is in it: ask for what came after it next.
    pub upto: u64,
    /// Whether there is more already.
    pub more: bool,
    /// States of receivers.
    pub states: Vec<StateRow>,
    /// Moves, the oldest first.
    pub moves: Vec<MoveRow>,
    /// Reports of forged packets within the day before the last move; of a snapshot only.
    pub forgeries: Vec<ForgeryRow>,
    /// Totals of channels.
    pub pulses: Vec<PulseRow>,
    /// Delivery progress of updates.
    pub progress: Vec<ProgressRow>,
    /// Relays.
    pub relays: Vec<RelayRow>,
    /// Events of feeds, the oldest first.
    pub feed_events: Vec<FeedEvent>,
    /// Self-description of the source.
    pub info: Option<SourceInfo>,
    /// Receivers that are new or changed.
    pub receivers: Vec<ReceiverRow>,
    /// Receivers that were forgotten, and everything about them.
    pub forgotten: Vec<Uuid>,
}

/// Reports of forged packets of one receiver in one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgeryRow {
    /// Receiver.
    pub receiver: Uuid,
    /// In which channel.
    pub channel: String,
    /// Time of the first one, in Unix milliseconds.
    pub first_ms: i64,
    /// Time of the last one, in Unix milliseconds.
    pub last_ms: i64,
    /// Number.
    pub reports: u64,
}

/// Which moves are asked for. Everything that is given has to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveFilter {
    /// Of this receiver.
    pub receiver: Option<Uuid>,
    /// In this channel.
    pub channel: Option<String>,
    /// For this cause.
    pub cause: Option<String>,
    /// Rung after the move.
    pub rung: Option<String>,
    /// At this time or later, in Unix milliseconds.
    pub from_ms: Option<i64>,
    /// Before this time, in Unix milliseconds.
    pub to_ms: Option<i64>,
    /// With a smaller id.
    pub before: Option<i64>,
    /// At most so many; 10,000 at the most.
    pub limit: usize,
}

/// A stored update, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateItem {
    /// Its number in the channel.
    pub seq: u64,
    /// The URL of the feed that it is from, as it is shown.
    pub url: String,
    /// The entry's id in the feed.
    pub entry_id: String,
    /// Whether it brought the entry for the first time.
    pub is_new: bool,
    /// When it was stored, in Unix milliseconds.
    pub created_ms: i64,
    /// Length of its encoded bytes.
    pub bytes: u64,
}

/// Changes by an operator to a receiver; `None` leaves a value as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiverEdit {
    /// Label; cut to 400 bytes, empty for none.
    pub label: Option<String>,
    /// Tags: at most 32, cut to 64 bytes each, without repetition.
    pub tags: Option<Vec<String>>,
    /// Whether it is to stay on its unicast path.
    pub held: Option<bool>,
}
