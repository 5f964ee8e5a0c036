//! Tests that need interfaces, routes or names of their own run again inside a fresh network namespace.

use std::process::Command;

const INSIDE: &str = "FLEXICAST_TEST_NAMESPACE";

/// Whether this is already the process inside the namespace; otherwise runs the test there to its end, after the shell lines of `network`.
pub fn inside(test: &str, network: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let script =
        format!("set -e\nip link set lo up\n{network}\nexec \"$0\" --exact \"$1\" --nocapture\n");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "sh", "-c"])
        .arg(script)
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
