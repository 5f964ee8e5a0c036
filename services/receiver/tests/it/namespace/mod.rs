//! Tests that need interfaces and routes of their own run again inside a fresh network namespace.

use std::process::{Child, Command, Stdio};

/// A second network beside the test's own; the cable between them ends in `here` and `there`.
pub struct Network {
    holder: Child,
}

impl Network {
    pub fn begin() -> Network {
        let holder = Command::new("unshare")
            .args(["--net", "sleep", "600"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", holder.id());
        // The namespace exists once the process has one of its own.
        while std::fs::read_link(&theirs).unwrap() == own {
            std::thread::yield_now();
        }
        let network = Network { holder };
        network.cable("here", "there");
        network.sh("ip link set lo up");
        network
    }

    /// Another cable between the two.
    pub fn cable(&self, here: &str, there: &str) {
        let pid = self.holder.id();
        sh(&format!(
            "ip link add {here} type veth peer name {there} netns {pid}"
        ));
    }

    /// A command that runs there.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let target = format!("--net=/proc/{}/ns/net", self.holder.id());
        command.args([target.as_str(), program]);
        command
    }

    /// Runs a shell line there.
    pub fn sh(&self, line: &str) {
        let done = self.command("sh").args(["-ec", line]).status().unwrap();
        assert!(done.success(), "{line}");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Runs a shell line here.
pub fn sh(line: &str) {
    assert!(
        Command::new("sh")
            .args(["-ec", line])
            .status()
            .unwrap()
            .success(),
        "{line}"
    );
}
