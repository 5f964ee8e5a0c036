//! Records of an archive: one for each row, with the columns that it keeps.

use serde::{Deserialize, Serialize};

use super::Contents;
use crate::StoreError;
use crate::database::{Row, Session, Value};

/// Declares the records of tables. The fields are read from successive columns, and are the first
/// parameters of the statement that restores them. `[key]` is the row's number in the database that
/// was saved, read first and not restored.
macro_rules! records {
    ($($(#[$doc:meta])* $name:ident $([$key:ident])? {
        $($(#[$default:meta])* $field:ident: $type:ty,)+
    })+) => {
        /// One thing in an archive.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", deny_unknown_fields)]
        pub(super) enum Record {
            Head { made_ms: i64, program: String, contents: Contents },
            $($name($name),)+
            End { contents: Contents },
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub(super) struct $name {
                $(pub(super) $key: i64,)?
                $($(#[$default])* pub(super) $field: $type,)+
            }

            impl $name {
                /// Reads the columns from `first` on.
                pub(super) fn read(
                    session: &Session,
                    row: &Row,
                    first: usize,
                ) -> Result<Record, StoreError> {
                    let mut columns = first..;
                    let mut column = || columns.next().unwrap_or_default();
                    Ok(Record::$name(Self {
                        $($key: session.get(row, column())?,)?
                        $($field: session.get(row, column())?,)+
                    }))
                }

                /// Returns the parameters that restore it, and then `more`.
                pub(super) fn values<'a>(&'a self, more: &[Value<'a>]) -> Vec<Value<'a>> {
                    [&[$(Value::from(&self.$field)),+], more].concat()
                }
            }
        )+
    };
}

records! {
    Channel [key] {
        name: String,
        head: i64,
        created: i64,
        groups: Option<String>,
        rate_bps: Option<i64>,
        private: bool,
        keep_count: Option<i64>,
        keep_age: Option<i64>,
        origin: String,
        active: bool,
        // Not in backups of a version before it, nor is the next.
        #[serde(default)]
        packet_authentication: Option<String>,
        #[serde(default)]
        fec: Option<String>,
        deadline_ms: Option<i64>,
    }
    Feed [key] {
        channel: i64,
        url: String,
        etag: Option<String>,
        last_modified: Option<String>,
        last_poll: Option<i64>,
        state: Option<String>,
        detail: Option<String>,
        address: Option<String>,
        local: bool,
        min_interval: Option<i64>,
        max_interval: Option<i64>,
        title: Option<String>,
        origin: String,
        active: bool,
        moved_to: Option<String>,
        gone_at: Option<i64>,
        poll_interval: Option<i64>,
        #[serde(default)]
        paused: bool,
    }
    /// Its bytes are the hash.
    Entry {
        feed: i64,
        id: String,
        seq: i64,
    }
    /// Its bytes are the update as it is sent.
    Update {
        channel: i64,
        feed: i64,
        seq: i64,
        entry: String,
        kind: String,
        created: i64,
    }
    /// Its bytes are the payload.
    Publication {
        channel: i64,
        entry: String,
        created: i64,
    }
    /// Its bytes are the public key.
    SigningEra {
        channel: i64,
        first: i64,
        last: Option<i64>,
        incarnation: String,
    }
    /// Its bytes are the public key, and its endorsements.
    SigningKey {
        created: i64,
    }
    Gap {
        channel: i64,
        url: String,
        at: i64,
        state: String,
        detail: String,
        entries: i64,
        #[serde(default)]
        after: Option<i64>,
    }
    /// Its bytes are the hash.
    Token [key] {
        label: String,
        uses: i64,
        limit: Option<i64>,
        expires: Option<i64>,
        public: bool,
        channels: String,
        created: i64,
        revoked: Option<i64>,
    }
    /// Its bytes are the hash of the credential.
    Receiver {
        id: String,
        name: String,
        software: String,
        address: String,
        channels: String,
        token: Option<i64>,
        enrolled: i64,
        seen: i64,
        revoked: Option<i64>,
        #[serde(default)]
        label: Option<String>,
        #[serde(default = "no_names")]
        tags: String,
        #[serde(default)]
        held: bool,
    }
    User [key] {
        name: String,
        password: Option<String>,
        role: String,
        created: i64,
        disabled: Option<i64>,
        issuer: Option<String>,
        subject: Option<String>,
    }
    /// Its bytes are the hash.
    ApiToken {
        user: i64,
        name: String,
        scopes: String,
        created: i64,
        expires: Option<i64>,
        seen: Option<i64>,
        revoked: Option<i64>,
    }
    Audit {
        at: i64,
        actor: String,
        via: String,
        action: String,
        target: String,
        detail: String,
        outcome: String,
        address: String,
    }
}

/// An empty list, as it is stored.
fn no_names() -> String {
    "[]".to_owned()
}

impl Contents {
    pub(super) fn count(&mut self, record: &Record) {
        let count = match record {
            Record::Channel(_) => &mut self.channels,
            Record::Feed(_) => &mut self.feeds,
            Record::Entry(_) => &mut self.entries,
            Record::Update(_) => &mut self.updates,
            Record::Publication(_) => &mut self.publications,
            Record::SigningEra(_) => &mut self.signing_eras,
            Record::SigningKey(_) => &mut self.signing_keys,
            Record::Gap(_) => &mut self.gaps,
            Record::Token(_) => &mut self.tokens,
            Record::Receiver(_) => &mut self.receivers,
            Record::User(_) => &mut self.users,
            Record::ApiToken(_) => &mut self.api_tokens,
            Record::Audit(_) => &mut self.audit,
            Record::Head { .. } | Record::End { .. } => return,
        };
        *count += 1;
    }
}
