//! The values that go into the store and come out of it.

mod account;
mod channel;
mod command;
mod enrolment;
mod fec;
mod feed;
mod lease;
mod message;
mod publication;
mod record;
mod signing_era;
mod signing_key;
mod update;

pub use account::{
    ApiTokenRow, AuditFilter, AuditRow, Identity, NewApiToken, NewAudit, NewUser, NewWebSession,
    Role, Setup, UserChange, UserEdit, UserRow, WebSession,
};
pub use channel::{
    AuthenticationType, Channel, ChannelRow, ChannelSettings, ChooseSettings, Origin, Retention,
};
pub use command::{Command, CommandState, NewCommand};
pub use enrolment::{Applicant, NewToken, ReceiverRow, TokenRow, Verdict};
pub use fec::{FecSetting, FecSettingError};
pub use feed::{FeedEdit, FeedRow, FeedSettings, GapRecord, GapState, PollRecord, Validators};
pub use lease::{Holder, Lease, LeaseOutcome, LeaseRow};
pub use message::{MessageReceipt, StoredMessage};
pub use publication::{NewPublication, StoredPublication};
pub use record::{
    Batch, Changes, FeedEvent, FeedHour, Fence, ForgeryRow, MoveFilter, MoveRow, OverloadRow,
    ProgressRow, PulseRow, ReceiverCounts, ReceiverEdit, RelayRow, SampleRow, SentBytes,
    SessionRow, SourceInfo, Stamp, StateRow, UpdateItem,
};
pub use signing_era::SigningEra;
pub use signing_key::{ENDORSEMENT_LEN, KeyStanding, SigningKeyRow};
pub use update::{Draft, EncodeUpdate, Hash, Kind, StoredUpdate};
