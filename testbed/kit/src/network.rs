//! A second network, for a test that runs in a namespace of its own (`in_namespace!`).

use std::process::{Child, Command, Stdio};

use crate::wait;

/// A network next to the test's own. The cable between them ends in the interfaces `here` and
/// `there`, both down and without addresses.
#[derive(Debug)]
pub struct Network {
    /// Has the namespace; ends when its input does, and so with this process.
    holder: Child,
}

impl Network {
    /// Makes one, with its loopback interface up.
    pub fn begin() -> Network {
        let mut holder = Command::new("unshare");
        holder
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let holder = holder.spawn().expect("unshare of util-linux");
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
        let own = namespace("self").unwrap();
        let id = holder.id().to_string();
        wait::until("the namespace", || namespace(&id).unwrap() != own);
        let network = Network { holder };
        network.cable("here", "there");
        network.sh("ip link set lo up");
        network
    }

    /// Adds another cable between the two.
    pub fn cable(&self, here: &str, there: &str) {
        let id = self.holder.id();
        sh(&format!(
            "ip link add {here} type veth peer name {there} netns {id}"
        ));
    }

    /// Returns a command that runs there.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let target = format!("--net=/proc/{}/ns/net", self.holder.id());
        command.args([target.as_str(), program]);
        command
    }

    /// Runs shell lines there.
    pub fn sh(&self, lines: &str) {
        succeed(self.command("sh").args(["-ec", lines]), lines);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Runs shell lines here.
pub fn sh(lines: &str) {
    succeed(Command::new("sh").args(["-ec", lines]), lines);
}

fn succeed(command: &mut Command, lines: &str) {
    let status = command.status().unwrap();
    assert!(status.success(), "{lines}: {status}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cable_has_an_end_in_each_network() {
        if !crate::in_namespace!() {
            return;
        }
        let network = Network::begin();
        network.cable("near", "far");
        sh("ip link set here up; ip link set near up; ! grep -qw there /proc/net/dev");
        network.sh("ip link set there up; ip link set far up; ! grep -qw here /proc/net/dev");
    }
}
