//! The sending end of a flow: packets out, acknowledgements of all members in, what to repair and who falls back out.
//!
//! [`FlowSender`] cuts updates into packets and paces them; [`ledger`] knows which packets somebody still owes an acknowledgement for; [`member`] holds what
//! is particular to one receiver: round-trip time, losses, and when it has been silent for too long.

mod epoch;
mod grants;
pub mod ledger;
pub mod member;
mod rekey;
mod sender;
mod transmit;

pub use epoch::{Epoch, SWITCH_WITHIN};
pub use sender::{
    AckError, Departure, FlowConfig, FlowEvent, FlowSender, FlowStats, INITIAL_WINDOW, MemberId,
};
