//! The scenarios that flexfeed must pass, as functions: the tests call them as they are, the sabotage runner with one promise broken.
//!
//! Each makes its own lab, feed, source and receivers, and fails with a description of everything that ran. All judge by what an outsider can see: delivery logs,
//! Atom files read by somebody else's reader, status files and pages, exit codes and logs.

mod away;
mod bad_input;
mod blocked;
mod ccr;
mod ccr_figures;
mod checks;
mod crash;
mod cut;
mod dual_stack;
mod flapping;
mod hour;
mod ipv6;
mod loss;
mod multicast;
mod nat;
mod plan;
mod restored;
mod seat;
mod stage;
mod watch;

pub use away::away_for_thousands_of_updates;
pub use bad_input::bad_input_disturbs_nothing;
pub use blocked::a_blocked_receiver_gets_all_by_unicast;
pub use ccr::{CcrPlan, links_fail_in_turn, play as play_ccr};
pub use ccr_figures::{Cut, Failure, Seen as CcrSeen};
pub use checks::{check_outputs, require_no_panic};
pub use crash::crashes_lose_nothing_and_repeat_nothing;
pub use cut::a_cut_receiver_falls_back_and_returns;
pub use dual_stack::dual_stack;
pub use flapping::flapping_backs_off;
pub use hour::an_hour_of_a_busy_archive;
pub use ipv6::{ipv6_any_source, ipv6_only};
pub use loss::loss_is_repaired;
pub use multicast::{any_source_multicast, everything_by_multicast, recorded_feed_by_multicast};
pub use nat::nat_rebinding;
pub use plan::{ASM_GROUP, ASM_GROUP6, FeedPlan, Place, Plan, SSM_GROUP, SSM_GROUP6, SeatPlan};
pub use restored::a_restored_backup_is_noticed;
pub use seat::{Seat, now_ms};
pub use stage::Stage;
pub use watch::PATIENCE;

use std::path::PathBuf;

/// The channel that every scenario uses.
pub const CHANNEL: &str = "lore";

/// One broken promise, built into the services by their feature `sabotage` and chosen by `FLEXFEED_SABOTAGE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Receivers do not drop what comes a second time.
    DedupeOff,
    /// Receivers write the cursor before the output.
    CursorFirst,
    /// The source does not repair what the flow lost.
    RepairOff,
    /// The source leaves members on a flow that does not reach them.
    FallbackOff,
    /// Receivers say nothing of updates that are gone for good.
    GapsUntold,
    /// The source serves a database that was set back as if nothing had happened.
    RenewalOff,
    /// The source notices that entries passed unseen between two polls, and does not look for them.
    GapFillOff,
}

impl Sabotage {
    /// Every one.
    pub const ALL: [Sabotage; 7] = [
        Sabotage::DedupeOff,
        Sabotage::CursorFirst,
        Sabotage::RepairOff,
        Sabotage::FallbackOff,
        Sabotage::GapsUntold,
        Sabotage::RenewalOff,
        Sabotage::GapFillOff,
    ];

    /// The value of `FLEXFEED_SABOTAGE`.
    pub fn switch(self) -> &'static str {
        match self {
            Sabotage::DedupeOff => "dedupe-off",
            Sabotage::CursorFirst => "cursor-first",
            Sabotage::RepairOff => "repair-off",
            Sabotage::FallbackOff => "fallback-off",
            Sabotage::GapsUntold => "gaps-untold",
            Sabotage::RenewalOff => "renewal-off",
            Sabotage::GapFillOff => "gap-fill-off",
        }
    }

    /// Whether the switch is the source's; otherwise it is the receivers'.
    pub fn at_source(self) -> bool {
        matches!(
            self,
            Sabotage::RepairOff
                | Sabotage::FallbackOff
                | Sabotage::RenewalOff
                | Sabotage::GapFillOff
        )
    }
}

/// The recorded feed that some scenarios use when it is there, beside the repository.
pub fn recorded_feed() -> Option<PathBuf> {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = repository.join("../shared/feeds/lore-all-new.atom");
    path.is_file().then_some(path)
}
