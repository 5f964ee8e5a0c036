//! The rungs of the ladder.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Rung of a receiver in a channel, from the best to none.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Rung {
    /// By the multicast of its own network.
    Multicast,
    /// By multicast through an AMT relay.
    Amt,
    /// By copies of the flow's packets.
    Replicated,
    /// By its own connection alone.
    Unicast,
    /// Not at the moment: it is not connected.
    #[default]
    Offline,
}

impl Rung {
    /// All of them, the best first.
    pub const ALL: [Rung; 5] = [
        Rung::Multicast,
        Rung::Amt,
        Rung::Replicated,
        Rung::Unicast,
        Rung::Offline,
    ];

    /// The word in the database and in the API.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Rung::Multicast => "multicast",
            Rung::Amt => "amt",
            Rung::Replicated => "replicated",
            Rung::Unicast => "unicast",
            Rung::Offline => "offline",
        }
    }

    /// The rung of that word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rung| rung.word() == word)
    }
}
