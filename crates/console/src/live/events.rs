//! Data of the events.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::api::feeds::Feed;
use crate::api::moves::Move;
use crate::api::overview::Overview;
use crate::api::relays::Relay;
use crate::fleet::{Page, Receiver};

/// The overview and the watched receivers: the first event, and the one after a gap. Feeds, relays,
/// and more moves than the overview has, are requested by their own calls after each snapshot;
/// their changes then come with every `Update`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The overview.
    pub overview: Overview,
    /// The requested page of the list of receivers; null if none was requested.
    pub receivers: Option<Page>,
}

/// Differences from the previous event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Update {
    /// The overview, if anything in it changed.
    pub overview: Option<Overview>,
    /// Receivers that are new in the requested page, or changed.
    pub receivers: Vec<Receiver>,
    /// Receivers that left the page.
    pub gone: Vec<Uuid>,
    /// All receivers of the page in their order, if that changed.
    pub order: Option<Vec<Uuid>>,
    /// Number of receivers, removed ones or the others; null if no page was requested.
    pub total: Option<usize>,
    /// Number of receivers that pass the filter; null if no page was requested.
    pub filtered: Option<usize>,
    /// New moves, the newest first.
    pub moves: Vec<Move>,
    /// Feeds that are new or changed.
    pub feeds: Vec<Feed>,
    /// Ids of feeds that were removed.
    pub feeds_gone: Vec<String>,
    /// All relays, if one of them changed.
    pub relays: Option<Vec<Relay>>,
}

impl Update {
    /// Whether nothing changed.
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
