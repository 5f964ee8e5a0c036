//! The overview: delivery, paths, the last moves, and the savings.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use store::{ChannelRow, OverloadRow, PulseRow};
use utoipa::ToSchema;

use super::moves::Move;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::fleet::{ChannelForgeries, Counts};
use crate::live::board::Board;
use crate::site::Site;

/// Number of moves in the overview.
const MOVES: usize = 20;

/// Interval of events without a change, in milliseconds: they confirm the age of the shown data.
const STILL_MS: u64 = 15_000;

/// State of the whole at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    /// Time of the data, by the console's clock; Unix milliseconds; null before the first.
    pub as_of_ms: Option<i64>,
    /// Whether the database answers. If not, all of this is as it was at `as_of_ms`.
    pub database_ok: bool,
    /// Time since which the state of receivers, channels and relays is unknown, because the source
    /// is silent or the database does not answer: what is shown is as of then. Unix milliseconds;
    /// null while it is known.
    pub unknown_since_ms: Option<i64>,
    /// The source that publishes.
    pub source: Source,
    /// Receivers of all channels together: each is counted once, by the worst of its rungs.
    pub receivers: Totals,
    /// By name.
    pub channels: Vec<ChannelOverview>,
    /// Channels whose receivers reported forged packets within a day, by name.
    pub forgeries: Vec<ChannelForgeries>,
    /// The last moves, the newest first.
    pub moves: Vec<Move>,
    /// Feeds by state.
    pub feeds: FeedCounts,
    /// Relays.
    pub relays: RelayCounts,
}

/// State of the source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    /// Publishing.
    Ok,
    /// Silent for a while: not running, or without the database.
    Stale,
    /// No source has ever reported.
    #[default]
    None,
}

/// The source that publishes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Source {
    /// State.
    pub state: SourceState,
    /// Its name among sources; null if there is none.
    pub holder: Option<String>,
    /// Its program and version; null if there is none.
    pub software: Option<String>,
    /// Start time; Unix milliseconds.
    pub started_ms: Option<i64>,
    /// Time of its last report, by its own clock; Unix milliseconds.
    pub seen_ms: Option<i64>,
    /// The first of the addresses by which receivers reach it; null if it has none.
    pub public_address: Option<String>,
    /// Listening address for receivers; null if unknown.
    pub listen: Option<String>,
    /// Address of its HTTP server; null if it has none.
    pub http: Option<String>,
    /// Whether it is shutting down and admits no new receivers.
    pub draining: bool,
    /// Settings that an operator should change, and states to look into.
    pub warnings: Vec<Warning>,
    /// Its last overloads since its start, the newest first.
    pub overloads: Vec<Overload>,
}

/// A time in which the source could not keep up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Overload {
    /// Beginning, by the source's clock; Unix milliseconds.
    pub since_ms: i64,
    /// End; null while it goes on.
    pub until_ms: Option<i64>,
    /// Kinds of lateness: `engine`, `publishing`, `receive-queue`.
    pub late: Vec<String>,
}

impl Overload {
    fn of(row: &OverloadRow) -> Self {
        Self {
            since_ms: row.since_ms,
            until_ms: row.until_ms,
            late: row.late.clone(),
        }
    }
}

/// A setting that an operator should change, or a state to look into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    /// Short name.
    pub code: String,
    /// The warning in a sentence.
    pub text: String,
}

/// Receivers of all channels together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Totals {
    /// By rung.
    #[serde(flatten)]
    pub counts: Counts,
    /// Connected receivers with everything of all their channels.
    pub delivered: u64,
    /// Connected receivers that lack updates.
    pub behind: u64,
    /// Largest lag of a connected receiver in one channel, in updates.
    pub worst_lag_updates: u64,
    /// The same lag in milliseconds.
    pub worst_lag_ms: u64,
}

/// One channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChannelOverview {
    /// Its name.
    pub name: String,
    /// Its last seq; 0 if there is no update yet.
    pub head: u64,
    /// Its receivers.
    pub receivers: Counts,
    /// Connected receivers with everything.
    pub delivered: u64,
    /// Connected receivers that lack updates.
    pub behind: u64,
    /// Largest lag of a connected receiver, in updates.
    pub worst_lag_updates: u64,
    /// The same lag in milliseconds.
    pub worst_lag_ms: u64,
    /// Updates a minute, over the last hour.
    pub updates_per_min: f64,
    /// Bytes sent on the flow since the source began to publish, each packet counted once.
    pub flow_bytes: u64,
    /// Bytes sent as copies of the flow's packets to single receivers.
    pub copy_bytes: u64,
    /// Bytes sent by unicast to receivers that are not on the flow.
    pub unicast_bytes: u64,
    /// Bytes sent by unicast to repair what members of the flow missed.
    pub repair_bytes: u64,
    /// Bytes that unicast alone would have taken.
    pub unicast_equivalent_bytes: u64,
    /// Time of the source's report; Unix milliseconds; null before the first.
    pub at_ms: Option<i64>,
}

/// Feeds by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedCounts {
    /// Those whose last poll succeeded.
    pub ok: u64,
    /// Those whose last poll failed.
    pub failing: u64,
    /// Those whose server demands a bot check.
    pub challenged: u64,
    /// Paused ones.
    pub paused: u64,
    /// Those that have not been polled yet.
    pub pending: u64,
}

/// Relays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RelayCounts {
    /// Those that answer.
    pub healthy: u64,
    /// All of them.
    pub total: u64,
}

impl Overview {
    /// Returns the present overview.
    pub(crate) fn of(site: &Site) -> Self {
        let database_ok = !site.health.is_failing();
        let board = site.board();
        let receivers = totals(site, &board);
        let mut feeds = FeedCounts::default();
        for row in &board.feeds {
            let place = match super::feeds::state_of(row) {
                "paused" => &mut feeds.paused,
                "pending" => &mut feeds.pending,
                "ok" | "not-modified" => &mut feeds.ok,
                "challenged" => &mut feeds.challenged,
                _ => &mut feeds.failing,
            };
            *place += 1;
        }
        Self {
            as_of_ms: board.as_of_ms,
            database_ok,
            unknown_since_ms: board.unknown_since(database_ok),
            source: source(&board),
            receivers,
            channels: board
                .channels
                .iter()
                .map(|row| ChannelOverview::of(row, board.pulses.get(&row.channel.name)))
                .collect(),
            forgeries: site.fleet().forgeries(),
            moves: board
                .moves
                .iter()
                .take(MOVES)
                .map(|row| Move::of(row, site.name_of(row.receiver)))
                .collect(),
            feeds,
            relays: RelayCounts {
                healthy: board.relays.values().filter(|relay| relay.healthy).count() as u64,
                total: board.relays.len() as u64,
            },
        }
    }

    /// Whether it shows the same, as of about the same time.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        // Without a copy of everything that is in it.
        let Self {
            as_of_ms,
            database_ok,
            unknown_since_ms,
            source,
            receivers,
            channels,
            forgeries,
            moves,
            feeds,
            relays,
        } = self;
        let same_source = Source {
            seen_ms: source.seen_ms,
            ..other.source.clone()
        };
        let same = |a: &ChannelOverview, b: &ChannelOverview| {
            let b = ChannelOverview {
                at_ms: a.at_ms,
                ..b.clone()
            };
            *a == b
        };
        let same_time = match (as_of_ms, other.as_of_ms) {
            (Some(one), Some(other)) => one.abs_diff(other) < STILL_MS,
            (one, other) => *one == other,
        };
        same_time
            && *database_ok == other.database_ok
            && *unknown_since_ms == other.unknown_since_ms
            && *source == same_source
            && *receivers == other.receivers
            && channels.len() == other.channels.len()
            && channels
                .iter()
                .zip(&other.channels)
                .all(|(a, b)| same(a, b))
            && *forgeries == other.forgeries
            && *moves == other.moves
            && *feeds == other.feeds
            && *relays == other.relays
    }
}

fn totals(site: &Site, board: &Board) -> Totals {
    let (counts, behind) = site.fleet().counts();
    let pulses = || board.pulses.values();
    // The source's own counts are exact; each receiver's state is some seconds old. For several
    // channels the source does not count how many are behind in any of them.
    let behind = match (pulses().next(), board.pulses.len()) {
        (Some(one), 1) => one.counts.behind.min(counts.connected),
        _ => behind,
    };
    Totals {
        counts,
        delivered: counts.connected.saturating_sub(behind),
        behind,
        worst_lag_updates: pulses().map(|pulse| pulse.lag_updates).max().unwrap_or(0),
        worst_lag_ms: pulses().map(|pulse| pulse.lag_ms).max().unwrap_or(0),
    }
}

fn source(board: &Board) -> Source {
    let Some(info) = &board.source else {
        return Source::default();
    };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let state = match board.is_source_silent() {
        false => SourceState::Ok,
        true => SourceState::Stale,
    };
    Source {
        state,
        holder: some(&info.holder),
        software: some(&info.software),
        started_ms: Some(info.started_ms),
        seen_ms: Some(info.at_ms),
        public_address: info.public_address.first().cloned(),
        listen: some(&info.listen),
        http: some(&info.http),
        draining: info.draining,
        warnings: info.warnings.iter().map(|text| Warning::of(text)).collect(),
        overloads: info.overloads.iter().rev().map(Overload::of).collect(),
    }
}

impl Warning {
    /// A warning of the source: a word and a sentence, or a sentence alone.
    pub(super) fn of(text: &str) -> Self {
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
        };
        match text.split_once(": ") {
            Some((code, text)) if is_word(code) => Self {
                code: code.to_owned(),
                text: text.to_owned(),
            },
            _ => Self {
                code: "source".to_owned(),
                text: text.to_owned(),
            },
        }
    }
}

impl ChannelOverview {
    pub(crate) fn of(row: &ChannelRow, pulse: Option<&PulseRow>) -> Self {
        let unknown = PulseRow::default();
        let known = pulse.unwrap_or(&unknown);
        let (counts, bytes) = (&known.counts, &known.bytes);
        // Over an hour: exact enough for a number with two digits after the point.
        let per_hour = u32::try_from(known.updates_per_hour).unwrap_or(u32::MAX);
        Self {
            name: row.channel.name.clone(),
            head: row.channel.head.max(known.head),
            receivers: Counts {
                total: counts.receivers,
                connected: counts.connected,
                multicast: counts.multicast,
                amt: counts.amt,
                replicated: counts.replicated,
                unicast: counts.unicast,
                offline: counts.receivers.saturating_sub(counts.connected),
            },
            delivered: known.delivered,
            behind: counts.behind,
            worst_lag_updates: known.lag_updates,
            worst_lag_ms: known.lag_ms,
            updates_per_min: (f64::from(per_hour) / 60.0 * 100.0).round() / 100.0,
            flow_bytes: bytes.flow,
            copy_bytes: bytes.copies,
            unicast_bytes: bytes.unicast,
            repair_bytes: bytes.repairs,
            unicast_equivalent_bytes: bytes.equivalent,
            at_ms: pulse.map(|pulse| pulse.at_ms),
        }
    }
}

/// Overview
///
/// Whether all receivers get everything, by which path, the latest moves, and the savings.
#[utoipa::path(get, path = "/api/v1/overview", tag = "overview", operation_id = "overview",
    responses((status = 200, body = Overview)))]
pub async fn overview(
    State(site): State<Arc<Site>>,
    caller: Caller,
) -> Result<Json<Overview>, Problem> {
    caller.may(Scope::Read)?;
    Ok(Json(Overview::of(&site)))
}
