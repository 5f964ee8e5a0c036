//! Tokens that admit receivers, and the receivers that were admitted.

use uuid::Uuid;

use super::Hash;

/// An enrolment token that is to be valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// The SHA-256 hash of the token; the token itself is nowhere in the store.
    pub hash: Hash,
    /// What people know it by.
    pub label: String,
    /// How many receivers it admits; `None` for any number.
    pub limit: Option<u32>,
    /// Until when it admits somebody.
    pub expires_ms: Option<i64>,
    /// Whether everybody may know it: then it has no limit.
    pub public: bool,
    /// The channels that it admits to; empty for all.
    pub channels: Vec<String>,
}

/// A token as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Its number, by which it is revoked.
    pub id: i64,
    /// What people know it by.
    pub label: String,
    /// How many receivers it has admitted.
    pub uses: u32,
    /// How many it admits; `None` for any number.
    pub limit: Option<u32>,
    /// Until when it admits somebody.
    pub expires_ms: Option<i64>,
    /// Whether everybody may know it.
    pub public: bool,
    /// The channels that it admits to; empty for all.
    pub channels: Vec<String>,
    /// When it was made.
    pub created_ms: i64,
    /// Since when it admits nobody any more.
    pub revoked_ms: Option<i64>,
}

/// A receiver that asks to be admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applicant<'a> {
    /// The SHA-256 hash of the token that it shows, if it shows one.
    pub token: Option<Hash>,
    /// Who it says it is.
    pub receiver: Uuid,
    /// The SHA-256 hash of the credential that it made for itself.
    pub credential: Hash,
    /// What people know it by; cut to 255 bytes.
    pub name: &'a str,
    /// Its program and version; cut to 255 bytes.
    pub software: &'a str,
    /// Where it connects from; cut to 255 bytes.
    pub address: &'a str,
    /// The channels that it asks for.
    pub channels: &'a [String],
}

/// Whether a receiver is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Admitted {
        /// Whether a use of its token was counted: it was not known before.
        enrolled: bool,
    },
    /// It is not known, and shows no token or one that never was.
    UnknownToken,
    /// Its token is too old.
    Expired,
    /// Its token has admitted as many as it may.
    Spent,
    /// Its token was revoked.
    TokenRevoked,
    /// It asks for this channel, to which its token does not admit.
    Channel(String),
    /// The receiver itself was revoked.
    Revoked,
    /// The id is known with another credential.
    InUse,
}

/// A receiver that was admitted, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverRow {
    /// Who it is.
    pub id: Uuid,
    /// What people know it by.
    pub name: String,
    /// Its program and version.
    pub software: String,
    /// Where it connected from last.
    pub address: String,
    /// The token that admitted it.
    pub token_id: Option<i64>,
    /// When it was admitted first.
    pub enrolled_ms: i64,
    /// When it was admitted last, to within a minute.
    pub seen_ms: i64,
    /// Since when it is not admitted any more.
    pub revoked_ms: Option<i64>,
    /// The channels that it asked for last.
    pub channels: Vec<String>,
    /// What operators call it, if they call it anything.
    pub label: Option<String>,
    /// What operators file it under.
    pub tags: Vec<String>,
    /// Whether it is to stay on its unicast path.
    pub held: bool,
}
