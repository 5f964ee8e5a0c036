//! Users of the console: their browsers, their API tokens, and the audit log.

use std::fmt;

use super::Hash;

/// Role of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Look.
    Viewer,
    /// Look and act.
    Operator,
}

impl Role {
    /// Returns the word in the database, and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }

    /// The role of that word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator]
            .into_iter()
            .find(|role| role.as_str() == word)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// User to be added.
#[derive(Clone, PartialEq, Eq)]
pub struct NewUser {
    /// The name to sign in with: 1 to 255 bytes, unique.
    pub name: String,
    /// The argon2id hash of the password in PHC form; `None` for who signs in elsewhere.
    pub password: Option<String>,
    /// Role.
    pub role: Role,
    /// Identity at the provider that signs the user in instead.
    pub identity: Option<Identity>,
}

/// Identity of a user at another service that signs people in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The service; at most 1,024 bytes.
    pub issuer: String,
    /// Its name for them; at most 255 bytes.
    pub subject: String,
}

impl fmt::Debug for NewUser {
    /// Without the password's hash: it does not belong into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewUser")
            .field("name", &self.name)
            .field("role", &self.role)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// User of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRow {
    /// Their number.
    pub id: i64,
    /// The name to sign in with.
    pub name: String,
    /// Role.
    pub role: Role,
    /// When they were added, in Unix milliseconds.
    pub created_ms: i64,
    /// Since when they are not let in any more.
    pub disabled_ms: Option<i64>,
    /// Identity at the provider that signs the user in instead.
    pub identity: Option<Identity>,
}

/// Changes to a user; `None` leaves a value as it is.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UserEdit {
    /// The argon2id hash of a new password. Their browsers are signed out.
    pub password: Option<String>,
    /// Role.
    pub role: Option<Role>,
    /// Whether they are kept out. Their browsers are signed out.
    pub disabled: Option<bool>,
}

/// Outcome of a change to the users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserChange {
    /// Done.
    Done(UserRow),
    /// There is no user of that number.
    Unknown,
    /// There is a user of that name, or of that identity, already.
    Taken,
    /// No enabled operator would be left.
    LastOperator,
}

/// Outcome of the first operator's setup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setup {
    /// The operator was added.
    Done(UserRow),
    /// The link is wrong, or not the last one made.
    WrongLink,
    /// There is a user already.
    Closed,
}

/// A browser that signed in.
#[derive(Clone, PartialEq, Eq)]
pub struct NewWebSession {
    /// The SHA-256 hash of its cookie.
    pub hash: Hash,
    /// User.
    pub user_id: i64,
    /// The stored hash that the password was compared with.
    pub password: String,
    /// CSRF token of its requests.
    pub csrf: Vec<u8>,
    /// For how many milliseconds it is good, however busy it is.
    pub ttl_ms: i64,
    /// Address it connects from; cut to 255 bytes.
    pub address: String,
    /// User agent; cut to 255 bytes.
    pub agent: String,
}

impl fmt::Debug for NewWebSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewWebSession")
            .field("user_id", &self.user_id)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A browser that is signed in.
#[derive(Clone, PartialEq, Eq)]
pub struct WebSession {
    /// The SHA-256 hash of its cookie.
    pub hash: Hash,
    /// User.
    pub user: UserRow,
    /// CSRF token of its requests.
    pub csrf: Vec<u8>,
    /// When it signed in, in Unix milliseconds.
    pub created_ms: i64,
    /// When it asked for something last, to within a minute.
    pub seen_ms: i64,
    /// When it has to sign in again, however busy it is.
    pub expires_ms: i64,
    /// Address it signed in from.
    pub address: String,
    /// User agent.
    pub agent: String,
}

impl fmt::Debug for WebSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSession")
            .field("user", &self.user)
            .field("created_ms", &self.created_ms)
            .field("seen_ms", &self.seen_ms)
            .field("expires_ms", &self.expires_ms)
            .field("address", &self.address)
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}

/// A program that is to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewApiToken {
    /// The SHA-256 hash of its token; the token itself is nowhere in the store.
    pub hash: Hash,
    /// Display name; cut to 400 bytes.
    pub name: String,
    /// User; the token may do no more than its user.
    pub user_id: i64,
    /// Scopes; at most 32, cut to 64 bytes each.
    pub scopes: Vec<String>,
    /// Until when, in Unix milliseconds.
    pub expires_ms: Option<i64>,
}

/// A program that is let in, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiTokenRow {
    /// Its number.
    pub id: i64,
    /// Display name.
    pub name: String,
    /// User.
    pub user: UserRow,
    /// Scopes.
    pub scopes: Vec<String>,
    /// When it was made, in Unix milliseconds.
    pub created_ms: i64,
    /// Until when it is good.
    pub expires_ms: Option<i64>,
    /// When it was used last, to within a minute.
    pub seen_ms: Option<i64>,
    /// Since when it is not let in any more.
    pub revoked_ms: Option<i64>,
}

/// Entry for the audit log: an action, or the attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewAudit {
    /// Actor; cut to 255 bytes.
    pub actor: String,
    /// By what way, such as `session`, `token` or `command line`; cut to 64 bytes.
    pub via: String,
    /// Action, a word such as `receiver.disconnect`; cut to 64 bytes.
    pub action: String,
    /// To what; cut to 2,048 bytes.
    pub target: String,
    /// More about it, as JSON; longer than 8 KiB is stored as `{}`.
    pub detail: String,
    /// Outcome: `ok`, or the reason for the failure; cut to 255 bytes.
    pub outcome: String,
    /// Where they connected from; cut to 255 bytes.
    pub address: String,
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// Its number, which grows.
    pub id: i64,
    /// When, in Unix milliseconds, by the clock of the database.
    pub at_ms: i64,
    /// Entry.
    pub done: NewAudit,
}

/// Which lines of the audit log are asked for. Everything that is given has to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Of this actor.
    pub actor: Option<String>,
    /// Of this action.
    pub action: Option<String>,
    /// With a smaller id.
    pub before: Option<i64>,
    /// At most so many; 10,000 at the most.
    pub limit: usize,
}
