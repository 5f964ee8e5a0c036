//! View of a receiver.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::facts::State;
use super::{Entry, Fleet, ForgeryReports, Rung};

/// A receiver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Receiver {
    /// Identifier.
    pub id: Uuid,
    /// Its own name.
    pub name: String,
    /// The operator's label; null for none.
    pub label: Option<String>,
    /// The operator's tags.
    pub tags: Vec<String>,
    /// Its program and version.
    pub software: String,
    /// Last remote address.
    pub address: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Whether it was removed: it is not admitted any more.
    pub revoked: bool,
    /// Whether the operator keeps it on unicast.
    pub held: bool,
    /// Time of the first admission; Unix milliseconds.
    pub enrolled_ms: i64,
    /// Time of the last admission; Unix milliseconds.
    pub seen_ms: i64,
    /// The round-trip time of its connection; null where it was not measured.
    pub rtt_ms: Option<f64>,
    /// The worst rung of its channels; with the filter `channel`, that of this one.
    pub rung: Rung,
    /// Cause of the move there; null if there was none.
    pub cause: Option<String>,
    /// Since when; Unix milliseconds; null if it never was connected.
    pub since_ms: Option<i64>,
    /// Updates that it lacks, in the channel where it lacks most; null where its
    /// cursor is not known.
    pub behind_updates: Option<u64>,
    /// Its reports of forged packets, if the last one is not a day old; null without any. With the
    /// filter `channel`, those of this one.
    pub forgeries: Option<ForgeryReports>,
    /// Its channels, by name.
    pub channels: Vec<ReceiverChannel>,
}

/// One of the legs by which a receiver takes a flow at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReceiverLeg {
    /// `multicast`, `amt`, or `amt-2` for a second relay.
    pub leg: String,
    /// `trying`, `working` or `lost`.
    pub state: String,
}

/// A receiver's state in one channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReceiverChannel {
    /// The channel.
    pub channel: String,
    /// Current rung.
    pub rung: Rung,
    /// Since when; Unix milliseconds.
    pub since_ms: i64,
    /// Cause of the move there; null if there was none.
    pub cause: Option<String>,
    /// The last seq that it confirmed; null if it confirmed none.
    pub cursor: Option<u64>,
    /// Updates that it lacks; null where its cursor is not known.
    pub behind_updates: Option<u64>,
    /// The key epoch that it has; null without a flow.
    pub key_sequence: Option<u64>,
    /// Legs by which it takes the flow at once; empty where it takes it by one.
    pub legs: Vec<ReceiverLeg>,
    /// Its reports of forged packets on this channel's flow, if the last one is not a day old; null
    /// without any.
    pub forgeries: Option<ForgeryReports>,
    /// Time of writing; Unix milliseconds.
    pub updated_ms: i64,
}

/// Filter and sort values: of one channel, or the worst of all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Summary<'a> {
    pub(super) connected: bool,
    pub(super) rung: Rung,
    pub(super) cause: Option<&'a str>,
    pub(super) since_ms: Option<i64>,
    pub(super) behind: Option<u64>,
    pub(super) rtt_us: Option<u64>,
}

impl Fleet {
    /// Updates that a receiver lacks.
    pub(super) fn behind(&self, state: &State) -> Option<u64> {
        if state.connected {
            return Some(state.backlog);
        }
        // The lag at its departure grows once the channel continues.
        let head = self.heads.get(&state.channel).copied();
        match (head, state.cursor) {
            (Some(head), Some(cursor)) => Some(head.saturating_sub(cursor)),
            _ => None,
        }
    }

    /// Returns a receiver's states in the channels that it requests, if published.
    pub(super) fn states<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = &'a State> {
        let asked = &entry.facts.channels;
        entry.states.iter().filter(move |state| {
            (asked.is_empty() || asked.contains(&state.channel))
                && !self.resting.contains(&state.channel)
        })
    }

    /// `None` if the receiver does not have that channel.
    pub(super) fn summary<'a>(
        &'a self,
        entry: &'a Entry,
        channel: Option<&str>,
    ) -> Option<Summary<'a>> {
        let mut states = self
            .states(entry)
            .filter(|state| channel.is_none_or(|channel| *state.channel == *channel));
        let Some(first) = states.next() else {
            return channel.is_none().then_some(Summary {
                connected: false,
                rung: Rung::Offline,
                cause: None,
                since_ms: None,
                behind: None,
                rtt_us: None,
            });
        };
        let rung = |state: &State| match state.connected {
            true => state.rung,
            false => Rung::Offline,
        };
        let mut summary = Summary {
            connected: first.connected,
            rung: rung(first),
            cause: first.cause.as_deref(),
            since_ms: Some(first.since_ms),
            behind: self.behind(first),
            rtt_us: first.rtt_us,
        };
        for state in states {
            summary.connected |= state.connected;
            summary.behind = summary.behind.max(self.behind(state));
            summary.rtt_us = summary.rtt_us.max(state.rtt_us);
            // The worst; of several that are as bad, what came last.
            if (rung(state), Some(state.since_ms)) > (summary.rung, summary.since_ms) {
                summary.rung = rung(state);
                summary.cause = state.cause.as_deref();
                summary.since_ms = Some(state.since_ms);
            }
        }
        Some(summary)
    }

    pub(super) fn view(&self, entry: &Entry, channel: Option<&str>) -> Receiver {
        let facts = &entry.facts;
        // Those without the channel are not asked for with it.
        let summary = self
            .summary(entry, channel)
            .or_else(|| self.summary(entry, None));
        let (connected, rung) = summary.map_or((false, Rung::Offline), |s| (s.connected, s.rung));
        Receiver {
            id: facts.id,
            name: facts.name.clone(),
            label: (!facts.label.is_empty()).then(|| facts.label.clone()),
            tags: facts.tags.clone(),
            software: facts.software.clone(),
            address: facts.address.clone(),
            connected,
            revoked: facts.revoked_ms.is_some(),
            held: facts.held,
            enrolled_ms: facts.enrolled_ms,
            seen_ms: facts.seen_ms,
            rtt_ms: summary.and_then(|s| s.rtt_us).map(milliseconds),
            rung,
            cause: summary.and_then(|s| s.cause).map(str::to_owned),
            since_ms: summary.and_then(|s| s.since_ms),
            behind_updates: summary.and_then(|s| s.behind),
            forgeries: self.forgeries.of(facts.id, channel),
            channels: self
                .states(entry)
                .map(|state| ReceiverChannel {
                    channel: state.channel.to_string(),
                    rung: match state.connected {
                        true => state.rung,
                        false => Rung::Offline,
                    },
                    since_ms: state.since_ms,
                    cause: state.cause.as_deref().map(str::to_owned),
                    cursor: state.cursor,
                    behind_updates: self.behind(state),
                    key_sequence: state.key_sequence,
                    legs: legs(state.legs.as_deref().unwrap_or_default()),
                    forgeries: self.forgeries.of(facts.id, Some(&*state.channel)),
                    updated_ms: state.updated_ms,
                })
                .collect(),
        }
    }
}

/// Reads legs as the source writes them: a word for each, with its state.
fn legs(text: &str) -> Vec<ReceiverLeg> {
    let pairs = text
        .split_whitespace()
        .filter_map(|word| word.split_once(':'));
    let legs = pairs.map(|(leg, state)| ReceiverLeg {
        leg: leg.to_owned(),
        state: state.to_owned(),
    });
    legs.collect()
}

/// To a tenth of a millisecond: more says nothing, and changes all the time.
fn milliseconds(us: u64) -> f64 {
    let tenths = u32::try_from((us + 50) / 100).unwrap_or(u32::MAX);
    f64::from(tenths) / 10.0
}
