//! Test-only switches that break one promise each, so that the tests can show that they notice.
//! Only in builds with the feature `sabotage`, by the variable `FLEXFEED_SABOTAGE`.

use amt_tokio::Sabotage;
use anyhow::bail;
use tracing::warn;

/// The variable.
pub const VARIABLE: &str = "FLEXFEED_SABOTAGE";

/// As the variable says. Switches of other services are fine here.
///
/// # Errors
/// For a switch that no service has.
pub fn from_environment() -> anyhow::Result<Sabotage> {
    let mut sabotage = Sabotage::default();
    let Ok(value) = std::env::var(VARIABLE) else {
        return Ok(sabotage);
    };
    for switch in value.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        match switch {
            "relay-check-off" => sabotage.source_check_off = true,
            "rebind-unnoticed" => sabotage.rebind_unnoticed = true,
            other => {
                // Others' switches have the same form; what is none has another.
                if other.contains(|c: char| !c.is_ascii_lowercase() && c != '-') {
                    bail!("{VARIABLE}: {other:?} is no switch");
                }
                continue;
            }
        }
        warn!("this gateway breaks a promise on purpose: {switch}");
    }
    Ok(sabotage)
}
