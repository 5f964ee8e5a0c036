//! A relay between two networks, a sender in one and gateways in the other: without source and
//! receivers of flexfeed.

use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::de::DeserializeOwned;

use super::relay::RelaySeat;
use crate::binaries::Binaries;
use crate::lab::{Beyond, Families, Lab, Node};
use crate::process::{Launch, Service};
use crate::run_dir::RunDir;
use crate::scenario::plan::switch;
use crate::scenario::{Fault, PATIENCE, checks};
use crate::tunnel::JoinPlan;

/// The two networks and what runs in them.
#[derive(Debug)]
pub struct Site {
    // Services end before their lab, and the run folder goes last.
    pub(super) relay: RelaySeat,
    pub(super) gateways: Vec<Service>,
    pub(super) lab: Lab,
    pub(super) beyond: Beyond,
    pub(super) source: Node,
    pub(super) bins: Binaries,
    fault: Option<Fault>,
    pub(super) run: RunDir,
}

/// Something that was started and will tell what came of it.
#[derive(Debug)]
pub struct Pending<T> {
    child: Child,
    what: String,
    report: PhantomData<T>,
}

impl<T: DeserializeOwned> Pending<T> {
    /// Waits for the program's report.
    ///
    /// # Errors
    /// The program fails or reports something else.
    pub fn finish(self) -> Result<T> {
        let output = self.child.wait_with_output()?;
        let what = &self.what;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{what}: {}", said.trim());
        let report = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(report.trim()).with_context(|| format!("{what} reported {report:?}"))
    }
}

impl Site {
    /// Makes the networks, starts the relay with these arguments, lets `act` do what it does, and
    /// ends everything in order.
    ///
    /// # Errors
    /// Whatever `act` fails with, or a start or an end that goes wrong.
    pub fn play(
        name: &str,
        families: Families,
        relay: &[&str],
        fault: Option<Fault>,
        act: impl FnOnce(&mut Site) -> Result<()>,
    ) -> Result<()> {
        let mut site = Site::up(name, families, relay, fault)?;
        let logs = site.logs();
        let result = site
            .relay
            .start(&logs)
            .and_then(|()| act(&mut site))
            .and_then(|()| site.end())
            .and_then(|()| checks::require_no_panic(&logs));
        let Err(error) = result else {
            site.run.discard();
            return Ok(());
        };
        let mut state = site.relay.describe();
        for gateway in &site.gateways {
            state += &format!("--- {}\n{}\n", gateway.name(), gateway.log_tail());
        }
        if fault.is_some() {
            // This failure was wanted.
            site.run.discard();
        }
        Err(anyhow!(
            "{error:#}\n\n===== state when it failed =====\n{state}"
        ))
    }

    fn up(name: &str, families: Families, relay: &[&str], fault: Option<Fault>) -> Result<Site> {
        let run = RunDir::new(name)?;
        std::fs::create_dir(run.path().join("logs"))?;
        let mut lab = Lab::with(families)?;
        let bins = Binaries::find()?.reachable(lab.rootless(), &run)?;
        let source = lab.add_node("source", 2)?;
        let relay_node = lab.add_node("relay", 5)?;
        let beyond = lab.add_beyond(3)?;
        for node in [&source, &relay_node] {
            lab.route_beyond(node, &beyond)?;
        }
        Ok(Site {
            relay: RelaySeat::new(relay_node, "relay", &bins, relay, fault),
            gateways: Vec::new(),
            lab,
            beyond,
            source,
            bins,
            fault,
            run,
        })
    }

    /// The folder of all logs.
    pub fn logs(&self) -> PathBuf {
        self.run.path().join("logs")
    }

    /// A node beyond the border that speaks everything that the lab does.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn add_far(&mut self, name: &str, host: u8) -> Result<Node> {
        let families = self.source.families();
        self.beyond.add_node(&mut self.lab, name, host, families)
    }

    /// Returns the join for this source, or for any, in the family of the group.
    pub fn wanted(&self, group: &str, any_source: bool) -> Result<JoinPlan> {
        let group: SocketAddr = group.parse().with_context(|| format!("{group:?}"))?;
        let source: IpAddr = match group {
            SocketAddr::V4(_) => self.source.address().into(),
            SocketAddr::V6(_) => self.source.address6().into(),
        };
        Ok(JoinPlan {
            source: (!any_source).then_some(source),
            group,
        })
    }

    /// Sends numbered datagrams of so many bytes to a group, every 5 ms, until it is waited for.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn send(&self, group: &str, size: usize) -> Result<Child> {
        let count = u32::MAX.to_string();
        let mut command = self.source.service_command(&self.bins.probe)?;
        command
            .args(["send", "--group", group, "--interval-ms", "5"])
            .args(["--count", &count, "--size", &size.to_string()])
            .arg("--until-closed");
        spawn(command)
    }

    /// Starts something that speaks AMT from a node. With `--until-closed` it ends when it has to
    /// tell.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn tunnel<T: DeserializeOwned>(
        &self,
        node: &Node,
        relay: SocketAddr,
        wanted: JoinPlan,
        args: &[&str],
    ) -> Result<Pending<T>> {
        let mut command = node.service_command(&self.bins.tunnel)?;
        command
            .args(["--relay", &relay.to_string()])
            .args(["--group", &wanted.group.to_string()])
            .args(args);
        if let Some(source) = wanted.source {
            command.args(["--source", &source.to_string()]);
        }
        Ok(Pending {
            child: spawn(command)?,
            what: format!("{} of {}", args.first().unwrap_or(&""), node.name()),
            report: PhantomData,
        })
    }

    /// Counts the datagrams of a group on a node's loopback interface, or on the interface with an
    /// address, for a time.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn count(
        &self,
        node: &Node,
        group: SocketAddr,
        interface: IpAddr,
        time: Duration,
    ) -> Result<Pending<u64>> {
        let time = time.as_millis().to_string();
        self.count_with(node, group, interface, &["--for-ms", &time])
    }

    /// The same until the count is reached; otherwise returns the count within [`PATIENCE`].
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn count_to(
        &self,
        node: &Node,
        group: SocketAddr,
        interface: IpAddr,
        enough: u64,
    ) -> Result<Pending<u64>> {
        let (enough, time) = (enough.to_string(), PATIENCE.as_millis().to_string());
        let args = ["--enough", &enough, "--for-ms", &time];
        self.count_with(node, group, interface, &args)
    }

    fn count_with(
        &self,
        node: &Node,
        group: SocketAddr,
        interface: IpAddr,
        args: &[&str],
    ) -> Result<Pending<u64>> {
        let mut command = node.service_command(&self.bins.probe)?;
        command
            .args(["count", "--group", &group.to_string()])
            .args(["--interface", &interface.to_string()])
            .args(args);
        Ok(Pending {
            child: spawn(command)?,
            what: format!("counting in {}", node.name()),
            report: PhantomData,
        })
    }

    /// Starts `flexfeed-gateway` in a node, which sends a group on to programs of the node: on the
    /// loopback interface, or an IPv6 group on its other one.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_gateway(
        &mut self,
        node: &Node,
        relay: SocketAddr,
        wanted: JoinPlan,
    ) -> Result<()> {
        let launch = gateway_launch(node, &self.bins, relay, wanted, self.fault);
        let service = Service::start(node, &launch, &self.logs())?;
        self.gateways.push(service);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let bound = Duration::from_secs(20);
        let relay = self.relay.service();
        for service in self.gateways.iter_mut().chain(relay) {
            let status = service.terminate(bound)?;
            if !status.success() {
                bail!(
                    "{} ended with {status} after SIGTERM; its log ends:\n{}",
                    service.name(),
                    service.log_tail()
                );
            }
        }
        Ok(())
    }
}

/// The command line of `flexfeed-gateway` in a node.
pub(super) fn gateway_launch(
    node: &Node,
    bins: &Binaries,
    relay: SocketAddr,
    wanted: JoinPlan,
    fault: Option<Fault>,
) -> Launch {
    let group = wanted.group;
    let flow = match wanted.source {
        Some(source) => format!("{source}@{group}"),
        None => group.to_string(),
    };
    // Loopback interfaces have no way for IPv6 multicast unless one is added.
    let interface = if group.is_ipv4() { "lo" } else { "eth0" };
    let pairs = [
        ("--relay", relay.to_string()),
        ("--flow", flow),
        ("--out-interface", interface.to_owned()),
    ];
    Launch {
        name: format!("gateway-{}", node.name()),
        program: bins.gateway.clone(),
        args: pairs
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect(),
        env: fault.map(switch).into_iter().collect(),
    }
}

fn spawn(mut command: Command) -> Result<Child> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting a probe")
}
