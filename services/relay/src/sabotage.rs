//! Test-only switches that break one promise each, so that the tests can show that they notice.
//! Only in builds with the feature `sabotage`, by the variable `FLEXFEED_SABOTAGE`.

use anyhow::bail;
use tracing::warn;

/// The variable.
pub const VARIABLE: &str = "FLEXFEED_SABOTAGE";

/// What is broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// What the state machine does wrong.
    pub relay: amt::relay::Sabotage,
    /// Outer packets may be fragmented.
    pub fragment_outer: bool,
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
        let relay = &mut sabotage.relay;
        for switch in value.split(',').map(str::trim).filter(|s| !s.is_empty()) {
            match switch {
                "mac-check-off" => relay.mac_check_off = true,
                "nat-by-address" => relay.nat_by_address = true,
                "expiry-off" => relay.expiry_off = true,
                "capacity-off" => relay.capacity_off = true,
                "teardown-unchecked" => relay.teardown_unchecked = true,
                "nonce-other" => relay.nonce_other = true,
                "fragment-outer" => sabotage.fragment_outer = true,
                other => {
                    // Others' switches have the same form; what is none has another.
                    if other.contains(|c: char| !c.is_ascii_lowercase() && c != '-') {
                        bail!(
                            "{VARIABLE}={other:?}: a relay has mac-check-off, nat-by-address, expiry-off, capacity-off, teardown-unchecked, nonce-other and fragment-outer"
                        );
                    }
                }
            }
        }
        if sabotage != Self::default() {
            warn!("{VARIABLE}={value}: this relay breaks a promise on purpose; only for tests");
        }
        Ok(sabotage)
    }
}
