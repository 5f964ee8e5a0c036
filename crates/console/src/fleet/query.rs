//! Selections of receivers and their order.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{Entry, Fleet, Rung};

/// Sort key of receivers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// Name for people.
    #[default]
    Name,
    /// Rung, the best first.
    Rung,
    /// Updates that they lack.
    Lag,
    /// The round-trip time.
    Rtt,
    /// Since when they are on their rung.
    Since,
    /// When they were admitted last.
    Seen,
    /// When they were admitted first.
    Enrolled,
}

/// In which direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The smallest first.
    #[default]
    Asc,
    /// The largest first.
    Desc,
}

/// Filter of receivers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Filter {
    /// In lower case: in the name, label, id, address, software or a tag.
    pub text: Option<String>,
    /// On this rung.
    pub rung: Option<Rung>,
    /// With this channel; then rung, cause and so on are those of this channel.
    pub channel: Option<String>,
    /// With this tag.
    pub tag: Option<String>,
    /// Connected, or not.
    pub connected: Option<bool>,
    /// Moved for this reason.
    pub cause: Option<String>,
    /// Receivers that lack updates, or those that lack none.
    pub behind: Option<bool>,
    /// Those that reported forged packets within a day, or those that did not.
    pub forged: Option<bool>,
    /// Those that were removed, or all others.
    pub revoked: bool,
    /// Only this one, removed or not.
    pub receiver: Option<Uuid>,
}

/// Selection of receivers and their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Filter.
    pub filter: Filter,
    /// By what.
    pub sort: Sort,
    /// In which direction.
    pub order: Order,
}

/// Sort key of a receiver. Unknown values come last in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key<'a> {
    pub(super) is_unknown: bool,
    pub(super) number: i64,
    pub(super) text: &'a str,
    pub(super) id: Uuid,
}

impl Key<'_> {
    pub(super) fn compare(&self, other: &Self, order: Order) -> std::cmp::Ordering {
        let (one, two) = match order {
            Order::Asc => (self, other),
            Order::Desc => (other, self),
        };
        self.is_unknown
            .cmp(&other.is_unknown)
            .then_with(|| one.number.cmp(&two.number))
            .then_with(|| one.text.cmp(two.text))
            .then_with(|| one.id.cmp(&two.id))
    }
}

impl Fleet {
    /// Returns the sort key of an entry, if it is selected.
    pub(super) fn key<'a>(&'a self, entry: &'a Entry, selection: &Selection) -> Option<Key<'a>> {
        let filter = &selection.filter;
        let facts = &entry.facts;
        let wanted = |wanted: Option<&str>, is: &dyn Fn(&str) -> bool| wanted.is_none_or(is);
        if !wanted(filter.text.as_deref(), &|text| entry.text.contains(text))
            || !wanted(filter.tag.as_deref(), &|tag| {
                facts.tags.iter().any(|own| own == tag)
            })
        {
            return None;
        }
        let summary = self.summary(entry, filter.channel.as_deref())?;
        if filter.rung.is_some_and(|rung| rung != summary.rung)
            || filter.connected.is_some_and(|is| is != summary.connected)
            || !wanted(filter.cause.as_deref(), &|cause| {
                summary.cause == Some(cause)
            })
            || filter
                .behind
                .is_some_and(|is| is != summary.behind.is_some_and(|behind| behind > 0))
            || filter.forged.is_some_and(|is| {
                let channel = filter.channel.as_deref();
                is != self.forgeries.of(facts.id, channel).is_some()
            })
        {
            return None;
        }
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let number = match selection.sort {
            Sort::Name => Some(0),
            Sort::Rung => Some(summary.rung as i64),
            Sort::Lag => summary.behind.map(signed),
            Sort::Rtt => summary.rtt_us.map(signed),
            Sort::Since => summary.since_ms,
            Sort::Seen => Some(facts.seen_ms),
            Sort::Enrolled => Some(facts.enrolled_ms),
        };
        Some(Key {
            is_unknown: number.is_none(),
            number: number.unwrap_or_default(),
            text: match selection.sort {
                Sort::Name => &entry.key,
                _ => "",
            },
            id: facts.id,
        })
    }
}
