//! Rights of callers.

use serde::{Deserialize, Serialize};
use store::Role;
use utoipa::ToSchema;

/// Scope of an API token, bounded by its owner's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Read everything but users, tokens and the audit log.
    Read,
    /// Name, tag, hold, disconnect and remove receivers.
    Receivers,
    /// Add, change, pause, refresh, test and remove feeds.
    Feeds,
    /// Create channels, and have them rekeyed.
    Channels,
    /// Publish entries, and send messages to the receivers of live channels.
    Publish,
    /// See, make and revoke enrolment links.
    Enrolments,
    /// Drain the source.
    Source,
    /// See and change people, tokens and the audit log.
    Admin,
    /// All of the above but `admin`.
    Operate,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 9] = [
        Scope::Read,
        Scope::Receivers,
        Scope::Feeds,
        Scope::Channels,
        Scope::Publish,
        Scope::Enrolments,
        Scope::Source,
        Scope::Admin,
        Scope::Operate,
    ];

    /// The word in the database and in the API.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Receivers => "receivers",
            Scope::Feeds => "feeds",
            Scope::Channels => "channels",
            Scope::Publish => "publish",
            Scope::Enrolments => "enrolments",
            Scope::Source => "source",
            Scope::Admin => "admin",
            Scope::Operate => "operate",
        }
    }

    /// The scope of that word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.word() == word)
    }

    /// Whether it holds another one.
    #[must_use]
    pub fn covers(self, other: Scope) -> bool {
        self == other || (self == Scope::Operate && other != Scope::Admin)
    }
}

/// Whether a role may do what a scope names.
#[must_use]
pub fn role_may(role: Role, scope: Scope) -> bool {
    match role {
        Role::Operator => true,
        Role::Viewer => scope == Scope::Read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_parse_and_print() {
        for scope in Scope::ALL {
            assert_eq!(Scope::of_word(scope.word()), Some(scope));
            assert!(role_may(Role::Operator, scope));
            assert_eq!(role_may(Role::Viewer, scope), scope == Scope::Read);
            assert!(scope.covers(scope));
        }
        assert!(Scope::Operate.covers(Scope::Read) && Scope::Operate.covers(Scope::Source));
        assert!(!Scope::Operate.covers(Scope::Admin));
        assert!(!Scope::Admin.covers(Scope::Feeds));
        assert_eq!(Scope::of_word("root"), None);
    }
}
