//! What makes a channel: its feed, its flow, and the one-line form of both.

use std::fmt;

use url::Url;

use super::groups::{Groups, groups};
use super::values;

/// More channels than this do not fit into an enrolment link, and a receiver takes no more.
pub(super) const MAX_CHANNELS: usize = 64;

/// What a further channel looks like.
const FORM: &str = "write NAME,feed=URL and then, separated by commas, what differs from the first \
                    channel: group=LIST, rate=RATE, private. For example: \
                    news,feed=https://example.org/feed.atom,group=232.70.70.9:4434,rate=5M";

/// A channel as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelSettings {
    /// Its name.
    pub name: String,
    /// Its feed.
    pub feed: FeedAddress,
    /// Where its flow can be had by multicast.
    pub groups: Groups,
    /// The flow's highest rate in bit/s.
    pub rate_bps: u64,
    /// Who joins cannot read what went before.
    pub private: bool,
}

/// A feed's address, in the form that is asked for and in the one that may be seen by everybody.
#[derive(Clone, PartialEq, Eq)]
pub struct FeedAddress {
    /// With a user name and password if it has them.
    pub secret: String,
    /// Without them: in logs, events and the database.
    pub shown: String,
}

impl fmt::Debug for FeedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl FeedAddress {
    /// Reads one. The text of an error does not repeat it: it may hold a password.
    pub(super) fn parse(given: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("the address of the feed cannot be used: {why}; write it as https://host/path")
        };
        let url = Url::parse(given).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong(&format!(
                "it begins with {}:, and only http and https feeds can be fetched",
                url.scheme()
            )));
        }
        let mut shown = url.clone();
        // These fail only for addresses without a host, and http(s) ones have one.
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
        shown.set_fragment(None);
        Ok(Self {
            secret: url.into(),
            shown: shown.into(),
        })
    }
}

/// Reads the `number`th further channel (from 1). Errors repeat its name at most.
pub(super) fn further(
    text: &str,
    number: usize,
    first: &ChannelSettings,
) -> Result<ChannelSettings, String> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default().trim();
    // A text without a name may begin with the feed's address, and so with a password.
    let name = values::channel(name).map_err(|error| format!("its name: {error}. {FORM}"))?;
    let wrong = |why: String| format!("channel {name:?}: {why}");
    let mut given = Given::default();
    // A part that begins no setting goes on with the one before: addresses and lists have commas.
    let mut settings: Vec<String> = Vec::new();
    for part in parts {
        let begins = SETTINGS.iter().any(|setting| part.starts_with(setting));
        match settings.last_mut() {
            Some(last) if !begins && part != PRIVATE => {
                last.push(',');
                last.push_str(part);
            }
            _ => settings.push(part.to_owned()),
        }
    }
    for setting in &settings {
        given.take(setting).map_err(&wrong)?;
    }
    let Some(feed) = given.feed else {
        return Err(wrong(format!("feed=URL is missing. {FORM}")));
    };
    let groups = match given.groups {
        Some(groups) => groups,
        None => {
            let number = u8::try_from(number).unwrap_or(u8::MAX);
            first
                .groups
                .following(number)
                .map_err(|why| wrong(format!("{why}: give it its own with group=LIST")))?
        }
    };
    Ok(ChannelSettings {
        feed,
        groups,
        rate_bps: given.rate_bps.unwrap_or(first.rate_bps),
        private: given.private,
        name,
    })
}

const FEED: &str = "feed=";
const GROUP: &str = "group=";
const RATE: &str = "rate=";
const PRIVATE: &str = "private";
const SETTINGS: [&str; 3] = [FEED, GROUP, RATE];

#[derive(Default)]
struct Given {
    feed: Option<FeedAddress>,
    groups: Option<Groups>,
    rate_bps: Option<u64>,
    private: bool,
}

impl Given {
    fn take(&mut self, setting: &str) -> Result<(), String> {
        let twice = |is: bool, name: &str| match is {
            true => Err(format!("{name} is given twice")),
            false => Ok(()),
        };
        if let Some(url) = setting.strip_prefix(FEED) {
            twice(self.feed.is_some(), FEED)?;
            self.feed = Some(FeedAddress::parse(url)?);
        } else if let Some(list) = setting.strip_prefix(GROUP) {
            twice(self.groups.is_some(), GROUP)?;
            self.groups = Some(groups(list)?);
        } else if let Some(rate) = setting.strip_prefix(RATE) {
            twice(self.rate_bps.is_some(), RATE)?;
            self.rate_bps = Some(values::rate(rate).map_err(|why| format!("{RATE}: {why}"))?);
        } else if setting == PRIVATE {
            self.private = true;
        } else {
            // What it is may be a part of an address.
            return Err(format!("what follows the name is no setting. {FORM}"));
        }
        Ok(())
    }
}

/// That no two channels are in each other's way.
pub(super) fn check(channels: &[ChannelSettings]) -> Result<(), String> {
    if channels.len() > MAX_CHANNELS {
        return Err(format!(
            "{} channels are more than the {MAX_CHANNELS} that receivers take from one source",
            channels.len()
        ));
    }
    for (at, channel) in channels.iter().enumerate() {
        let earlier = channels.get(..at).unwrap_or_default();
        if earlier.iter().any(|other| other.name == channel.name) {
            return Err(format!("there are two channels {:?}", channel.name));
        }
        for other in earlier {
            let groups = other.groups.all();
            let same = |group: &&std::net::SocketAddr| groups.contains(group);
            if let Some(group) = channel.groups.all().iter().find(same) {
                return Err(format!(
                    "the channels {:?} and {:?} both have the group {group}: who listens to one \
                     would get both; give one of them another with group=LIST",
                    other.name, channel.name
                ));
            }
        }
    }
    Ok(())
}
