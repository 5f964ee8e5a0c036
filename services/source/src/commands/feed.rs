//! `feed …`, but for the lists of feeds.

use feed::fetch::{FetchConfig, FetchError, Fetcher, Poll, Validators};
use feed::parse::parse_served;
use serde_json::json;
use store::{FeedSettings, Origin, Store};

use super::arguments::Feed;
use super::channel::existing;
use super::database::{check_origin, with_database};
use super::progress::with_progress;
use super::table::{Column, WIDTH, table_or, whole, words};
use super::text::{count, cut, plain, wrap};
use super::{CommandOutput, Failure, outlines, rows, when};
use crate::clock::millis;
use crate::config::{Config, FeedAddress, FeedArguments};

const COLUMNS: [Column; 5] = [
    words("CHANNEL", 10),
    words("URL", 24),
    whole("STATE"),
    whole("EVERY"),
    words("LAST POLL (UTC)", 16),
];

/// User-Agent of requests to feeds' servers.
const USER_AGENT: &str = concat!("flexfeed-source/", env!("CARGO_PKG_VERSION"));

/// Number of entries whose titles are shown.
const SHOWN: usize = 5;

pub(super) async fn answer(config: &Config, action: &Feed) -> Result<CommandOutput, Failure> {
    match action {
        Feed::Check { url, local } => check(config, url, *local).await,
        Feed::Import { .. } | Feed::Export { .. } => outlines::answer(config, action).await,
        Feed::Add {
            to,
            url,
            settings,
            title,
        } => {
            let title = title.as_ref();
            let work = async |store: &Store| add(config, store, to, url, settings, title).await;
            with_database(config, action.note(), work).await
        }
        Feed::List { of, all } => {
            let work = async |store: &Store| list(store, of.as_deref(), *all).await;
            with_database(config, None, work).await
        }
        Feed::Remove { from, url } => {
            let work = async |store: &Store| remove(store, from, url).await;
            with_database(config, action.note(), work).await
        }
    }
}

async fn add(
    config: &Config,
    store: &Store,
    to: &str,
    url: &str,
    arguments: &FeedArguments,
    title: Option<&String>,
) -> Result<CommandOutput, Failure> {
    let address = FeedAddress::parse(url).map_err(Failure::Usage)?;
    let (min, max) = arguments.bounds().map_err(Failure::Usage)?;
    let local = arguments.local;
    // The source would not fetch an address of which no fetcher can be made.
    fetcher(config, &address, local)?;
    let channel = existing(store, to).await?.channel.name;
    let known = store.feeds().get(&channel, &address.shown).await?;
    let shown = plain(&address.shown);
    if let Some(row) = &known {
        check_origin(
            row.active,
            row.settings.origin,
            format_args!("feed {shown}"),
        )?;
    }
    let old_title = || known.as_ref()?.settings.title.clone();
    let fresh = FeedSettings {
        url: address.shown.clone(),
        address: address.secret.clone(),
        local,
        min_interval_ms: min.map(millis),
        max_interval_ms: max.map(millis),
        title: title.cloned().or_else(old_title),
        origin: Origin::Managed,
    };
    let row = store.feeds().put(&channel, &fresh).await?;
    let what = match known.is_some_and(|row| row.active) {
        true => "is changed in",
        false => "is added to",
    };
    let text = format!("The feed {shown} {what} channel {channel}.");
    Ok(CommandOutput::new(text, json!({"feed": rows::feed(&row)})))
}

fn fetcher(config: &Config, address: &FeedAddress, local: bool) -> Result<Fetcher, Failure> {
    let fetch = FetchConfig {
        allow_private: local || config.feeds.allow_private,
        user_agent: USER_AGENT.to_owned(),
        contact: config.feeds.contact.clone(),
        ..FetchConfig::new(address.secret.clone())
    };
    Fetcher::new(fetch).map_err(|error| match error {
        FetchError::Private { .. } => Failure::usage(with_remedy(&error)),
        _ => Failure::other(error),
    })
}

fn with_remedy(error: &FetchError) -> String {
    let remedy = match error {
        FetchError::Private { .. } => " (--local says that this is meant)",
        _ => "",
    };
    format!("{error}{remedy}")
}

async fn list(store: &Store, of: Option<&str>, all: bool) -> Result<CommandOutput, Failure> {
    if let Some(name) = of {
        existing(store, name).await?;
    }
    let mut feeds = store.feeds().list(of).await?;
    feeds.retain(|row| all || row.active);
    let lines: Vec<Vec<String>> = feeds
        .iter()
        .map(|row| {
            let state = match (&row.last_poll, row.gone_ms) {
                _ if !row.active => "off".to_owned(),
                _ if row.paused => "paused".to_owned(),
                (_, Some(_)) => "gone".to_owned(),
                (None, None) => "new".to_owned(),
                (Some(poll), None) => poll.state.clone(),
            };
            vec![
                row.channel.clone(),
                row.settings.url.clone(),
                state,
                row.interval_ms.map_or("-".to_owned(), when::length),
                row.last_poll
                    .as_ref()
                    .map_or("never".to_owned(), |poll| when::shown(poll.at_ms)),
            ]
        })
        .collect();
    let none = "There is no feed: add one with `flexfeed-source feed add CHANNEL URL`.";
    let text = table_or(&COLUMNS, &lines, none);
    let feeds: Vec<_> = feeds.iter().map(rows::feed).collect();
    Ok(CommandOutput::new(text, json!({"feeds": feeds})))
}

async fn remove(store: &Store, from: &str, url: &str) -> Result<CommandOutput, Failure> {
    existing(store, from).await?;
    // Typed with its password, or without as the list shows it.
    let shown = FeedAddress::parse(url).map_or(url.to_owned(), |address| address.shown);
    let row = store
        .feeds()
        .get(from, &shown)
        .await?
        .filter(|row| row.active);
    let Some(row) = row else {
        return Err(Failure::other(format_args!(
            "channel {from} has no feed {}: `flexfeed-source feed list {from}` shows them",
            plain(&shown)
        )));
    };
    check_origin(
        row.active,
        row.settings.origin,
        format_args!("feed {}", plain(&shown)),
    )?;
    store.feeds().set_active(from, &shown, false).await?;
    let text = format!(
        "The feed {} is removed from channel {from}; its updates stay.",
        plain(&shown)
    );
    let json = json!({"removed": {"channel": from, "url": shown}});
    Ok(CommandOutput::new(text, json))
}

/// Fetches and reads a feed as the source would.
async fn check(config: &Config, url: &str, local: bool) -> Result<CommandOutput, Failure> {
    let address = FeedAddress::parse(url).map_err(Failure::Usage)?;
    let fetcher = fetcher(config, &address, local)?;
    let fetching = async { fetcher.poll(&Validators::default()).await };
    let polled = with_progress("fetching the feed", || None, fetching).await;
    let polled = polled.map_err(|error| Failure::other(with_remedy(&error)))?;
    let Poll::Fetched {
        document,
        validators,
        url: found,
        charset,
        ..
    } = polled
    else {
        return Err(Failure::other(
            "the server says that nothing has changed, although it was not asked that",
        ));
    };
    let parsed = parse_served(&document, &found, charset.as_deref()).map_err(|error| {
        Failure::other(format_args!(
            "{} bytes came from {}, but they are {error}",
            document.len(),
            plain(&found)
        ))
    })?;
    let conditional = validators.etag.is_some() || validators.last_modified.is_some();
    let titles: Vec<String> = parsed
        .entries
        .iter()
        .take(SHOWN)
        .map(|entry| entry.title.clone().unwrap_or_default())
        .collect();
    let json = json!({
        "url": address.shown,
        "found_at": found,
        "bytes": document.len(),
        "title": parsed.title,
        "entries": parsed.entries.len(),
        "first_titles": titles,
        "skipped": parsed.skipped,
        "unknown_encoding": parsed.unknown_encoding,
        "conditional": conditional,
        "interval_ms": parsed.interval.map(millis),
        "prev_archive": parsed.links.prev_archive,
        "next": parsed.links.next,
        "hub": parsed.links.hub,
    });
    let remarks = parsed.remarks();
    let mut text = format!(
        "{}: a feed with {} in {} bytes.\n",
        plain(&parsed.title.unwrap_or_else(|| "(no title)".into())),
        count(parsed.entries.len(), "entry"),
        document.len()
    );
    if found != address.shown {
        text.push_str(&format!("It was found at {}.\n", plain(&found)));
    }
    let sentence = match conditional {
        true => "The server can say that nothing has changed.",
        false => {
            "The server cannot say that nothing has changed: each poll costs a whole document."
        }
    };
    text.push_str(&format!("{}\n", wrap(sentence, WIDTH).join("\n")));
    if let Some(interval) = parsed.interval {
        let interval = when::length(millis(interval));
        text.push_str(&format!("It says that it changes every {interval}.\n"));
    }
    if parsed.links.prev_archive.is_some() || parsed.links.next.is_some() {
        text.push_str("It links to older entries, so gaps can be filled.\n");
    }
    for title in titles {
        text.push_str(&format!("  {}\n", cut(&plain(&title), 76)));
    }
    for remark in remarks.iter().take(SHOWN) {
        text.push_str(&format!("Passed over: {}\n", cut(&plain(remark), 66)));
    }
    Ok(CommandOutput::new(text, json))
}
