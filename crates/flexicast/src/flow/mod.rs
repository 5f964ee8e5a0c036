//! The sending end of a flow: packets out, acknowledgements of all members in; repairs and
//! fall-backs out.
//!
//! [`FlowSender`] cuts updates into packets and paces them. It is composed of parts with a state
//! each: [`ledger`] tracks packets that some member still owes an acknowledgement for; [`member`]
//! is the state of one receiver: round-trip time, losses, and silence; `shared_repairs` sends again
//! what many of them miss; `pmtu` finds the packet size that all of them take; the queue, the
//! window, the key epochs, the PINGs and the checks of members are the others.

mod checks;
mod epoch;
mod expiry;
mod fec;
mod grants;
mod lag;
pub mod ledger;
pub mod member;
mod pacer;
mod pings;
mod pmtu;
mod queue;
mod rekey;
mod reordering;
mod sender;
mod shared_repairs;
mod tail;
mod transmit;
mod verdicts;
mod windows;

pub use epoch::{Epoch, SWITCH_WITHIN};
pub use grants::INITIAL_WINDOW;
pub use pacer::{BreakerState, FlowRate, RateControl};
pub use pmtu::PacketSize;
pub use sender::{AckError, Departure, FlowConfig, FlowEvent, FlowSender, FlowStats, MemberId};
