//! Unused ports.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// The ports given out: below 32,768, where the kernel's automatic ports begin, so that no program
/// that asks for any port gets one of them while its owner restarts.
const RANGE: std::ops::Range<u32> = 10_000..32_000;

/// Returns an address of the loopback interface whose port is free for UDP and TCP.
///
/// A process gets none twice. Programs that are stopped and started again find it free still.
pub fn free() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = RANGE.end - RANGE.start;
    // Test programs that run at the same time have neighbouring process ids.
    let first = std::process::id().wrapping_mul(997);
    for _ in 0..count {
        let next = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = (RANGE.start + next % count) as u16;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port in {RANGE:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports: std::collections::BTreeSet<_> = (0..50).map(|_| free().port()).collect();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|port| RANGE.contains(&u32::from(*port))));
    }
}
