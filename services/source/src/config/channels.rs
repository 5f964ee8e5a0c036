//! Settings of a channel: its feed, its flow, and the one-line form of both.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use service::settings::{Section, Taker};
use service::values::switch;
use url::Url;

use super::groups::{Groups, groups};
use super::{Keep, values};

/// More channels than this do not fit into an enrolment link, and a receiver takes no more.
pub const MAX_CHANNELS: usize = 64;

/// Form of a further channel.
const FORM: &str = "write NAME,feed=URL and then, separated by commas, what differs from the first \
                    channel: group=LIST, rate=RATE, private. For example: \
                    news,feed=https://example.org/feed.atom,group=232.70.70.9:4434,rate=5M";

/// A channel as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelSettings {
    /// Its name.
    pub name: String,
    /// Its feeds; perhaps none yet.
    pub feeds: Vec<FeedSettings>,
    /// Multicast groups of its flow.
    pub groups: Groups,
    /// The flow's highest rate in bit/s.
    pub rate_bps: u64,
    /// Whether new members are kept from reading earlier updates of the flow.
    pub private: bool,
    /// Retention.
    pub keep: Keep,
}

/// A feed as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedSettings {
    /// Address.
    pub address: FeedAddress,
    /// Whether it may lead to a private network.
    pub local: bool,
    /// Polled no more often than this; `None` for what holds for all.
    pub min_interval: Option<Duration>,
    /// Polled at least this often; `None` for what holds for all.
    pub max_interval: Option<Duration>,
}

impl From<FeedAddress> for FeedSettings {
    fn from(address: FeedAddress) -> Self {
        Self {
            address,
            local: false,
            min_interval: None,
            max_interval: None,
        }
    }
}

/// Returns the channel of a `[[channel]]` table, the `number`th channel, counted from 0, which is
/// like the first where it says nothing; `None` after noting a problem.
pub(super) fn of_table(
    taker: &mut Taker<'_>,
    table: &Section,
    number: usize,
    first: &ChannelSettings,
) -> Option<ChannelSettings> {
    taker.require(table, "name");
    let name = taker.key(table, "name", values::channel);
    let own = taker.key(table, "groups", groups);
    let rate_bps = taker.key(table, "rate", values::rate);
    let private = taker.key(table, "private", switch);
    let keep = taker.key(table, "keep", values::keep);
    let feeds = table.sections("feed").iter();
    let feeds: Vec<_> = feeds.filter_map(|feed| feed_of(taker, feed)).collect();
    let name = name?;
    let mut seen = HashSet::new();
    if let Some(twice) = feeds.iter().find(|feed| !seen.insert(&feed.address.shown)) {
        let url = twice.address.redacted();
        let what = format!("channel {name:?} has the feed {url} twice");
        taker.wrong(&table.origin, &what);
    }
    let next = || first.groups.following(count(number));
    let groups = own
        .map_or_else(next, Ok)
        .map_err(|why| format!("channel {name:?}: {why}: give it its own with groups"));
    Some(ChannelSettings {
        groups: taker.take(&table.origin, groups)?,
        rate_bps: rate_bps.unwrap_or(first.rate_bps),
        private: private.unwrap_or(false),
        keep: keep.unwrap_or(first.keep),
        feeds,
        name,
    })
}

/// Returns the feed of a `[[channel.feed]]` table.
fn feed_of(taker: &mut Taker<'_>, table: &Section) -> Option<FeedSettings> {
    taker.require(table, "url");
    let address = taker.key(table, "url", FeedAddress::parse);
    let local = taker.key(table, "local", switch);
    let [fixed, min, max] = ["interval", "min_interval", "max_interval"]
        .map(|key| taker.key(table, key, values::interval));
    if fixed.is_some() && (min.is_some() || max.is_some()) {
        taker.wrong(
            &table.origin,
            "interval is for feeds that are polled at fixed times: leave it out, or min_interval \
             and max_interval",
        );
    }
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        taker.wrong(&table.origin, "min_interval is longer than max_interval");
    }
    Some(FeedSettings {
        address: address?,
        local: local.unwrap_or(false),
        min_interval: fixed.or(min),
        max_interval: fixed.or(max),
    })
}

/// The number of a channel; beyond this there are no groups in any case.
fn count(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// A feed's address, in the form that is asked for and in the one that may be seen by everybody.
#[derive(Clone, PartialEq, Eq)]
pub struct FeedAddress {
    /// With a user name and password if it has them.
    pub secret: String,
    /// Without them: what names the feed in logs, events and the database, and for receivers.
    pub shown: String,
}

/// The address of a feed without the values of its query, which may be keys.
pub fn redacted(url: &str) -> String {
    // One that cannot be read does not come from a feed.
    Url::parse(url).map_or_else(|_| "***".to_owned(), |url| feed::fetch::redacted(&url))
}

impl fmt::Debug for FeedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

impl FeedAddress {
    /// For `config check` and logs of the settings, which people pass on.
    pub fn redacted(&self) -> String {
        redacted(&self.shown)
    }

    /// Reads one.
    ///
    /// # Errors
    /// The text is no address of a feed. The error does not repeat it: it may hold a password.
    pub fn parse(given: &str) -> Result<Self, String> {
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

/// Reads the `number`th channel, counted from 0, which is like the first where it says nothing.
/// Errors repeat its name at most.
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
        None => first
            .groups
            .following(count(number))
            .map_err(|why| wrong(format!("{why}: give it its own with group=LIST")))?,
    };
    Ok(ChannelSettings {
        feeds: vec![feed.into()],
        groups,
        rate_bps: given.rate_bps.unwrap_or(first.rate_bps),
        private: given.private,
        keep: first.keep,
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

/// Checks that no two channels conflict.
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
                    "the channels {:?} and {:?} both have the group {group}: a listener of one \
                     would get both; give one of them another with group=LIST or groups = \"LIST\"",
                    other.name, channel.name
                ));
            }
        }
    }
    Ok(())
}
