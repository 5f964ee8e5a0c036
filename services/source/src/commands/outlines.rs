//! `feed import` and `feed export`: OPML lists.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use feed::fetch;
use feed::opml::{self, Outline};
use jiff::Timestamp;
use serde_json::json;
use store::{FeedSettings, Origin, Store};

use super::arguments::Feed;
use super::channel::{existing, make};
use super::database::with_database;
use super::progress::with_progress;
use super::text::{count, cut, hidden, plain};
use super::{CommandOutput, Failure};
use crate::config::{ChannelArguments, Config, FeedAddress};

/// Number of refused feeds that are shown.
const SHOWN: usize = 10;

pub(super) async fn answer(config: &Config, action: &Feed) -> Result<CommandOutput, Failure> {
    match action {
        Feed::Import {
            file,
            into,
            local,
            dry_run,
        } => {
            let outlines = opml::read(&document(file)?).map_err(Failure::other)?;
            let import = Import {
                config,
                into: into.as_deref(),
                local: *local,
                dry_run: *dry_run,
            };
            with_database(config, action.note(), async |store| {
                let work = import.run(store, outlines);
                with_progress("importing", || None, work).await
            })
            .await
        }
        Feed::Export { of } => {
            let work = async |store: &Store| export(store, of.as_deref()).await;
            with_database(config, None, work).await
        }
        _ => Err(Failure::other("this is about no list")),
    }
}

fn document(file: &Path) -> Result<Vec<u8>, Failure> {
    let most = opml::MAX_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin().take(most).read_to_end(&mut bytes),
        _ => File::open(file).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    read.map_err(|error| Failure::other(format_args!("cannot read {}: {error}", file.display())))?;
    Ok(bytes)
}

struct Import<'a> {
    config: &'a Config,
    into: Option<&'a str>,
    local: bool,
    dry_run: bool,
}

impl Import<'_> {
    async fn run(&self, store: &Store, outlines: Vec<Outline>) -> Result<CommandOutput, Failure> {
        let rows = store.channels().list().await?;
        let mut channels: HashSet<String> = rows
            .into_iter()
            .filter(|row| row.active)
            .map(|row| row.channel.name)
            .collect();
        let mut known: HashSet<(String, String)> = store
            .feeds()
            .list(None)
            .await?
            .into_iter()
            .filter(|row| row.active)
            .map(|row| (row.channel, row.settings.url))
            .collect();
        let (mut added, mut made, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let mut present = 0_usize;
        for outline in outlines {
            let (channel, address) = match self.place(&outline) {
                Ok(place) => place,
                Err(why) => {
                    refused.push(json!({"url": hidden(&outline.url), "why": why}));
                    continue;
                }
            };
            if !known.insert((channel.clone(), address.shown.clone())) {
                present += 1;
                continue;
            }
            if channels.insert(channel.clone()) {
                if !self.dry_run {
                    let like_others = ChannelArguments::default();
                    make(self.config, store, &channel, &like_others).await?;
                }
                made.push(channel.clone());
            }
            if !self.dry_run {
                let settings = FeedSettings {
                    url: address.shown.clone(),
                    address: address.secret,
                    local: self.local,
                    title: outline.title,
                    origin: Origin::Managed,
                    ..FeedSettings::default()
                };
                store.feeds().put(&channel, &settings).await?;
            }
            added.push(json!({"channel": channel, "url": address.shown}));
        }
        let will = if self.dry_run { " would be" } else { "" };
        let mut text = format!(
            "{}{will} added, {present} there already, {} refused",
            count(added.len(), "feed"),
            refused.len()
        );
        if !made.is_empty() {
            text.push_str(&format!("; new channels: {}", made.join(", ")));
        }
        text.push_str(".\n");
        for one in refused.iter().take(SHOWN) {
            let (url, why) = (one["url"].as_str(), one["why"].as_str());
            let line = format!("{}: {}", url.unwrap_or_default(), why.unwrap_or_default());
            text.push_str(&format!("  {}\n", cut(&plain(&line), 200)));
        }
        let json = json!({
            "added": added,
            "present": present,
            "refused": refused,
            "new_channels": made,
            "dry_run": self.dry_run,
        });
        Ok(CommandOutput::new(text, json))
    }

    /// Returns the channel of a feed, and its address.
    fn place(&self, outline: &Outline) -> Result<(String, FeedAddress), String> {
        let address = FeedAddress::parse(&outline.url)?;
        let private = self.local || self.config.feeds.allow_private;
        fetch::check(&address.secret, private).map_err(|error| error.to_string())?;
        let channel = match (self.into, &outline.channel) {
            (Some(into), _) => into.to_owned(),
            (None, Some(folder)) => channel_name(folder)?,
            (None, None) => {
                return Err("it is in no folder: say which channel with --into NAME".into());
            }
        };
        Ok((channel, address))
    }
}

/// Returns a folder's name as a channel's: other characters become hyphens.
pub(super) fn channel_name(folder: &str) -> Result<String, String> {
    let mut name = String::new();
    for c in folder.trim().chars() {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '.') {
            name.push(c.to_ascii_lowercase());
        } else if !name.ends_with('-') {
            name.push('-');
        }
    }
    let name = name.trim_matches(['-', '.']);
    service::link::channel(name).map_err(|_| {
        format!(
            "its folder {:?} cannot be a channel's name: say which with --into NAME",
            plain(folder)
        )
    })
}

async fn export(store: &Store, of: Option<&str>) -> Result<CommandOutput, Failure> {
    if let Some(name) = of {
        existing(store, name).await?;
    }
    let rows = store.feeds().list(of).await?;
    let outlines: Vec<Outline> = rows
        .into_iter()
        .filter(|row| row.active)
        .map(|row| Outline {
            title: row.settings.title,
            url: row.settings.url,
            channel: Some(row.channel),
        })
        .collect();
    let text = opml::write("flexfeed", Timestamp::now(), &outlines);
    let feeds: Vec<_> = outlines
        .iter()
        .map(|one| json!({"channel": one.channel, "url": one.url, "title": one.title}))
        .collect();
    Ok(CommandOutput::new(
        text.clone(),
        json!({"feeds": feeds, "opml": text}),
    ))
}
