//! A part of a long list.

use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::query::Key;
use super::{Entry, Fleet, Order, Receiver, Selection, Sort};

/// Start of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum PageStart {
    /// At the beginning.
    #[default]
    Start,
    /// After this many.
    Offset(usize),
    /// After the one that this text of [`Page::next_cursor`] names.
    After(String),
}

/// A part of a list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page {
    /// The receivers.
    pub items: Vec<Receiver>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
    /// Number of receivers of the list: removed ones, if they are requested, or all others.
    pub total: usize,
    /// Those that the filter leaves.
    pub filtered: usize,
    /// Since when it is not known how they are, because the source is silent or the database does
    /// not answer: all of this is as it was then. Unix milliseconds; null while it is known.
    pub unknown_since_ms: Option<i64>,
}

/// Content of a cursor.
#[derive(Serialize, Deserialize)]
struct Cursor<'a> {
    s: Sort,
    o: Order,
    u: bool,
    n: i64,
    #[serde(borrow)]
    t: std::borrow::Cow<'a, str>,
    i: Uuid,
}

/// A cursor that was not made here, or for another order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadCursor;

impl Fleet {
    /// At most `limit` receivers of a selection from a place on. Since when that is unknown is not
    /// known here.
    ///
    /// # Errors
    /// The cursor is none, or of another order.
    pub fn page(
        &self,
        selection: &Selection,
        place: &PageStart,
        limit: usize,
    ) -> Result<Page, BadCursor> {
        let bytes;
        let after = match place {
            PageStart::After(text) => {
                bytes = BASE64URL_NOPAD
                    .decode(text.as_bytes())
                    .map_err(|_| BadCursor)?;
                let cursor: Cursor<'_> = serde_json::from_slice(&bytes).map_err(|_| BadCursor)?;
                if (cursor.s, cursor.o) != (selection.sort, selection.order) {
                    return Err(BadCursor);
                }
                Some(cursor)
            }
            _ => None,
        };
        let mut found = self.matches(selection);
        let filtered = found.len();
        let compare =
            |a: &(Key<'_>, &Entry), b: &(Key<'_>, &Entry)| a.0.compare(&b.0, selection.order);
        if let Some(cursor) = &after {
            let last = Key {
                is_unknown: cursor.u,
                number: cursor.n,
                text: &cursor.t,
                id: cursor.i,
            };
            found.retain(|(key, _)| key.compare(&last, selection.order).is_gt());
        }
        let offset = match place {
            PageStart::Offset(offset) => *offset,
            _ => 0,
        };
        let end = offset.saturating_add(limit);
        let more = found.len() > end;
        if more {
            // Only as much is put in order as is shown.
            found.select_nth_unstable_by(end, compare);
            found.truncate(end);
        }
        found.sort_unstable_by(compare);
        let shown = found.get(offset..).unwrap_or_default();
        let next_cursor = match shown.last() {
            Some((key, _)) if more => serde_json::to_vec(&Cursor {
                s: selection.sort,
                o: selection.order,
                u: key.is_unknown,
                n: key.number,
                t: key.text.into(),
                i: key.id,
            })
            .ok()
            .map(|json| BASE64URL_NOPAD.encode(&json)),
            _ => None,
        };
        let channel = selection.filter.channel.as_deref();
        Ok(Page {
            items: shown
                .iter()
                .map(|(_, entry)| self.view(entry, channel))
                .collect(),
            next_cursor,
            total: self.listed(selection).count(),
            filtered,
            unknown_since_ms: None,
        })
    }

    /// The ids of all receivers of a selection, in its order.
    #[must_use]
    pub fn all(&self, selection: &Selection) -> Vec<Uuid> {
        let mut found = self.matches(selection);
        found.sort_unstable_by(|a, b| a.0.compare(&b.0, selection.order));
        found.into_iter().map(|(key, _)| key.id).collect()
    }

    fn matches(&self, selection: &Selection) -> Vec<(Key<'_>, &Entry)> {
        let found = |entry| Some((self.key(entry, selection)?, entry));
        match selection.filter.receiver {
            Some(id) => self.entries.get(&id).and_then(found).into_iter().collect(),
            None => self.listed(selection).filter_map(found).collect(),
        }
    }

    /// All of a list, before it is filtered: those that were removed, or all others.
    fn listed(&self, selection: &Selection) -> impl Iterator<Item = &Entry> {
        let revoked = selection.filter.revoked;
        let all = self.entries.values();
        all.filter(move |entry| entry.facts.revoked_ms.is_some() == revoked)
    }
}
