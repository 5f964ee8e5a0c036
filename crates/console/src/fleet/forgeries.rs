//! Reports of forged packets, by receiver and channel.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::Fleet;

/// A receiver's reports of forged packets, in one channel or in all of them. A report is a move to
/// unicast because of them, or, at most once in five minutes, a request for what they spoiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForgeryReports {
    /// Time of the first; Unix milliseconds.
    pub first_ms: i64,
    /// Time of the last; Unix milliseconds.
    pub last_ms: i64,
    /// Number.
    pub reports: u64,
}

impl ForgeryReports {
    /// Returns a single report.
    #[must_use]
    pub fn at(at_ms: i64) -> Self {
        Self {
            first_ms: at_ms,
            last_ms: at_ms,
            reports: 1,
        }
    }

    fn with(self, other: Self) -> Self {
        Self {
            first_ms: self.first_ms.min(other.first_ms),
            last_ms: self.last_ms.max(other.last_ms),
            reports: self.reports + other.reports,
        }
    }
}

/// Reports of forged packets of all receivers of one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChannelForgeries {
    /// The channel.
    pub channel: String,
    /// Receivers with reports.
    pub receivers: u64,
    /// Their reports together.
    #[serde(flatten)]
    pub reports: ForgeryReports,
}

/// Reports of forged packets that are not a day old.
#[derive(Debug, Default)]
pub(super) struct Forgeries(HashMap<Uuid, BTreeMap<Arc<str>, ForgeryReports>>);

impl Forgeries {
    fn put(&mut self, id: Uuid, channel: Arc<str>, reports: ForgeryReports) {
        let own = self.0.entry(id).or_default();
        own.entry(channel)
            .and_modify(|known| *known = known.with(reports))
            .or_insert(reports);
    }

    pub(super) fn remove(&mut self, id: Uuid) {
        self.0.remove(&id);
    }

    /// Keeps what `keeps` wants. Returns whether that changes anything.
    fn retain(&mut self, keeps: impl Fn(&str, &ForgeryReports) -> bool) -> bool {
        let mut has_changed = false;
        self.0.retain(|_, own| {
            let before = own.len();
            own.retain(|channel, reports| keeps(channel, reports));
            has_changed |= own.len() < before;
            !own.is_empty()
        });
        has_changed
    }

    /// Forgets channels that are gone.
    pub(super) fn retain_channels(&mut self, stays: impl Fn(&str) -> bool) {
        self.retain(|channel, _| stays(channel));
    }

    /// Returns a receiver's reports, in one channel or in all of them.
    pub(super) fn of(&self, id: Uuid, channel: Option<&str>) -> Option<ForgeryReports> {
        let own = self.0.get(&id)?.iter();
        own.filter(|(name, _)| channel.is_none_or(|channel| ***name == *channel))
            .map(|(_, reports)| *reports)
            .reduce(ForgeryReports::with)
    }
}

impl Fleet {
    /// Adds a receiver's reports of forged packets in a channel.
    pub fn put_forgeries(&mut self, id: Uuid, channel: &str, reports: ForgeryReports) {
        let channel = self.word(channel);
        self.version += 1;
        self.forgeries.put(id, channel, reports);
    }

    /// Forgets the reports of receivers whose last one came before this time; Unix milliseconds.
    pub fn expire_forgeries(&mut self, before_ms: i64) {
        let has_changed = self
            .forgeries
            .retain(|_, reports| reports.last_ms >= before_ms);
        self.version += u64::from(has_changed);
    }

    /// Returns the reports of forged packets by channel.
    #[must_use]
    pub fn forgeries(&self) -> Vec<ChannelForgeries> {
        let mut channels: BTreeMap<&str, (u64, ForgeryReports)> = BTreeMap::new();
        for (channel, reports) in self.forgeries.0.values().flatten() {
            channels
                .entry(channel)
                .and_modify(|(receivers, known)| {
                    *receivers += 1;
                    *known = known.with(*reports);
                })
                .or_insert((1, *reports));
        }
        let all = channels.into_iter();
        all.map(|(channel, (receivers, reports))| ChannelForgeries {
            channel: channel.to_owned(),
            receivers,
            reports,
        })
        .collect()
    }
}
