//! The slow cable: what it adds, what it keeps, what it reports.

use std::process::{Child, Command, Output};
use std::time::Duration;

use anyhow::ensure;
use testbed::binaries::Binaries;
use testbed::delay::Trips;
use testbed::lab::{Lab, Node};
use testbed::run_dir::RunDir;
use testbed::until::Talker;
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
        let output = self.try_ask(count, size, interval_us, 10_000);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn try_ask(&self, count: u32, size: u32, interval_us: u32, patience_ms: u32) -> Output {
        let mut command: Command = self.source.service_command(&self.bins.delay).unwrap();
        command.args(["ask", "--to", "10.77.0.11:7007"]);
        for (option, value) in [
            ("--count", count),
            ("--size", size),
            ("--interval-us", interval_us),
            ("--patience-ms", patience_ms),
        ] {
            command.args([option, &value.to_string()]);
        }
        command.output().unwrap()
    }

    /// Until datagrams come back, so that no address has to be resolved any more.
    fn wait_for_answers(&self) {
        wait_for("an answer", Duration::from_secs(20), || {
            let output = self.try_ask(1, 64, 0, 1_000);
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
    // A stalled machine loses datagrams by itself. A cable that loses them, or is slow, does so
    // each time.
    let wrong: Vec<anyhow::Error> = (0..3).map_while(|_| is_slow_and_whole().err()).collect();
    assert!(wrong.len() < 3, "{wrong:?}");
}

fn is_slow_and_whole() -> anyhow::Result<()> {
    let mut bench = Bench::new();
    let _answerer = bench.answerer();
    bench.wait_for_answers();
    let before = bench.ask(50, 64, 2_000);
    ensure!(before.answered == 50, "{before:?}");

    let cable = bench
        .lab
        .slow_down(&bench.source, ONE_WAY, &bench.bins.delay)
        .unwrap();
    bench.wait_for_answers();
    let trips = bench.ask(100, 64, 2_000);
    ensure!(
        (trips.answered, trips.out_of_order) == (100, 0),
        "{trips:?}"
    );
    ensure!(trips.min_ms >= 20.0, "{trips:?}");
    // The machine may be busy; half of the trips find it otherwise. A cable that delays twice takes
    // 40 ms.
    ensure!(trips.median_ms < 38.0 + before.median_ms, "{trips:?}");

    // 5 Mbit/s of 1,100 bytes for two seconds, there and back at the same time.
    let stream = bench.ask(1_136, 1_100, 1_760);
    ensure!(
        (stream.answered, stream.out_of_order) == (1_136, 0),
        "{stream:?}"
    );
    // Datagrams in fragments, of which the answerer's socket can hold few, and a burst that it can
    // hold.
    let large = bench.ask(20, 20_000, 50_000);
    ensure!(large.answered == 20, "{large:?}");
    let burst = bench.ask(60, 1_100, 0);
    ensure!((burst.answered, burst.out_of_order) == (60, 0), "{burst:?}");

    let report = cable.end().unwrap();
    eprintln!("{before:?}\n{trips:?}\n{stream:?}\n{burst:?}\n{report:?}");
    ensure!(
        (report.there.dropped, report.back.dropped) == (0, 0),
        "{report:?}"
    );
    ensure!(
        report.there.forwarded >= 100 + 1_136 + 20 * 14 + 60,
        "{report:?}"
    );
    // The cable is cut now.
    let cut = bench.try_ask(3, 64, 1_000, 1_000);
    ensure!(
        serde_json::from_slice::<Trips>(&cut.stdout).is_ok_and(|trips| trips.answered == 0)
            || !cut.status.success(),
        "{cut:?}"
    );
    bench.run.discard();
    Ok(())
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
            .args(["count", "--group", GROUP])
            .args(["--until-closed", "--for-ms", "60000"])
            .args(["--interface", &node.address().to_string()])
            .args(["--source", source]);
        Talker::start(command).unwrap()
    };
    let mut joined = counter(&bench.receiver, "10.77.0.2");
    let mut stranger = counter(&other, "10.77.0.99");
    joined.joined().unwrap();
    stranger.joined().unwrap();
    // The kernel reports a join a few milliseconds later.
    pause(Duration::from_millis(500));
    let mut command = bench.source.service_command(&bench.bins.probe).unwrap();
    command.args(["send", "--group", GROUP]);
    command.args(["--count", "200", "--interval-ms", "2"]);
    assert!(command.status().unwrap().success());
    // The cable is a program, which may be late too.
    pause(Duration::from_millis(1500));
    assert_eq!(joined.finish().unwrap(), ["200"]);
    assert_eq!(stranger.finish().unwrap(), ["0"]);
    bench.run.discard();
}
