//! All receivers and what is known of them, in memory: filtered, sorted and paged from here, so
//! that a list of 100,000 costs the database nothing.
//!
//! `facts` is what comes in, `view` what goes out, `query` which of them and in which order, `page`
//! finds them, `delta` compares two pages. All of it is data; `crate::live` fills it and sends it.

mod counts;
mod delta;
mod facts;
mod forgeries;
mod page;
mod query;
mod rung;
mod view;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forgeries::Forgeries;
use uuid::Uuid;

pub use counts::Counts;
pub use delta::{Delta, delta};
pub use facts::{Facts, State};
pub use forgeries::{ChannelForgeries, ForgeryReports};
pub use page::{BadCursor, Page, PageStart};
pub use query::{Filter, Order, Selection, Sort};
pub use rung::Rung;
pub use view::{Receiver, ReceiverChannel, ReceiverLeg};

/// Maximum of receivers whose states arrived before they did. They are few: a row that was being
/// written when it should be read is read with the next change.
const STRANGERS: usize = 1_000;

/// One receiver with everything known of it.
#[derive(Debug)]
struct Entry {
    facts: Facts,
    /// By channel.
    states: Vec<State>,
    /// In lower case, to sort by.
    key: String,
    /// In lower case, to search in.
    text: String,
}

/// All receivers.
#[derive(Debug, Default)]
pub struct Fleet {
    entries: HashMap<Uuid, Entry>,
    /// States of receivers that are not known yet.
    strangers: HashMap<Uuid, Vec<State>>,
    heads: HashMap<Arc<str>, u64>,
    /// Channels of which there are states.
    named: HashSet<Arc<str>>,
    /// Channels that are there, but not published at present.
    resting: HashSet<Arc<str>>,
    /// Texts that many receivers share: channels, causes.
    words: HashMap<Arc<str>, ()>,
    forgeries: Forgeries,
    version: u64,
}

impl Fleet {
    /// Grows with every change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there is such a receiver.
    #[must_use]
    pub fn has(&self, id: Uuid) -> bool {
        self.entries.contains_key(&id)
    }

    /// All of them.
    pub fn ids(&self) -> impl Iterator<Item = Uuid> {
        self.entries.keys().copied()
    }

    /// Takes in what is known of a receiver itself.
    pub fn put_receiver(&mut self, facts: Facts) {
        self.version += 1;
        let (key, text) = (facts.key(), facts.text());
        match self.entries.get_mut(&facts.id) {
            Some(entry) => {
                entry.facts = facts;
                entry.key = key;
                entry.text = text;
            }
            None => {
                let id = facts.id;
                let entry = Entry {
                    states: Vec::new(),
                    key,
                    text,
                    facts,
                };
                self.entries.insert(id, entry);
                for state in self.strangers.remove(&id).unwrap_or_default() {
                    self.put_state(id, state);
                }
            }
        }
    }

    /// Takes in how a receiver gets a channel. Returns whether the receiver is known; if not, it is
    /// kept for when it is.
    pub fn put_state(&mut self, id: Uuid, state: State) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else {
            if self.strangers.len() < STRANGERS || self.strangers.contains_key(&id) {
                let states = self.strangers.entry(id).or_default();
                states.retain(|known| known.channel != state.channel);
                states.push(state);
            }
            return false;
        };
        self.version += 1;
        if !self.named.contains(&state.channel) {
            self.named.insert(Arc::clone(&state.channel));
        }
        match entry
            .states
            .binary_search_by(|known| known.channel.cmp(&state.channel))
        {
            Ok(at) => {
                if let Some(known) = entry.states.get_mut(at) {
                    *known = state;
                }
            }
            Err(at) => entry.states.insert(at, state),
        }
        true
    }

    /// Forgets a receiver.
    pub fn remove(&mut self, id: Uuid) {
        self.strangers.remove(&id);
        self.forgeries.remove(id);
        if self.entries.remove(&id).is_some() {
            self.version += 1;
        }
    }

    /// Sets a channel's last seq, which defines the lag of disconnected receivers.
    pub fn put_head(&mut self, channel: &str, head: u64) {
        let channel = self.word(channel);
        if self.heads.insert(channel, head) != Some(head) {
            self.version += 1;
        }
    }

    /// Raises a channel's last seq; a lower value is ignored.
    pub fn raise_head(&mut self, channel: &str, head: u64) {
        if self.heads.get(channel).is_none_or(|known| *known < head) {
            self.put_head(channel, head);
        }
    }

    /// Forgets everything but how often it has changed.
    pub fn clear(&mut self) {
        *self = Self {
            version: self.version + 1,
            // Paused entries stay paused, whatever is read again.
            resting: std::mem::take(&mut self.resting),
            ..Self::default()
        };
    }

    /// Takes in which channels there are, and whether each is active. What is known of others is
    /// forgotten. How receivers got those that are not active counts for nothing until they are
    /// again.
    pub fn set_channels(&mut self, there: &HashMap<&str, bool>) {
        let known = self.heads.keys().chain(&self.named);
        let gone: HashSet<Arc<str>> = known
            .filter(|name| !there.contains_key(&***name))
            .cloned()
            .collect();
        if !gone.is_empty() {
            self.version += 1;
            self.heads.retain(|name, _| !gone.contains(name));
            self.named.retain(|name| !gone.contains(name));
            self.forgeries.retain_channels(|name| !gone.contains(name));
            for entry in self.entries.values_mut() {
                entry.states.retain(|state| !gone.contains(&state.channel));
            }
        }
        let resting = there.iter().filter(|(_, active)| !**active);
        let resting: HashSet<Arc<str>> = resting.map(|(name, _)| self.word(name)).collect();
        if resting != self.resting {
            self.version += 1;
            self.resting = resting;
        }
    }

    /// The text, kept once however many have it. There are few of these: channels and causes.
    pub fn word(&mut self, text: &str) -> Arc<str> {
        /// Should something put other texts here, they are not shared.
        const MOST: usize = 10_000;
        if let Some((known, ())) = self.words.get_key_value(text) {
            return Arc::clone(known);
        }
        let word: Arc<str> = text.into();
        if self.words.len() < MOST {
            self.words.insert(Arc::clone(&word), ());
        }
        word
    }

    /// Returns the view of a receiver.
    #[must_use]
    pub fn receiver(&self, id: Uuid) -> Option<Receiver> {
        self.receiver_in(id, None)
    }

    /// Returns the view of a receiver for one channel.
    #[must_use]
    pub fn receiver_in(&self, id: Uuid, channel: Option<&str>) -> Option<Receiver> {
        let entry = self.entries.get(&id)?;
        Some(self.view(entry, channel))
    }

    /// Receivers by the worst of their rungs, and how many of the connected ones do not have
    /// everything. Without those that were removed.
    #[must_use]
    pub fn counts(&self) -> (Counts, u64) {
        let mut counts = Counts::default();
        let mut behind = 0;
        for entry in self.entries.values() {
            if entry.facts.revoked_ms.is_some() {
                continue;
            }
            let Some(summary) = self.summary(entry, None) else {
                continue;
            };
            counts.total += 1;
            let is_behind = |state: &State| state.connected && state.backlog > 0;
            behind += u64::from(self.states(entry).any(is_behind));
            counts.connected += u64::from(summary.connected);
            let place = match summary.rung {
                Rung::Multicast => &mut counts.multicast,
                Rung::Amt => &mut counts.amt,
                Rung::Replicated => &mut counts.replicated,
                Rung::Unicast => &mut counts.unicast,
                Rung::Offline => &mut counts.offline,
            };
            *place += 1;
        }
        (counts, behind)
    }

    /// Returns a receiver's name for people, if known.
    #[must_use]
    pub fn name_of(&self, id: Uuid) -> Option<&str> {
        self.entries.get(&id).map(|entry| entry.facts.shown())
    }
}
