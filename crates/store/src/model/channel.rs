//! Channels and what is set about them.

use std::fmt;

use uuid::Uuid;

use super::{FecSetting, LeaseRow};

/// A channel as it was when asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its unique name.
    pub name: String,
    /// Made at random with the channel, and again by
    /// [`Channels::renew`](crate::Channels::renew); the seqs of one incarnation say
    /// nothing about another's.
    pub incarnation: Uuid,
    /// The last seq given out, 0 if none was.
    pub head: u64,
    /// The oldest seq still stored; `head + 1` if none is.
    pub first: u64,
    /// Whether it was made just now, by being asked for.
    pub is_new: bool,
}

/// Origin of a channel or a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The command line, the environment or the configuration file of the source: it goes when it
    /// is not given any more.
    #[default]
    Flags,
    /// A command such as `channel add` or `feed add`: it stays until a command removes it.
    Managed,
}

impl Origin {
    /// Returns the word in the database, and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flags => "flags",
            Self::Managed => "managed",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        [Self::Flags, Self::Managed]
            .into_iter()
            .find(|origin| origin.as_str() == word)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Retention of a channel's updates. With both limits the stricter one decides; without any,
/// everything is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// At most so many.
    pub count: Option<u64>,
    /// None that was stored longer ago than this.
    pub age_ms: Option<i64>,
}

/// Authentication of a channel's flow, its packets or its streams (protocol.md section 5.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthenticationType {
    /// None: updates are signed, packets are not.
    #[default]
    None,
    /// A signature behind each packet.
    Signature,
    /// A tag for each receiver.
    Tags,
    /// Tags for few receivers, signatures for more.
    Auto,
    /// A signature behind each update.
    Stream,
}

impl AuthenticationType {
    /// All types by their words, in the database and for people.
    pub const WORDS: &[(&str, Self)] = &[
        ("none", Self::None),
        ("signature", Self::Signature),
        ("tags", Self::Tags),
        ("auto", Self::Auto),
        ("stream", Self::Stream),
    ];

    /// Returns the word.
    pub fn as_str(self) -> &'static str {
        let mut words = Self::WORDS.iter();
        words
            .find(|(_, is)| *is == self)
            .map_or("", |(word, _)| word)
    }

    /// Returns the type of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        let mut words = Self::WORDS.iter();
        words.find(|(its, _)| *its == word).map(|(_, is)| *is)
    }
}

/// Settings of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelSettings {
    /// Its multicast groups, as the source's command line writes them.
    pub groups: Option<String>,
    /// The most that its flow sends, in bits per second.
    pub rate_bps: Option<u64>,
    /// Whether a newcomer must not be able to read what was sent before it joined.
    pub private: bool,
    /// Authentication of its flow's packets.
    pub packet_authentication: AuthenticationType,
    /// Erasure coding of its flow.
    pub fec: FecSetting,
    /// Time in ms after which an update expires; `None` for a log.
    pub deadline_ms: Option<u64>,
    /// Retention of its updates.
    pub keep: Retention,
    /// Origin.
    pub origin: Origin,
}

/// Makes the settings of a new channel from all others; nothing if there is to be none. See
/// [`Channels::add`](crate::Channels::add).
pub type ChooseSettings<'a> = dyn Fn(&[ChannelRow]) -> Option<ChannelSettings> + Send + Sync + 'a;

/// A channel with everything that is set about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelRow {
    /// The channel itself.
    pub channel: Channel,
    /// Settings.
    pub settings: ChannelSettings,
    /// Whether it is to be published.
    pub active: bool,
    /// When it was made.
    pub created_ms: i64,
    /// Current lease, if there is one.
    pub lease: Option<LeaseRow>,
    /// The [`Holder::id`](crate::Holder::id) of who has its lease, or had it last.
    pub last_holder: Option<Uuid>,
}
