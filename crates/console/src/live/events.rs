//! Data of the events.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::api::feeds::Feed;
use crate::api::moves::Move;
use crate::api::overview::Overview;
use crate::api::relays::Relay;
use crate::fleet::{Page, Receiver};

/// The overview and the receivers that are watched, as they are: the first event, and after a gap.
/// Feeds, relays, and more moves than the overview has, are asked for by their own calls after each
/// snapshot; what changes of them then comes with every `Update`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The overview.
    pub overview: Overview,
    /// The part of the list of receivers that was asked for; null if none was.
    pub receivers: Option<Page>,
}

/// Differences from the previous event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Update {
    /// The overview, if anything in it is different.
    pub overview: Option<Overview>,
    /// Receivers that are new in the part that was asked for, or changed.
    pub receivers: Vec<Receiver>,
    /// Receivers that are not in it any more.
    pub gone: Vec<Uuid>,
    /// All that are in it, in their order, if that is another one.
    pub order: Option<Vec<Uuid>>,
    /// All receivers, without those that the filter leaves out for being removed or not; null if no
    /// part of the list was asked for.
    pub total: Option<usize>,
    /// Those that the filter leaves; null if no part of the list was asked for.
    pub filtered: Option<usize>,
    /// New moves, the newest first.
    pub moves: Vec<Move>,
    /// Feeds that are new or changed.
    pub feeds: Vec<Feed>,
    /// The ids of feeds that are gone.
    pub feeds_gone: Vec<String>,
    /// All relays, if one of them is different.
    pub relays: Option<Vec<Relay>>,
}

impl Update {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.overview.is_none()
            && self.receivers.is_empty()
            && self.gone.is_empty()
            && self.order.is_none()
            && self.moves.is_empty()
            && self.feeds.is_empty()
            && self.feeds_gone.is_empty()
            && self.relays.is_none()
    }
}
