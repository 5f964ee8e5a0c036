//! Events of changes: at most one a second per topic, shared by all its watchers.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::api::feeds::Feed;
use crate::api::moves::Move;
use crate::api::overview::Overview;
use crate::api::relays::Relay;
use crate::fleet::{Page, PageStart, Selection, delta};
use crate::live::events::{Snapshot, Update};
use crate::site::Site;

/// Between two events of a topic.
const PACE: Duration = Duration::from_secs(1);

/// Interval of checks for changes by silence.
const SILENCE: Duration = Duration::from_secs(5);

/// Maximum of topics watched at the same time; and by one user, in all of their pages and
/// programs.
const TOPICS: usize = 256;
const TOPICS_OF_ONE: usize = 64;

/// Events kept per topic for returning watchers, and their bytes.
const RING: usize = 64;
const RING_BYTES: usize = 1 << 20;

/// Time that a topic without watchers is kept for their return.
const IDLE: Duration = Duration::from_secs(60);

/// A topic besides the overview: a part of the list of receivers, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TopicKey {
    /// Selection of receivers, start of the page, and its length.
    pub list: Option<(Selection, PageStart, usize)>,
}

/// Too many different things are watched, by this person or by all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyTopics;

/// All that is watched.
#[derive(Debug)]
pub struct Hub {
    /// Distinguishes this process's events from those of another.
    run: String,
    next: AtomicU64,
    /// Held for a moment only: what is shown is found out before.
    watched: Mutex<WatcherCounts>,
    clients: AtomicUsize,
}

#[derive(Debug, Default)]
struct WatcherCounts {
    topics: HashMap<TopicKey, Arc<Topic>>,
    /// Watchers of each topic, by user number.
    people: HashMap<i64, HashMap<u64, usize>>,
}

/// Something that is watched.
#[derive(Debug)]
pub(super) struct Topic {
    number: u64,
    key: TopicKey,
    clients: AtomicUsize,
    state: Mutex<TopicState>,
    /// The number of the last event.
    pub(super) latest: watch::Sender<u64>,
}

#[derive(Debug)]
struct TopicState {
    shown: Page,
    last: u64,
    ring: VecDeque<(u64, Bytes)>,
    ring_bytes: usize,
    snapshot: Option<Bytes>,
    idle_since: Instant,
}

/// Last state sent to all watchers.
#[derive(Debug, Default)]
struct CommonState {
    overview: Option<Overview>,
    feeds: HashMap<String, Feed>,
    relays: Vec<Relay>,
    last_move: i64,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            run: Uuid::new_v4().simple().to_string(),
            next: AtomicU64::new(0),
            watched: Mutex::default(),
            clients: AtomicUsize::new(0),
        }
    }
}

impl WatcherCounts {
    /// Makes room for another topic by dropping the oldest ones without watchers. Returns whether
    /// there is room.
    fn make_room(&mut self) -> bool {
        if self.topics.len() < TOPICS {
            return true;
        }
        let idle = self.topics.values().filter_map(|topic| {
            let is_idle = topic.clients.load(Ordering::Relaxed) == 0;
            is_idle.then(|| (topic.state().idle_since, topic.key.clone()))
        });
        let longest = idle.min_by_key(|(since, _)| *since);
        longest.is_some_and(|(_, key)| self.topics.remove(&key).is_some())
    }

    /// Counts a watcher of a topic, unless its user watches too much.
    fn join(&mut self, topic: &Topic, user: i64) -> Result<(), TooManyTopics> {
        let theirs = self.people.entry(user).or_default();
        if theirs.len() >= TOPICS_OF_ONE && !theirs.contains_key(&topic.number) {
            return Err(TooManyTopics);
        }
        *theirs.entry(topic.number).or_default() += 1;
        topic.clients.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Counts a watcher off.
    fn leave(&mut self, topic: &Topic, user: i64) {
        if let Entry::Occupied(mut theirs) = self.people.entry(user) {
            if let Entry::Occupied(mut times) = theirs.get_mut().entry(topic.number) {
                *times.get_mut() -= 1;
                if *times.get() == 0 {
                    times.remove();
                }
            }
            if theirs.get().is_empty() {
                theirs.remove();
            }
        }
        if topic.clients.fetch_sub(1, Ordering::Relaxed) == 1 {
            topic.state().idle_since = Instant::now();
        }
    }
}

impl Hub {
    /// Number of watchers.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// Number of topics.
    #[must_use]
    pub fn topics(&self) -> usize {
        self.watched().topics.len()
    }

    fn watched(&self) -> MutexGuard<'_, WatcherCounts> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watcher for the user of this number; a returning one continues after its last event,
    /// if that is known.
    pub(super) fn watch(
        self: &Arc<Self>,
        site: &Site,
        key: TopicKey,
        user: i64,
        last_event_id: Option<&str>,
    ) -> Result<Watcher, TooManyTopics> {
        let known = {
            let mut watched = self.watched();
            let known = watched.topics.get(&key).cloned();
            if let Some(topic) = &known {
                watched.join(topic, user)?;
            }
            known
        };
        let topic = match known {
            Some(topic) => topic,
            None => self.begin(key.clone(), user, || page(site, &key))?,
        };
        self.clients.fetch_add(1, Ordering::Relaxed);
        let after = last_event_id.and_then(|id| {
            let rest = id.strip_prefix(&self.run)?;
            let (number, event) = rest.strip_prefix('-')?.split_once('-')?;
            (number.parse() == Ok(topic.number)).then(|| event.parse().ok())?
        });
        Ok(Watcher {
            latest: topic.latest.subscribe(),
            hub: Arc::clone(self),
            topic,
            user,
            after,
        })
    }

    /// Makes a new topic. Its content may take a while to find, so others do not wait for it.
    pub(super) fn begin(
        &self,
        key: TopicKey,
        user: i64,
        shown: impl FnOnce() -> Page,
    ) -> Result<Arc<Topic>, TooManyTopics> {
        let topic = Arc::new(Topic {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            clients: AtomicUsize::new(0),
            state: Mutex::new(TopicState {
                shown: shown(),
                last: 0,
                ring: VecDeque::new(),
                ring_bytes: 0,
                snapshot: None,
                idle_since: Instant::now(),
            }),
            latest: watch::Sender::new(0),
            key: key.clone(),
        });
        let mut watched = self.watched();
        // Another watcher may have been faster.
        let known = watched.topics.get(&key).cloned();
        let is_new = known.is_none();
        let topic = known.unwrap_or(topic);
        watched.join(&topic, user)?;
        if is_new {
            if !watched.make_room() {
                watched.leave(&topic, user);
                return Err(TooManyTopics);
            }
            watched.topics.insert(key, Arc::clone(&topic));
        }
        Ok(topic)
    }

    /// Returns an event as it is sent.
    fn event(&self, topic: &Topic, number: u64, name: &str, data: &impl Serialize) -> Bytes {
        // Texts, numbers and lists of them can always be written.
        let data = serde_json::to_string(data).unwrap_or_default();
        let id = format!("{}-{}-{number}", self.run, topic.number);
        Bytes::from(format!("id: {id}\nevent: {name}\ndata: {data}\n\n"))
    }
}

/// The part of the list that a topic is about.
fn page(site: &Site, key: &TopicKey) -> Page {
    let Some((selection, place, limit)) = &key.list else {
        return Page::default();
    };
    // A cursor is checked before a watcher is admitted.
    let page = site.page(selection, place, *limit);
    page.unwrap_or_default()
}

/// A watcher.
#[derive(Debug)]
pub(super) struct Watcher {
    hub: Arc<Hub>,
    topic: Arc<Topic>,
    user: i64,
    latest: watch::Receiver<u64>,
    /// The last event that it had.
    after: Option<u64>,
}

impl Watcher {
    /// Returns the next event for it, if any: the following one, or a snapshot where that is gone.
    pub(super) fn next(&mut self, site: &Site) -> Option<Bytes> {
        let latest = *self.latest.borrow_and_update();
        let mut state = self.topic.state();
        let at = match self.after {
            Some(after) if after == state.last => return None,
            Some(after) => state
                .ring
                .iter()
                .position(|(number, _)| *number == after + 1),
            None => None,
        };
        if let Some((number, event)) = at.and_then(|at| state.ring.get(at)) {
            self.after = Some(*number);
            return Some(event.clone());
        }
        debug_assert!(latest <= state.last);
        let last = state.last;
        let snapshot = match &state.snapshot {
            Some(snapshot) => snapshot.clone(),
            None => {
                let snapshot = Snapshot {
                    overview: Overview::of(site),
                    receivers: self.topic.key.list.is_some().then(|| state.shown.clone()),
                };
                let event = self.hub.event(&self.topic, last, "snapshot", &snapshot);
                state.snapshot = Some(event.clone());
                event
            }
        };
        self.after = Some(last);
        Some(snapshot)
    }

    /// Waits for something new.
    pub(super) async fn changed(&mut self) {
        if self.latest.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.hub.clients.fetch_sub(1, Ordering::Relaxed);
        self.hub.watched().leave(&self.topic, self.user);
    }
}

impl Topic {
    fn state(&self) -> MutexGuard<'_, TopicState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self) -> bool {
        self.clients.load(Ordering::Relaxed) == 0 && self.state().idle_since.elapsed() >= IDLE
    }

    /// Sends the changes.
    fn notify(&self, hub: &Hub, site: &Site, common: &Update) {
        let shown = page(site, &self.key);
        let mut state = self.state();
        let changes = delta(&state.shown.items, &shown.items);
        let counts = (state.shown.total, state.shown.filtered) != (shown.total, shown.filtered);
        if changes.is_empty() && !counts && common.is_empty() {
            return;
        }
        let is_list = self.key.list.is_some();
        let update = Update {
            receivers: changes.receivers,
            gone: changes.gone,
            order: changes.order,
            total: is_list.then_some(shown.total),
            filtered: is_list.then_some(shown.filtered),
            ..common.clone()
        };
        state.last += 1;
        let number = state.last;
        let event = hub.event(self, number, "delta", &update);
        state.ring_bytes += event.len();
        state.ring.push_back((number, event));
        while state.ring.len() > RING || (state.ring_bytes > RING_BYTES && state.ring.len() > 1) {
            if let Some((_, event)) = state.ring.pop_front() {
                state.ring_bytes -= event.len();
            }
        }
        state.shown = shown;
        state.snapshot = None;
        drop(state);
        self.latest.send_replace(number);
    }
}

impl CommonState {
    /// Returns the changes common to all watchers.
    fn update(&mut self, site: &Site) -> Update {
        let overview = Overview::of(site);
        let mut update = Update::default();
        if self
            .overview
            .as_ref()
            .is_none_or(|sent| !sent.is_like(&overview))
        {
            self.overview = Some(overview.clone());
            update.overview = Some(overview);
        }
        let board = site.board();
        let new = board
            .moves
            .iter()
            .take_while(|moved| moved.id > self.last_move);
        update.moves = new
            .map(|row| Move::of(row, site.name_of(row.receiver)))
            .collect();
        self.last_move = board.moves.front().map_or(0, |moved| moved.id);
        let relays: Vec<Relay> = board.relays.values().map(Relay::of).collect();
        if relays != self.relays {
            update.relays = Some(relays.clone());
            self.relays = relays;
        }
        let feeds: HashMap<String, Feed> = board
            .feeds
            .iter()
            .map(|row| Feed::of(row, &board))
            .map(|feed| (feed.id.clone(), feed))
            .collect();
        drop(board);
        let changed = feeds
            .values()
            .filter(|feed| self.feeds.get(&feed.id) != Some(feed));
        update.feeds = changed.cloned().collect();
        let gone = self.feeds.keys().filter(|id| !feeds.contains_key(*id));
        update.feeds_gone = gone.cloned().collect();
        self.feeds = feeds;
        update
    }
}

/// Sends the changes to the watchers of these topics. Each may be a part of a long list: requests
/// get their turn in between.
pub(super) async fn notify_all(topics: &[Arc<Topic>], site: &Site, common: &Update) {
    for topic in topics {
        topic.notify(&site.hub, site, common);
        yield_now().await;
    }
}

/// Sends changes to all watchers, until the site stops.
pub async fn notify(site: Arc<Site>) {
    let stop = site.stop.clone();
    let telling = async {
        let mut common = CommonState::default();
        let mut latest = site.latest();
        // The initial state is no change.
        common.update(&site);
        loop {
            // Silence is a change, too: a silent source is not there.
            if let Ok(Err(_)) = tokio::time::timeout(SILENCE, latest.changed()).await {
                return;
            }
            let began = Instant::now();
            let changes = common.update(&site);
            let topics: Vec<Arc<Topic>> = {
                let mut watched = site.hub.watched();
                watched.topics.retain(|_, topic| !topic.is_idle());
                watched.topics.values().cloned().collect()
            };
            notify_all(&topics, &site, &changes).await;
            // However much is watched, it is no more than half of one core's work.
            sleep(PACE.max(began.elapsed())).await;
        }
    };
    stop.run_until_cancelled(telling).await;
}
