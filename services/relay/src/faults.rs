//! Faults that tests inject into the relay.

use service::faults::Fault;

/// Returns the injected faults of the relay's state machine.
#[must_use]
pub fn of_relay() -> amt::relay::Faults {
    amt::relay::Faults {
        mac_check_off: Fault::MacCheckOff.is_injected(),
        nat_by_address: Fault::NatByAddress.is_injected(),
        expiry_off: Fault::ExpiryOff.is_injected(),
        capacity_off: Fault::CapacityOff.is_injected(),
        teardown_unchecked: Fault::TeardownUnchecked.is_injected(),
        nonce_other: Fault::NonceOther.is_injected(),
    }
}
