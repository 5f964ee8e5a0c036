//! The test-only switch that breaks one promise, so that the end-to-end tests can show that they
//! would notice. Only in builds with the feature `sabotage`.

use std::path::Path;
use std::sync::OnceLock;

use flexicast_tokio::source::Sabotage;
use store::{Adopted, HeadMark, Store, StoreError};
use tracing::warn;

/// The variable; it warns by itself where it has no effect.
pub const VARIABLE: &str = "FLEXFEED_SABOTAGE";

/// A promise that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// The transport repairs nothing.
    Repair,
    /// The transport leaves silent members on the flow.
    Fallback,
    /// A database that was set back is served as if nothing had happened.
    Renewal,
    /// Who had a lease once goes on publishing.
    Fence,
    /// Revoked receivers are served.
    Revocation,
    /// What a suspected gap hides is not looked for.
    GapFill,
    /// The protocol is another one than that of receivers of before.
    Version,
}

impl Broken {
    fn named(what: &str) -> Option<Self> {
        Some(match what {
            "repair-off" => Self::Repair,
            "fallback-off" => Self::Fallback,
            "renewal-off" => Self::Renewal,
            "fence-off" => Self::Fence,
            "revocation-off" => Self::Revocation,
            "gap-fill-off" => Self::GapFill,
            "version-other" => Self::Version,
            _ => return None,
        })
    }
}

/// What this process breaks. The variable is read once.
fn broken() -> Option<Broken> {
    static CHOSEN: OnceLock<Option<Broken>> = OnceLock::new();
    *CHOSEN.get_or_init(|| match std::env::var(VARIABLE) {
        Ok(what) if !what.is_empty() => chosen(&what),
        _ => None,
    })
}

/// Whether leases mean nothing.
pub fn fence_off() -> bool {
    broken() == Some(Broken::Fence)
}

/// Whether revoked receivers are served.
pub fn revocation_off() -> bool {
    broken() == Some(Broken::Revocation)
}

/// Whether gaps stay as they are.
pub fn gap_fill_off() -> bool {
    broken() == Some(Broken::GapFill)
}

/// [`HeadMark::adopt`], unless a database that was set back is to be served as if nothing had
/// happened.
pub async fn adopt(
    mark: &Path,
    store: &dyn Store,
    name: &str,
    fence: Option<u64>,
) -> Result<Adopted, StoreError> {
    #[cfg(feature = "sabotage")]
    if broken() == Some(Broken::Renewal) {
        return HeadMark::trust(mark, store, name).await;
    }
    HeadMark::adopt(mark, store, name, fence).await
}

/// What FLEXFEED_SABOTAGE says to the transport.
pub fn from_environment() -> Sabotage {
    of_transport(broken())
}

fn of_transport(broken: Option<Broken>) -> Sabotage {
    Sabotage {
        repair_off: broken == Some(Broken::Repair),
        fallback_off: broken == Some(Broken::Fallback),
        other_version: broken == Some(Broken::Version),
    }
}

fn chosen(what: &str) -> Option<Broken> {
    if !cfg!(feature = "sabotage") {
        warn!(
            "{VARIABLE}={what} is ignored: this program was built without the feature `sabotage`"
        );
        return None;
    }
    let broken = Broken::named(what);
    match broken {
        Some(_) => {
            warn!("{VARIABLE}={what}: this source breaks a promise on purpose; for tests only");
        }
        // One of the receiver's, perhaps: tests set the variable for all services.
        None => warn!("{VARIABLE}={what} is not for a source and ignored"),
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_build_for_it_can_be_sabotaged() {
        let built_for_it = cfg!(feature = "sabotage");
        for what in [
            "repair-off",
            "fallback-off",
            "renewal-off",
            "fence-off",
            "revocation-off",
            "gap-fill-off",
            "version-other",
        ] {
            assert_eq!(chosen(what).is_some(), built_for_it, "{what}");
        }
        assert_eq!(of_transport(chosen("repair-off")).repair_off, built_for_it);
        assert_eq!(
            of_transport(chosen("fallback-off")).fallback_off,
            built_for_it
        );
        assert_eq!(of_transport(chosen("fence-off")), Sabotage::default());
        assert_eq!(chosen("dedupe-off"), None);
    }
}
