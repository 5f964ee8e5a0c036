//! State besides the receivers: channels, feeds, relays, the source, the last moves.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use store::{Changes, ChannelRow, FeedEvent, FeedRow, MoveRow, PulseRow, RelayRow, SourceInfo};
use tokio::time::Instant;

use super::heard::SourceReport;
use crate::clock::now_ms;

/// Number of moves kept here; the database has more.
pub const MOVES: usize = 200;

/// Feeds of which is kept what was seen of them last.
const SEEN: usize = 10_000;

/// State besides the receivers.
#[derive(Debug, Default)]
pub struct Board {
    /// By channel.
    pub pulses: BTreeMap<String, PulseRow>,
    /// The newest first.
    pub moves: VecDeque<MoveRow>,
    /// By address; without those that are gone.
    pub relays: BTreeMap<String, RelayRow>,
    /// The source's self-description.
    pub source: Option<SourceInfo>,
    /// All channels, by name.
    pub channels: Vec<ChannelRow>,
    /// All feeds that are there.
    pub feeds: Vec<FeedRow>,
    /// Last events of feeds, by channel and URL.
    pub seen: HashMap<(String, String), FeedEvent>,
    /// Time of the last refresh; Unix milliseconds by this machine's clock. `None` before the
    /// first.
    pub as_of_ms: Option<i64>,
    /// The same by the monotonic clock.
    as_of: Option<Instant>,
    /// The source's last report; `None` if there never was one.
    pub heard: Option<SourceReport>,
    /// Grows with every change.
    pub version: u64,
}

impl Board {
    /// Applies changes; `replace` discards what was there first.
    pub fn take(&mut self, changes: &mut Changes, replace: bool) {
        if replace {
            *self = Self {
                channels: std::mem::take(&mut self.channels),
                feeds: std::mem::take(&mut self.feeds),
                version: self.version + 1,
                ..Self::default()
            };
        }
        let before = self.version;
        for pulse in changes.pulses.drain(..) {
            self.version = before + 1;
            self.pulses.insert(pulse.channel.clone(), pulse);
        }
        for moved in changes.moves.drain(..) {
            self.version = before + 1;
            self.moves.push_front(moved);
        }
        self.moves.truncate(MOVES);
        for relay in changes.relays.drain(..) {
            self.version = before + 1;
            match relay.gone {
                true => self.relays.remove(&relay.address),
                false => self.relays.insert(relay.address.clone(), relay),
            };
        }
        for event in changes.feed_events.drain(..) {
            self.version = before + 1;
            let feed = (event.channel.clone(), event.url.clone());
            if self.seen.len() < SEEN || self.seen.contains_key(&feed) {
                self.seen.insert(feed, event);
            }
        }
        if let Some(source) = changes.info.take() {
            self.version = before + 1;
            let (now, now_ms) = (Instant::now(), now_ms());
            self.heard = match &self.source {
                None => Some(SourceReport::before(source.at_ms, now, now_ms)),
                Some(before) if source.change > before.change => {
                    Some(SourceReport::at(now, now_ms))
                }
                Some(_) => self.heard,
            };
            self.source = Some(source);
        }
    }

    /// Marks the state as current.
    pub fn looked(&mut self) {
        self.as_of_ms = Some(now_ms());
        self.as_of = Some(Instant::now());
    }

    /// Whether there was a source, and it is silent now.
    #[must_use]
    pub fn is_source_silent(&self) -> bool {
        let looked = self.as_of.unwrap_or_else(Instant::now);
        self.heard.is_some_and(|heard| heard.is_silent(looked))
    }

    /// Returns since when the state of receivers is not known; `None` while it is.
    pub(crate) fn unknown_since(&self, database_ok: bool) -> Option<i64> {
        match (self.is_source_silent(), database_ok) {
            (true, _) => self.heard.map(|heard| heard.unix_ms),
            (false, false) => self.as_of_ms,
            (false, true) => None,
        }
    }

    /// Takes in all channels and feeds.
    pub fn take_settings(&mut self, mut channels: Vec<ChannelRow>, mut feeds: Vec<FeedRow>) {
        channels.retain(|row| row.active);
        channels.sort_by(|a, b| a.channel.name.cmp(&b.channel.name));
        // The time left of a lease differs each time, and is no change.
        for row in &mut channels {
            if let Some(lease) = &mut row.lease {
                lease.for_ms = 0;
            }
        }
        let names: HashSet<&str> = channels.iter().map(|row| &*row.channel.name).collect();
        feeds.retain(|row| row.active && names.contains(&*row.channel));
        feeds.sort_by(|a, b| (&a.channel, &a.settings.url).cmp(&(&b.channel, &b.settings.url)));
        let there: HashSet<(&str, &str)> = feeds
            .iter()
            .map(|row| (&*row.channel, &*row.settings.url))
            .collect();
        self.seen
            .retain(|(channel, url), _| there.contains(&(&**channel, &**url)));
        // Those of a channel that was removed may come, or be read, after it was.
        let before = self.pulses.len();
        self.pulses.retain(|name, _| names.contains(&**name));
        let are_fewer = self.pulses.len() < before;
        if channels == self.channels && feeds == self.feeds && !are_fewer {
            return;
        }
        self.version += 1;
        self.channels = channels;
        self.feeds = feeds;
    }

    /// A channel that is there.
    #[must_use]
    pub fn channel(&self, name: &str) -> Option<&ChannelRow> {
        self.channels.iter().find(|row| row.channel.name == name)
    }
}

#[cfg(test)]
mod tests {
    use store::{Channel, ChannelSettings, FeedSettings, Validators};
    use uuid::Uuid;

    use super::*;

    fn channel(name: &str) -> ChannelRow {
        ChannelRow {
            channel: Channel {
                name: name.to_owned(),
                incarnation: Uuid::nil(),
                head: 0,
                first: 1,
                is_new: false,
            },
            settings: ChannelSettings::default(),
            active: true,
            created_ms: 0,
            lease: None,
            last_holder: None,
        }
    }

    fn feed(url: &str) -> FeedRow {
        FeedRow {
            channel: "lore".to_owned(),
            settings: FeedSettings {
                url: url.to_owned(),
                ..FeedSettings::default()
            },
            active: true,
            validators: Validators::default(),
            moved_to: None,
            gone_ms: None,
            last_poll: None,
            interval_ms: None,
            paused: false,
        }
    }

    fn events(urls: impl Iterator<Item = String>, state: &str) -> Changes {
        let event = |url| FeedEvent {
            channel: "lore".to_owned(),
            url,
            state: state.to_owned(),
            ..FeedEvent::default()
        };
        Changes {
            feed_events: urls.map(event).collect(),
            ..Changes::default()
        }
    }

    fn state<'a>(board: &'a Board, url: &str) -> Option<&'a str> {
        let feed = ("lore".to_owned(), url.to_owned());
        board.seen.get(&feed).map(|event| &*event.state)
    }

    #[test]
    fn feed_states_are_bounded_removed_and_updated() {
        let mut board = Board::default();
        let all = (0..SEEN + 5).map(|n| n.to_string());
        board.take(&mut events(all, "error"), false);
        assert_eq!(board.seen.len(), SEEN);
        let one = || std::iter::once("7".to_owned());
        board.take(&mut events(one(), "ok"), false);
        assert_eq!(state(&board, "7"), Some("ok"), "it is known already");
        let feeds = || vec![feed("7"), feed("8"), feed("new")];
        board.take_settings(vec![channel("lore")], feeds());
        assert_eq!(board.seen.len(), 2, "the others are gone");
        let new = || std::iter::once("new".to_owned());
        board.take(&mut events(new(), "gone"), false);
        assert_eq!(state(&board, "new"), Some("gone"), "there is room again");
        // Also where no setting has changed.
        let other = std::iter::once("other".to_owned());
        board.take(&mut events(other, "ok"), false);
        board.take_settings(vec![channel("lore")], feeds());
        assert_eq!(board.seen.len(), 3);
        board.take_settings(vec![channel("news")], feeds());
        assert!(board.seen.is_empty(), "their channel is gone");
    }

    #[test]
    fn totals_of_a_channel_go_with_it_also_where_they_come_late() {
        let totals = |name: &str| Changes {
            pulses: vec![PulseRow {
                channel: name.to_owned(),
                lag_updates: 812,
                ..PulseRow::default()
            }],
            ..Changes::default()
        };
        let mut board = Board::default();
        let known = |board: &Board| board.pulses.keys().cloned().collect::<Vec<_>>();
        // Initial totals of the only channel.
        board.take(&mut totals("old"), true);
        let version = board.version;
        board.take_settings(Vec::new(), Vec::new());
        assert!(known(&board).is_empty());
        assert!(board.version > version, "watchers are notified");
        // The source's last rows, read after the settings.
        board.take_settings(vec![channel("lore")], Vec::new());
        board.take(&mut totals("lore"), false);
        board.take(&mut totals("old"), false);
        board.take_settings(vec![channel("lore")], Vec::new());
        assert_eq!(known(&board), ["lore"]);
        let version = board.version;
        board.take_settings(vec![channel("lore")], Vec::new());
        assert_eq!(board.version, version, "nothing has changed");
        // And after a complete read.
        board.take(&mut totals("old"), true);
        board.take_settings(vec![channel("lore")], Vec::new());
        assert!(known(&board).is_empty());
    }
}
