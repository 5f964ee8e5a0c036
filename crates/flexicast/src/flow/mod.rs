//! The sending end of a flow: packets out, acknowledgements of all members in; repairs and
//! fall-backs out.
//!
//! [`FlowSender`] cuts updates into packets and paces them; [`ledger`] tracks packets that some
//! member still owes an acknowledgement for; [`member`] is the state of one receiver: round-trip
//! time, losses, and silence.

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
