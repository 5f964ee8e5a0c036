//! Faults that tests inject into the source.

use std::path::Path;

pub use ::service::faults::Fault;
use flexicast_tokio::source::Faults;
use store::{Adoption, HeadMark, Store, StoreError};

/// [`HeadMark::adopt`], or, where the fault is injected, the same without its protection.
///
/// # Errors
/// As [`HeadMark::adopt`].
pub async fn adopt(
    mark: &Path,
    store: &Store,
    name: &str,
    fence: Option<u64>,
) -> Result<Adoption, StoreError> {
    if Fault::RenewalOff.is_injected() {
        return HeadMark::trust(mark, store, name).await;
    }
    HeadMark::adopt(mark, store, name, fence).await
}

/// The injected faults of the transport.
pub fn of_transport() -> Faults {
    Faults {
        repair_off: Fault::RepairOff.is_injected(),
        fall_back_off: Fault::FallbackOff.is_injected(),
        eviction_off: Fault::EvictionOff.is_injected(),
        sizes_unconfirmed: Fault::SizesUnconfirmed.is_injected(),
        lag_grace_off: Fault::LagGraceOff.is_injected(),
        expired_delivered: Fault::ExpiredDelivered.is_injected(),
        message_copies_off: Fault::MessageCopiesOff.is_injected(),
        shard_restart_off: Fault::ShardRestartOff.is_injected(),
        other_version: Fault::VersionOther.is_injected(),
    }
}
