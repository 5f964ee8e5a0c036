//! What happens before anything is served: the database is there, and knows what was asked for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use sd_notify::NotifyState;
use store::{ChannelSettings, FeedSettings, Holder, Leased, Origin, Retention, Store, StoreError};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::service;
use crate::config::{self, Config};
use crate::data::DataFolder;

/// A database that is not there yet is waited for at most so long: containers start in any order.
const WAIT: Duration = Duration::from_secs(120);

/// Between two attempts.
const AGAIN: Duration = Duration::from_secs(1);

/// It is said so often that it is waited for.
const SAY: Duration = Duration::from_secs(10);

/// Opens the database, and waits until it can be opened.
///
/// # Errors
/// It cannot be used, or is not there after a while.
pub(super) async fn open_store(config: &Config, folder: &DataFolder) -> Result<Arc<dyn Store>> {
    let began = Instant::now();
    let mut said: Option<Instant> = None;
    loop {
        let opened = match &config.database_url {
            Some(url) => store::open(url).await,
            None => store::open_file(&folder.file("flexfeed.db")).await,
        };
        let error = match opened {
            Ok(store) => {
                if said.is_some() {
                    info!("the database answers");
                }
                return Ok(store);
            }
            Err(error) if error.is_unavailable() && began.elapsed() < WAIT => error,
            Err(error) => return Err(error.into()),
        };
        if said.is_none_or(|at| at.elapsed() >= SAY) {
            said = Some(Instant::now());
            let left = WAIT.saturating_sub(began.elapsed()).as_secs();
            warn!("waiting for the database, for {left} s at most: {error}");
            service::tell(&[
                NotifyState::Status("waiting for the database"),
                NotifyState::ExtendTimeoutUsec(3 * micros(SAY)),
            ]);
        }
        sleep(AGAIN).await;
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// Puts the channels and feeds of the command line, the environment and the configuration file into
/// the database, and takes out those that were given so once and are not any more.
///
/// # Errors
/// The store fails.
pub(super) async fn put_settings(
    config: &Config,
    store: &dyn Store,
    holder: &Holder,
) -> Result<(), StoreError> {
    let rows = store.channels().await?;
    for channel in &config.channels {
        let settings = settings(channel);
        let present = rows.iter().find(|row| row.channel.name == channel.name);
        if !present.is_some_and(|row| row.active && row.settings == settings) {
            store.put_channel(&channel.name, &settings).await?;
        }
        put_feeds(config, store, channel).await?;
    }
    if config.channels.is_empty() {
        // A source that is told nothing takes the database as it is: it may be the second one.
        return Ok(());
    }
    for row in &rows {
        let name = &row.channel.name;
        let is_given = config.channels.iter().any(|given| given.name == *name);
        if is_given || !row.active || row.settings.origin != Origin::Flags {
            continue;
        }
        match store
            .take_lease(name, holder, Duration::from_secs(1))
            .await?
        {
            Leased::Held(lease) => {
                store.set_channel_active(name, false).await?;
                store.release_lease(&lease).await?;
                info!(
                    "channel {name:?} is not given any more and not published; what it has is kept"
                );
            }
            Leased::Other { name: other, .. } => warn!(
                "channel {name:?} is not given here, but the source {other:?} publishes it: it stays; \
                 to end it: flexfeed-source channel remove {name}"
            ),
        }
    }
    Ok(())
}

async fn put_feeds(
    config: &Config,
    store: &dyn Store,
    channel: &config::ChannelSettings,
) -> Result<(), StoreError> {
    let rows = store.feeds(Some(&channel.name)).await?;
    let mut given = BTreeSet::new();
    for feed in &channel.feeds {
        let url = &feed.address.shown;
        given.insert(url.as_str());
        let present = rows.iter().find(|row| row.settings.url == *url);
        let settings = FeedSettings {
            url: url.clone(),
            address: feed.address.secret.clone(),
            local: feed.local || config.allow_private_feed,
            min_interval_ms: feed.min_interval.map(millis),
            max_interval_ms: feed.max_interval.map(millis),
            title: present.and_then(|row| row.settings.title.clone()),
            origin: Origin::Flags,
        };
        let same = present.is_some_and(|row| row.active && row.settings == settings);
        // Who gives a feed that was gone wants it to be tried again.
        let gone = present.is_some_and(|row| row.gone_ms.is_some());
        if !same || gone {
            store.put_feed(&channel.name, &settings).await?;
        }
    }
    for row in rows {
        let FeedSettings { url, origin, .. } = &row.settings;
        if row.active && *origin == Origin::Flags && !given.contains(url.as_str()) {
            store.set_feed_active(&channel.name, url, false).await?;
            info!("the feed {url} is not given any more and not polled");
        }
    }
    Ok(())
}

fn settings(channel: &config::ChannelSettings) -> ChannelSettings {
    ChannelSettings {
        groups: Some(channel.groups.to_string()),
        rate_bps: Some(channel.rate_bps),
        private: channel.private,
        keep: Retention {
            count: channel.keep.count,
            age_ms: channel.keep.age.map(millis),
        },
        origin: Origin::Flags,
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Makes the folder for qlog files.
///
/// # Errors
/// It cannot be made.
pub(super) fn make_qlog_folder(config: &Config) -> Result<()> {
    let Some(folder) = &config.qlog else {
        return Ok(());
    };
    if let Err(error) = std::fs::create_dir_all(folder) {
        bail!(
            "cannot make the folder {}: {error}; choose another one with --qlog",
            folder.display()
        );
    }
    Ok(())
}
