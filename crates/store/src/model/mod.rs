//! The values that go into the store and come out of it.

mod channel;
mod enrolment;
mod feed;
mod lease;
mod update;

pub use channel::{Channel, ChannelRow, ChannelSettings, Origin, Retention};
pub use enrolment::{Applicant, NewToken, ReceiverRow, TokenRow, Verdict};
pub use feed::{FeedRow, FeedSettings, GapRecord, GapState, PollRecord, Validators};
pub use lease::{Holder, Lease, LeaseRow, Leased};
pub use update::{Draft, EncodeUpdate, Hash, Kind, StoredUpdate};
