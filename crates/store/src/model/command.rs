//! What operators ask of the source.

use std::fmt;

use uuid::Uuid;

/// Something that the source is asked to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewCommand {
    /// What, in a word such as `disconnect`; cut to 64 bytes.
    pub kind: String,
    /// To which receiver.
    pub receiver: Option<Uuid>,
    /// In which channel. It is then for the source that has the channel's lease, otherwise for any
    /// source that has one.
    pub channel: Option<String>,
    /// To which feed.
    pub url: Option<String>,
    /// Whatever else there is to say; cut to 4 KiB.
    pub argument: Option<String>,
    /// Who asks; cut to 255 bytes.
    pub asked_by: String,
}

impl NewCommand {
    /// What the audit log calls it.
    #[must_use]
    pub fn action(&self) -> String {
        match self.kind.as_str() {
            "disconnect" => "receiver.disconnect".to_owned(),
            "rekey" => "channel.rekey".to_owned(),
            "refresh-feed" => "feed.refresh".to_owned(),
            "drain" => "source.drain".to_owned(),
            other => format!("command.{other}"),
        }
    }

    /// What it is done to, as the audit log says it: the most particular of what is named; empty if
    /// nothing is.
    #[must_use]
    pub fn target(&self) -> String {
        match (&self.receiver, &self.url, &self.channel) {
            (Some(receiver), _, _) => receiver.to_string(),
            (None, Some(url), _) => url.clone(),
            (None, None, Some(channel)) => channel.clone(),
            (None, None, None) => String::new(),
        }
    }
}

/// How far a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// No source has taken it yet.
    Queued,
    /// A source is at it.
    Taken,
    /// It is done.
    Done,
    /// It could not be done.
    Failed,
    /// No source took it in time, or the one that did never said what became of it.
    Expired,
}

impl CommandState {
    const ALL: [Self; 5] = [
        Self::Queued,
        Self::Taken,
        Self::Done,
        Self::Failed,
        Self::Expired,
    ];

    /// The word in the database, and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Taken => "taken",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Expired => "expired",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for CommandState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A command, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its number.
    pub id: i64,
    /// What is asked.
    pub asked: NewCommand,
    /// When it was asked, in Unix milliseconds.
    pub asked_ms: i64,
    /// When a source took it.
    pub taken_ms: Option<i64>,
    /// When it was done, or had failed.
    pub done_ms: Option<i64>,
    /// How far it is.
    pub state: CommandState,
    /// What came out, or why it failed, in a sentence.
    pub result: Option<String>,
}
