//! CSV columns of the exported rows.

use super::file::{Row, known, list, time};
use crate::api::audit::AuditLine;
use crate::api::feeds::Feed;
use crate::api::moves::Move;
use crate::api::updates::UpdateRow;
use crate::fleet::Receiver;

/// Declares the columns of a kind of rows, each with its value in a row.
macro_rules! columns {
    ($type:ident, $row:ident; $($column:literal: $value:expr,)+) => {
        impl Row for $type {
            const COLUMNS: &[&str] = &[$($column),+];

            fn values(&self) -> Vec<String> {
                let $row = self;
                vec![$($value),+]
            }
        }
    };
}

columns! {
    Receiver, row;
    "id": row.id.to_string(),
    "name": row.name.clone(),
    "label": known(row.label.as_deref()),
    "tags": list(&row.tags),
    "software": row.software.clone(),
    "address": row.address.clone(),
    "connected": row.connected.to_string(),
    "revoked": row.revoked.to_string(),
    "held": row.held.to_string(),
    "enrolled": time(Some(row.enrolled_ms)),
    "seen": time(Some(row.seen_ms)),
    "rtt_ms": known(row.rtt_ms),
    "rung": row.rung.word().to_owned(),
    "cause": known(row.cause.as_deref()),
    "since": time(row.since_ms),
    "behind_updates": known(row.behind_updates),
    "channels": channels_of(row),
}

columns! {
    Move, row;
    "id": row.id.to_string(),
    "at": time(Some(row.at_ms)),
    "receiver": row.receiver.to_string(),
    "name": row.name.clone(),
    "channel": row.channel.clone(),
    "from": row.from.clone(),
    "to": row.to.clone(),
    "cause": row.cause.clone(),
}

columns! {
    Feed, row;
    "id": row.id.clone(),
    "channel": row.channel.clone(),
    "url": row.url.clone(),
    "title": known(row.title.as_deref()),
    "state": row.state.clone(),
    "detail": row.detail.clone(),
    "since": time(row.since_ms),
    "last_poll": time(row.last_poll_ms),
    "next_poll": time(row.next_poll_ms),
    "interval_ms": known(row.interval_ms),
    "min_interval_ms": known(row.min_interval_ms),
    "max_interval_ms": known(row.max_interval_ms),
    "local": row.local.to_string(),
    "paused": row.paused.to_string(),
    "moved_to": known(row.moved_to.as_deref()),
    "origin": row.origin.clone(),
}

columns! {
    UpdateRow, row;
    "channel": row.channel.clone(),
    "seq": row.seq.to_string(),
    "feed_url": row.feed_url.clone(),
    "entry_id": row.entry_id.clone(),
    "kind": row.kind.word().to_owned(),
    "published": time(Some(row.published_ms)),
    "bytes": row.bytes.to_string(),
    "title": known(row.title.as_deref()),
    "expected": known(row.progress.map(|progress| progress.expected)),
    "delivered": known(row.progress.map(|progress| progress.delivered)),
    "half_ms": known(row.progress.and_then(|progress| progress.half_ms)),
    "p99_ms": known(row.progress.and_then(|progress| progress.p99_ms)),
    "all_ms": known(row.progress.and_then(|progress| progress.all_ms)),
}

columns! {
    AuditLine, row;
    "id": row.id.to_string(),
    "at": time(Some(row.at_ms)),
    "actor": row.actor.clone(),
    "via": row.via.clone(),
    "action": row.action.clone(),
    "target": row.target.clone(),
    "detail": row.detail.to_string(),
    "outcome": row.outcome.clone(),
    "address": row.address.clone(),
}

fn channels_of(row: &Receiver) -> String {
    let channels: Vec<&str> = row.channels.iter().map(|c| c.channel.as_str()).collect();
    channels.join(" ")
}
