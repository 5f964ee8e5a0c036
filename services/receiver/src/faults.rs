//! Faults that tests inject into the receiver.

use std::time::Duration;

use flexicast_tokio::receiver::Faults;
use service::faults::Fault;

use crate::deliver::Step;

/// The cursor before the journal: updates that a kill finds in between are lost.
pub const CURSOR_FIRST: &[Step] = &[
    Step::Cursor,
    Step::Pause,
    Step::Take,
    Step::Log,
    Step::Journal,
    Step::Announce,
];

/// The journal last: updates that a kill finds in between are in the files, and no reader of the
/// journal ever gets them.
pub const JOURNAL_LAST: &[Step] = &[
    Step::Take,
    Step::Log,
    Step::Output,
    Step::Cursor,
    Step::Pause,
    Step::Journal,
    Step::Announce,
];

/// The injected order of steps; `None` for the sound one.
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

/// The injected faults of the transport.
#[must_use]
pub fn of_transport() -> Faults {
    Faults {
        dedupe_off: Fault::DedupeOff.is_injected(),
        relay_failover_off: Fault::RelayFailoverOff.is_injected(),
        gateway: amt_tokio::Faults {
            source_check_off: Fault::RelayCheckOff.is_injected(),
            rebind_unnoticed: Fault::RebindUnnoticed.is_injected(),
        },
    }
}

/// Gives a kill the time to come at the wrong moment.
pub fn pause() {
    // On a thread for blocking work.
    #[allow(clippy::disallowed_methods)]
    std::thread::sleep(Duration::from_millis(400));
}
