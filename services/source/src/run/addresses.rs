//! This machine's addresses: announced to receivers before one of them goes.

use std::net::SocketAddr;
use std::time::Duration;

use flexicast_tokio::source::{SourceAddress, SourceHandle};
use netio::HostAddress;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Interval between checks of the addresses.
const EVERY: Duration = Duration::from_secs(1);
/// After so many looks without a change, flows are looked at all the same: a route may come after
/// its address.
const LOOKS: u32 = 10;

/// Returns the addresses to announce: none while no address is deprecated, because receivers have no
/// use for this machine's others then; otherwise the deprecated ones and their successors, which are
/// the other addresses of their interfaces, or of all interfaces where those have none.
fn announcement(addresses: &[HostAddress], listen: SocketAddr) -> Vec<SourceAddress> {
    if !listen.ip().is_unspecified() {
        return Vec::new();
    }
    let served = |one: &&HostAddress| one.ip.is_ipv4() || listen.is_ipv6();
    let (leaving, staying): (Vec<&HostAddress>, Vec<&HostAddress>) = addresses
        .iter()
        .filter(served)
        .partition(|one| one.deprecated);
    if leaving.is_empty() {
        return Vec::new();
    }
    let beside = |one: &&HostAddress| leaving.iter().any(|old| old.interface == one.interface);
    let neighbours: Vec<_> = staying.iter().copied().filter(beside).collect();
    let successors = match neighbours.is_empty() {
        true => staying,
        false => neighbours,
    };
    let announced = leaving.iter().chain(&successors);
    announced
        .map(|one| SourceAddress {
            at: SocketAddr::new(one.ip, listen.port()),
            leaving: one.deprecated,
        })
        .collect()
}

/// Follows the addresses until `stop`, and announces those of `listen`, which is the real address
/// of the socket, when one is about to go.
pub(super) async fn follow(
    handle: SourceHandle,
    listen: SocketAddr,
    addresses: watch::Sender<Vec<HostAddress>>,
    stop: CancellationToken,
) {
    let (mut failing, mut announced, mut looks) = (false, Vec::new(), 0);
    let mut ticks = tokio::time::interval(EVERY);
    let following = async {
        loop {
            ticks.tick().await;
            let found = match netio::host_addresses() {
                Ok(found) => found,
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        warn!(%error, "changes of this machine's addresses are not noticed");
                    }
                    continue;
                }
            };
            failing = false;
            let wanted = announcement(&found, listen);
            if wanted != announced {
                announced = wanted;
                let list = |leaving| {
                    let those = announced.iter().filter(|one| one.leaving == leaving);
                    let those: Vec<_> = those.map(|one| one.at.to_string()).collect();
                    those.join(" ")
                };
                info!(
                    leaving = list(true),
                    staying = list(false),
                    "addresses announced to receivers"
                );
                if is_announced() {
                    handle.set_addresses(announced.clone()).await;
                }
            }
            looks += 1;
            addresses.send_if_modified(|known| {
                let changed = *known != found || looks >= LOOKS;
                *known = found;
                changed
            });
            looks %= LOOKS;
        }
    };
    stop.run_until_cancelled(following).await;
}

/// Whether addresses are announced; false only with an injected fault.
fn is_announced() -> bool {
    #[cfg(feature = "fault-injection")]
    return !crate::faults::Fault::AddressesUntold.is_injected();
    #[cfg(not(feature = "fault-injection"))]
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn address(interface: u32, ip: &str, deprecated: bool) -> HostAddress {
        HostAddress {
            interface,
            ip: ip.parse().unwrap(),
            deprecated,
        }
    }

    #[test]
    fn addresses_are_announced_when_one_of_them_leaves() {
        let any: SocketAddr = "[::]:4433".parse().unwrap();
        let announced = |addresses: &[HostAddress], listen: SocketAddr| -> Vec<String> {
            let all = announcement(addresses, listen);
            let text =
                |one: &SourceAddress| format!("{}{}", one.at, ["", "-"][usize::from(one.leaving)]);
            all.iter().map(text).collect()
        };
        let stays = [
            address(2, "10.0.0.1", false),
            address(2, "10.0.0.2", false),
            address(3, "172.17.0.1", false),
        ];
        assert!(announced(&stays, any).is_empty(), "nothing goes");

        let [_, new, bridge] = stays;
        let (old, old6) = (
            address(2, "10.0.0.1", true),
            address(2, "2001:db8::1", true),
        );
        assert_eq!(
            announced(&[old, new, bridge], any),
            ["10.0.0.1:4433-", "10.0.0.2:4433"],
            "other networks are none of the receivers' business"
        );
        assert_eq!(
            announced(&[old, bridge], any),
            ["10.0.0.1:4433-", "172.17.0.1:4433"],
            "but for a way out"
        );
        let four: SocketAddr = "0.0.0.0:4433".parse().unwrap();
        assert_eq!(
            announced(&[old6, old, new], any),
            ["[2001:db8::1]:4433-", "10.0.0.1:4433-", "10.0.0.2:4433"]
        );
        assert_eq!(
            announced(&[old6, old, new], four),
            ["10.0.0.1:4433-", "10.0.0.2:4433"],
            "IPv6 is not served"
        );
        let own = "10.0.0.1:4433".parse().unwrap();
        assert!(announced(&[old, new], own).is_empty(), "no other is served");
    }
}
