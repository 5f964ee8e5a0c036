//! Parts of an event's id.

use flexicast::Cursor;
use uuid::Uuid;

/// Word for all kept updates, instead of a number.
pub(super) const ALL: &str = "0";

/// Part of an id: of a named channel, or of the only one or the one with the incarnation; without a
/// cursor, all kept updates.
pub(super) struct IdPart {
    pub(super) channel: Option<String>,
    pub(super) cursor: Option<Cursor>,
}

impl IdPart {
    /// Parses a part; `None` if it is malformed.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text == ALL {
            return Some(Self {
                channel: None,
                cursor: None,
            });
        }
        if let Some((incarnation, seq)) = text.split_once('/') {
            return Some(Self {
                channel: None,
                cursor: Some(cursor(incarnation, seq)?),
            });
        }
        let (channel, place) = text.split_once(':')?;
        let cursor = match place.split_once(':') {
            Some((incarnation, seq)) => Some(cursor(incarnation, seq)?),
            None if place == ALL => None,
            None => return None,
        };
        Some(Self {
            channel: Some(channel.to_owned()),
            cursor,
        })
    }
}

fn cursor(incarnation: &str, seq: &str) -> Option<Cursor> {
    Some(Cursor {
        incarnation: incarnation.parse::<Uuid>().ok()?,
        seq: seq.parse().ok()?,
    })
}
