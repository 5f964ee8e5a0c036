//! The slow cable: what it adds, what it keeps, what it reports.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use testbed::binaries::Binaries;
use testbed::delay::Trips;
use testbed::lab::{Lab, Node};
use testbed::run_dir::RunDir;
use testbed::waiting::{pause, wait_for};

const ONE_WAY: Duration = Duration::from_millis(10);
const GROUP: &str = "232.70.70.1:4434";

struct Bench {
    lab: Lab,
    source: Node,
    receiver: Node,
    bins: Binaries,
    run: RunDir,
}

impl Bench {
    fn new() -> Bench {
        let mut lab = Lab::new().unwrap();
        let source = lab.add_node("source", 2).unwrap();
        let receiver = lab.add_node("r1", 11).unwrap();
        let run = RunDir::new("delay").unwrap();
        let bins = Binaries::of_testbed()
            .unwrap()
            .reachable(lab.rootless(), &run)
            .unwrap();
        Bench {
            lab,
            source,
            receiver,
            bins,
            run,
        }
    }

    fn answerer(&self) -> Answerer {
        let mut command = self.receiver.service_command(&self.bins.delay).unwrap();
        command.args(["answer", "--listen", "10.77.0.11:7007"]);
        Answerer(command.spawn().unwrap())
    }

    fn ask(&self, count: u32, size: u32, interval_us: u32) -> Trips {
        let output = self.try_ask(count, size, interval_us);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn try_ask(&self, count: u32, size: u32, interval_us: u32) -> Output {
        let mut command: Command = self.source.service_command(&self.bins.delay).unwrap();
        command.args(["ask", "--to", "10.77.0.11:7007"]);
        for (option, value) in [
            ("--count", count),
            ("--size", size),
            ("--interval-us", interval_us),
        ] {
            command.args([option, &value.to_string()]);
        }
        command.output().unwrap()
    }

    /// Until datagrams come back, so that no address has to be resolved any more.
    fn wait_for_answers(&self) {
        wait_for("an answer", Duration::from_secs(20), || {
            let output = self.try_ask(1, 64, 0);
            let trips = serde_json::from_slice::<Trips>(&output.stdout).ok();
            Ok(trips.filter(|trips| trips.answered == 1).map(|_| ()))
        })
        .unwrap();
    }
}

struct Answerer(Child);

impl Drop for Answerer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_slow_cable_delays_both_ways_and_loses_nothing() {
    let mut bench = Bench::new();
    let _answerer = bench.answerer();
    bench.wait_for_answers();
    let before = bench.ask(50, 64, 2_000);
    assert_eq!(before.answered, 50);

    let cable = bench
        .lab
        .slow_down(&bench.source, ONE_WAY, &bench.bins.delay)
        .unwrap();
    bench.wait_for_answers();
    let trips = bench.ask(100, 64, 2_000);
    assert_eq!((trips.answered, trips.out_of_order), (100, 0));
    assert!(trips.min_ms >= 20.0, "{trips:?}");
    // The machine may be busy; half of the trips find it otherwise.
    assert!(
        trips.median_ms < 20.0 + before.median_ms + 10.0,
        "{trips:?}"
    );

    // 5 Mbit/s of 1,100 bytes for two seconds, there and back at the same time.
    let stream = bench.ask(1_136, 1_100, 1_760);
    assert_eq!((stream.answered, stream.out_of_order), (1_136, 0));
    // Datagrams in fragments, and a burst that the answerer's socket can hold.
    let large = bench.ask(20, 20_000, 5_000);
    assert_eq!(large.answered, 20);
    let burst = bench.ask(60, 1_100, 0);
    assert_eq!((burst.answered, burst.out_of_order), (60, 0));

    let report = cable.end().unwrap();
    eprintln!("{before:?}\n{trips:?}\n{stream:?}\n{burst:?}\n{report:?}");
    assert_eq!((report.there.dropped, report.back.dropped), (0, 0));
    assert!(report.there.forwarded >= 100 + 1_136 + 20 * 14 + 60);
    // The cable is cut now.
    let cut = bench.try_ask(3, 64, 1_000);
    assert!(
        serde_json::from_slice::<Trips>(&cut.stdout).is_ok_and(|trips| trips.answered == 0)
            || !cut.status.success()
    );
    bench.run.discard();
}

#[test]
fn multicast_passes_a_slow_cable_and_only_where_it_was_joined() {
    let mut bench = Bench::new();
    let other = bench.lab.add_node("r2", 12).unwrap();
    let _cable = bench
        .lab
        .slow_down(&bench.source, ONE_WAY, &bench.bins.delay)
        .unwrap();
    let counter = |node: &Node, source: &str| {
        let mut command = node.service_command(&bench.bins.probe).unwrap();
        command
            .args(["count", "--group", GROUP, "--for-ms", "2500"])
            .args(["--interface", &node.address().to_string()])
            .args(["--source", source])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let joined = counter(&bench.receiver, "10.77.0.2");
    let stranger = counter(&other, "10.77.0.99");
    pause(Duration::from_millis(700));
    let mut command = bench.source.service_command(&bench.bins.probe).unwrap();
    command.args(["send", "--group", GROUP]);
    command.args(["--count", "200", "--interval-ms", "2"]);
    assert!(command.status().unwrap().success());
    let counted = |child: Child| {
        let output = child.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(counted(joined), "200");
    assert_eq!(counted(stranger), "0");
    bench.run.discard();
}
