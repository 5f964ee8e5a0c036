//! The scenarios of AMT: a network with multicast, a relay, and a network without.

mod attacks;
mod beside;
mod families;
mod home;
mod interop;
mod limits;
mod narrow;
mod relay;
mod site;

pub use attacks::forged_and_flooding_requests_get_nothing;
pub use beside::relay_beside_the_source;
pub use families::all_families_and_any_source;
pub use home::{
    a_deaf_relay_is_left, a_draining_relay_costs_nothing, by_a_relay_of_others,
    relays_fail_in_turn, relays_fail_to_copies, three_behind_one_address, translations_change,
};
pub use interop::works_with_others;
pub use limits::tunnels_end_and_are_limited;
pub use narrow::a_narrow_path;
pub use relay::{RelaySeat, RelayStatus};
