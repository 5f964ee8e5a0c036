//! One relay of a scenario: its node, its command line, its process.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::binaries::Binaries;
use crate::lab::Node;
use crate::process::{Launch, Service};
use crate::scenario::plan::switch;
use crate::scenario::{Fault, PATIENCE};
use crate::waiting::wait_for;

/// Address of a relay's status page, in its node.
const STATUS_PAGE: &str = "127.0.0.1:8091";

/// A relay and everything that can be seen of it.
#[derive(Debug)]
pub struct RelaySeat {
    node: Node,
    launch: Launch,
    service: Option<Service>,
    getter: std::path::PathBuf,
}

/// A relay's status page, as far as the testbed looks at it.
#[derive(Debug, Clone, Deserialize)]
pub struct RelayStatus {
    /// Tunnels that it has.
    pub gateways: Count,
    /// Joins on the native side.
    pub groups: Count,
    /// Packets that did not get to gateways, by reason.
    pub lost: BTreeMap<String, u64>,
}

/// Number.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Count {
    /// Now.
    pub count: u64,
}

impl RelaySeat {
    /// Prepares a relay of this name in a node; [`RelaySeat::start`] starts it. `args` come behind
    /// those that all have.
    pub fn new(
        node: Node,
        name: &str,
        bins: &Binaries,
        args: &[&str],
        fault: Option<Fault>,
    ) -> RelaySeat {
        let mut all = vec!["--http".to_owned(), STATUS_PAGE.to_owned()];
        all.extend(args.iter().map(ToString::to_string));
        let launch = Launch {
            name: name.to_owned(),
            program: bins.relay.clone(),
            args: all,
            env: fault.map(switch).into_iter().collect(),
        };
        RelaySeat {
            node,
            launch,
            service: None,
            getter: bins.lore.clone(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.launch.name
    }

    /// Returns its node in the lab.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns its address for gateways, in the family of `like`.
    pub fn address(&self, like: IpAddr) -> SocketAddr {
        let ip: IpAddr = match like {
            IpAddr::V4(_) => self.node.address().into(),
            IpAddr::V6(_) => self.node.address6().into(),
        };
        SocketAddr::new(ip, amt::PORT)
    }

    /// Starts it, again if it was stopped, and waits until it answers.
    ///
    /// # Errors
    /// When it does not.
    pub fn start(&mut self, logs: &Path) -> Result<()> {
        let mut service = Service::start(&self.node, &self.launch, logs)?;
        wait_for(&format!("{} to be ready", self.name()), PATIENCE, || {
            service.check_running()?;
            Ok(self.get("/readyz").ok().map(|_| ()))
        })?;
        self.service = Some(service);
        Ok(())
    }

    /// The process, unless it was stopped on purpose.
    pub fn service(&mut self) -> Option<&mut Service> {
        self.service.as_mut()
    }

    /// The process, which must not have been stopped.
    ///
    /// # Errors
    /// When it was.
    pub fn running(&mut self) -> Result<&mut Service> {
        let name = &self.launch.name;
        self.service
            .as_mut()
            .with_context(|| format!("{name} was stopped"))
    }

    /// Kills the process as a power cut would.
    ///
    /// # Errors
    /// When it had ended before.
    pub fn kill(&mut self) -> Result<()> {
        self.running()?.kill()?;
        self.service = None;
        Ok(())
    }

    /// Hands the process out: from now on it may end when it likes.
    ///
    /// # Errors
    /// When it was stopped before.
    pub fn dismiss(&mut self) -> Result<Service> {
        self.running()?.check_running()?;
        let name = &self.launch.name;
        let service = self.service.take();
        service.with_context(|| format!("{name} was stopped"))
    }

    /// Returns its status page.
    ///
    /// # Errors
    /// The page is missing or malformed.
    pub fn status(&self) -> Result<RelayStatus> {
        let text = self.get("/status.json")?;
        serde_json::from_str(&text)
            .with_context(|| format!("reading the status of {}: {text}", self.name()))
    }

    /// A page of its HTTP server.
    ///
    /// # Errors
    /// When there is no good answer.
    pub fn get(&self, path: &str) -> Result<String> {
        let mut command = self.node.command(&self.getter)?;
        let output = command
            .arg("get")
            .arg(format!("http://{STATUS_PAGE}{path}"))
            .output()
            .context("starting flexfeed-lore")?;
        if !output.status.success() {
            bail!(
                "{path} of {}: {}",
                self.name(),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns all diagnostics.
    pub fn describe(&self) -> String {
        let status = self
            .get("/status.json")
            .unwrap_or_else(|error| format!("(no answer: {error:#})"));
        let tail = self
            .service
            .as_ref()
            .map_or_else(|| "(stopped)".to_owned(), Service::log_tail);
        format!("--- {}\nstatus: {status}\nlog ends:\n{tail}\n", self.name())
    }
}
