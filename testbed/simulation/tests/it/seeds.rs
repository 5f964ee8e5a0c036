//! A thousand random scenarios, in which flexicast has to keep its promises.

use simulation::runner::{Plan, run};

#[test]
fn a_thousand_seeds_keep_every_promise() {
    let plan = Plan {
        seeds: 0..1000,
        threads: std::thread::available_parallelism().map_or(2, usize::from),
        twice: 20,
        fault: None,
        most_violations: 10,
    };
    let summary = run(&plan, |_, violation| {
        if let Some(violation) = violation {
            println!("{violation}");
        }
    });
    let lines: Vec<_> = summary.violations.iter().map(|v| v.to_string()).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    assert_eq!(summary.runs, 1000);
    // The scenarios are worth something only if much happens in them.
    let expected = [
        ("unicast to multicast: joined", 4000),
        ("replicated to multicast: joined", 30),
        ("unicast to replicated: joined", 900),
        ("unicast to amt: joined", 300),
        ("amt to multicast: joined", 50),
        ("replicated to amt: joined", 20),
        ("amt to unicast: relay-lost", 50),
        ("amt to unicast: ack-timeout", 50),
        ("relays lost", 100),
        ("multicast to unicast: ack-timeout", 900),
        ("multicast to unicast: forged", 200),
        ("multicast to unicast: heartbeat-lost", 50),
        ("multicast to unicast: rekey-missed", 10),
        ("multicast to unicast: ejected", 20),
        ("many at once", 5),
        ("gaps", 5),
        ("messages", 5000),
        ("resyncs", 100),
        ("closed with 3", 100),
        ("packets signed", 20_000),
        ("packets of tags", 30_000),
        ("from tags to signatures", 50),
        ("from signatures to tags", 25),
        ("forged packets of tags", 400),
        ("replayed packets", 400),
        ("repair symbols", 20_000),
        ("packets rebuilt", 1_000),
    ];
    for (what, least) in expected {
        let times = summary.seen.get(what).copied().unwrap_or(0);
        assert!(times >= least, "{what}: {times} times, not {least}");
    }
    assert!(summary.keys > 5_000, "{} keys", summary.keys);
    assert!(summary.updates > 500_000, "{} updates", summary.updates);
    assert!(summary.packets > 100_000, "{} packets", summary.packets);
}
