//! Assignment of channels among the sources on one database.
//!
//! Receivers get all their channels on one connection, so one source at a time publishes all
//! channels of a database. The first channel by name decides: its holder takes the others, too, and
//! a source without it gives up the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow};
use flexicast_tokio::source::Absence;
use signing::VerifyingKey;
use store::{ChannelRow, FeedRow, Holder, KeyStanding, StoreError};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::channel::{Channel, ChannelEnd, ChannelSpec, release};
use super::context::Context;
use super::followed_heads::FollowedHeads;
use super::link::Link;
use super::receivers::Ejections;
use super::startup::{SetupPhase, put_settings};
use crate::board::ChannelInfo;
use crate::database::answer;
use crate::publish::{Acquisition, LeaseGuard, LeaseLoss};

/// Interval at which the database is checked.
const TICK: Duration = Duration::from_secs(1);

/// Delay before a failed channel is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// Assignment of channels to this process.
pub(super) struct Supervisor {
    context: Arc<Context>,
    holder: Holder,
    link: Link,
    pin: watch::Receiver<[u8; 32]>,
    /// Whether the start is complete.
    has_begun: bool,
    /// Version of the database when it was read last.
    version: Option<u64>,
    /// Channels to publish, as they were read last.
    rows: BTreeMap<String, ChannelRow>,
    feeds: BTreeMap<String, Vec<FeedRow>>,
    leading: BTreeMap<String, PublishedChannel>,
    tasks: JoinSet<(String, ChannelEnd)>,
    /// Times of the next attempts at failed channels.
    failed: BTreeMap<String, Instant>,
    /// Channels whose database was set back while they were published.
    set_back: BTreeSet<String>,
    followed: FollowedHeads,
    ejections: Ejections,
    /// Whether the link may name other channels, or another signing key, by now: a key is pinned
    /// once it signs.
    is_link_stale: Arc<AtomicBool>,
    /// Defect of this source's signing key.
    refusal: Option<String>,
    /// Whether this process's settings wait until it publishes: the publisher at its start had
    /// others.
    is_withheld: bool,
}

/// A channel that is published here.
struct PublishedChannel {
    wanted: watch::Sender<ChannelSpec>,
    stop: CancellationToken,
    /// Paths of the channel once it is served; `None` if another source was faster. Awaited at the
    /// start only.
    begun: Option<oneshot::Receiver<Result<Option<String>>>>,
}

impl Supervisor {
    pub(super) fn new(
        context: Arc<Context>,
        holder: Holder,
        link: Link,
        pin: watch::Receiver<[u8; 32]>,
    ) -> Self {
        Self {
            context,
            holder,
            link,
            pin,
            has_begun: false,
            version: None,
            rows: BTreeMap::new(),
            feeds: BTreeMap::new(),
            leading: BTreeMap::new(),
            tasks: JoinSet::new(),
            failed: BTreeMap::new(),
            set_back: BTreeSet::new(),
            followed: FollowedHeads::default(),
            ejections: Ejections::default(),
            is_link_stale: Arc::default(),
            refusal: None,
            is_withheld: false,
        }
    }

    /// Sets whether this process's settings are written to the database only once it publishes.
    pub(super) fn withhold(&mut self, is_withheld: bool) {
        self.is_withheld = is_withheld;
    }

    /// Reads the database for the first time, and waits until every available channel is served.
    /// Returns the channels and their paths, in words.
    ///
    /// # Errors
    /// The store fails, or a channel cannot be served.
    pub(super) async fn begin(&mut self) -> Result<(String, String)> {
        self.look().await?;
        let mut served = Vec::new();
        for (name, leading) in &mut self.leading {
            if let Some(begun) = leading.begun.take() {
                let ended = |_| anyhow!("channel {name:?} could not be begun");
                if let Some(paths) = begun.await.map_err(ended)?? {
                    served.push((name.clone(), paths));
                }
            }
        }
        self.has_begun = true;
        self.refresh_link().await?;
        Ok(match served.as_slice() {
            _ if self.refusal.is_some() => (
                "nothing".to_owned(),
                "this source does not have the signing key".to_owned(),
            ),
            [] if self.rows.is_empty() => (
                "no channel yet".to_owned(),
                "receivers are notified".to_owned(),
            ),
            [] => (
                "nothing at the moment".to_owned(),
                "another source publishes and this one stands by".to_owned(),
            ),
            [(name, paths)] => (format!("channel {name:?}"), paths.clone()),
            all => {
                let each = all.iter().map(|(name, paths)| format!("{name:?}: {paths}"));
                let each: Vec<String> = each.collect();
                (format!("{} channels", all.len()), each.join(", "))
            }
        })
    }

    /// Runs until `stop`, and then stops all channels in good order.
    ///
    /// # Errors
    /// A channel's task panicked: the process has to end rather than continue without it.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<()> {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(TICK) => {}
                Some(ended) = self.tasks.join_next() => {
                    let (name, ended) = ended.context("the publishing of a channel broke down")?;
                    self.ended(name, ended).await;
                }
            }
            // A lease that is being taken at this moment ends by itself.
            match stop.run_until_cancelled(self.look()).await {
                Some(seen) => self.judge_database(seen.err()),
                None => break,
            }
        }
        for leading in self.leading.values() {
            leading.stop.cancel();
        }
        while self.tasks.join_next().await.is_some() {}
        Ok(())
    }

    /// Logs the loss and the return of the database, once each.
    fn judge_database(&self, failure: Option<StoreError>) {
        let text = failure.map(|failure| failure.to_string());
        let board = &self.context.board;
        if board.set_database(text.clone()).is_none() {
            return;
        }
        match text {
            Some(text) => error!(
                "{text}. Receivers stay connected; until it is back, nothing new is fetched or \
                 published and no receiver enrols; retrying each second"
            ),
            None => info!("the database is back"),
        }
    }

    async fn look(&mut self) -> Result<(), StoreError> {
        let context = Arc::clone(&self.context);
        let version = answer(context.store.version()).await?;
        let is_changed = self.version != Some(version);
        if is_changed {
            let is_first = self.version.is_none();
            self.ejections.read(&context, is_first).await?;
        }
        self.ejections.eject(&context).await?;
        let is_idle = self
            .rows
            .keys()
            .any(|name| !self.leading.contains_key(name));
        if is_changed || is_idle {
            self.read().await?;
            self.version = Some(version);
            self.apply().await;
        }
        let is_stale = self.is_link_stale.swap(false, Ordering::AcqRel);
        if self.has_begun && (is_stale || self.pin.has_changed().unwrap_or(false)) {
            let refreshed = self.refresh_link().await;
            refreshed.inspect_err(|_| self.is_link_stale.store(true, Ordering::Release))?;
        }
        if !self.has_begun {
            // Receivers that ask before their channel is here come back.
            for name in self.rows.keys() {
                context
                    .handle
                    .remove_channel(name, Absence::Elsewhere)
                    .await;
            }
        }
        self.lead().await?;
        self.follow().await;
        Ok(())
    }

    async fn read(&mut self) -> Result<(), StoreError> {
        let store = &self.context.store;
        let rows = answer(store.channels().list()).await?;
        let feeds = answer(store.feeds().list(None)).await?;
        let rows = rows.into_iter().filter(|row| row.active);
        self.rows = rows.map(|row| (row.channel.name.clone(), row)).collect();
        self.feeds.clear();
        for feed in feeds {
            let of_channel = self.feeds.entry(feed.channel.clone()).or_default();
            of_channel.push(feed);
        }
        Ok(())
    }

    fn wanted(&self, row: &ChannelRow) -> ChannelSpec {
        let feeds = self.feeds.get(&row.channel.name);
        ChannelSpec {
            settings: row.settings.clone(),
            feeds: feeds.cloned().unwrap_or_default(),
        }
    }

    /// Applies what was read to the board and to the channels published here.
    async fn apply(&mut self) {
        let board = Arc::clone(&self.context.board);
        let mut is_other = false;
        for channel in board.snapshot().channels {
            if !self.rows.contains_key(&channel.name) {
                is_other = true;
                match self.leading.get(&channel.name) {
                    Some(leading) => leading.stop.cancel(),
                    None => self.gone(&channel.name).await,
                }
            }
        }
        for (name, row) in &self.rows {
            let channel = &row.channel;
            is_other |= !board.knows(name);
            let shown = ChannelInfo {
                place: self.place(name),
                private: row.settings.private,
                groups: row.settings.groups.clone().unwrap_or_default(),
                incarnation: Some(channel.incarnation),
                head: channel.head,
                first: channel.first,
            };
            board.show(name, shown);
            let wanted = self.wanted(row);
            let feeds = wanted.feeds.iter().filter(|feed| feed.active);
            board.set_feeds(
                name,
                feeds.map(|f| (f.settings.url.clone(), f.settings.title.clone())),
            );
            if let Some(leading) = self.leading.get(name) {
                leading.wanted.send_if_modified(|present| {
                    let is_changed = !present.is_like(&wanted);
                    *present = wanted;
                    is_changed
                });
            }
        }
        if is_other {
            self.is_link_stale.store(true, Ordering::Release);
        }
    }

    /// Channels of the settings come first, in the order in which they were given.
    fn place(&self, name: &str) -> usize {
        let given = &self.context.config.channels;
        let place = given.iter().position(|channel| channel.name == name);
        place.unwrap_or(given.len())
    }

    async fn refresh_link(&mut self) -> Result<(), StoreError> {
        let pin = *self.pin.borrow_and_update();
        let mut names: Vec<&str> = self.rows.keys().map(String::as_str).collect();
        names.sort_by_key(|name| self.place(name));
        let keys = self.context.store.signing_keys();
        let key = answer(keys.pinnable(&names)).await?;
        let key = key.map(VerifyingKey);
        if let Err(error) = self.link.save(&self.context.folder, &pin, key, &names) {
            warn!(error = format!("{error:#}"), "enrolment link not updated");
        }
        Ok(())
    }

    /// Removes a channel that is not published any more.
    async fn gone(&mut self, name: &str) {
        let context = &self.context;
        context.handle.remove_channel(name, Absence::Gone).await;
        context.open.shut(name);
        context.board.forget(name);
        self.failed.remove(name);
        self.followed.forget(name);
        info!(channel = name, "channel stopped");
    }

    /// Acquires the channels that this source may publish.
    async fn lead(&mut self) -> Result<(), StoreError> {
        let Some(first) = self.rows.keys().next().cloned() else {
            return Ok(());
        };
        if self.leading.is_empty()
            && let Some(refusal) = self.refuse_key().await?
        {
            return self.stand_by_without_key(refusal).await;
        }
        self.refusal = None;
        if self.failed.contains_key(&first) {
            // The source that can publish it gets the others, too.
            let lease = self.rows.get(&first).and_then(|row| row.lease.as_ref());
            if let Some(other) = lease.map(|lease| lease.name.clone()) {
                return self.stand_by(other).await;
            }
        } else if !self.leading.contains_key(&first) {
            if self.is_about_to_be_taken(&first) {
                return Ok(());
            }
            if let Some(other) = self.take(&first).await? {
                return self.stand_by(other).await;
            }
        }
        if self.is_withheld && self.leading.contains_key(&first) {
            let context = &self.context;
            let (config, store) = (&context.config, &context.store);
            let putting = put_settings(config, store, &self.holder, SetupPhase::TakeOver);
            self.is_withheld = answer(putting).await?;
        }
        let names: Vec<String> = self.rows.keys().cloned().collect();
        for name in names {
            let is_due = self
                .failed
                .get(&name)
                .is_none_or(|at| *at <= Instant::now());
            if self.leading.contains_key(&name) || !is_due {
                continue;
            }
            self.failed.remove(&name);
            if let Some(other) = self.take(&name).await? {
                debug!(
                    channel = name,
                    holder = other,
                    "lease held by another source"
                );
                self.context.handle.elsewhere(&name).await;
                self.context.board.standby(&name, Some(other));
            }
        }
        Ok(())
    }

    /// Returns what is wrong with this source's signing key, if receivers that pin the right one
    /// would refuse what it signs.
    async fn refuse_key(&self) -> Result<Option<String>, StoreError> {
        let keys = answer(self.context.store.signing_keys().list()).await?;
        let own = self.context.signer.key();
        let standing = KeyStanding::of(&own.0, &keys);
        let (KeyStanding::Superseded { by: key } | KeyStanding::Unknown { current: key }) =
            standing
        else {
            return Ok(None);
        };
        let (url, key) = (self.context.store.url().to_owned(), VerifyingKey(key));
        let why = StoreError::SigningKey { url, standing };
        Ok(Some(format!(
            "{why} (its key is {own}, the other one {key})"
        )))
    }

    /// Leaves all channels to sources that have the signing key.
    async fn stand_by_without_key(&mut self, refusal: String) -> Result<(), StoreError> {
        if self.refusal.as_ref() != Some(&refusal) {
            error!("{refusal}");
        }
        for name in self.rows.keys() {
            self.context.handle.elsewhere(name).await;
            self.context.board.failed(name, refusal.clone());
        }
        self.refusal = Some(refusal);
        Ok(())
    }

    /// A free channel belongs to the holder of the others.
    fn is_about_to_be_taken(&self, first: &str) -> bool {
        let free = |row: &ChannelRow| row.lease.is_none();
        let mut others = self.rows.iter().filter(|(name, _)| *name != first);
        self.leading.is_empty()
            && self.rows.get(first).is_some_and(free)
            && others.any(|(_, row)| !free(row))
    }

    /// Leaves all channels to another source.
    async fn stand_by(&mut self, other: String) -> Result<(), StoreError> {
        for (name, leading) in &self.leading {
            if !leading.stop.is_cancelled() {
                warn!(
                    channel = name,
                    source = other,
                    "releasing the channel: another source publishes the first one"
                );
                leading.stop.cancel();
            }
        }
        for name in self.rows.keys() {
            if !self.leading.contains_key(name) {
                self.context.handle.elsewhere(name).await;
                self.context.board.standby(name, Some(other.clone()));
            }
        }
        Ok(())
    }

    /// Acquires a channel and starts to publish it. Returns the name of another holder.
    async fn take(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        let context = Arc::clone(&self.context);
        let asked = LeaseGuard::take(&context.store, name, &self.holder, context.terms);
        let lease = match answer(asked).await? {
            Acquisition::Held(lease) => lease,
            Acquisition::Other { name } => return Ok(Some(name)),
        };
        if self.set_back.remove(name) {
            let renewed = context.store.channels().renew(name, lease.shown_fence());
            let renewed = answer(renewed).await;
            match renewed {
                Ok(channel) => warn!(
                    channel = name,
                    incarnation = %channel.incarnation,
                    "channel gets a new incarnation; its receivers start over"
                ),
                // Another source was faster, and judges for itself.
                Err(error) if error.is_fenced() => return Ok(None),
                Err(error) => {
                    self.set_back.insert(name.to_owned());
                    return Err(error);
                }
            }
        }
        let Some(row) = self.rows.get(name) else {
            return Ok(None);
        };
        let (wanted, present) = watch::channel(self.wanted(row));
        let (begin, begun) = oneshot::channel();
        let stop = CancellationToken::new();
        let leading = PublishedChannel {
            wanted,
            stop: stop.clone(),
            begun: (!self.has_begun).then_some(begun),
        };
        self.leading.insert(name.to_owned(), leading);
        self.followed.forget(name);
        let (name, is_link_stale) = (name.to_owned(), Arc::clone(&self.is_link_stale));
        self.tasks.spawn(async move {
            let channel = Channel::begin(Arc::clone(&context), &name, lease.clone(), present);
            let ended = match channel.await {
                Ok(channel) => {
                    let paths = channel.paths();
                    info!(
                        channel = name,
                        fence = lease.fence(),
                        "publishing the channel"
                    );
                    is_link_stale.store(true, Ordering::Release);
                    let _ = begin.send(Ok(Some(paths)));
                    channel.run(stop).await
                }
                Err(error) if is_fenced(&error) => {
                    let _ = begin.send(Ok(None));
                    ChannelEnd::Lost(LeaseLoss::Taken)
                }
                Err(error) => {
                    release(&context, &lease).await;
                    match begin.send(Err(error)) {
                        // The task was dropped.
                        Err(Err(error)) => ChannelEnd::Failed(error),
                        _ => ChannelEnd::Failed(Error::msg("publisher task: did not start")),
                    }
                }
            };
            (name, ended)
        });
        Ok(None)
    }

    /// Handles the end of a channel's publishing here.
    async fn ended(&mut self, name: String, ended: ChannelEnd) {
        self.leading.remove(&name);
        let board = &self.context.board;
        match ended {
            ChannelEnd::Stopped if !self.rows.contains_key(&name) => self.gone(&name).await,
            ChannelEnd::Stopped => {
                let handle = &self.context.handle;
                handle.remove_channel(&name, Absence::Elsewhere).await;
                self.context.open.shut(&name);
                board.standby(&name, None);
            }
            ChannelEnd::Lost(lost) => {
                warn!(channel = name, reason = %lost, "lease lost; publishing stopped");
                board.standby(&name, None);
            }
            ChannelEnd::SetBack => {
                error!(channel = name, "publishing stopped: {ended}");
                self.set_back.insert(name);
            }
            ChannelEnd::Restart => warn!(channel = name, "publishing restarts from the database"),
            ChannelEnd::Failed(failure) => {
                error!(
                    channel = name,
                    error = format!("{failure:#}"),
                    "publishing failed; retrying in {} s",
                    AGAIN.as_secs()
                );
                board.failed(&name, format!("{failure:#}"));
                self.failed.insert(name, Instant::now() + AGAIN);
            }
        }
    }

    /// Advances the head checkpoints of channels that other sources publish.
    async fn follow(&mut self) {
        for (name, row) in &self.rows {
            let is_others = row.lease.is_some() && !self.leading.contains_key(name);
            if is_others && !self.followed.follow(&self.context, row).await {
                return;
            }
        }
    }
}

/// Whether another source took a channel before it could be begun.
fn is_fenced(error: &Error) -> bool {
    error
        .downcast_ref::<StoreError>()
        .is_some_and(StoreError::is_fenced)
}
