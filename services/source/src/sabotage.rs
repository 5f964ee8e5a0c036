//! The test-only switch that breaks one promise, so that the end-to-end tests can show that they
//! would notice. Only in builds with the feature `sabotage`.

use std::path::Path;

use flexicast_tokio::source::Sabotage;
use store::{Adopted, HeadMark, Store, StoreError};
use tracing::warn;

/// The variable; it warns by itself where it has no effect.
pub const VARIABLE: &str = "FLEXFEED_SABOTAGE";

/// [`HeadMark::adopt`], unless a database that was set back is to be served as if nothing had
/// happened.
pub async fn adopt(mark: &Path, store: &dyn Store, name: &str) -> Result<Adopted, StoreError> {
    #[cfg(feature = "sabotage")]
    if std::env::var(VARIABLE).is_ok_and(|what| what == "renewal-off") {
        return HeadMark::trust(mark, store, name).await;
    }
    HeadMark::adopt(mark, store, name).await
}

/// What FLEXFEED_SABOTAGE says to the transport.
pub fn from_environment() -> Sabotage {
    match std::env::var(VARIABLE) {
        Ok(what) if !what.is_empty() => chosen(&what),
        _ => Sabotage::default(),
    }
}

#[cfg(feature = "sabotage")]
fn chosen(what: &str) -> Sabotage {
    let sabotage = match what {
        "repair-off" => Sabotage {
            repair_off: true,
            ..Sabotage::default()
        },
        "fallback-off" => Sabotage {
            fallback_off: true,
            ..Sabotage::default()
        },
        "renewal-off" => Sabotage::default(),
        // One of the receiver's, perhaps: tests set the variable for all services.
        other => {
            warn!("{VARIABLE}={other} is not for a source and ignored");
            return Sabotage::default();
        }
    };
    warn!("{VARIABLE}={what}: this source breaks a promise on purpose; for tests only");
    sabotage
}

#[cfg(not(feature = "sabotage"))]
fn chosen(what: &str) -> Sabotage {
    warn!("{VARIABLE}={what} is ignored: this program was built without the feature `sabotage`");
    Sabotage::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_build_for_it_can_be_sabotaged() {
        let built_for_it = cfg!(feature = "sabotage");
        assert_eq!(chosen("repair-off").repair_off, built_for_it);
        assert_eq!(chosen("fallback-off").fallback_off, built_for_it);
        assert!(!chosen("repair-off").fallback_off);
        assert_eq!(chosen("dedupe-off"), Sabotage::default());
    }
}
