//! Steps before anything is served: the database is available, and has the settings.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use store::{
    ChannelRow, ChannelSettings, FeedSettings, Holder, LeaseOutcome, Origin, Store, StoreError,
};
use tracing::{info, warn};

use crate::clock::millis;
use crate::config::{self, Config, redacted};
use crate::data::{DATABASE, DataFolder};

/// Opens the database, waiting for it if necessary.
///
/// # Errors
/// The database cannot be used, or is not available after a while.
pub(super) async fn open_store(config: &Config, folder: &DataFolder) -> Result<Store> {
    if let Some(path) = unused(config, folder) {
        let path = path.display();
        warn!(
            "{path} is not used: another database is given to this source. Commands to which it is \
             not given, too, use this one, and backups of it look valid: move it away, with the \
             files that begin with its name (mv {path}* ELSEWHERE/)"
        );
    }
    let open = async || match &config.database_url {
        Some(url) => store::open(url).await,
        None => store::open_file(&folder.file(DATABASE)).await,
    };
    Ok(::service::startup::open_database(open, StoreError::is_unavailable).await?)
}

/// The database in the data folder, if there is one and this source uses another.
fn unused(config: &Config, folder: &DataFolder) -> Option<PathBuf> {
    let url = config.database_url.as_deref()?;
    let path = folder.file(DATABASE);
    let there = path.canonicalize().ok()?;
    let used = store::database_file(url).and_then(|file| file.canonicalize().ok());
    (used != Some(there)).then_some(path)
}

/// Lease time that protects a channel while it is being changed.
const GUARD: Duration = Duration::from_secs(2);

/// When settings are put into the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SetupPhase {
    /// The process starts.
    Start,
    /// A standby starts publishing.
    TakeOver,
}

/// Stores the channels and feeds of the command line, the environment and the configuration file,
/// and removes those that were given so before and are not any more.
///
/// Channels of another publishing source stay unchanged: the publisher's settings count. Returns
/// whether different settings had to stay. Nothing is removed that another source published last,
/// for it may only be restarting; nor at a take-over.
///
/// # Errors
/// The store fails.
pub(super) async fn put_settings(
    config: &Config,
    store: &Store,
    holder: &Holder,
    moment: SetupPhase,
) -> Result<bool, StoreError> {
    let rows = store.channels().list().await?;
    let mut had_to_stay = false;
    for channel in &config.channels {
        let present = rows.iter().find(|row| row.channel.name == channel.name);
        let changes = Changes::of(config, store, holder, channel, present, moment).await?;
        if changes.are_none() {
            continue;
        }
        let Some(row) = present else {
            changes.make(store, &channel.name).await?;
            continue;
        };
        let name = &channel.name;
        if let Some(other) = alone(store, holder, row, changes.make(store, name)).await? {
            had_to_stay = true;
            if moment == SetupPhase::TakeOver {
                continue;
            }
            warn!(
                channel = name,
                publisher = other,
                "settings differ from those of the publishing source, which stay until this source \
                 publishes; to change them now: flexfeed-source channel set, feed add or feed \
                 remove"
            );
        }
    }
    if config.channels.is_empty() || moment == SetupPhase::TakeOver {
        // A source without settings takes the database as it is: it may be the second one.
        return Ok(had_to_stay);
    }
    for row in &rows {
        let name = &row.channel.name;
        let is_given = config.channels.iter().any(|given| given.name == *name);
        if is_given || !row.active || row.settings.origin != Origin::Flags {
            continue;
        }
        if !is_ours(row, holder) {
            warn!(
                channel = name,
                "channel is not in these settings, but another source published it last: it stays; \
                 to end it: flexfeed-source channel remove {name}"
            );
            continue;
        }
        let off = async { store.channels().set_active(name, false).await.map(|_| ()) };
        match alone(store, holder, row, off).await? {
            None => info!(
                channel = name,
                "channel removed from the settings: not published; its updates are kept"
            ),
            Some(other) => warn!(
                channel = name,
                publisher = other,
                "channel is not in these settings, but another source publishes it: it stays; \
                 to end it: flexfeed-source channel remove {name}"
            ),
        }
    }
    Ok(had_to_stay)
}

/// Whether no other source has published a channel since this one did.
fn is_ours(row: &ChannelRow, holder: &Holder) -> bool {
    row.last_holder.is_none_or(|last| last == holder.id)
}

/// Changes a channel while no source can begin to publish it. Returns the current publisher, if
/// there is one, without a change.
async fn alone(
    store: &Store,
    holder: &Holder,
    row: &ChannelRow,
    work: impl Future<Output = Result<(), StoreError>>,
) -> Result<Option<String>, StoreError> {
    if row.lease.is_some() && row.last_holder == Some(holder.id) {
        // This source publishes it, or did so a moment ago.
        work.await?;
        return Ok(None);
    }
    match store
        .leases()
        .take(&row.channel.name, holder, GUARD)
        .await?
    {
        LeaseOutcome::Held(lease) => {
            let done = work.await;
            store.leases().release(&lease).await?;
            done.map(|()| None)
        }
        LeaseOutcome::Other { name, .. } => Ok(Some(name)),
    }
}

/// Changes to make to a channel.
struct Changes {
    channel: Option<ChannelSettings>,
    feeds: Vec<FeedSettings>,
    /// The URLs of feeds that are not given any more.
    off: Vec<String>,
}

impl Changes {
    async fn of(
        config: &Config,
        store: &Store,
        holder: &Holder,
        channel: &config::ChannelSettings,
        present: Option<&ChannelRow>,
        moment: SetupPhase,
    ) -> Result<Self, StoreError> {
        let wanted = settings(channel);
        let same = present.is_some_and(|row| row.active && row.settings == wanted);
        let rows = match present {
            Some(_) => store.feeds().list(Some(&channel.name)).await?,
            None => Vec::new(),
        };
        let mut changes = Self {
            channel: (!same).then_some(wanted),
            feeds: Vec::new(),
            off: Vec::new(),
        };
        let mut given = BTreeSet::new();
        for feed in &channel.feeds {
            let url = &feed.address.shown;
            given.insert(url.as_str());
            let row = rows.iter().find(|row| row.settings.url == *url);
            // Checked with the settings.
            let (min, max) = feed.polls.bounds().unwrap_or_default();
            let wanted = FeedSettings {
                url: url.clone(),
                address: feed.address.secret.clone(),
                local: feed.polls.local || config.feeds.allow_private,
                min_interval_ms: min.map(millis),
                max_interval_ms: max.map(millis),
                title: row.and_then(|row| row.settings.title.clone()),
                origin: Origin::Flags,
            };
            let same = row.is_some_and(|row| row.active && row.settings == wanted);
            // Giving a gone feed again means to try it again.
            let gone = row.is_some_and(|row| row.gone_ms.is_some()) && moment == SetupPhase::Start;
            if !same || gone {
                changes.feeds.push(wanted);
            }
        }
        let rows = rows.into_iter().filter(|row| row.active);
        let others = rows
            .map(|row| row.settings)
            .filter(|feed| feed.origin == Origin::Flags && !given.contains(feed.url.as_str()));
        if moment == SetupPhase::Start && present.is_some_and(|row| is_ours(row, holder)) {
            changes.off = others.map(|feed| feed.url).collect();
        } else if moment == SetupPhase::Start {
            for FeedSettings { url, .. } in others {
                info!(
                    channel = channel.name,
                    feed = redacted(&url),
                    "polling a feed that is not in these settings, but may be in another source's; \
                     `flexfeed-source feed list` has its address, `feed remove` ends it"
                );
            }
        }
        Ok(changes)
    }

    fn are_none(&self) -> bool {
        self.channel.is_none() && self.feeds.is_empty() && self.off.is_empty()
    }

    async fn make(&self, store: &Store, name: &str) -> Result<(), StoreError> {
        if let Some(settings) = &self.channel {
            store.channels().put(name, settings).await?;
        }
        for feed in &self.feeds {
            store.feeds().put(name, feed).await?;
        }
        for url in &self.off {
            store.feeds().set_active(name, url, false).await?;
            info!(
                channel = name,
                feed = redacted(url),
                "feed removed from the settings: not polled"
            );
        }
        Ok(())
    }
}

fn settings(channel: &config::ChannelSettings) -> ChannelSettings {
    ChannelSettings {
        groups: Some(channel.groups.to_string()),
        rate_bps: Some(channel.rate_bps),
        private: channel.private,
        packet_authentication: channel.packet_authentication,
        fec: channel.fec.clone(),
        deadline_ms: channel.deadline.millis(),
        keep: channel.keep.into(),
        origin: Origin::Flags,
    }
}
