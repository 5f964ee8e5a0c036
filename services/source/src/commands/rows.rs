//! Database rows in the form of `--json`. The names are documented in docs/operations.md and
//! stable.

use serde_json::{Value, json};
use store::{ChannelRow, FeedRow, GapRecord, ReceiverRow, Retention, TokenRow};

use crate::clock::now_ms;
use crate::config::Keep;

/// Returns a channel. `keep` is `null` for the general retention, and its limits are for none.
pub(super) fn channel(row: &ChannelRow, feeds: &[FeedRow]) -> Value {
    let keep = row.settings.keep;
    let keep = (keep != Retention::default()).then(|| {
        let count = keep.count.filter(|&count| count < Keep::ALL);
        json!({"count": count, "age_ms": keep.age_ms})
    });
    let lease = row.lease.as_ref();
    json!({
        "name": row.channel.name,
        "incarnation": row.channel.incarnation.to_string(),
        "head": row.channel.head,
        "first": row.channel.first,
        "active": row.active,
        "origin": row.settings.origin.as_str(),
        "groups": row.settings.groups,
        "rate_bps": row.settings.rate_bps,
        "private": row.settings.private,
        "packet_authentication": row.settings.packet_authentication.as_str(),
        "fec": row.settings.fec.as_str(),
        "deadline_ms": row.settings.deadline_ms,
        "keep": keep,
        "feeds": active_feeds(row, feeds),
        "created_ms": row.created_ms,
        "lease": lease.map(|lease| json!({
            "holder": lease.name,
            "for_ms": lease.for_ms,
            "fence": lease.fence,
        })),
    })
}

/// Returns the number of a channel's active feeds.
pub(super) fn active_feeds(row: &ChannelRow, feeds: &[FeedRow]) -> usize {
    let own = |feed: &&FeedRow| feed.active && feed.channel == row.channel.name;
    feeds.iter().filter(own).count()
}

/// Returns a feed.
pub(super) fn feed(row: &FeedRow) -> Value {
    let last_poll = row.last_poll.as_ref();
    json!({
        "channel": row.channel,
        "url": row.settings.url,
        "title": row.settings.title,
        "active": row.active,
        "origin": row.settings.origin.as_str(),
        "local": row.settings.local,
        "min_interval_ms": row.settings.min_interval_ms,
        "max_interval_ms": row.settings.max_interval_ms,
        "interval_ms": row.interval_ms,
        "moved_to": row.moved_to,
        "gone_ms": row.gone_ms,
        "paused": row.paused,
        "last_poll": last_poll.map(|poll| json!({
            "at_ms": poll.at_ms,
            "state": poll.state,
            "detail": poll.detail,
        })),
    })
}

/// Returns a token, of which the database has only the hash.
pub(super) fn token(row: &TokenRow) -> Value {
    json!({
        "id": row.id,
        "label": row.label,
        "state": token_state(row),
        "uses": row.uses,
        "limit": row.limit,
        "public": row.public,
        "channels": row.channels,
        "created_ms": row.created_ms,
        "expires_ms": row.expires_ms,
        "revoked_ms": row.revoked_ms,
    })
}

/// Returns the word for a token's state.
pub(super) fn token_state(row: &TokenRow) -> &'static str {
    if row.revoked_ms.is_some() {
        "revoked"
    } else if row.expires_ms.is_some_and(|then| then <= now_ms()) {
        "expired"
    } else if row.limit.is_some_and(|limit| row.uses >= limit) {
        "used-up"
    } else {
        "valid"
    }
}

/// Returns a receiver.
pub(super) fn receiver(row: &ReceiverRow) -> Value {
    json!({
        "id": row.id.to_string(),
        "name": row.name,
        "software": row.software,
        "address": row.address,
        "channels": row.channels,
        "token_id": row.token_id,
        "enrolled_ms": row.enrolled_ms,
        "seen_ms": row.seen_ms,
        "revoked_ms": row.revoked_ms,
        "label": row.label,
        "tags": row.tags,
        "held": row.held,
    })
}

/// Returns a gap of a channel.
pub(super) fn gap(channel: &str, row: &GapRecord) -> Value {
    json!({
        "id": row.id,
        "channel": channel,
        "url": row.url,
        "at_ms": row.at_ms,
        "state": row.state.as_str(),
        "entries": row.entries,
        "detail": row.detail,
    })
}
