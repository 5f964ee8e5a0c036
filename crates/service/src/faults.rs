//! Faults that tests inject into a running program: each switches one protection off, so that the
//! test of that protection can prove that it notices.
//!
//! Only with the feature `fault-injection`, which no released program has.

use std::sync::OnceLock;

use tracing::warn;

/// Variable with the faults of a process, separated by commas.
pub const VARIABLE: &str = "FLEXFEED_FAULTS";

static INJECTED: OnceLock<Vec<Fault>> = OnceLock::new();

/// Protection that is off. A program ignores the faults of the other programs, because tests set
/// the variable for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Receiver: updates that arrive twice are delivered twice.
    DedupeOff,
    /// Receiver: the cursor is written before the journal, and is trusted.
    CursorFirst,
    /// Receiver: the journal is written after the cursor.
    JournalAfterCursor,
    /// Receiver: updates that are gone at the source are skipped silently.
    GapsUntold,
    /// Receiver: the keys that sign updates of a flow are ignored.
    LineageOff,
    /// Receiver: the bytes of an update are not compared with the hashes in its header.
    ChunkCheckOff,
    /// Receiver: packets that the source did not authenticate are taken for the source's.
    PacketCheckOff,
    /// Receiver: packets that were rebuilt count as such that arrived.
    RebuiltProves,
    /// Receiver: what the second leg of a flow brings counts for nothing.
    LegsUnmerged,
    /// Receiver: webhooks are sent without a signature.
    SignatureOff,
    /// Receiver: a lost AMT relay is never replaced by another one.
    RelayFailoverOff,
    /// Receiver and gateway: packets of an AMT relay are accepted from any sender.
    RelayCheckOff,
    /// Receiver and gateway: an address that a NAT has changed is not reported to the AMT relay.
    RebindUnnoticed,
    /// Receiver: the source's addresses of the last run are not used.
    AddressesForgotten,
    /// Source: no other address is announced before one goes.
    AddressesUntold,
    /// Source: lost packets are not repaired.
    RepairOff,
    /// Source: silent members stay on the flow.
    FallbackOff,
    /// Source: slow and lossy members stay on the flow.
    EvictionOff,
    /// Source: packets of flows grow without an acknowledgement of the larger size.
    SizesUnconfirmed,
    /// Source: members are blamed for silence while the source itself was late.
    LagGraceOff,
    /// Source and receiver: updates are sent and handed on although their deadline has passed.
    ExpiredDelivered,
    /// Source: messages are sent on the flow alone.
    MessageCopiesOff,
    /// Receiver: messages are handed on that the source did not sign.
    MessageCheckOff,
    /// Source: a database that was set back is served without a new incarnation.
    RenewalOff,
    /// Source: a lost lease does not end publishing.
    FenceOff,
    /// Source: revoked receivers are served.
    RevocationOff,
    /// Source: suspected gaps are not searched.
    GapFillOff,
    /// Source: publications are deleted before they are stored as updates.
    PublicationsDeletedFirst,
    /// Source: shards that fail are not restarted.
    ShardRestartOff,
    /// Source: the protocol is another version than the receivers'.
    VersionOther,
    /// Relay: any response MAC is accepted.
    MacCheckOff,
    /// Relay: gateways with one address share a tunnel, whatever their ports.
    NatByAddress,
    /// Relay: memberships never expire.
    ExpiryOff,
    /// Relay: the number of gateways has no limit.
    CapacityOff,
    /// Relay: a Teardown with any MAC is accepted.
    TeardownUnchecked,
    /// Relay: Queries echo another nonce than the Request's.
    NonceOther,
    /// Relay: outer packets may be fragmented.
    FragmentOuter,
    /// Console: rungs of receivers stay as they were at the start.
    RungsFrozen,
    /// Swarm: its first receiver loses every fifth update.
    UpdateLost,
}

impl Fault {
    /// Whether this fault was injected into this process.
    #[must_use]
    pub fn is_injected(self) -> bool {
        let injected = INJECTED.get();
        injected.is_some_and(|injected| injected.contains(&self))
    }
}

/// All faults, with their names in [`VARIABLE`].
const NAMES: [(Fault, &str); 39] = [
    (Fault::DedupeOff, "dedupe-off"),
    (Fault::CursorFirst, "cursor-first"),
    (Fault::JournalAfterCursor, "journal-after-cursor"),
    (Fault::GapsUntold, "gaps-untold"),
    (Fault::LineageOff, "lineage-off"),
    (Fault::ChunkCheckOff, "chunk-check-off"),
    (Fault::PacketCheckOff, "packet-check-off"),
    (Fault::RebuiltProves, "rebuilt-proves"),
    (Fault::LegsUnmerged, "legs-unmerged"),
    (Fault::SignatureOff, "signature-off"),
    (Fault::RelayFailoverOff, "relay-failover-off"),
    (Fault::RelayCheckOff, "relay-check-off"),
    (Fault::RebindUnnoticed, "rebind-unnoticed"),
    (Fault::AddressesForgotten, "addresses-forgotten"),
    (Fault::AddressesUntold, "addresses-untold"),
    (Fault::RepairOff, "repair-off"),
    (Fault::FallbackOff, "fallback-off"),
    (Fault::EvictionOff, "eviction-off"),
    (Fault::SizesUnconfirmed, "sizes-unconfirmed"),
    (Fault::LagGraceOff, "lag-grace-off"),
    (Fault::ExpiredDelivered, "expired-delivered"),
    (Fault::MessageCopiesOff, "message-copies-off"),
    (Fault::MessageCheckOff, "message-check-off"),
    (Fault::RenewalOff, "renewal-off"),
    (Fault::FenceOff, "fence-off"),
    (Fault::RevocationOff, "revocation-off"),
    (Fault::GapFillOff, "gap-fill-off"),
    (
        Fault::PublicationsDeletedFirst,
        "publications-deleted-first",
    ),
    (Fault::ShardRestartOff, "shard-restart-off"),
    (Fault::VersionOther, "version-other"),
    (Fault::MacCheckOff, "mac-check-off"),
    (Fault::NatByAddress, "nat-by-address"),
    (Fault::ExpiryOff, "expiry-off"),
    (Fault::CapacityOff, "capacity-off"),
    (Fault::TeardownUnchecked, "teardown-unchecked"),
    (Fault::NonceOther, "nonce-other"),
    (Fault::FragmentOuter, "fragment-outer"),
    (Fault::RungsFrozen, "rungs-frozen"),
    (Fault::UpdateLost, "update-lost"),
];

/// Unknown name in [`VARIABLE`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE}: unknown fault {name:?}; the faults are {faults}", faults = names())]
pub struct UnknownFault {
    name: String,
}

/// Injects the faults that [`VARIABLE`] names into this process; later calls change nothing.
///
/// # Errors
/// A name is unknown.
pub fn inject_from_environment() -> Result<(), UnknownFault> {
    let value = std::env::var(VARIABLE).unwrap_or_default();
    let faults = parse(&value)?;
    if !faults.is_empty() {
        warn!("{VARIABLE}={value}: faults are injected; only for tests");
    }
    let _ = INJECTED.set(faults);
    Ok(())
}

fn parse(value: &str) -> Result<Vec<Fault>, UnknownFault> {
    let names = value.split(',').map(str::trim).filter(|n| !n.is_empty());
    names
        .map(|name| {
            let known = NAMES.iter().find(|(_, known)| *known == name);
            known.map(|(fault, _)| *fault).ok_or_else(|| UnknownFault {
                name: name.to_owned(),
            })
        })
        .collect()
}

fn names() -> String {
    NAMES.map(|(_, name)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named_in_a_list() {
        assert_eq!(parse(""), Ok(Vec::new()));
        assert_eq!(
            parse("fence-off, dedupe-off,"),
            Ok(vec![Fault::FenceOff, Fault::DedupeOff])
        );
        let unknown = parse("fence-of").unwrap_err();
        assert!(unknown.to_string().contains("unknown fault \"fence-of\""));
        assert!(unknown.to_string().contains("fence-off, revocation-off"));
    }

    #[test]
    fn nothing_is_injected_by_default() {
        assert!(!Fault::FenceOff.is_injected());
    }
}
