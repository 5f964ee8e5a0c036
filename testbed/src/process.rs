//! Services running in a lab.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::lab::{Node, child_of};
use crate::waiting::wait_for;

/// Bytes of a log's end that a report shows.
const TAIL_BYTES: u64 = 6_000;

/// A running (or ended) program in a node, with its output in a log file.
///
/// Killed on drop. All output of one service goes to one file, also over several starts.
#[derive(Debug)]
pub struct Service {
    name: String,
    log: PathBuf,
    // nsenter, whose only child is the program.
    child: Child,
    ended: Option<ExitStatus>,
}

/// A program with its arguments and environment.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The name in reports; the log is `NAME.log`.
    pub name: String,
    /// The program's path.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables added to the environment.
    pub env: Vec<(String, String)>,
}

impl Service {
    /// Starts a program in a node, as an ordinary user, with `logs/NAME.log` for its output
    /// (appended to).
    ///
    /// # Errors
    /// When the log cannot be opened or the program cannot be started.
    pub fn start(node: &Node, launch: &Launch, logs: &Path) -> Result<Service> {
        Service::start_by(node.service_command(&launch.program)?, node, launch, logs)
    }

    /// The same with the rights of the lab's owner over the node's network, for programs that need
    /// raw sockets.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub fn start_as_owner(node: &Node, launch: &Launch, logs: &Path) -> Result<Service> {
        Service::start_by(node.owner_command(&launch.program)?, node, launch, logs)
    }

    fn start_by(
        mut command: Command,
        node: &Node,
        launch: &Launch,
        logs: &Path,
    ) -> Result<Service> {
        let log = logs.join(format!("{}.log", launch.name));
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("opening the log {}", log.display()))?;
        // Settings in the environment of the tests must not reach the services.
        for (key, _) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("FLEXFEED_") {
                command.env_remove(key);
            }
        }
        let child = command
            .args(&launch.args)
            .envs(launch.env.iter().map(|(key, value)| (key, value)))
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("starting {} in node {}", launch.name, node.name()))?;
        Ok(Service {
            name: launch.name.clone(),
            log,
            child,
            ended: None,
        })
    }

    /// The name given at the start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the exit status, or `None` while the program runs.
    ///
    /// # Errors
    /// The status cannot be read.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Fails if the program has ended.
    ///
    /// # Errors
    /// Names the service, how it ended, and the end of its log.
    pub fn check_running(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} has ended ({status}); its log ends:\n{}",
                self.name,
                self.log_tail()
            ),
        }
    }

    /// `kill -9`, and waits for the end.
    ///
    /// # Errors
    /// When it had ended by itself before.
    pub fn kill(&mut self) -> Result<()> {
        self.check_running()?;
        self.signal(Signal::KILL)?;
        self.wait_end(Duration::from_secs(10))?;
        Ok(())
    }

    /// SIGSTOP: the program does not run until [`Service::resume`].
    ///
    /// # Errors
    /// When it had ended by itself before.
    pub fn pause(&mut self) -> Result<()> {
        self.check_running()?;
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// When it had ended by itself before.
    pub fn resume(&mut self) -> Result<()> {
        self.check_running()?;
        self.signal(Signal::CONT)?;
        // nsenter stops itself together with the program.
        let outer = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let outer = outer.with_context(|| format!("the process of {}", self.name))?;
        kill_process(outer, Signal::CONT)
            .with_context(|| format!("signalling {} (process {outer:?})", self.name))
    }

    /// SIGTERM, and does not wait.
    ///
    /// # Errors
    /// When it had ended by itself before.
    pub fn signal_end(&mut self) -> Result<()> {
        self.check_running()?;
        self.signal(Signal::TERM)
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it had ended by itself before, or does not end within `bound`.
    pub fn terminate(&mut self, bound: Duration) -> Result<ExitStatus> {
        self.check_running()?;
        self.signal(Signal::TERM)?;
        self.wait_end(bound)
    }

    /// Waits until the program ends by itself or by an earlier signal.
    ///
    /// # Errors
    /// When it does not end within `bound`.
    pub fn wait_end(&mut self, bound: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        wait_for(&what, bound, || self.ended())
    }

    /// Returns the program's resident memory, in KiB.
    ///
    /// # Errors
    /// The program has ended, or the value cannot be read.
    pub fn resident_kib(&mut self) -> Result<u64> {
        self.check_running()?;
        let pid = self.program_pid()?.as_raw_nonzero();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
            .with_context(|| format!("reading the memory of {}", self.name))?;
        status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("no VmRSS of {}", self.name))
    }

    /// Returns the CPU time used by all running threads of the program.
    ///
    /// # Errors
    /// The program has ended, or the value cannot be read.
    pub fn cpu_time(&mut self) -> Result<Duration> {
        self.check_running()?;
        let pid = self.program_pid()?.as_raw_nonzero();
        cpu_time_of(pid.get().unsigned_abs())
            .with_context(|| format!("the CPU time of {}", self.name))
    }

    /// Whether the log holds a text.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log_contains(&self, text: &str) -> Result<bool> {
        Ok(self.log_text()?.contains(text))
    }

    /// The whole log; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn log_text(&self) -> Result<String> {
        let bytes = std::fs::read(&self.log)
            .with_context(|| format!("reading the log {}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The end of the log, for a report.
    pub fn log_tail(&self) -> String {
        tail(&self.log).unwrap_or_else(|error| format!("(no log: {error})"))
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        let pid = self.program_pid()?;
        kill_process(pid, signal)
            .with_context(|| format!("signalling {} (process {pid:?})", self.name))
    }

    /// The program itself; shortly after the start nsenter may not have made it yet.
    fn program_pid(&mut self) -> Result<Pid> {
        let what = format!("the process of {}", self.name);
        wait_for(&what, Duration::from_secs(30), || {
            self.check_running()?;
            let pid = child_of(self.child.id()).and_then(|pid| i32::try_from(pid).ok());
            Ok(pid.and_then(Pid::from_raw))
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if matches!(self.ended(), Ok(None)) {
            let _ = self.signal(Signal::KILL);
            if self.wait_end(Duration::from_secs(5)).is_err() {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}

/// Whether a status is what `kill -9` leaves.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
/// Returns the CPU time used by all running threads of a process.
///
/// # Errors
/// There is no such process, or the value cannot be read.
pub fn cpu_time_of(pid: u32) -> Result<Duration> {
    let mut total = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end just now.
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        let first = text.split_whitespace().next();
        total += first
            .and_then(|ns| ns.parse::<u64>().ok())
            .with_context(|| format!("the CPU time of process {pid}: {text:?}"))?;
    }
    Ok(Duration::from_nanos(total))
}
