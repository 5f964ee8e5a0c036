//! A source and receivers that have nothing to do do nothing: no timer makes them spin. The
//! processor time is that of the whole process, so the test has one of its own.

use std::sync::atomic::Ordering;
use std::time::Duration;

use flexicast_tokio::Rung;

use crate::site::Site;
use crate::site::proxy::Nat;

/// Processor time of this process so far.
fn spent() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = |n: usize| {
        let field = fields.split_whitespace().nth(n).unwrap();
        field.parse::<u64>().unwrap()
    };
    // User and system time in hundredths of a second, as Linux always counts them here.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idling_costs_nothing_much() {
    if !kit::alone!() {
        return;
    }
    let site = Site::new();
    let source = site.lively_source().await;
    let nat = Nat::new(source.addr).await;
    let mut member = site.receiver(source.addr);
    let mut config = site.receiver_config(nat.addr);
    (config.multicast, config.replicated) = (false, true);
    let mut far = site.start_receiver(config);
    member.until_rung(Rung::Multicast).await;
    far.until_rung(Rung::Replicated).await;
    site.publish(&source.handle, 20).await;
    member.until_seq(20).await;
    far.until_seq(20).await;
    let idle = async |what: &str| {
        let mut costs: Vec<Duration> = Vec::new();
        // A timer that spins does so each time.
        while costs.iter().all(|cost| *cost >= Duration::from_secs(1)) {
            assert!(costs.len() < 3, "{what}: {costs:?} in 2 s each");
            let before = spent();
            tokio::time::sleep(Duration::from_secs(2)).await;
            costs.push(spent() - before);
        }
    };
    idle("with members").await;
    nat.rebind().await;
    idle("after a change of address").await;
    nat.cut.store(true, Ordering::Relaxed);
    idle("with a receiver that is gone").await;
    idle("with a receiver that tries to connect").await;
    member.handle.shutdown().await;
    source.handle.shutdown().await;
    idle("with a receiver whose source is gone").await;
}
