//! Channels and feeds: of the file, of one line, and as commands take them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use service::link::{MAX_CHANNELS, channel};
use service::settings::table;
use service::values::one_of;
use store::{AuthenticationType, FecSetting};
use url::Url;

use super::groups::{Groups, groups};
use super::values::Deadline;
use super::{Keep, values};

/// Form of a further channel.
const FORM: &str = "write NAME,feed=URL and then, separated by commas, what differs from the first \
                    channel: group=LIST, rate=RATE, private, packet-authentication=TYPE, \
                    fec=FEC, deadline=TIME. For example: \
                    news,feed=https://example.org/feed.atom,group=232.70.70.9:4434,rate=5M";

const OWN_GROUPS: &str = "give it its own with group=LIST or groups = \"LIST\"";

/// A channel with its settings.
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
    /// Authentication of the flow's packets.
    pub packet_authentication: AuthenticationType,
    /// Erasure coding of the flow.
    pub fec: FecSetting,
    /// Deadline of its updates.
    pub deadline: Deadline,
    /// Retention.
    pub keep: Keep,
}

/// The keys of `[[channel]]`.
#[derive(Debug, Clone, Args)]
pub struct ChannelTable {
    /// Name
    #[arg(long, value_parser = channel)]
    name: String,
    #[command(flatten)]
    settings: ChannelArguments,
    /// Feeds
    #[arg(long, value_parser = table::<FeedSettings>)]
    feed: Vec<FeedSettings>,
}

/// Settings of a channel, in the file and of commands.
#[derive(Debug, Clone, Default, Args)]
pub struct ChannelArguments {
    /// Multicast groups, as those of --group; '' for no multicast [default: the next free ones]
    #[arg(long, value_name = "LIST", value_parser = groups)]
    pub groups: Option<Groups>,
    /// Highest rate of the flow in bit/s: 500k, 10M, 1G [default: the source's --rate]
    #[arg(id = "flow-rate", long = "rate", value_name = "RATE", value_parser = values::rate)]
    pub rate: Option<u64>,
    /// Rotate the key at each join, so that new members cannot decrypt earlier packets
    #[arg(id = "is-private", long = "private", value_name = "true|false", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true")]
    pub private: Option<bool>,
    /// Prove for each packet of the flow that the source sent it: by a signature, by tags for each
    /// receiver, or by auto: tags for up to 30 receivers, signatures for more. Or sign each update
    /// of the flow alone: stream [default: none]
    #[arg(long, value_name = "TYPE", value_parser = one_of(AuthenticationType::WORDS))]
    pub packet_authentication: Option<AuthenticationType>,
    /// Send repair packets on the flow, from which receivers rebuild lost ones: adaptive, tail,
    /// reactive or proactive:SYMBOLS/PACKETS, each by the code rlc, or with ,reed-solomon or ,xor
    /// behind it, and on the flow, or with ,unicast at the end on each receiver's own connection;
    /// or off [default: adaptive]
    #[arg(long, value_name = "FEC", value_parser = str::parse::<FecSetting>)]
    pub fec: Option<FecSetting>,
    /// Time after which an update expires: 500ms, 10s. It is neither sent nor delivered later
    /// (a live channel); none for a log, whose updates all arrive [default: none]
    #[arg(long, value_name = "TIME", value_parser = values::deadline)]
    pub deadline: Option<Deadline>,
    /// Updates to keep: a number, an age, or both: 100000, 30d, 100000,30d; or all, or default for
    /// the source's --retention and --retention-age
    #[arg(long, value_name = "LIST", value_parser = values::keep)]
    pub keep: Option<Keep>,
}

/// A feed with its settings: the keys of `[[channel.feed]]`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct FeedSettings {
    /// Address
    #[arg(long = "url", hide_env_values = true, value_parser = FeedAddress::parse)]
    pub address: FeedAddress,
    /// Its polls.
    #[command(flatten)]
    pub polls: FeedArguments,
}

/// Settings of a feed, in the file and of commands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct FeedArguments {
    /// Allow an address in a private network
    #[arg(long)]
    pub local: bool,
    /// Fixed time between two polls: 20, 500ms, 5m
    #[arg(long, value_name = "TIME", value_parser = values::interval)]
    #[arg(conflicts_with_all = ["min_interval", "max_interval"])]
    interval: Option<Duration>,
    /// Shortest time between two polls [default: the source's --min-poll-interval]
    #[arg(long, value_name = "TIME", value_parser = values::interval)]
    min_interval: Option<Duration>,
    /// Longest time between two polls [default: the source's --max-poll-interval]
    #[arg(long, value_name = "TIME", value_parser = values::interval)]
    max_interval: Option<Duration>,
}

impl FeedArguments {
    /// Returns the shortest and the longest time between two polls; `None` for the source's.
    ///
    /// # Errors
    /// The shortest is longer than the longest.
    pub fn bounds(&self) -> Result<(Option<Duration>, Option<Duration>), String> {
        let fixed = self.interval;
        let (min, max) = (fixed.or(self.min_interval), fixed.or(self.max_interval));
        match min.zip(max) {
            Some((min, max)) if min > max => Err("min-interval is longer than max-interval".into()),
            _ => Ok((min, max)),
        }
    }
}

impl ChannelTable {
    /// Returns the channel, the `number`th, counted from 0, which is like the first where nothing
    /// else is given.
    pub(super) fn channel(
        &self,
        number: usize,
        first: &ChannelSettings,
    ) -> Result<ChannelSettings, String> {
        let (name, settings) = (&self.name, &self.settings);
        for (at, feed) in self.feed.iter().enumerate() {
            let (address, url) = (&feed.address, feed.address.redacted());
            let mut earlier = self.feed.iter().take(at);
            if earlier.any(|other| other.address.shown == address.shown) {
                return Err(format!("channel {name:?} has the feed {url} twice"));
            }
            let bounds = feed.polls.bounds();
            bounds.map_err(|what| format!("channel {name:?}, feed {url}: {what}"))?;
        }
        // Beyond this there are no groups in any case.
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        let own = settings.groups.clone();
        let groups = own.map_or_else(|| first.groups.following(number), Ok);
        let wrong = |why| format!("channel {name:?}: {why}: {OWN_GROUPS}");
        Ok(ChannelSettings {
            groups: groups.map_err(wrong)?,
            rate_bps: settings.rate.unwrap_or(first.rate_bps),
            private: settings.private == Some(true),
            packet_authentication: settings.packet_authentication.unwrap_or_default(),
            fec: settings.fec.clone().unwrap_or_default(),
            deadline: settings.deadline.unwrap_or_default(),
            keep: settings.keep.unwrap_or(first.keep),
            feeds: self.feed.clone(),
            name: name.clone(),
        })
    }
}

/// Parses a channel of one line. Errors repeat its name at most.
pub(super) fn spec(text: &str) -> Result<ChannelTable, String> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default().trim();
    // A text without a name may begin with the feed's address, and so with a password.
    let name = if name.contains([':', '=']) { "" } else { name };
    let name = channel(name).map_err(|error| format!("its name: {error}. {FORM}"))?;
    let wrong = |why: &str| format!("channel {name:?}: {why}. {FORM}");
    let mut words = vec![format!("--name={name}")];
    for part in parts {
        match (part.split_once('='), words.as_mut_slice()) {
            (Some(("feed" | "rate" | "packet-authentication" | "fec" | "deadline", _)), _) => {
                words.push(format!("--{part}"))
            }
            (Some(("group", groups)), _) => words.push(format!("--groups={groups}")),
            (None, _) if part == "private" => words.push("--private".to_owned()),
            // Addresses, lists and codes have commas.
            (_, [_, .., last]) => last.extend([",", part]),
            // The part may be of an address.
            _ => return Err(wrong("what follows the name is no setting")),
        }
    }
    let channel: Result<ChannelTable, _> = table(&json!(words).to_string());
    match channel.as_ref().map(|channel| channel.feed.len()) {
        Ok(0) => Err(wrong("feed=URL is missing")),
        Ok(2..) => Err(wrong("feed= is given twice")),
        _ => channel.map_err(|what| wrong(&what)),
    }
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

    /// Parses one.
    ///
    /// # Errors
    /// The text is no address of a feed. The error does not repeat it: it may hold a password.
    pub fn parse(given: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("the address of the feed cannot be used: {why}; write it as https://host/path")
        };
        let mut url = Url::parse(given).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("only http and https feeds can be fetched"));
        }
        url.set_fragment(None);
        let shown = feed::fetch::without_credentials(&url);
        let secret = url.into();
        Ok(Self { secret, shown })
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
    let (mut names, mut owners) = (BTreeSet::new(), BTreeMap::new());
    for ChannelSettings { name, groups, .. } in channels {
        if !names.insert(name) {
            return Err(format!("there are two channels {name:?}"));
        }
        for group in groups.all() {
            if let Some(other) = owners.insert(group, name) {
                return Err(format!(
                    "the channels {other:?} and {name:?} both have the group {group}: a listener \
                     of one would get both: {OWN_GROUPS}"
                ));
            }
        }
    }
    Ok(())
}
