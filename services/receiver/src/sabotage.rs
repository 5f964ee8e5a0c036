//! Test-only switches that break one promise each, so that the tests can show that they notice.
//! Only in builds with the feature `sabotage`, by the variable `FLEXFEED_SABOTAGE`.

use std::time::Duration;

use anyhow::bail;
use tracing::warn;

use crate::deliver::Step;

/// The variable.
pub const VARIABLE: &str = "FLEXFEED_SABOTAGE";

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

/// What is broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// What arrives twice is delivered twice.
    pub dedupe_off: bool,
    /// The cursor is written before the journal, and counts.
    pub cursor_first: bool,
    /// The journal is written after the cursor.
    pub journal_after_cursor: bool,
    /// Updates that are gone at the source are left out without a word.
    pub gaps_untold: bool,
    /// Webhooks are sent without a signature.
    pub signature_off: bool,
    /// A lost AMT relay is not left for another one.
    pub relay_failover_off: bool,
    /// Packets of an AMT relay are taken from anybody.
    pub relay_check_off: bool,
    /// That a NAT has changed this receiver's address is not told to the AMT relay.
    pub rebind_unnoticed: bool,
}

impl Sabotage {
    /// As the variable says. Switches of other services are fine here.
    ///
    /// # Errors
    /// For a switch that no service has.
    pub fn from_environment() -> anyhow::Result<Self> {
        let mut sabotage = Self::default();
        let Ok(value) = std::env::var(VARIABLE) else {
            return Ok(sabotage);
        };
        for switch in value.split(',').map(str::trim).filter(|s| !s.is_empty()) {
            match switch {
                "dedupe-off" => sabotage.dedupe_off = true,
                "cursor-first" => sabotage.cursor_first = true,
                "gaps-untold" => sabotage.gaps_untold = true,
                "journal-after-cursor" => sabotage.journal_after_cursor = true,
                "signature-off" => sabotage.signature_off = true,
                "relay-failover-off" => sabotage.relay_failover_off = true,
                "relay-check-off" => sabotage.relay_check_off = true,
                "rebind-unnoticed" => sabotage.rebind_unnoticed = true,
                "repair-off" | "fallback-off" | "renewal-off" | "gap-fill-off" => {}
                other => bail!(
                    "{VARIABLE}={other:?}: a receiver has dedupe-off, cursor-first, journal-after-cursor, gaps-untold, signature-off, relay-failover-off, relay-check-off and rebind-unnoticed"
                ),
            }
        }
        if sabotage != Self::default() {
            warn!("{VARIABLE}={value}: this receiver breaks a promise on purpose; only for tests");
        }
        Ok(sabotage)
    }
}

/// Gives a kill the time to come at the wrong moment.
pub fn pause() {
    // On a thread for blocking work.
    #[allow(clippy::disallowed_methods)]
    std::thread::sleep(Duration::from_millis(400));
}
