//! CSV columns of the exported rows.

use super::file::{Row, known, list, time};
use crate::api::audit::AuditLine;
use crate::api::feeds::Feed;
use crate::api::moves::Move;
use crate::api::updates::UpdateRow;
use crate::fleet::Receiver;

impl Row for Receiver {
    const COLUMNS: &[&str] = &[
        "id",
        "name",
        "label",
        "tags",
        "software",
        "address",
        "connected",
        "revoked",
        "held",
        "enrolled",
        "seen",
        "rtt_ms",
        "rung",
        "cause",
        "since",
        "behind_updates",
        "channels",
    ];

    fn values(&self) -> Vec<String> {
        let channels: Vec<&str> = self.channels.iter().map(|c| c.channel.as_str()).collect();
        vec![
            self.id.to_string(),
            self.name.clone(),
            known(self.label.as_deref()),
            list(&self.tags),
            self.software.clone(),
            self.address.clone(),
            self.connected.to_string(),
            self.revoked.to_string(),
            self.held.to_string(),
            time(Some(self.enrolled_ms)),
            time(Some(self.seen_ms)),
            known(self.rtt_ms),
            self.rung.word().to_owned(),
            known(self.cause.as_deref()),
            time(self.since_ms),
            known(self.behind_updates),
            channels.join(" "),
        ]
    }
}

impl Row for Move {
    const COLUMNS: &[&str] = &[
        "id", "at", "receiver", "name", "channel", "from", "to", "cause",
    ];

    fn values(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            time(Some(self.at_ms)),
            self.receiver.to_string(),
            self.name.clone(),
            self.channel.clone(),
            self.from.clone(),
            self.to.clone(),
            self.cause.clone(),
        ]
    }
}

impl Row for Feed {
    const COLUMNS: &[&str] = &[
        "id",
        "channel",
        "url",
        "title",
        "state",
        "detail",
        "since",
        "last_poll",
        "next_poll",
        "interval_ms",
        "min_interval_ms",
        "max_interval_ms",
        "local",
        "paused",
        "moved_to",
        "origin",
    ];

    fn values(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.channel.clone(),
            self.url.clone(),
            known(self.title.as_deref()),
            self.state.clone(),
            self.detail.clone(),
            time(self.since_ms),
            time(self.last_poll_ms),
            time(self.next_poll_ms),
            known(self.interval_ms),
            known(self.min_interval_ms),
            known(self.max_interval_ms),
            self.local.to_string(),
            self.paused.to_string(),
            known(self.moved_to.as_deref()),
            self.origin.clone(),
        ]
    }
}

impl Row for UpdateRow {
    const COLUMNS: &[&str] = &[
        "channel",
        "seq",
        "feed_url",
        "entry_id",
        "kind",
        "published",
        "bytes",
        "title",
        "expected",
        "delivered",
        "half_ms",
        "p99_ms",
        "all_ms",
    ];

    fn values(&self) -> Vec<String> {
        let progress = self.progress.as_ref();
        vec![
            self.channel.clone(),
            self.seq.to_string(),
            self.feed_url.clone(),
            self.entry_id.clone(),
            self.kind.word().to_owned(),
            time(Some(self.published_ms)),
            self.bytes.to_string(),
            known(self.title.as_deref()),
            known(progress.map(|progress| progress.expected)),
            known(progress.map(|progress| progress.delivered)),
            known(progress.and_then(|progress| progress.half_ms)),
            known(progress.and_then(|progress| progress.p99_ms)),
            known(progress.and_then(|progress| progress.all_ms)),
        ]
    }
}

impl Row for AuditLine {
    const COLUMNS: &[&str] = &[
        "id", "at", "actor", "via", "action", "target", "detail", "outcome", "address",
    ];

    fn values(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            time(Some(self.at_ms)),
            self.actor.clone(),
            self.via.clone(),
            self.action.clone(),
            self.target.clone(),
            self.detail.to_string(),
            self.outcome.clone(),
            self.address.clone(),
        ]
    }
}
