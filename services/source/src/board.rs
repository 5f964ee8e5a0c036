//! Observable state of the source, for pages, metrics and systemd.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use uuid::Uuid;

use crate::clock::now_ms;
use crate::publish::{LeaseGuard, PublishStatus};
use crate::status::{
    ChannelView, DatabaseState, FeedView, IngestStatus, Phase, RelayView, Role, Snapshot,
};

/// Current state of all parts, updated by their owners.
#[derive(Debug)]
pub struct Board {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    database: DatabaseState,
    phase: Phase,
    relays: Vec<RelayView>,
    channels: BTreeMap<String, Entry>,
}

/// State of one channel, as set by its owners.
#[derive(Debug)]
struct Entry {
    shown: ChannelInfo,
    state: State,
    feeds: BTreeMap<String, FeedEntry>,
}

/// Settings of a channel, for display.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelInfo {
    /// Position among the channels; equal ones are sorted by name.
    pub place: usize,
    /// Whether new members cannot decrypt earlier packets.
    pub private: bool,
    /// Multicast groups, as written in the settings.
    pub groups: String,
    /// Incarnation in the database.
    pub incarnation: Option<Uuid>,
    /// Last seq in the database, when it was read last.
    pub head: u64,
    /// Oldest seq.
    pub first: u64,
}

#[derive(Debug)]
enum State {
    Starting,
    Active {
        lease: LeaseGuard,
        publisher: watch::Receiver<PublishStatus>,
    },
    Standby(Option<String>),
    Failed(String),
}

#[derive(Debug)]
struct FeedEntry {
    title: Option<String>,
    ingest: Option<watch::Receiver<IngestStatus>>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                database: DatabaseState {
                    up: true,
                    since_ms: now_ms().unsigned_abs(),
                    error: None,
                },
                phase: Phase::Starting,
                relays: Vec::new(),
                channels: BTreeMap::new(),
            }),
        }
    }
}

impl Board {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A panic under the lock left every field whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current state.
    pub fn snapshot(&self) -> Snapshot {
        let inner = self.inner();
        let mut channels: Vec<_> = inner.channels.iter().collect();
        // The sort is stable, so the order by name stays.
        channels.sort_by_key(|(_, entry)| entry.shown.place);
        Snapshot {
            phase: inner.phase,
            database: inner.database.clone(),
            relays: inner.relays.clone(),
            channels: channels
                .into_iter()
                .map(|(name, entry)| entry.view(name))
                .collect(),
        }
    }

    /// Replaces the state of the AMT relays.
    pub fn set_relays(&self, relays: Vec<RelayView>) {
        self.inner().relays = relays;
    }

    /// Sets the phase of the process.
    pub fn set_phase(&self, phase: Phase) {
        self.inner().phase = phase;
    }

    /// Sets whether the database answers, or why not. Returns the time of the previous change if
    /// this is one.
    pub fn set_database(&self, error: Option<String>) -> Option<u64> {
        let mut inner = self.inner();
        let up = error.is_none();
        let before = inner.database.since_ms;
        let changed = inner.database.up != up;
        if changed {
            inner.database.since_ms = now_ms().unsigned_abs();
        }
        inner.database.up = up;
        inner.database.error = error;
        changed.then_some(before)
    }

    /// Whether there is such a channel.
    pub fn knows(&self, name: &str) -> bool {
        self.inner().channels.contains_key(name)
    }

    /// Sets a channel's settings; adds the channel if it is new.
    pub fn show(&self, name: &str, shown: ChannelInfo) {
        let mut inner = self.inner();
        match inner.channels.get_mut(name) {
            Some(entry) => entry.shown = shown,
            None => {
                let entry = Entry {
                    shown,
                    state: State::Starting,
                    feeds: BTreeMap::new(),
                };
                inner.channels.insert(name.to_owned(), entry);
            }
        }
    }

    /// Removes a channel.
    pub fn forget(&self, name: &str) {
        self.inner().channels.remove(name);
    }

    /// Sets a channel that is published here.
    pub fn active(
        &self,
        name: &str,
        incarnation: Uuid,
        lease: LeaseGuard,
        publisher: watch::Receiver<PublishStatus>,
    ) {
        if let Some(entry) = self.inner().channels.get_mut(name) {
            entry.shown.incarnation = Some(incarnation);
            entry.state = State::Active { lease, publisher };
        }
    }

    /// Sets a channel that another source publishes.
    pub fn standby(&self, name: &str, holder: Option<String>) {
        if let Some(entry) = self.inner().channels.get_mut(name) {
            entry.state = State::Standby(holder);
        }
    }

    /// Sets a channel that cannot be published.
    pub fn failed(&self, name: &str, reason: String) {
        if let Some(entry) = self.inner().channels.get_mut(name) {
            entry.state = State::Failed(reason);
        }
    }

    /// Sets the feeds of a channel: their addresses and titles.
    pub fn set_feeds(&self, name: &str, feeds: impl IntoIterator<Item = (String, Option<String>)>) {
        let mut inner = self.inner();
        let Some(entry) = inner.channels.get_mut(name) else {
            return;
        };
        let mut before = std::mem::take(&mut entry.feeds);
        for (url, title) in feeds {
            let ingest = before.remove(&url).and_then(|feed| feed.ingest);
            entry.feeds.insert(url, FeedEntry { title, ingest });
        }
    }

    /// Sets the ingest of a feed, or removes it.
    pub fn set_ingest(&self, name: &str, url: &str, ingest: Option<watch::Receiver<IngestStatus>>) {
        let mut inner = self.inner();
        let entry = inner.channels.get_mut(name);
        if let Some(feed) = entry.and_then(|entry| entry.feeds.get_mut(url)) {
            feed.ingest = ingest;
        }
    }
}

impl Entry {
    fn view(&self, name: &str) -> ChannelView {
        let feeds: Vec<FeedView> = self
            .feeds
            .iter()
            .map(|(url, feed)| FeedView {
                url: url.clone(),
                title: feed.title.clone(),
                ingest: feed.ingest.as_ref().map(|ingest| ingest.borrow().clone()),
            })
            .collect();
        let published = match &self.state {
            State::Active { publisher, .. } => Some(publisher.borrow().clone()),
            _ => None,
        };
        let failing = |feed: &FeedView| feed.ingest.as_ref()?.store_failure.clone();
        let store_failure = published
            .as_ref()
            .and_then(|status| status.store_failure.clone())
            .or_else(|| feeds.iter().find_map(failing));
        ChannelView {
            name: name.to_owned(),
            incarnation: self.shown.incarnation,
            private: self.shown.private,
            groups: self.shown.groups.clone(),
            role: self.role(),
            head: published.as_ref().map_or(self.shown.head, |p| p.head),
            first: published.as_ref().map_or(self.shown.first, |p| p.first),
            published: published.as_ref().map(|p| p.published),
            store_failure,
            feeds,
        }
    }

    fn role(&self) -> Role {
        match &self.state {
            State::Starting => Role::Starting,
            State::Active { lease, .. } if lease.holds() => Role::Active {
                fence: lease.fence(),
            },
            State::Active { lease, .. } => Role::Lapsed {
                fence: lease.fence(),
                reason: lease
                    .trouble()
                    .unwrap_or_else(|| "it was not renewed in time".to_owned()),
            },
            State::Standby(holder) => Role::Standby {
                holder: holder.clone(),
            },
            State::Failed(reason) => Role::Failed {
                reason: reason.clone(),
            },
        }
    }
}
