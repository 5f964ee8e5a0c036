//! QUIC's acknowledgements of the datagrams that carry a flow's.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flexicast_tokio::Rung;

use crate::site::Site;
use crate::site::proxy::{Direction, lossy};

static UP: AtomicU32 = AtomicU32::new(0);
static DOWN: AtomicU32 = AtomicU32::new(0);

fn count(direction: Direction, _: u32) -> bool {
    let counter = match direction {
        Direction::ToSource => &UP,
        Direction::ToReceiver => &DOWN,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    false
}

/// A packet in answer to each would cost the source as much as the flow's acknowledgements
/// themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_source_answers_several_acknowledgements_of_the_flow_at_once() {
    let site = Site::new();
    let source = site.source().await;
    let path = lossy(source.addr, count).await;
    let mut probe = site.receiver(path);
    probe.until_rung(Rung::Multicast).await;
    site.publish(&source.handle, 1).await;
    probe.until_seq(1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let counted = || [&UP, &DOWN].map(|counter| counter.load(Ordering::Relaxed));
    let before = counted();
    for _ in 0..100 {
        site.publish(&source.handle, 1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    probe.until_seq(101).await;
    let after = counted();
    let [up, down] = [after[0] - before[0], after[1] - before[1]];
    assert!(up >= 40, "{up} acknowledgements");
    // A cursor goes by the control stream once a second, and is answered promptly.
    assert!(down <= up * 2 / 3, "{down} answers to {up}");
}
