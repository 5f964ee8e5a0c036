//! The network beyond the border, and what speaks AMT across it as an outsider: proved without
//! flexfeed, by a relay and a gateway that are not ours.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testbed::binaries::Binaries;
use testbed::lab::{Beyond, Families, Lab, Node, Rebinding};
use testbed::process::Service;
use testbed::run_dir::RunDir;
use testbed::tunnel::{AttackReport, FloodReport, GatewaysReport, Peer};
use testbed::until::Talker;
use testbed::waiting::{pause, wait_for};

const V4: &str = "232.70.70.1:4434";

struct Site {
    lab: Lab,
    source: Node,
    relay: Node,
    beyond: Beyond,
    bins: Binaries,
    run: RunDir,
}

impl Site {
    fn new(families: Families) -> Site {
        let mut lab = Lab::with(families).unwrap();
        let source = lab.add_node("source", 2).unwrap();
        let relay = lab.add_node("relay", 5).unwrap();
        let beyond = lab.add_beyond(3).unwrap();
        for node in [&source, &relay] {
            lab.route_beyond(node, &beyond).unwrap();
        }
        let run = RunDir::new("beyond").unwrap();
        std::fs::create_dir(run.path().join("logs")).unwrap();
        let bins = Binaries::of_testbed()
            .unwrap()
            .reachable(lab.rootless(), &run)
            .unwrap();
        Site {
            lab,
            source,
            relay,
            beyond,
            bins,
            run,
        }
    }

    fn logs(&self) -> PathBuf {
        self.run.path().join("logs")
    }

    fn probe(&self, node: &Node, args: &[&str]) -> Child {
        started(node.service_command(&self.bins.probe).unwrap(), args)
    }

    /// The same, until asked to end.
    fn talker(&self, node: &Node, args: &[&str]) -> Talker {
        let mut command = node.service_command(&self.bins.probe).unwrap();
        command.args(args);
        command.args(["--until-closed", "--for-ms", "60000"]);
        Talker::start(command).unwrap()
    }

    fn tunnel(&self, node: &Node, args: &[&str]) -> Child {
        let mut command = node.service_command(&self.bins.tunnel).unwrap();
        command.args(["--relay", "10.77.0.5:2268", "--source", "10.77.0.2"]);
        started(command, args)
    }

    /// Sends numbered datagrams to the group from the source, until asked to end.
    fn send(&self) -> Talker {
        let mut command = self.source.service_command(&self.bins.probe).unwrap();
        command.args(["send", "--group", V4, "--interval-ms", "5"]);
        command.args(["--until-closed", "--count", &u32::MAX.to_string()]);
        Talker::start(command).unwrap()
    }

    fn done(mut self) {
        self.run.discard();
    }
}

fn started(mut command: Command, args: &[&str]) -> Child {
    command.args(args).stdout(Stdio::piped()).spawn().unwrap()
}

fn answer(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The peer, or a line that cannot be overlooked.
fn peer() -> Option<Peer> {
    let peer = Peer::find();
    if peer.is_none() {
        assert!(!Peer::required(), "no peer: {}", Peer::remedy());
        let _ = std::io::stderr().write_all(
            format!(
                "\n*** SKIPPED: there is no AMT implementation to compare with; {} ***\n",
                Peer::remedy()
            )
            .as_bytes(),
        );
    }
    peer
}

#[test]
fn beyond_the_border_there_is_unicast_and_no_multicast() {
    let mut site = Site::new(Families::Dual);
    let near = site.lab.add_node("near", 11).unwrap();
    let far = site
        .beyond
        .add_node(&mut site.lab, "far", 20, Families::Dual)
        .unwrap();
    for (group, source, to_source) in [
        (V4, "10.77.0.2", "10.77.0.2:7009"),
        ("[ff3e::4646:1]:4434", "fd77::2", "[fd77::2]:7009"),
    ] {
        let count = |node: &Node| {
            let interface = if group == V4 {
                node.address().to_string()
            } else {
                node.address6().to_string()
            };
            let args = ["count", "--group", group, "--source", source];
            site.talker(node, &[&args[..], &["--interface", &interface]].concat())
        };
        let (mut here, mut there) = (count(&near), count(&far));
        here.joined().unwrap();
        there.joined().unwrap();
        // The kernel reports a join a few milliseconds later.
        pause(Duration::from_millis(500));
        let sent = site.probe(
            &site.source,
            &[
                "send",
                "--group",
                group,
                "--count",
                "50",
                "--interval-ms",
                "2",
            ],
        );
        answer(sent);
        assert_eq!(here.finish().unwrap(), ["50"]);
        assert_eq!(there.finish().unwrap(), ["0"]);
        if group == V4 {
            let tell = site.talker(&site.source, &["tell", "--listen", to_source]);
            let mut ask = site.talker(&far, &["ask", "--to", to_source]);
            assert!(ask.line().unwrap().starts_with("10.78.0.20:"));
            tell.finish().unwrap();
        }
    }
    site.done();
}

#[test]
fn hosts_behind_one_router_share_its_address() {
    let mut site = Site::new(Families::V4);
    let mut nat = site.beyond.add_nat(&mut site.lab, "nat", 10, 110).unwrap();
    let nodes: Vec<Node> = ["n1", "n2"]
        .map(|name| nat.add_node(&mut site.lab, name).unwrap())
        .to_vec();
    let tell = site.talker(&site.source, &["tell", "--listen", "10.77.0.2:7009"]);
    let mut asked: Vec<Talker> = nodes
        .iter()
        .map(|node| site.talker(node, &["ask", "--to", "10.77.0.2:7009"]))
        .collect();
    let before: Vec<String> = asked.iter_mut().map(|ask| ask.line().unwrap()).collect();
    let first = nat.outside();
    nat.rebind(Rebinding::Address, Duration::from_secs(1))
        .unwrap();
    let after: Vec<String> = asked.iter_mut().map(|ask| ask.line().unwrap()).collect();
    let seen: Vec<Vec<SocketAddr>> = asked
        .into_iter()
        .zip(before.into_iter().zip(after))
        .map(|(ask, (before, after))| {
            let more = ask.finish().unwrap();
            [before, after]
                .iter()
                .chain(&more)
                .map(|one| one.parse().unwrap())
                .collect()
        })
        .collect();
    tell.finish().unwrap();
    for one in &seen {
        assert_eq!(one.len(), 2, "{seen:?}");
        assert_eq!(
            (one[0].ip(), one[1].ip()),
            (first.into(), nat.outside().into())
        );
    }
    assert_ne!(seen[0][0].port(), seen[1][0].port());
    site.done();
}

#[test]
fn packets_beyond_the_path_mtu_arrive_in_fragments() {
    let mut site = Site::new(Families::V4);
    let far = site
        .beyond
        .add_node(&mut site.lab, "far", 20, Families::V4)
        .unwrap();
    // Garbage of up to 1,400 bytes, without DF.
    let send = |site: &Site| {
        let mut garbage = site.source.command(&site.bins.probe).unwrap();
        garbage.args(["garbage", "--to", "10.78.0.20:9", "--count", "100"]);
        assert!(garbage.status().unwrap().success());
        far.fragments().unwrap()
    };
    assert_eq!(send(&site), 0);
    site.beyond.set_mtu(&site.lab, 1280).unwrap();
    assert!(send(&site) > 0);
    site.done();
}

/// The prober's gateways, attacks and floods do what they say: with a relay that is not ours.
#[test]
fn an_independent_relay_serves_and_refuses_as_it_should() {
    let Some(peer) = peer() else { return };
    let mut site = Site::new(Families::V4);
    let mut nat = site.beyond.add_nat(&mut site.lab, "nat", 10, 110).unwrap();
    let node = nat.add_node(&mut site.lab, "n1").unwrap();
    let crowd = site
        .beyond
        .add_node(&mut site.lab, "crowd", 30, Families::V4)
        .unwrap();
    site.beyond.give_crowd(&crowd).unwrap();
    let launch = peer.relay("10.77.0.5:2268".parse().unwrap(), site.relay.ip());
    let mut relay = Service::start_as_owner(&site.relay, &launch, &site.logs()).unwrap();
    wait_for("the relay", Duration::from_secs(60), || {
        relay.check_running()?;
        Ok(relay.log_contains("listening")?.then_some(()))
    })
    .unwrap();
    let sender = site.send();

    let args = ["join", "--count", "3", "--for-ms", "3000"];
    let leaves = ["--first-leaves-after-ms", "1000"];
    let seen = site.tunnel(&node, &[&args[..], &leaves].concat());
    let seen: GatewaysReport = serde_json::from_str(&answer(seen)).unwrap();
    let [first, second, third] = seen.gateways.as_slice() else {
        panic!("three gateways: {seen:?}")
    };
    assert!(first.data > 0 && first.after_leaving == 0, "{seen:?}");
    for one in [second, third] {
        assert!(one.data > first.data && one.wrong == 0, "{seen:?}");
        assert_eq!(one.data, one.distinct);
    }

    let attacked = site.tunnel(&node, &["attack", "--each-ms", "700"]);
    let attacked: AttackReport = serde_json::from_str(&answer(attacked)).unwrap();
    assert!(
        attacked.honest > 0 && attacked.honest_after_teardowns > 0,
        "{attacked:?}"
    );
    assert_eq!(
        (
            attacked.forged,
            attacked.replayed,
            attacked.renonced,
            attacked.after_own_teardown
        ),
        (0, 0, 0, 0),
        "{attacked:?}"
    );

    let args = ["flood", "--wave", "request", "--first", "10.79.0.1"];
    let flooded = site.tunnel(&crowd, &[&args[..], &["--addresses", "200"]].concat());
    let flooded: FloodReport = serde_json::from_str(&answer(flooded)).unwrap();
    assert_eq!(flooded.sent, 200);
    assert!(flooded.answers > 0 && flooded.longest <= 66, "{flooded:?}");
    sender.finish().unwrap();
    site.done();
}

/// A program on the network behind an independent gateway, on a router, can join its groups.
#[test]
fn an_independent_gateway_brings_the_group_beyond_the_border() {
    let Some(peer) = peer() else { return };
    let mut site = Site::new(Families::V4);
    let mut nat = site.beyond.add_nat(&mut site.lab, "nat", 10, 110).unwrap();
    let node = nat.add_node(&mut site.lab, "n1").unwrap();
    let relay_at: SocketAddr = "10.77.0.5:2268".parse().unwrap();
    let launch = peer.relay(relay_at, site.relay.ip());
    let _relay = Service::start_as_owner(&site.relay, &launch, &site.logs()).unwrap();
    let group: SocketAddr = V4.parse().unwrap();
    let launch = peer.gateway(relay_at, Some(site.source.ip()), group.ip(), nat.inside());
    let gateway = Service::start_as_owner(nat.router(), &launch, &site.logs()).unwrap();
    let args = ["count", "--group", V4, "--source", "10.77.0.2"];
    let interface = node.ip().to_string();
    let until = ["--enough", "1", "--for-ms", "60000"];
    let count = ["--interface", &interface];
    let count = site.probe(&node, &[&args[..], &count, &until].concat());
    let sender = site.send();
    let arrived: u32 = answer(count).parse().unwrap();
    sender.finish().unwrap();
    assert!(arrived > 0, "{}", gateway.log_tail());
    site.done();
}
