//! Processes that hold a namespace open for as long as the test lives.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::waiting::pause;

/// A `cat` in a namespace, reading a pipe that only this process can write to.
///
/// When this process ends, in whatever way, the kernel closes the pipe, `cat` ends, and, because
/// `cat` is process 1 of the lab's PID namespace, the kernel kills everything that still runs in
/// the lab. Nothing is left to clean up, even after `kill -9` of the tests.
#[derive(Debug)]
pub struct Holder {
    child: Child,
    pipe: Option<ChildStdin>,
    pid: u32,
}

impl Holder {
    /// Starts `command`, whose last argument is `cat` and whose direct child becomes that `cat`,
    /// and waits until it runs.
    ///
    /// # Errors
    /// When the program does not start, or ends before `cat` runs; the error carries what it
    /// printed.
    pub fn start(mut command: Command, what: &str) -> Result<Holder> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C at a terminal is for us: we end the lab in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting the holder of {what}"))?;
        let mut pipe = child.stdin.take().context("holder without stdin")?;
        let stdout = child.stdout.take().context("holder without stdout")?;
        // cat repeats what it reads: its answer proves that the namespaces exist.
        let mut answer = String::new();
        let wrote = pipe.write_all(b"up\n").and_then(|()| pipe.flush());
        let read = wrote.and_then(|()| BufReader::new(stdout).read_line(&mut answer));
        if read.is_err() || answer != "up\n" {
            drop(pipe);
            let output = child.wait_with_output()?;
            bail!(
                "{what} could not be made: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let pid = child_of(child.id())
            .ok_or_else(|| anyhow!("the holder of {what} has no child process"))?;
        Ok(Holder {
            child,
            pipe: Some(pipe),
            pid,
        })
    }

    /// The process, in our own PID namespace, whose namespaces are held.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.pipe.take();
        let patience = Instant::now() + Duration::from_secs(5);
        while Instant::now() < patience {
            match self.child.try_wait() {
                Ok(None) => pause(Duration::from_millis(2)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first direct child of a process, if it has one.
pub fn child_of(parent: u32) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").ok()?;
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .find(|pid| parent_of(*pid) == Some(parent))
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may itself hold spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}
