//! Slow cables: a node further away from the switch than the others.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::holder::Holder;
use super::tools::Tools;
use super::{Lab, Node, port_name};
use crate::delay::Report;

/// A cable of a node on which every frame takes a fixed time each way; it works until this value is
/// dropped or the lab ends.
#[derive(Debug)]
pub struct Cable {
    // The process that carries the frames ends when its input does.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    child: Child,
    _between: Holder,
}

impl Lab {
    /// Replaces a node's cable by a slow one, carried by the program `flexfeed-delay` at `program`.
    /// The node's groups have to be joined again.
    ///
    /// # Errors
    /// When the kernel refuses, or the program does not start.
    pub fn slow_down(&self, node: &Node, one_way: Duration, program: &Path) -> Result<Cable> {
        let tools = Tools::find()?;
        let mut command = self.switch.enter(true)?;
        command.arg(&tools.unshare).arg("--net").arg(&tools.cat);
        let what = format!("the slow cable of {}", node.name);
        let holder = Holder::start(command, &what)?;
        let between = Node {
            name: what.clone(),
            pid: holder.pid(),
            ..self.switch.clone()
        };
        // A namespace in between that has the two ends and nothing else: no address, nothing that
        // would answer or forward by itself.
        let port = port_name(&node.name);
        self.switch.ip_batch(&format!(
            "link set {port} nomaster\n\
             link set {port} netns {pid} name near\n\
             link add {port} type veth peer name far netns {pid}\n\
             link set {port} addrgenmode none\n\
             link set {port} master br0\n\
             link set {port} up\n",
            pid = holder.pid()
        ))?;
        between.ip_batch(
            "link set near addrgenmode none\n\
             link set far addrgenmode none\n\
             link set near up\n\
             link set far up\n",
        )?;
        // Raw sockets are for the lab's owner: not as a service.
        let mut child = between
            .enter(true)?
            .arg(program)
            .args(["carry", "near", "far", "--delay-ms"])
            .arg(one_way.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let input = child.stdin.take().context("a cable without input")?;
        let output = child.stdout.take().context("a cable without output")?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        ensure!(
            line == "up\n",
            "{what} does not work: its program says {line:?}; why is on standard error"
        );
        Ok(Cable {
            input: Some(input),
            output,
            child,
            _between: holder,
        })
    }
}

impl Cable {
    /// Cuts the cable and returns its report.
    ///
    /// # Errors
    /// The cable's program failed.
    pub fn end(mut self) -> Result<Report> {
        drop(self.input.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        ensure!(
            status.success(),
            "the program of a slow cable ended with {status}"
        );
        serde_json::from_str(&text).with_context(|| format!("reading its report {text:?}"))
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
