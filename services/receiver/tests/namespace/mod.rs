//! Tests that need interfaces and routes of their own run again inside a fresh network namespace.

use std::process::{Child, Command, Stdio};

const INSIDE: &str = "FLEXFEED_RECEIVER_TEST_NAMESPACE";

/// Whether this is already the process inside the namespace; otherwise runs the test there to its
/// end.
pub fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "sh", "-c"])
        .arg("ip link set lo up && exec \"$0\" --exact \"$1\" --nocapture")
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(INSIDE, "1")
        .output()
        .expect("unshare of util-linux");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{test} in its namespace: {}\n{told}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

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
