//! The lab itself: multicast goes only where it was joined, is cut and lost on command, and nothing outlives the lab.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testbed::binaries::Binaries;
use testbed::lab::{Lab, Multicast, Node};
use testbed::run_dir::RunDir;
use testbed::waiting::{pause, wait_for};

const GROUP: &str = "232.70.70.1:4434";

struct Bench {
    lab: Lab,
    source: Node,
    receivers: Vec<Node>,
    bins: Binaries,
    run: RunDir,
}

impl Bench {
    fn new() -> Bench {
        let mut lab = Lab::new().unwrap();
        let source = lab.add_node("source", 2).unwrap();
        let receivers = (1..=3)
            .map(|n| lab.add_node(&format!("r{n}"), 10 + n).unwrap())
            .collect();
        let run = RunDir::new("lab").unwrap();
        let bins = Binaries::of_testbed()
            .unwrap()
            .reachable(lab.rootless(), &run)
            .unwrap();
        Bench {
            lab,
            source,
            receivers,
            bins,
            run,
        }
    }

    fn counter(&self, node: &Node, join: &[&str]) -> Child {
        let mut command = node.service_command(&self.bins.probe).unwrap();
        command
            .args(["count", "--group", GROUP, "--for-ms", "1500"])
            .args(["--interface", &node.address().to_string()])
            .args(join)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// What each receiver counts of 100 datagrams when it joins in the given way.
    fn count(&self, joins: [&[&str]; 3]) -> Vec<u32> {
        let counters: Vec<Child> = self
            .receivers
            .iter()
            .zip(joins)
            .map(|(node, join)| self.counter(node, join))
            .collect();
        pause(Duration::from_millis(500));
        self.send();
        counters.into_iter().map(answer).collect()
    }

    fn send(&self) {
        let mut command = self.source.service_command(&self.bins.probe).unwrap();
        command.args([
            "send",
            "--group",
            GROUP,
            "--count",
            "100",
            "--interval-ms",
            "2",
        ]);
        assert!(command.status().unwrap().success());
    }

    fn done(mut self) {
        self.run.discard();
    }
}

fn answer(child: Child) -> u32 {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

const FROM_SOURCE: &[&str] = &["--source", "10.77.0.2"];
const FROM_OTHER: &[&str] = &["--source", "10.77.0.99"];
const NO_JOIN: &[&str] = &["--no-join"];

#[test]
fn the_switch_forwards_a_group_only_to_ports_that_joined_its_source() {
    let bench = Bench::new();
    assert_eq!(bench.count([FROM_SOURCE, FROM_OTHER, NO_JOIN]), [100, 0, 0]);
    // The third node's cable stayed quiet: the switch, not the node, held the group back.
    assert!(arrived_frames(&bench.receivers[2]) < 80);
    assert!(arrived_frames(&bench.receivers[0]) >= 100);
    bench.done();
}

#[test]
fn multicast_is_cut_and_lost_by_port_while_unicast_goes_on() {
    let bench = Bench::new();
    let [cut, lossy, open] = bench.receivers.as_slice() else {
        panic!("three receivers")
    };
    bench.lab.set_multicast(cut, Multicast::Cut).unwrap();
    bench.lab.set_multicast(lossy, Multicast::Loss(50)).unwrap();
    let counts = bench.count([FROM_SOURCE, FROM_SOURCE, FROM_SOURCE]);
    assert_eq!(counts[0], 0);
    assert!((10..=90).contains(&counts[1]), "{counts:?}");
    assert_eq!(counts[2], 100);
    assert!(reaches(cut, &bench.source));
    bench.lab.set_multicast(cut, Multicast::Open).unwrap();
    assert_eq!(bench.count([FROM_SOURCE, NO_JOIN, NO_JOIN])[0], 100);
    bench.lab.set_unplugged(open, true).unwrap();
    assert!(!reaches(open, &bench.source));
    bench.lab.set_unplugged(open, false).unwrap();
    // Address resolution, which failed meanwhile, is tried again only after a second.
    wait_for("the cable to work again", Duration::from_secs(20), || {
        Ok(reaches(open, &bench.source).then_some(()))
    })
    .unwrap();
    bench.done();
}

/// Whether unicast datagrams get from one node to another.
fn reaches(from: &Node, to: &Node) -> bool {
    let before = received(to);
    let bins = Binaries::of_testbed().unwrap();
    let mut garbage = from.command(&bins.probe).unwrap();
    let target = format!("{}:9", to.address());
    garbage.args(["garbage", "--to", &target, "--count", "20"]);
    assert!(garbage.status().unwrap().success());
    received(to) > before
}

/// UDP datagrams that arrived at a node for a port where nobody listens.
fn received(node: &Node) -> u64 {
    read(node, "/proc/net/snmp")
        .lines()
        .filter(|line| line.starts_with("Udp:"))
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(2)?.parse().ok())
        .unwrap()
}

/// Frames that came over a node's cable.
fn arrived_frames(node: &Node) -> u64 {
    read(node, "/proc/net/dev")
        .lines()
        .find_map(|line| line.trim().strip_prefix("eth0:"))
        .and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap()
}

fn read(node: &Node, path: &str) -> String {
    let output = node.command("cat").unwrap().arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn two_labs_do_not_meet() {
    let one = Bench::new();
    let two = Bench::new();
    let elsewhere = two.counter(&two.receivers[0], FROM_SOURCE);
    assert_eq!(one.count([FROM_SOURCE, NO_JOIN, NO_JOIN])[0], 100);
    assert_eq!(answer(elsewhere), 0);
    one.done();
    two.done();
}

#[test]
fn a_service_ends_with_its_lab() {
    let bench = Bench::new();
    let mut child: Child = bench.receivers[0]
        .service_command("sleep")
        .unwrap()
        .arg("1000")
        .spawn()
        .unwrap();
    let run = bench.run;
    drop(bench.lab);
    assert!(!child.wait().unwrap().success());
    let mut run = run;
    run.discard();
}

/// The part of the test below that is killed: it says what runs in its lab and waits.
#[test]
#[ignore = "started by everything_ends_when_the_tests_are_killed"]
fn sleeper() {
    let mut lab = Lab::new().unwrap();
    let node = lab.add_node("r1", 11).unwrap();
    let mut child = node
        .service_command("sleep")
        .unwrap()
        .arg("1000")
        .spawn()
        .unwrap();
    let patience = Duration::from_millis(300);
    pause(patience);
    println!("SLEEPER {}", testbed::lab::child_of(child.id()).unwrap());
    child.wait().unwrap();
}

#[test]
fn everything_ends_when_the_tests_are_killed() {
    use std::io::{BufRead, BufReader};
    let mut tests = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "sleeper", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = BufReader::new(tests.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("SLEEPER ")?.1.trim().to_owned()))
        .unwrap();
    let process = std::path::PathBuf::from(format!("/proc/{pid}"));
    assert!(process.exists());
    tests.kill().unwrap();
    tests.wait().unwrap();
    wait_for(
        "the end of what ran in the lab",
        Duration::from_secs(10),
        || Ok((!process.exists()).then_some(())),
    )
    .unwrap();
}
