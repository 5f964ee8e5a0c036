//! The program, its log and its end.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// Longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn receiver(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexfeed-receiver"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLEXFEED_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

pub fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("s3cret"), "the token was shown:\n{text}");
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// Returns a free HTTP address outside the ephemeral range: it is still free after a restart.
pub fn free_address() -> SocketAddr {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let from = 20_000 + (std::process::id() % 10_000) as u16;
    loop {
        let port = from + TRIED.fetch_add(1, Ordering::Relaxed);
        if let Ok(free) = TcpListener::bind(("127.0.0.1", port)) {
            return free.local_addr().unwrap();
        }
    }
}

/// Runs it to its end; returns its exit code and what it said on standard error.
pub fn ends(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), said(&output))
}

/// A receiver that runs, with its log.
pub struct Running {
    pub child: Child,
    lines: Receiver<String>,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let (out, lines) = sync_channel(1000);
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                if out.send(line).is_err() {
                    return;
                }
            }
        });
        Running { child, lines }
    }

    /// Waits for a log line with this text.
    pub fn wait_for(&self, text: &str) -> String {
        loop {
            let line = self
                .lines
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("no line with {text:?}"));
            assert!(!line.contains("s3cret"), "{line}");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Sends it a signal, at once: without a program for it.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
