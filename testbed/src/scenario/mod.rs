//! The scenarios that flexfeed must pass, as functions: the tests call them as
//! they are, the fault runner with one protection off.
//!
//! Each makes its own lab, feed, source and receivers, and fails with a description of everything
//! that ran. All judge by what an outsider can see: delivery logs, Atom files read by another
//! program, status files and pages, exit codes and logs.

mod away;
mod bad_input;
mod blocked;
mod bottleneck;
mod ccr;
mod ccr_figures;
mod checks;
mod console;
mod crash;
mod cut;
mod dual_stack;
mod flapping;
mod forgery;
mod hitless;
mod hitless_stream;
mod hour;
mod ipv6;
mod live;
mod loss;
mod mtu;
mod multicast;
mod nat;
mod plan;
mod publications;
mod restored;
mod roaming;
mod seat;
mod shard;
mod shared_link;
mod stage;
mod swarm;
mod swarm_load;
mod tunnel;
mod upgrade;
mod watch;

pub use away::away_for_thousands_of_updates;
pub use bad_input::bad_input_disturbs_nothing;
pub use blocked::a_blocked_receiver_gets_all_by_unicast;
pub use bottleneck::a_slow_receiver_holds_up_only_itself;
pub use ccr::{CcrPlan, links_fail_in_turn, play as play_ccr};
pub use ccr_figures::{Cut, Failure, Observations as CcrObservations};
pub use checks::{check_outputs, require_no_panic};
pub use console::the_console_shows_the_real_rungs;
pub use crash::crashes_lose_nothing_and_repeat_nothing;
pub use cut::a_cut_receiver_falls_back_and_returns;
pub use dual_stack::dual_stack;
pub use flapping::flapping_backs_off;
pub use forgery::{
    a_member_forges_and_nobody_believes_it, forgeries_of_authenticated_packets_have_no_effect,
};
pub use hitless::{either_leg_is_lost, either_relay_is_lost};
pub use hitless_stream::{Noticed, play_hitless};
pub use hour::an_hour_of_a_busy_archive;
pub use ipv6::{ipv6_any_source, ipv6_only};
pub use live::{a_live_channel_delivers_nothing_late, messages_reach_all_who_are_there};
pub use loss::{loss_is_rebuilt, loss_is_repaired};
pub use mtu::one_narrow_path_decides_the_packet_size;
pub use multicast::{any_source_multicast, everything_by_multicast, recorded_feed_by_multicast};
pub use nat::nat_rebinding;
pub use plan::{
    ASM_GROUP, ASM_GROUP6, FeedPlan, Place, Plan, QUICK_ACK_MS, SSM_GROUP, SSM_GROUP6, SeatPlan,
};
pub use publications::published_entries_survive_the_source;
pub use restored::a_restored_backup_is_noticed;
pub use roaming::addresses_change;
pub use seat::{Seat, now_ms};
pub use shard::a_killed_shard_is_replaced;
pub use shared_link::a_flow_and_tcp_share_a_link;
pub use stage::Stage;
pub use swarm::{Swarm, SwarmSummary, a_thousand_receivers_get_every_update};
pub use swarm_load::{
    an_overloaded_source_blames_no_member, half_of_the_members_lose_multicast,
    receivers_come_and_go,
};
pub use tunnel::{
    RelaySeat, RelayStatus, a_deaf_relay_is_left, a_draining_relay_costs_nothing, a_narrow_path,
    all_families_and_any_source, by_a_relay_of_others, forged_and_flooding_requests_get_nothing,
    relay_beside_the_source, relays_fail_in_turn, relays_fail_to_copies, three_behind_one_address,
    translations_change, tunnels_end_and_are_limited, works_with_others,
};
pub use upgrade::{
    PREVIOUS, SourceDatabase, an_older_source_is_replaced, older_receivers_are_served, previous,
};
pub use watch::PATIENCE;

use std::path::PathBuf;

/// The channel that every scenario uses.
pub const CHANNEL: &str = "lore";

/// A protection that is off, built into the services by their feature `fault-injection` and chosen
/// by `FLEXFEED_FAULTS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Receivers do not drop what comes a second time.
    DedupeOff,
    /// Receivers write the cursor before the journal.
    CursorFirst,
    /// The source does not announce another address before one goes.
    AddressesUntold,
    /// Receivers do not use the addresses at which the source was in their last run.
    AddressesForgotten,
    /// The source does not repair what the flow lost.
    RepairOff,
    /// The source leaves members on a flow that does not reach them.
    FallbackOff,
    /// The source leaves slow and lossy members on the flow.
    EvictionOff,
    /// The source sends larger packets although no member has acknowledged one.
    SizesUnconfirmed,
    /// The source leaves shards that have failed as they are.
    ShardRestartOff,
    /// The source blames members for its own lateness.
    LagGraceOff,
    /// The source sends, and receivers deliver, what has expired.
    ExpiredDelivered,
    /// The source sends messages on the flow alone.
    MessageCopiesOff,
    /// Receivers hand on messages that the source did not sign.
    MessageCheckOff,
    /// Receivers ignore which keys sign a flow's updates.
    LineageOff,
    /// Receivers take what is behind a signed header unseen.
    ChunkCheckOff,
    /// Receivers take packets for the source's that it did not authenticate.
    PacketCheckOff,
    /// Receivers take packets that they rebuilt for such that arrived.
    RebuiltProves,
    /// Packets by the second leg of a flow count for nothing.
    LegsUnmerged,
    /// Receivers say nothing of updates that are gone for good.
    GapsUntold,
    /// The source serves a database that was set back as if nothing had happened.
    RenewalOff,
    /// The source notices that entries passed unseen between two polls, and does not look for them.
    GapFillOff,
    /// The source deletes publications before it has stored them as updates.
    PublicationsDeletedFirst,
    /// The source speaks another version of the protocol than receivers of before.
    VersionOther,
    /// Receivers stay with a relay that has stopped to answer.
    RelayFailoverOff,
    /// Gateways take packets from anybody as if they came from their relay.
    RelayCheckOff,
    /// Receivers do not notice that a relay sees them with another address.
    RebindUnnoticed,
    /// The console does not show what changes about receivers.
    ConsoleBlind,
    /// The relay believes every Response MAC.
    MacCheckOff,
    /// The relay knows gateways by their address without the port.
    NatByAddress,
    /// The relay keeps gateways that have fallen silent.
    ExpiryOff,
    /// The relay takes as many gateways as come.
    CapacityOff,
    /// The relay obeys every Teardown.
    TeardownUnchecked,
    /// The relay answers with another nonce than the gateway's.
    NonceOther,
    /// The relay lets the network fragment what it sends.
    FragmentOuter,
    /// One receiver of the swarm loses updates silently.
    UpdateLost,
    /// The source's multicast goes where it could be heard, although a relay beside it is all that
    /// needs it: a setting, not a switch.
    FlowLeaves,
    /// The flow is sent at a fixed rate, whatever is lost: a setting, not a switch.
    LossIgnored,
}

impl Fault {
    /// Every one.
    pub const ALL: [Fault; 37] = [
        Fault::AddressesUntold,
        Fault::AddressesForgotten,
        Fault::DedupeOff,
        Fault::CursorFirst,
        Fault::RepairOff,
        Fault::FallbackOff,
        Fault::EvictionOff,
        Fault::SizesUnconfirmed,
        Fault::ShardRestartOff,
        Fault::LagGraceOff,
        Fault::ExpiredDelivered,
        Fault::MessageCopiesOff,
        Fault::MessageCheckOff,
        Fault::LineageOff,
        Fault::ChunkCheckOff,
        Fault::PacketCheckOff,
        Fault::RebuiltProves,
        Fault::LegsUnmerged,
        Fault::GapsUntold,
        Fault::RenewalOff,
        Fault::GapFillOff,
        Fault::PublicationsDeletedFirst,
        Fault::VersionOther,
        Fault::RelayFailoverOff,
        Fault::RelayCheckOff,
        Fault::RebindUnnoticed,
        Fault::ConsoleBlind,
        Fault::MacCheckOff,
        Fault::NatByAddress,
        Fault::ExpiryOff,
        Fault::CapacityOff,
        Fault::TeardownUnchecked,
        Fault::NonceOther,
        Fault::FragmentOuter,
        Fault::UpdateLost,
        Fault::FlowLeaves,
        Fault::LossIgnored,
    ];

    /// The value of `FLEXFEED_FAULTS`.
    pub fn switch(self) -> &'static str {
        match self {
            Fault::DedupeOff => "dedupe-off",
            Fault::CursorFirst => "cursor-first",
            Fault::AddressesUntold => "addresses-untold",
            Fault::AddressesForgotten => "addresses-forgotten",
            Fault::RepairOff => "repair-off",
            Fault::FallbackOff => "fallback-off",
            Fault::EvictionOff => "eviction-off",
            Fault::SizesUnconfirmed => "sizes-unconfirmed",
            Fault::ShardRestartOff => "shard-restart-off",
            Fault::LagGraceOff => "lag-grace-off",
            Fault::ExpiredDelivered => "expired-delivered",
            Fault::MessageCopiesOff => "message-copies-off",
            Fault::MessageCheckOff => "message-check-off",
            Fault::LineageOff => "lineage-off",
            Fault::ChunkCheckOff => "chunk-check-off",
            Fault::PacketCheckOff => "packet-check-off",
            Fault::RebuiltProves => "rebuilt-proves",
            Fault::LegsUnmerged => "legs-unmerged",
            Fault::GapsUntold => "gaps-untold",
            Fault::RenewalOff => "renewal-off",
            Fault::GapFillOff => "gap-fill-off",
            Fault::PublicationsDeletedFirst => "publications-deleted-first",
            Fault::VersionOther => "version-other",
            Fault::RelayFailoverOff => "relay-failover-off",
            Fault::RelayCheckOff => "relay-check-off",
            Fault::RebindUnnoticed => "rebind-unnoticed",
            Fault::ConsoleBlind => "rungs-frozen",
            Fault::MacCheckOff => "mac-check-off",
            Fault::NatByAddress => "nat-by-address",
            Fault::ExpiryOff => "expiry-off",
            Fault::CapacityOff => "capacity-off",
            Fault::TeardownUnchecked => "teardown-unchecked",
            Fault::NonceOther => "nonce-other",
            Fault::FragmentOuter => "fragment-outer",
            Fault::UpdateLost => "update-lost",
            Fault::FlowLeaves => "flow-leaves",
            Fault::LossIgnored => "loss-ignored",
        }
    }

    /// Whether the switch is one of these services'.
    pub fn breaks(self, side: Side) -> bool {
        let its = match self {
            Fault::FlowLeaves | Fault::LossIgnored => return false,
            Fault::ExpiredDelivered => return matches!(side, Side::Source | Side::Receiver),
            Fault::AddressesUntold
            | Fault::RepairOff
            | Fault::FallbackOff
            | Fault::EvictionOff
            | Fault::SizesUnconfirmed
            | Fault::ShardRestartOff
            | Fault::LagGraceOff
            | Fault::MessageCopiesOff
            | Fault::RenewalOff
            | Fault::GapFillOff
            | Fault::PublicationsDeletedFirst
            | Fault::VersionOther => Side::Source,
            Fault::AddressesForgotten
            | Fault::DedupeOff
            | Fault::CursorFirst
            | Fault::MessageCheckOff
            | Fault::LineageOff
            | Fault::ChunkCheckOff
            | Fault::PacketCheckOff
            | Fault::RebuiltProves
            | Fault::LegsUnmerged
            | Fault::GapsUntold
            | Fault::RelayFailoverOff
            | Fault::RelayCheckOff
            | Fault::RebindUnnoticed => Side::Receiver,
            Fault::ConsoleBlind => Side::Console,
            Fault::UpdateLost => Side::Swarm,
            Fault::MacCheckOff
            | Fault::NatByAddress
            | Fault::ExpiryOff
            | Fault::CapacityOff
            | Fault::TeardownUnchecked
            | Fault::NonceOther
            | Fault::FragmentOuter => Side::Relay,
        };
        its == side
    }
}

/// Program under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The source's.
    Source,
    /// The receivers'.
    Receiver,
    /// The relays'.
    Relay,
    /// The console's.
    Console,
    /// The swarm's.
    Swarm,
}

/// The recorded feed that some scenarios use when it is there, beside the repository.
pub fn recorded_feed() -> Option<PathBuf> {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = repository.join("../shared/feeds/lore-all-new.atom");
    path.is_file().then_some(path)
}
