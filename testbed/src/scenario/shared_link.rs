//! A flow and TCP on one narrow link: rate control is fair to other traffic (RFC 8085 section 3.1).

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Fault;
use super::checks::require_no_panic;
use super::plan::FALL_BACK_MS;
use crate::binaries::Binaries;
use crate::lab::{Lab, Node};
use crate::process::{Launch, Service};
use crate::run_dir::RunDir;
use crate::stream::{StreamReport, interval, now_ns, read_arrivals, received_between};
use crate::waiting::{pause, wait_for};

const GROUP: &str = "232.70.70.1:4434";
/// Capacity of the link in kbit/s.
const CAPACITY: u32 = 2_000;
/// One way, without the queue.
const ONE_WAY: Duration = Duration::from_millis(10);
/// Receivers of the flow, all behind the link: they share its losses.
const RECEIVERS: usize = 3;
/// Bytes of a message.
const SIZE: usize = 1_100;
/// Bits of messages a second: more than fits the link.
const RATE: u64 = 2_500_000;
/// Time in which the shares settle.
const WARM_UP: Duration = Duration::from_secs(12);
/// Time over which the shares are measured: many times what CUBIC takes from one loss to the next.
const WINDOW: Duration = Duration::from_secs(30);
/// Time limit for the start.
const PATIENCE: Duration = Duration::from_secs(60);
const TCP_PORT: u16 = 5001;

/// Shares of the link, in bit/s of payload.
#[derive(Debug, Clone, Copy)]
struct Shares {
    flow: f64,
    tcp: f64,
}

/// c3: the flow to three receivers and a TCP transfer share a link of 2 Mbit/s with a drop-tail
/// queue; each gets between a third and two thirds of
/// the payload that passes.
///
/// # Errors
/// When one of them does not, or leaves much of the link unused.
pub fn a_flow_and_tcp_share_a_link(fault: Option<Fault>) -> Result<()> {
    let mut run = RunDir::new("shared-link")?;
    let result = measure(fault, &run).and_then(|shares| {
        require_no_panic(&run.path().join("logs"))?;
        judge(shares)
    });
    if result.is_ok() || fault.is_some() {
        run.discard();
    }
    result
}

fn judge(shares: Shares) -> Result<()> {
    let (both, link) = (shares.flow + shares.tcp, f64::from(CAPACITY) * 1e3);
    let (flow, tcp, used) = (shares.flow / both, shares.tcp / both, both / link);
    println!("flow {flow:.3}, TCP {tcp:.3} of their payload, which is {used:.3} of the link");
    ensure!(
        [flow, tcp]
            .iter()
            .all(|share| (1.0 / 3.0..=2.0 / 3.0).contains(share)),
        "the link is not shared: the flow has {flow:.3} of the payload, TCP {tcp:.3}"
    );
    ensure!(
        used >= 0.7,
        "the link is not used: payload is {used:.3} of what it carries"
    );
    Ok(())
}

fn measure(fault: Option<Fault>, run: &RunDir) -> Result<Shares> {
    let mut lab = Lab::new()?;
    let bins = Binaries::of_testbed()?.reachable(lab.rootless(), run)?;
    let logs = run.path().join("logs");
    std::fs::create_dir(&logs)?;
    let source_node = lab.add_node("source", 2)?;
    let _cable = lab.slow_down(&source_node, ONE_WAY, &bins.delay)?;
    let node = lab.add_node("r1", 11)?;
    let folder = |node: &Node| {
        let folder = run.path().join(node.name());
        std::fs::create_dir(&folder)?;
        node.hand_over(&folder)?;
        anyhow::Ok(folder)
    };
    let (source_data, data) = (folder(&source_node)?, folder(&node)?);
    let report = source_data.join("report.json");
    let start = |node: &Node, name: String, args: Vec<String>| {
        let launch = Launch {
            name,
            program: bins.stream.clone(),
            args,
            env: Vec::new(),
        };
        Service::start(node, &launch, &logs)
    };
    let time = (WARM_UP + WINDOW) * 2;
    let count = time.as_nanos() / interval(SIZE, RATE).as_nanos();
    let mut args = words(&format!(
        "source --group {GROUP} --interface {} --receivers {RECEIVERS} --count {count} --size {SIZE} \
         --rate {RATE} --fall-back-ms {FALL_BACK_MS} --report {}",
        source_node.address(),
        report.display()
    ));
    // Without rate control the flow is sent at its fixed rate, whatever is lost.
    if fault != Some(Fault::LossIgnored) {
        args.push("--rate-control".to_owned());
    }
    let mut source = start(&source_node, "source".to_owned(), args)?;
    let arrivals = |number: usize| data.join(format!("arrivals-{number}"));
    let receivers = (0..RECEIVERS)
        .map(|number| {
            let name = format!("r{number}");
            let args = words(&format!(
                "receiver --server {}:4433 --name {name} --records {}",
                source_node.address(),
                arrivals(number).display()
            ));
            start(&node, name, args)
        })
        .collect::<Result<Vec<Service>>>()?;
    wait_for("all receivers on multicast", PATIENCE, || {
        source.check_running()?;
        Ok(StreamReport::read(&report)?.map(|report| report.start_ns))
    })?;
    lab.set_bandwidth(&node, Some(CAPACITY))?;
    let tcp = data.join("tcp");
    let sink = words(&format!(
        "sink --listen 0.0.0.0:{TCP_PORT} --report {}",
        tcp.display()
    ));
    let _sink = start(&node, "sink".to_owned(), sink)?;
    let send = words(&format!("send --to {}:{TCP_PORT}", node.address()));
    let _send = start(&source_node, "send".to_owned(), send)?;
    pause(WARM_UP);
    let from = now_ns();
    pause(WINDOW);
    let until = now_ns();
    source.check_running()?;
    // Receivers write to disk when nothing arrives, or when they end.
    for mut receiver in receivers {
        receiver.terminate(PATIENCE)?;
    }
    let seconds = (until - from) as f64 / 1e9;
    let got = read_arrivals(&arrivals(0))?;
    let within = got
        .iter()
        .filter(|a| (from..until).contains(&a.received_ns));
    Ok(Shares {
        flow: within.count() as f64 * SIZE as f64 * 8.0 / seconds,
        tcp: received_between(&tcp, from, until).context("the TCP transfer")? as f64 * 8.0
            / seconds,
    })
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
