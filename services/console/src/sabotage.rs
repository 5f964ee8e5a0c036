//! Test-only switches that break one promise each, so that the tests can show that they notice.
//! Only in builds with the feature `sabotage`, by the variable `FLEXFEED_SABOTAGE`.

use std::sync::OnceLock;

use anyhow::bail;
use tracing::warn;

/// The variable.
pub const VARIABLE: &str = "FLEXFEED_SABOTAGE";

static BROKEN: OnceLock<Sabotage> = OnceLock::new();

/// What is broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// Where receivers stand stays as it was at the start.
    pub rungs_frozen: bool,
}

/// Breaks what the variable says. Switches of other services are fine here.
///
/// # Errors
/// For a switch that no service has.
pub fn begin() -> anyhow::Result<()> {
    let mut sabotage = Sabotage::default();
    let Ok(value) = std::env::var(VARIABLE) else {
        return Ok(());
    };
    for switch in value.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        match switch {
            "rungs-frozen" => sabotage.rungs_frozen = true,
            other => {
                // Others' switches have the same form; what is none has another.
                if other.contains(|c: char| !c.is_ascii_lowercase() && c != '-') {
                    bail!("{VARIABLE}={other:?}: a console has rungs-frozen");
                }
            }
        }
    }
    if sabotage != Sabotage::default() {
        warn!("{VARIABLE}={value}: this console breaks a promise on purpose; only for tests");
    }
    let _ = BROKEN.set(sabotage);
    Ok(())
}

/// What is broken.
#[must_use]
pub fn broken() -> Sabotage {
    BROKEN.get().copied().unwrap_or_default()
}
