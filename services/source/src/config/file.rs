//! The configuration file: TOML, where every mistake is named with its line and key.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::channels::{ChannelTable, FeedAddress, FeedSettings};
use super::resolve::{Given, Layer, Mistake, Place};
use super::settings::{self, Form, Setting};
use super::{groups, values};
use service::nearest::nearest;

/// A configuration file is at most this long, in bytes.
pub(super) const MAX_FILE: u64 = 1 << 20;

/// The key of the first channel's name, and of the tables with further channels.
const CHANNEL: &str = "channel";
const FEED: &str = "feed";

const CHANNEL_KEYS: [&str; 6] = ["name", "groups", "rate", "private", "keep", FEED];
const FEED_KEYS: [&str; 5] = ["url", "local", "interval", "min_interval", "max_interval"];

/// Content of a file.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub settings: Layer,
    pub channels: Vec<ChannelTable>,
}

/// Reads the text of the file `path`.
pub(super) fn read(path: &Path, text: &str, mistakes: &mut Vec<Mistake>) -> Content {
    let mut reader = Reader {
        path,
        text,
        mistakes,
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().unwrap_or_default();
        let place = reader.place(&at, "");
        let why = error.message().to_owned();
        reader.mistakes.push(Mistake::at(place, why));
    }
    reader.top(table.get_ref())
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    mistakes: &'a mut Vec<Mistake>,
}

/// The key as it is known: hyphens count as underscores.
fn canonical(key: &str) -> String {
    key.replace('-', "_")
}

impl Reader<'_> {
    fn place(&self, at: &Range<usize>, key: &str) -> Place {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        Place::File {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            key: key.to_owned(),
        }
    }

    fn wrong(&mut self, at: &Range<usize>, key: &str, why: impl Into<String>) {
        let place = self.place(at, key);
        self.mistakes.push(Mistake::at(place, why.into()));
    }

    fn unknown<'k>(
        &mut self,
        at: &Range<usize>,
        key: &str,
        known: impl Iterator<Item = &'k str>,
        what: &str,
    ) {
        let word = key.rsplit('.').next().unwrap_or(key);
        let why = match nearest(&canonical(word), known) {
            Some(meant) => format!("there is no such {what}; did you mean {meant}?"),
            None => format!("there is no such {what}"),
        };
        self.wrong(at, key, why);
    }

    fn top(&mut self, table: &DeTable<'_>) -> Content {
        let mut content = Content::default();
        for (key, value) in table {
            let (at, name) = (key.span(), canonical(key.get_ref()));
            if name == CHANNEL
                && let DeValue::Array(tables) = value.get_ref()
            {
                content.channels = self.channels(&at, tables);
                continue;
            }
            let Some(setting) = settings::ALL.iter().find(|s| s.key() == name) else {
                let known: Vec<String> = settings::ALL.iter().map(Setting::key).collect();
                self.unknown(
                    &at,
                    key.get_ref(),
                    known.iter().map(String::as_str),
                    "setting",
                );
                continue;
            };
            match self.text_of(setting, value.get_ref()) {
                Ok(text) => {
                    let place = self.place(&at, key.get_ref());
                    let given = Given { text, place };
                    if content.settings.insert(setting.name, given).is_some() {
                        self.wrong(&at, key.get_ref(), "it is given twice");
                    }
                }
                Err(why) => self.wrong(&at, key.get_ref(), why),
            }
        }
        content
    }

    /// A setting's value as a variable would have it.
    fn text_of(&self, setting: &Setting, value: &DeValue<'_>) -> Result<String, String> {
        match (value, setting.form) {
            (DeValue::Boolean(value), Form::Switch | Form::Maybe(_)) => Ok(value.to_string()),
            (_, Form::Switch) => Err("write true or false, without quotes".into()),
            (DeValue::Array(parts), Form::List(separator)) => {
                let texts: Option<Vec<_>> =
                    parts.iter().map(|part| plain(part.get_ref())).collect();
                let texts = texts.ok_or("write a list of texts")?;
                Ok(texts.join(separator.to_string().as_str()))
            }
            (value, Form::Path) => {
                let text = plain(value).ok_or("write a path in quotes")?;
                Ok(self.beside(&text).to_string_lossy().into_owned())
            }
            (value, _) => plain(value)
                .map(Cow::into_owned)
                .ok_or_else(|| format!("write a text or a number, not {}", kind(value))),
        }
    }

    /// A path that counts from the file's folder.
    fn beside(&self, path: &str) -> PathBuf {
        match self.path.parent() {
            Some(folder) if !path.is_empty() => folder.join(path),
            _ => path.into(),
        }
    }

    fn channels(&mut self, at: &Range<usize>, tables: &DeArray<'_>) -> Vec<ChannelTable> {
        let mut channels = Vec::new();
        for table in tables.iter() {
            match table.get_ref() {
                DeValue::Table(content) => channels.extend(self.channel(&table.span(), content)),
                _ => self.wrong(at, CHANNEL, "write tables: [[channel]]"),
            }
        }
        channels
    }

    fn channel(&mut self, at: &Range<usize>, table: &DeTable<'_>) -> Option<ChannelTable> {
        let mut channel = ChannelTable {
            place: Some(self.place(at, CHANNEL)),
            ..ChannelTable::default()
        };
        let mut name = None;
        for (key, value) in table {
            let (at, word) = (key.span(), format!("channel.{}", key.get_ref()));
            let value = value.get_ref();
            let read = match canonical(key.get_ref()).as_str() {
                "name" => take(value, values::channel, &mut name),
                "groups" => {
                    list(value).and_then(|text| put(groups::groups(&text), &mut channel.groups))
                }
                "rate" => take(value, values::rate, &mut channel.rate_bps),
                "private" => boolean(value).map(|is| channel.private = is),
                "keep" => list(value).and_then(|text| put(values::keep(&text), &mut channel.keep)),
                FEED => match value {
                    DeValue::Array(tables) => {
                        channel.feeds = self.feeds(&at, tables);
                        Ok(())
                    }
                    _ => Err("write tables: [[channel.feed]]".into()),
                },
                _ => {
                    self.unknown(&at, &word, CHANNEL_KEYS.into_iter(), "key of a channel");
                    Ok(())
                }
            };
            if let Err(why) = read {
                self.wrong(&at, &word, why);
            }
        }
        match name {
            Some(name) => {
                channel.name = name;
                Some(channel)
            }
            None => {
                if !table.keys().any(|key| canonical(key.get_ref()) == "name") {
                    self.wrong(at, CHANNEL, "its name is missing: name = \"…\"");
                }
                None
            }
        }
    }

    fn feeds(&mut self, at: &Range<usize>, tables: &DeArray<'_>) -> Vec<FeedSettings> {
        let mut feeds = Vec::new();
        for table in tables.iter() {
            match table.get_ref() {
                DeValue::Table(content) => feeds.extend(self.feed(&table.span(), content)),
                _ => self.wrong(at, "channel.feed", "write tables: [[channel.feed]]"),
            }
        }
        feeds
    }

    fn feed(&mut self, at: &Range<usize>, table: &DeTable<'_>) -> Option<FeedSettings> {
        let (mut address, mut local) = (None, false);
        let (mut fixed, mut min, mut max) = (None, None, None);
        for (key, value) in table {
            let (at, word) = (key.span(), format!("channel.feed.{}", key.get_ref()));
            let value = value.get_ref();
            let read = match canonical(key.get_ref()).as_str() {
                "url" => take(value, FeedAddress::parse, &mut address),
                "local" => boolean(value).map(|is| local = is),
                "interval" => take(value, values::interval, &mut fixed),
                "min_interval" => take(value, values::interval, &mut min),
                "max_interval" => take(value, values::interval, &mut max),
                _ => {
                    self.unknown(&at, &word, FEED_KEYS.into_iter(), "key of a feed");
                    Ok(())
                }
            };
            if let Err(why) = read {
                self.wrong(&at, &word, why);
            }
        }
        let url = table.keys().any(|key| canonical(key.get_ref()) == "url");
        if !url {
            self.wrong(
                at,
                "channel.feed",
                "its address is missing: url = \"https://…\"",
            );
        }
        if fixed.is_some() && (min.is_some() || max.is_some()) {
            let why = "interval is for feeds that are polled at fixed times: leave it out, or \
                       min_interval and max_interval";
            self.wrong(at, "channel.feed", why);
        }
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            self.wrong(
                at,
                "channel.feed",
                "min_interval is longer than max_interval",
            );
        }
        Some(FeedSettings {
            address: address?,
            local,
            min_interval: fixed.or(min),
            max_interval: fixed.or(max),
        })
    }
}

/// A text or a number as text.
fn plain<'a>(value: &'a DeValue<'_>) -> Option<Cow<'a, str>> {
    match value {
        DeValue::String(text) => Some(Cow::Borrowed(text)),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().into()),
        DeValue::Float(number) => Some(number.as_str().into()),
        _ => None,
    }
}

/// A text, or several with commas between.
fn list(value: &DeValue<'_>) -> Result<String, String> {
    let texts: Option<Vec<_>> = match value {
        DeValue::Array(parts) => parts.iter().map(Spanned::get_ref).map(plain).collect(),
        one => plain(one).map(|text| vec![text]),
    };
    match texts {
        Some(texts) => Ok(texts.join(",")),
        None => Err("write a text, or a list of texts".into()),
    }
}

fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| "write true or false, without quotes".into())
}

fn put<T>(read: Result<T, String>, to: &mut Option<T>) -> Result<(), String> {
    *to = Some(read?);
    Ok(())
}

fn take<T>(
    value: &DeValue<'_>,
    read: impl Fn(&str) -> Result<T, String>,
    to: &mut Option<T>,
) -> Result<(), String> {
    let text =
        plain(value).ok_or_else(|| format!("write a text or a number, not {}", kind(value)))?;
    put(read(&text), to)
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::Table(_) => "a table",
        DeValue::Array(_) => "a list",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        _ => "this",
    }
}
