//! `channel …`.

use std::collections::HashSet;
use std::net::SocketAddr;

use serde_json::json;
use service::link::MAX_CHANNELS;
use store::{ChannelRow, ChannelSettings, Origin, Retention, Store};

use super::arguments::Channel;
use super::confirm::confirm;
use super::database::check_origin;
use super::progress::with_progress;
use super::table::{Column, number, table_or, whole, words};
use super::text::count;
use super::{CommandOutput, Failure, rows, when};
use crate::config::{self, ChannelArguments, Config, Groups, Keep};

const COLUMNS: [Column; 7] = [
    words("NAME", 12),
    whole("STATE"),
    number("HEAD"),
    number("FEEDS"),
    words("GROUPS", 16),
    words("KEPT", 6),
    words("PUBLISHED BY", 8),
];

pub(super) async fn answer(
    config: &Config,
    store: &Store,
    action: &Channel,
) -> Result<CommandOutput, Failure> {
    match action {
        Channel::Add { name, settings } => add(config, store, name, settings).await,
        Channel::List => list(store).await,
        Channel::Set { name, settings } => set(store, name, settings).await,
        Channel::Remove { name, yes } => remove(store, name, *yes).await,
    }
}

/// Returns the channel of that name, active or not.
async fn find(store: &Store, name: &str) -> Result<Option<ChannelRow>, Failure> {
    let rows = store.channels().list().await?;
    Ok(rows.into_iter().find(|row| row.channel.name == name))
}

/// Returns the active channel of that name.
pub(super) async fn existing(store: &Store, name: &str) -> Result<ChannelRow, Failure> {
    let rows = store.channels().list().await?;
    let active = rows.iter().filter(|row| row.active);
    let names: Vec<&str> = active.map(|row| row.channel.name.as_str()).collect();
    match rows
        .iter()
        .find(|row| row.active && row.channel.name == name)
    {
        Some(row) => Ok(row.clone()),
        None => Err(Failure::other(
            match service::nearest::nearest(name, names.iter().copied()) {
                Some(meant) => format!("there is no channel {name:?}; did you mean {meant:?}?"),
                None => format!(
                    "there is no channel {name:?}: add it with `flexfeed-source channel add \
                     NAME`, or see `flexfeed-source channel list`"
                ),
            },
        )),
    }
}

/// Makes a channel, with the next free groups if it is to have some and none are given.
pub(super) async fn make(
    config: &Config,
    store: &Store,
    name: &str,
    arguments: &ChannelArguments,
) -> Result<ChannelRow, Failure> {
    let rows = store.channels().list().await?;
    let others: Vec<&ChannelRow> = rows
        .iter()
        .filter(|row| row.active && row.channel.name != name)
        .collect();
    if others.len() >= MAX_CHANNELS {
        return Err(Failure::other(format_args!(
            "there are {} channels already, and receivers take no more from one source",
            others.len()
        )));
    }
    let taken = taken(&others);
    let groups = match &arguments.groups {
        Some(groups) => {
            free(groups, &taken)?;
            groups.clone()
        }
        None => next_groups(&config.given.group, &taken)?,
    };
    let settings = ChannelSettings {
        groups: Some(groups.to_string()),
        rate_bps: arguments.rate,
        private: arguments.private == Some(true),
        packet_authentication: arguments.packet_authentication.unwrap_or_default(),
        fec: arguments.fec.clone().unwrap_or_default(),
        deadline_ms: arguments.deadline.unwrap_or_default().millis(),
        keep: arguments.keep.unwrap_or_default().into(),
        origin: Origin::Managed,
    };
    Ok(store.channels().put(name, &settings).await?)
}

/// Returns the groups of other channels, with the channels' names.
fn taken(others: &[&ChannelRow]) -> Vec<(SocketAddr, String)> {
    let mut taken = Vec::new();
    for row in others {
        let groups = row.settings.groups.as_deref().unwrap_or_default();
        if let Ok(groups) = config::groups(groups) {
            let own = groups.all().iter();
            taken.extend(own.map(|group| (*group, row.channel.name.clone())));
        }
    }
    taken
}

fn free(groups: &Groups, taken: &[(SocketAddr, String)]) -> Result<(), Failure> {
    let clash = taken.iter().find(|(group, _)| groups.all().contains(group));
    match clash {
        Some((group, name)) => Err(Failure::other(format_args!(
            "the channel {name:?} has the group {group}: its receivers would get both channels; \
             give another with --groups"
        ))),
        None => Ok(()),
    }
}

fn next_groups(first: &Groups, taken: &[(SocketAddr, String)]) -> Result<Groups, Failure> {
    let taken: HashSet<SocketAddr> = taken.iter().map(|(group, _)| *group).collect();
    (0..=u8::MAX)
        .map_while(|number| first.following(number).ok())
        .find(|groups| !groups.all().iter().any(|group| taken.contains(group)))
        .ok_or_else(|| {
            Failure::other(format_args!(
                "no groups are free from {first} on: give some with --groups"
            ))
        })
}

async fn add(
    config: &Config,
    store: &Store,
    name: &str,
    arguments: &ChannelArguments,
) -> Result<CommandOutput, Failure> {
    if find(store, name).await?.is_some_and(|row| row.active) {
        return Err(Failure::other(format_args!(
            "there is a channel {name:?} already: change it with `flexfeed-source channel set \
             {name}`"
        )));
    }
    let row = make(config, store, name, arguments).await?;
    let text = format!(
        "Channel {name} is added, {}. Add a feed:\n\n  flexfeed-source feed add {name} URL\n",
        match row.settings.groups.as_deref() {
            None | Some("") => "without multicast".to_owned(),
            Some(groups) => format!("its flow on {groups}"),
        }
    );
    let feeds = store.feeds().list(None).await?;
    Ok(CommandOutput::new(
        text,
        json!({"channel": rows::channel(&row, &feeds)}),
    ))
}

async fn list(store: &Store) -> Result<CommandOutput, Failure> {
    let (channels, feeds) = (
        store.channels().list().await?,
        store.feeds().list(None).await?,
    );
    let lines: Vec<Vec<String>> = channels
        .iter()
        .map(|row| {
            let keep = row.settings.keep;
            let kept = match (keep.count, keep.age_ms) {
                (None, None) => "default".to_owned(),
                (Some(Keep::ALL..), None) => "all".to_owned(),
                (Some(count), None) => count.to_string(),
                (None, Some(age)) => when::length(age),
                (Some(count), Some(age)) => format!("{count},{}", when::length(age)),
            };
            vec![
                row.channel.name.clone(),
                match (row.active, row.settings.private) {
                    (false, _) => "off".to_owned(),
                    (true, false) => "on".to_owned(),
                    (true, true) => "private".to_owned(),
                },
                row.channel.head.to_string(),
                rows::active_feeds(row, &feeds).to_string(),
                match row.settings.groups.as_deref() {
                    None => "default".to_owned(),
                    Some("") => "none".to_owned(),
                    Some(groups) => groups.to_owned(),
                },
                kept,
                row.lease
                    .as_ref()
                    .map_or("-".to_owned(), |lease| lease.name.clone()),
            ]
        })
        .collect();
    let none = "There is no channel: add one with `flexfeed-source channel add NAME`.";
    let text = table_or(&COLUMNS, &lines, none);
    let channels: Vec<_> = channels
        .iter()
        .map(|row| rows::channel(row, &feeds))
        .collect();
    Ok(CommandOutput::new(text, json!({"channels": channels})))
}

async fn set(
    store: &Store,
    name: &str,
    arguments: &ChannelArguments,
) -> Result<CommandOutput, Failure> {
    let row = existing(store, name).await?;
    check_origin(
        row.active,
        row.settings.origin,
        format_args!("channel {name:?}"),
    )?;
    if let Some(groups) = &arguments.groups {
        let rows = store.channels().list().await?;
        let others: Vec<&ChannelRow> = rows
            .iter()
            .filter(|row| row.active && row.channel.name != name)
            .collect();
        free(groups, &taken(&others))?;
    }
    let old = row.settings;
    let settings = ChannelSettings {
        groups: arguments
            .groups
            .as_ref()
            .map(ToString::to_string)
            .or(old.groups),
        rate_bps: arguments.rate.or(old.rate_bps),
        private: arguments.private.unwrap_or(old.private),
        packet_authentication: arguments
            .packet_authentication
            .unwrap_or(old.packet_authentication),
        fec: arguments.fec.clone().unwrap_or(old.fec),
        deadline_ms: match arguments.deadline {
            Some(deadline) => deadline.millis(),
            None => old.deadline_ms,
        },
        keep: arguments.keep.map_or(old.keep, Retention::from),
        origin: old.origin,
    };
    let row = store.channels().put(name, &settings).await?;
    let feeds = store.feeds().list(None).await?;
    let json = json!({"channel": rows::channel(&row, &feeds)});
    Ok(CommandOutput::new(
        format!("Channel {name} is changed."),
        json,
    ))
}

async fn remove(store: &Store, name: &str, yes: bool) -> Result<CommandOutput, Failure> {
    let Some(row) = find(store, name).await? else {
        return Err(Failure::other(format_args!(
            "there is no channel {name:?}: `flexfeed-source channel list` shows them"
        )));
    };
    check_origin(
        row.active,
        row.settings.origin,
        format_args!("channel {name:?}"),
    )?;
    let channel = &row.channel;
    let kept = (channel.head + 1).saturating_sub(channel.first);
    let what = format!(
        "This removes the channel {name} with its feeds and {}",
        count(kept, "update")
    );
    confirm(&what, yes)?;
    let removing = store.channels().remove(name);
    let removed = with_progress("removing", || None, removing).await?;
    let text = match removed {
        true => format!("Channel {name} is removed."),
        false => format!("Channel {name} was removed already."),
    };
    Ok(CommandOutput::new(
        text,
        json!({"removed": name, "updates": kept}),
    ))
}
