//! The lab itself: multicast goes only where it was joined, is cut and lost on command, and nothing
//! outlives the lab.

use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testbed::binaries::Binaries;
use testbed::lab::{Families, Lab, Multicast, Node, Rebinding};
use testbed::run_dir::RunDir;
use testbed::until::Talker;
use testbed::waiting::{pause, wait_for};

const V4: &str = "232.70.70.1:4434";
const V6: &str = "[ff3e::4646:1]:4434";

/// Way in which a receiver joins a group.
#[derive(Clone, Copy)]
enum Join {
    /// To the node that sends.
    Source,
    /// To an unused address.
    Other,
    /// To everybody.
    Any,
    /// Only on the port.
    Not,
}

struct Bench {
    lab: Lab,
    source: Node,
    receivers: Vec<Node>,
    bins: Binaries,
    run: RunDir,
}

impl Bench {
    fn new(families: Families) -> Bench {
        Bench::of(families, [families; 3])
    }

    fn of(families: Families, receivers: [Families; 3]) -> Bench {
        let mut lab = Lab::with(families).unwrap();
        let source = lab.add_node("source", 2).unwrap();
        let receivers = (1..=3)
            .zip(receivers)
            .map(|(n, families)| {
                lab.add_node_with(&format!("r{n}"), 10 + n, families)
                    .unwrap()
            })
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

    /// Starts to count, until asked to end.
    fn counter(&self, node: &Node, group: &str, join: Join) -> Talker {
        let v6 = group == V6;
        let address = |node: &Node| -> IpAddr {
            if v6 {
                node.address6().into()
            } else {
                node.address().into()
            }
        };
        let mut command = node.service_command(&self.bins.probe).unwrap();
        command
            .args(["count", "--group", group])
            .args(["--until-closed", "--for-ms", "60000"])
            .args(["--interface", &node.ip().to_string()]);
        match join {
            Join::Source => command.args(["--source", &address(&self.source).to_string()]),
            Join::Other if v6 => command.args(["--source", "fd77::99"]),
            Join::Other => command.args(["--source", "10.77.0.99"]),
            Join::Any => &mut command,
            Join::Not => command.arg("--no-join"),
        };
        Talker::start(command).unwrap()
    }

    /// Returns each receiver's count of 100 datagrams with the given joins.
    fn count(&self, group: &str, joins: [Join; 3]) -> Vec<u32> {
        let mut counters: Vec<Talker> = self
            .receivers
            .iter()
            .zip(joins)
            .map(|(node, join)| self.counter(node, group, join))
            .collect();
        joined(&mut counters);
        self.send(group);
        counters.iter_mut().for_each(Talker::close);
        counters.into_iter().map(answer).collect()
    }

    fn send(&self, group: &str) {
        let mut command = self.source.service_command(&self.bins.probe).unwrap();
        command.args(["send", "--group", group]);
        command.args(["--count", "100", "--interval-ms", "2"]);
        assert!(command.status().unwrap().success());
    }

    fn done(mut self) {
        self.run.discard();
    }
}

/// Until all have joined, and the switch has heard of it.
fn joined(counters: &mut [Talker]) {
    for counter in counters {
        counter.joined().unwrap();
    }
    // The kernel reports a join a few milliseconds later.
    pause(Duration::from_millis(500));
}

fn answer(counter: Talker) -> u32 {
    counter.finish().unwrap().concat().parse().unwrap()
}

/// The switch, not the node, holds a group back: the third node's cable stays quiet.
fn packets_reach_joined_networks_only(families: Families, group: &str) {
    let bench = Bench::new(families);
    assert_eq!(
        bench.count(group, [Join::Source, Join::Other, Join::Not]),
        [100, 0, 0]
    );
    assert!(arrived_frames(&bench.receivers[2]) < 80);
    assert!(arrived_frames(&bench.receivers[0]) >= 100);
    assert_eq!(
        bench.count(group, [Join::Any, Join::Any, Join::Not]),
        [100, 100, 0]
    );
    assert!(arrived_frames(&bench.receivers[2]) < 160);
    bench.done();
}

#[test]
fn the_switch_forwards_a_group_only_to_ports_that_joined_its_source() {
    packets_reach_joined_networks_only(Families::V4, V4);
}

#[test]
fn the_switch_forwards_an_ipv6_group_only_to_ports_that_joined_its_source() {
    packets_reach_joined_networks_only(Families::V6, V6);
}

#[test]
fn on_a_dual_network_a_node_hears_the_families_that_it_speaks() {
    let bench = Bench::of(Families::Dual, [Families::V4, Families::V6, Families::Dual]);
    assert_eq!(
        bench.count(V4, [Join::Source, Join::Not, Join::Source]),
        [100, 0, 100]
    );
    assert_eq!(
        bench.count(V6, [Join::Not, Join::Source, Join::Source]),
        [0, 100, 100]
    );
    // A node without IPv6 hears nothing even of an IPv6 group that it joined by its interface.
    assert_eq!(
        bench.count(V6, [Join::Any, Join::Not, Join::Source]),
        [0, 0, 100]
    );
    bench.done();
}

fn is_cut_and_lost_by_port(families: Families, group: &str) {
    let bench = Bench::new(families);
    let [cut, lossy, open] = bench.receivers.as_slice() else {
        panic!("three receivers")
    };
    bench.lab.set_multicast(cut, Multicast::Cut).unwrap();
    bench.lab.set_multicast(lossy, Multicast::Loss(50)).unwrap();
    let counts = bench.count(group, [Join::Source; 3]);
    assert_eq!(counts[0], 0);
    assert!((10..=90).contains(&counts[1]), "{counts:?}");
    assert_eq!(counts[2], 100);
    assert!(reaches(cut, &bench.source));
    bench.lab.set_multicast(cut, Multicast::Open).unwrap();
    assert_eq!(
        bench.count(group, [Join::Source, Join::Not, Join::Not])[0],
        100
    );
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

#[test]
fn multicast_is_cut_by_port_without_touching_unicast() {
    is_cut_and_lost_by_port(Families::V4, V4);
}

#[test]
fn ipv6_multicast_is_cut_by_port_without_touching_unicast() {
    is_cut_and_lost_by_port(Families::V6, V6);
}

#[test]
fn a_router_hides_its_node_and_forgets_its_translations_on_command() {
    let mut bench = Bench::new(Families::V4);
    let (mut nat, node) = bench.lab.add_behind_nat("home", 30, 130).unwrap();
    let first = nat.outside();
    let mut tell = bench.source.service_command(&bench.bins.probe).unwrap();
    tell.args(["tell", "--listen", "10.77.0.2:7009"]);
    tell.args(["--until-closed", "--for-ms", "60000"]);
    let tell = Talker::start(tell).unwrap();
    let mut ask = node.service_command(&bench.bins.probe).unwrap();
    ask.args(["ask", "--to", "10.77.0.2:7009"]);
    ask.args(["--until-closed", "--for-ms", "60000"]);
    let mut ask = Talker::start(ask).unwrap();
    let outage = Duration::from_secs(1);
    let mut lines = vec![ask.line().unwrap()];
    nat.rebind(Rebinding::Port, outage).unwrap();
    assert_eq!(nat.outside(), first);
    lines.push(ask.line().unwrap());
    nat.rebind(Rebinding::Address, outage).unwrap();
    let second = nat.outside();
    lines.push(ask.line().unwrap());
    lines.extend(ask.finish().unwrap());
    tell.finish().unwrap();
    let seen: Vec<std::net::SocketAddr> = lines.iter().map(|line| line.parse().unwrap()).collect();
    let [before, other_port, other_address] = seen.as_slice() else {
        panic!("seen from outside as {seen:?}")
    };
    assert_eq!(before.ip(), first);
    assert_eq!(other_port.ip(), first);
    assert_ne!(before.port(), other_port.port());
    assert_eq!(other_address.ip(), second);
    assert_ne!(first, second);
    bench.done();
}

/// Whether unicast datagrams get from one node to another.
fn reaches(from: &Node, to: &Node) -> bool {
    let before = received(to);
    let bins = Binaries::of_testbed().unwrap();
    let mut garbage = from.command(&bins.probe).unwrap();
    let target = std::net::SocketAddr::new(to.ip(), 9).to_string();
    garbage.args(["garbage", "--to", &target, "--count", "20"]);
    assert!(garbage.status().unwrap().success());
    received(to) > before
}

/// UDP datagrams that arrived at a node for a closed port, in both families.
fn received(node: &Node) -> u64 {
    let v4 = read(node, "/proc/net/snmp")
        .lines()
        .filter(|line| line.starts_with("Udp:"))
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
        .unwrap();
    let v6 = read(node, "/proc/net/snmp6")
        .lines()
        .find_map(|line| line.strip_prefix("Udp6NoPorts"))
        .and_then(|count| count.trim().parse::<u64>().ok());
    v4 + v6.unwrap_or(0)
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
    let one = Bench::new(Families::Dual);
    let two = Bench::new(Families::Dual);
    let mut elsewhere = [V4, V6].map(|group| two.counter(&two.receivers[0], group, Join::Source));
    joined(&mut elsewhere);
    for group in [V4, V6] {
        let joins = [Join::Source, Join::Not, Join::Not];
        assert_eq!(one.count(group, joins)[0], 100);
    }
    assert_eq!(elsewhere.map(answer), [0, 0]);
    one.done();
    two.done();
}

#[test]
fn a_service_ends_with_its_lab() {
    let bench = Bench::new(Families::V4);
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
    let pid = wait_for("the process in the lab", Duration::from_secs(60), || {
        Ok(testbed::lab::child_of(child.id()))
    })
    .unwrap();
    println!("SLEEPER {pid}");
    child.wait().unwrap();
}

#[test]
fn everything_ends_when_the_tests_are_killed() {
    use std::io::{BufRead, BufReader};
    let mut tests = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "lab::sleeper", "--nocapture"])
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
        Duration::from_secs(60),
        || Ok((!process.exists()).then_some(())),
    )
    .unwrap();
}
