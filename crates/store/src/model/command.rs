//! Commands of operators to the source.

use std::fmt;

use uuid::Uuid;

/// Something that the source is asked to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewCommand {
    /// Kind, a word such as `disconnect`; cut to 64 bytes.
    pub kind: String,
    /// Receiver concerned.
    pub receiver: Option<Uuid>,
    /// Channel concerned. The command is for the source with its lease; without one, for any
    /// source that has a lease.
    pub channel: Option<String>,
    /// Feed concerned.
    pub url: Option<String>,
    /// Whatever else there is to say; cut to 4 KiB.
    pub argument: Option<String>,
    /// Caller; cut to 255 bytes.
    pub asked_by: String,
}

impl NewCommand {
    /// Returns its name in the audit log.
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

    /// Returns its target in the audit log: the most particular of those named; empty if
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

/// State of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// No source has taken it yet.
    Queued,
    /// A source is at it.
    Taken,
    /// Done.
    Done,
    /// Failed.
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

    /// Returns the word in the database, and for people.
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

/// Command with its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its number.
    pub id: i64,
    /// Command as it was queued.
    pub asked: NewCommand,
    /// When it was asked, in Unix milliseconds.
    pub asked_ms: i64,
    /// When a source took it.
    pub taken_ms: Option<i64>,
    /// When it was done, or had failed.
    pub done_ms: Option<i64>,
    /// State.
    pub state: CommandState,
    /// Result, or the reason for the failure, in a sentence.
    pub result: Option<String>,
}
