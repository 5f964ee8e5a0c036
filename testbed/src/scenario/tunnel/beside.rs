//! A relay in the source's own node: multicast never leaves it.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::site::gateway_launch;
use crate::lab::{Node, on_path};
use crate::process::Service;
use crate::scenario::checks::{check_all_by_flow, check_outputs};
use crate::scenario::plan::{Place, Plan};
use crate::scenario::{Fault, PATIENCE, SSM_GROUP, Stage};
use crate::tunnel::JoinPlan;
use crate::until::Talker;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// A program that is not ours: joins a group on the loopback interface, says so, and prints the
/// first nine bytes of each datagram that comes until its standard input is closed.
const READER: &str = "
import select, socket, struct, sys
group, port = sys.argv[1], int(sys.argv[2])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((group, port))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
             struct.pack('4s4s', socket.inet_aton(group), socket.inet_aton('127.0.0.1')))
print('joined', flush=True)
while True:
    ready = select.select([s, sys.stdin], [], [])[0]
    if s in ready:
        print(s.recv(2048)[:9].hex(), flush=True)
    else:
        break
";

/// w: a relay in the source's own node, beside it: receivers beyond the border stand on the flow by
/// it, a node on the same switch that has joined the flow hears nothing, and a program in Python
/// reads the flow where `flexfeed-gateway` sends it on.
///
/// # Errors
/// When one of these does not hold.
pub fn relay_beside_the_source(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("beside", fault);
    for seat in &mut plan.seats {
        seat.place = Place::Beyond;
    }
    plan.relay_beside = true;
    if fault != Some(Fault::FlowLeaves) {
        plan.source_args = vec!["--multicast-ttl", "0"];
    }
    Stage::play(plan, |stage| {
        let witness = stage.add_node("witness")?;
        let reader = stage.add_far("reader")?;
        stage.wait_rung(&ALL, "amt")?;
        let before = stage.settle()?;

        let relay = stage.relay(0)?.address(IpAddr::from([0; 4]));
        let group: SocketAddr = SSM_GROUP.parse().context("the group")?;
        let wanted = JoinPlan {
            source: Some(stage.source_node().ip()),
            group,
        };
        let launch = gateway_launch(&reader, stage.bins(), relay, wanted, None);
        let mut gateway = Service::start(&reader, &launch, &stage.logs())?;
        let mut heard = listen(stage, &witness, wanted)?;
        let mut python = read_by_python(&reader, group)?;
        heard.joined()?;
        python.joined()?;
        stage.wait("the tunnel of flexfeed-gateway", PATIENCE, |stage| {
            let tunnels = stage.relay(0)?.status()?.gateways.count;
            Ok((tunnels > 3).then_some(()))
        })?;
        stage.set_rate(10.0)?;
        stage.wait_cursor(&ALL, before + 30)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        let (heard, read) = (heard.finish()?, python.finish()?);

        ensure!(
            heard == ["0"],
            "multicast left the source's node: {heard:?} datagrams"
        );
        let status = stage.source_status_now()?;
        let flow = &status.flow.as_ref().context("the source has no flow")?.id;
        let of_flow = read.iter().filter(|line| line.get(2..) == Some(flow));
        ensure!(
            of_flow.count() > 10,
            "the program in Python read {read:?}, and the flow is {flow}; the gateway's log \
             ends:\n{}",
            gateway.log_tail()
        );
        let ended = gateway.terminate(Duration::from_secs(20))?;
        ensure!(ended.success(), "flexfeed-gateway ended with {ended}");
        for name in ALL {
            check_all_by_flow(name, &stage.seat(name)?.deliveries()?, before)?;
        }
        check_outputs(stage, &ALL)
    })
}

fn listen(stage: &Stage, node: &Node, wanted: JoinPlan) -> Result<Talker> {
    let mut command = node.service_command(&stage.bins().probe)?;
    command
        .args(["count", "--group", &wanted.group.to_string()])
        .args(["--interface", &node.ip().to_string()])
        .args(["--until-closed", "--for-ms", "600000"]);
    if let Some(source) = wanted.source {
        command.args(["--source", &source.to_string()]);
    }
    Talker::start(command)
}

fn read_by_python(node: &Node, group: SocketAddr) -> Result<Talker> {
    // The one of the system: any other may be out of reach for the user that services run as.
    let python = [std::path::PathBuf::from("/usr/bin/python3")]
        .into_iter()
        .find(|path| path.is_file())
        .or_else(|| on_path("python3"))
        .context("this scenario needs python3; run: apt-get install python3")?;
    let mut command: Command = node.service_command(python)?;
    command
        .args(["-c", READER, &group.ip().to_string()])
        .arg(group.port().to_string());
    Talker::start(command)
}
