//! Faults that tests inject into the receiver.

use std::time::Duration;

use flexicast_tokio::receiver::Faults;
use service::faults::Fault;

use crate::deliver::Step;

/// Cursor before the journal: a kill in between loses the updates.
pub const CURSOR_FIRST: &[Step] = &[
    Step::Cursor,
    Step::Pause,
    Step::Take,
    Step::Log,
    Step::Journal,
    Step::Announce,
];

/// Journal last: after a kill in between, the updates are in the files, but never reach readers of
/// the journal.
pub const JOURNAL_LAST: &[Step] = &[
    Step::Take,
    Step::Log,
    Step::Output,
    Step::Cursor,
    Step::Pause,
    Step::Journal,
    Step::Announce,
];

/// Returns the injected order of steps; `None` for the normal one.
#[must_use]
pub fn order() -> Option<&'static [Step]> {
    if Fault::CursorFirst.is_injected() {
        Some(CURSOR_FIRST)
    } else if Fault::JournalAfterCursor.is_injected() {
        Some(JOURNAL_LAST)
    } else {
        None
    }
}

/// Returns the injected faults of the transport.
#[must_use]
pub fn of_transport() -> Faults {
    Faults {
        dedupe_off: Fault::DedupeOff.is_injected(),
        signatures_off: Fault::LineageOff.is_injected(),
        hash_check_off: Fault::ChunkCheckOff.is_injected(),
        packet_check_off: Fault::PacketCheckOff.is_injected(),
        rebuilt_proves: Fault::RebuiltProves.is_injected(),
        message_check_off: Fault::MessageCheckOff.is_injected(),
        legs_unmerged: Fault::LegsUnmerged.is_injected(),
        expired_delivered: Fault::ExpiredDelivered.is_injected(),
        relay_failover_off: Fault::RelayFailoverOff.is_injected(),
        gateway: amt_tokio::Faults {
            source_check_off: Fault::RelayCheckOff.is_injected(),
            rebind_unnoticed: Fault::RebindUnnoticed.is_injected(),
        },
    }
}

/// Waits, so that a kill finds the wrong moment.
pub fn pause() {
    // Runs on a thread for blocking work.
    #[allow(clippy::disallowed_methods)]
    std::thread::sleep(Duration::from_millis(400));
}
