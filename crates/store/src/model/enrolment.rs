//! Tokens that admit receivers, and the receivers that were admitted.

use uuid::Uuid;

use super::Hash;

/// An enrolment token that is to be valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// The SHA-256 hash of the token; the token itself is nowhere in the store.
    pub hash: Hash,
    /// Display name.
    pub label: String,
    /// Maximum number of receivers; `None` for any.
    pub limit: Option<u32>,
    /// Expiry.
    pub expires_ms: Option<i64>,
    /// Whether it is public: then it has no limit.
    pub public: bool,
    /// The channels that it admits to; empty for all.
    pub channels: Vec<String>,
}

/// A token as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Its number, by which it is revoked.
    pub id: i64,
    /// Display name.
    pub label: String,
    /// Number of receivers admitted.
    pub uses: u32,
    /// Maximum number of receivers; `None` for any.
    pub limit: Option<u32>,
    /// Expiry.
    pub expires_ms: Option<i64>,
    /// Whether it is public.
    pub public: bool,
    /// The channels that it admits to; empty for all.
    pub channels: Vec<String>,
    /// When it was made.
    pub created_ms: i64,
    /// Time of its revocation.
    pub revoked_ms: Option<i64>,
}

/// A receiver that asks to be admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applicant<'a> {
    /// The SHA-256 hash of the token that it shows, if it shows one.
    pub token: Option<Hash>,
    /// Claimed id.
    pub receiver: Uuid,
    /// The SHA-256 hash of the credential that it made for itself.
    pub credential: Hash,
    /// Display name; cut to 255 bytes.
    pub name: &'a str,
    /// Its program and version; cut to 255 bytes.
    pub software: &'a str,
    /// Address it connects from; cut to 255 bytes.
    pub address: &'a str,
    /// The channels that it asks for.
    pub channels: &'a [String],
}

/// Whether a receiver is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Admitted.
    Admitted {
        /// Whether a use of its token was counted: it was not known before.
        enrolled: bool,
    },
    /// An unknown receiver with no token, or with an unknown one.
    UnknownToken,
    /// Its token is too old.
    Expired,
    /// Its token has admitted as many as it may.
    Spent,
    /// Its token was revoked.
    TokenRevoked,
    /// The token does not admit to this requested channel.
    Channel(String),
    /// The receiver itself was revoked.
    Revoked,
    /// The id is known with another credential.
    InUse,
}

/// A receiver that was admitted, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverRow {
    /// Id.
    pub id: Uuid,
    /// Display name.
    pub name: String,
    /// Its program and version.
    pub software: String,
    /// Address of its last connection.
    pub address: String,
    /// The token that admitted it.
    pub token_id: Option<i64>,
    /// When it was admitted first.
    pub enrolled_ms: i64,
    /// When it was admitted last, to within a minute.
    pub seen_ms: i64,
    /// Time of its revocation.
    pub revoked_ms: Option<i64>,
    /// The channels that it asked for last.
    pub channels: Vec<String>,
    /// Label, if operators gave one.
    pub label: Option<String>,
    /// Tags that operators gave.
    pub tags: Vec<String>,
    /// Whether it is to stay on its unicast path.
    pub held: bool,
}
