//! Database rows in the form of `--json`. The names are documented in docs/operations.md and
//! stable.

use serde::Serialize;
use store::{ChannelRow, FeedRow, GapRecord, ReceiverRow, TokenRow};

use crate::clock::now_ms;
use crate::config;

/// Retention; `null` for no limit.
#[derive(Debug, Serialize)]
pub(super) struct RetentionRow {
    pub count: Option<u64>,
    pub age_ms: Option<i64>,
}

/// Holder of a channel's lease.
#[derive(Debug, Serialize)]
pub(super) struct Lease {
    pub holder: String,
    pub for_ms: i64,
    pub fence: u64,
}

/// A channel.
#[derive(Debug, Serialize)]
pub(super) struct Channel {
    pub name: String,
    pub incarnation: String,
    pub head: u64,
    pub first: u64,
    pub active: bool,
    pub origin: &'static str,
    pub groups: Option<String>,
    pub rate_bps: Option<u64>,
    pub private: bool,
    /// `null` for what holds for all channels.
    pub keep: Option<RetentionRow>,
    pub feeds: usize,
    pub created_ms: i64,
    pub lease: Option<Lease>,
}

impl Channel {
    pub(super) fn of(row: &ChannelRow, feeds: &[FeedRow]) -> Self {
        let own = |feed: &&FeedRow| feed.active && feed.channel == row.channel.name;
        Self {
            name: row.channel.name.clone(),
            incarnation: row.channel.incarnation.to_string(),
            head: row.channel.head,
            first: row.channel.first,
            active: row.active,
            origin: row.settings.origin.as_str(),
            groups: row.settings.groups.clone(),
            rate_bps: row.settings.rate_bps,
            private: row.settings.private,
            keep: (row.settings.keep != store::Retention::default()).then(|| RetentionRow {
                count: row
                    .settings
                    .keep
                    .count
                    .filter(|&count| count < config::Keep::ALL),
                age_ms: row.settings.keep.age_ms,
            }),
            feeds: feeds.iter().filter(own).count(),
            created_ms: row.created_ms,
            lease: row.lease.as_ref().map(|lease| Lease {
                holder: lease.name.clone(),
                for_ms: lease.for_ms,
                fence: lease.fence,
            }),
        }
    }
}

/// Result of the last poll.
#[derive(Debug, Serialize)]
pub(super) struct PollRow {
    pub at_ms: i64,
    pub state: String,
    pub detail: String,
}

/// A feed.
#[derive(Debug, Serialize)]
pub(super) struct Feed {
    pub channel: String,
    pub url: String,
    pub title: Option<String>,
    pub active: bool,
    pub origin: &'static str,
    pub local: bool,
    pub min_interval_ms: Option<i64>,
    pub max_interval_ms: Option<i64>,
    pub interval_ms: Option<i64>,
    pub moved_to: Option<String>,
    pub gone_ms: Option<i64>,
    pub paused: bool,
    pub last_poll: Option<PollRow>,
}

impl Feed {
    pub(super) fn of(row: &FeedRow) -> Self {
        Self {
            channel: row.channel.clone(),
            url: row.settings.url.clone(),
            title: row.settings.title.clone(),
            active: row.active,
            origin: row.settings.origin.as_str(),
            local: row.settings.local,
            min_interval_ms: row.settings.min_interval_ms,
            max_interval_ms: row.settings.max_interval_ms,
            interval_ms: row.interval_ms,
            moved_to: row.moved_to.clone(),
            gone_ms: row.gone_ms,
            paused: row.paused,
            last_poll: row.last_poll.as_ref().map(|poll| PollRow {
                at_ms: poll.at_ms,
                state: poll.state.clone(),
                detail: poll.detail.clone(),
            }),
        }
    }
}

/// A token; of itself nothing is stored.
#[derive(Debug, Serialize)]
pub(super) struct Token {
    pub id: i64,
    pub label: String,
    pub state: &'static str,
    pub uses: u32,
    pub limit: Option<u32>,
    pub public: bool,
    pub channels: Vec<String>,
    pub created_ms: i64,
    pub expires_ms: Option<i64>,
    pub revoked_ms: Option<i64>,
}

impl Token {
    pub(super) fn of(row: &TokenRow) -> Self {
        let state = if row.revoked_ms.is_some() {
            "revoked"
        } else if row.expires_ms.is_some_and(|then| then <= now_ms()) {
            "expired"
        } else if row.limit.is_some_and(|limit| row.uses >= limit) {
            "used-up"
        } else {
            "valid"
        };
        Self {
            id: row.id,
            label: row.label.clone(),
            state,
            uses: row.uses,
            limit: row.limit,
            public: row.public,
            channels: row.channels.clone(),
            created_ms: row.created_ms,
            expires_ms: row.expires_ms,
            revoked_ms: row.revoked_ms,
        }
    }
}

/// A receiver.
#[derive(Debug, Serialize)]
pub(super) struct Receiver {
    pub id: String,
    pub name: String,
    pub software: String,
    pub address: String,
    pub channels: Vec<String>,
    pub token_id: Option<i64>,
    pub enrolled_ms: i64,
    pub seen_ms: i64,
    pub revoked_ms: Option<i64>,
    pub label: Option<String>,
    pub tags: Vec<String>,
    pub held: bool,
}

impl Receiver {
    pub(super) fn of(row: &ReceiverRow) -> Self {
        Self {
            id: row.id.to_string(),
            name: row.name.clone(),
            software: row.software.clone(),
            address: row.address.clone(),
            channels: row.channels.clone(),
            token_id: row.token_id,
            enrolled_ms: row.enrolled_ms,
            seen_ms: row.seen_ms,
            revoked_ms: row.revoked_ms,
            label: row.label.clone(),
            tags: row.tags.clone(),
            held: row.held,
        }
    }
}

/// A gap.
#[derive(Debug, Serialize)]
pub(super) struct Gap {
    pub id: i64,
    pub channel: String,
    pub url: String,
    pub at_ms: i64,
    pub state: &'static str,
    pub entries: u64,
    pub detail: String,
}

impl Gap {
    pub(super) fn of(channel: &str, row: &GapRecord) -> Self {
        Self {
            id: row.id,
            channel: channel.to_owned(),
            url: row.url.clone(),
            at_ms: row.at_ms,
            state: row.state.as_str(),
            entries: row.entries,
            detail: row.detail.clone(),
        }
    }
}
