//! Entries of commands in the audit log, which the console writes, too.

use serde_json::{Value, json};
use store::{NewAudit, Store};
use tracing::warn;

use super::arguments::{Channel, Feed, Key, Receiver, Token};
use super::text::hidden;
use super::{CommandOutput, Failure};
use crate::clock::{millis, now_ms};
use crate::config::ChannelArguments;

/// Access path to the database, in the audit log.
const VIA: &str = "command line";

/// Audit entry of a command, in the words of the console's calls where these exist.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AuditEntry {
    action: &'static str,
    target: String,
    detail: Value,
}

impl AuditEntry {
    fn new(action: &'static str, target: impl Into<String>, detail: Value) -> Self {
        Self {
            action,
            target: target.into(),
            detail,
        }
    }

    /// Writes the entry with the command's result. A failure undoes nothing, and the answer is
    /// shown: a link that was never shown is useless.
    pub(super) async fn write(self, store: &Store, done: &Result<CommandOutput, Failure>) {
        let (outcome, target) = match done {
            Ok(answer) if answer.changes_nothing => return,
            Ok(answer) => ("ok".to_owned(), answer.target.clone()),
            Err(failure) => (failure.to_string(), None),
        };
        let audit = NewAudit {
            actor: service::environment::user(),
            via: VIA.to_owned(),
            action: self.action.to_owned(),
            target: target.unwrap_or(self.target),
            detail: self.detail.to_string(),
            outcome,
            address: String::new(),
        };
        if let Err(error) = store.audit_log().record(&audit).await {
            warn!(%error, "audit entry not written");
        }
    }
}

impl Token {
    /// Returns the audit entry; `None` for a command that only reads.
    pub(super) fn note(&self) -> Option<AuditEntry> {
        match self {
            Token::Create(new) => {
                let expires = new.expires.map(|later| later.from(now_ms()));
                let detail = json!({
                    "label": new.label,
                    "channels": new.channels,
                    "limit": new.limit,
                    "expires_ms": expires,
                    "public": new.public,
                });
                Some(AuditEntry::new("enrolment.create", "", detail))
            }
            Token::List => None,
            Token::Revoke { id } => Some(AuditEntry::new(
                "enrolment.revoke",
                id.to_string(),
                json!({}),
            )),
        }
    }
}

impl Channel {
    /// Returns the audit entry; `None` for a command that only reads.
    pub(super) fn note(&self) -> Option<AuditEntry> {
        let set = |settings: &ChannelArguments| {
            json!({
                "groups": settings.groups.as_ref().map(ToString::to_string),
                "rate_bps": settings.rate,
                "private": settings.private,
                "packet_authentication": settings.packet_authentication.map(|it| it.as_str()),
                "fec": settings.fec.as_ref().map(|it| it.as_str()),
                "deadline_ms": settings.deadline.map(|deadline| match deadline.millis() {
                    Some(millis) => Value::from(millis),
                    // Not to be taken for one that is not given.
                    None => Value::from("none"),
                }),
                "keep_updates": settings.keep.and_then(|keep| keep.count),
                "keep_ms": settings.keep.and_then(|keep| keep.age).map(millis),
            })
        };
        match self {
            Channel::Add { name, settings } => {
                Some(AuditEntry::new("channel.create", name, set(settings)))
            }
            Channel::List => None,
            Channel::Set { name, settings } => {
                Some(AuditEntry::new("channel.edit", name, set(settings)))
            }
            Channel::Remove { name, .. } => {
                Some(AuditEntry::new("channel.remove", name, json!({})))
            }
        }
    }
}

impl Feed {
    /// Returns the audit entry; `None` for a command that only reads.
    pub(super) fn note(&self) -> Option<AuditEntry> {
        match self {
            Feed::Add {
                to,
                url,
                settings,
                title,
            } => {
                let detail = json!({
                    "channel": to,
                    "title": title,
                    "local": settings.local,
                });
                Some(AuditEntry::new("feed.add", hidden(url), detail))
            }
            Feed::Remove { from, url } => {
                let detail = json!({"channel": from});
                Some(AuditEntry::new("feed.remove", hidden(url), detail))
            }
            Feed::Import {
                file,
                into,
                local,
                dry_run: false,
            } => {
                let detail = json!({"channel": into, "local": local});
                let target = file.display().to_string();
                Some(AuditEntry::new("feed.import", target, detail))
            }
            Feed::Import { .. } | Feed::List { .. } | Feed::Check { .. } | Feed::Export { .. } => {
                None
            }
        }
    }
}

impl Key {
    /// Returns the audit entry; `None` for a command that only reads.
    pub(super) fn note(&self) -> Option<AuditEntry> {
        match self {
            Key::Show => None,
            Key::Vouch => Some(AuditEntry::new("key.vouch", "", json!({}))),
            Key::Rotate { lost, .. } => {
                Some(AuditEntry::new("key.rotate", "", json!({"lost": lost})))
            }
        }
    }
}

impl Receiver {
    /// Returns the audit entry; `None` for a command that only reads.
    pub(super) fn note(&self) -> Option<AuditEntry> {
        let (who, forget) = match self {
            Receiver::List => return None,
            Receiver::Revoke { who } => (who, false),
            Receiver::Forget { who, .. } => (who, true),
        };
        let detail = json!({"forget": forget});
        Some(AuditEntry::new("receiver.remove", who, detail))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn passwords_are_not_noted() {
        for url in [
            "https://ann:secret@example.org/feed",
            "ann:secret@example.org",
            "https://ann:secret@",
        ] {
            let note = Feed::Remove {
                from: "lore".into(),
                url: url.into(),
            };
            let note = format!("{:?}", note.note().unwrap());
            assert!(!note.contains("secret"), "{note}");
        }
    }
}
