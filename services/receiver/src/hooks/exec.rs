//! Commands: `/bin/sh -c COMMAND` for each update, with the event on standard input.
//!
//! Exit status 0 is success. Each command runs in a process group of its own, which is killed as a
//! whole at its timeout. Standard output is discarded; the end of standard error is part of the
//! failure's reason.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::event::Event;
use super::{Target, Verdict};
use service::peer_text::plain;

/// Time between SIGTERM and SIGKILL after a timeout.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Bytes kept of the end of standard error.
const ERROR_TAIL: usize = 400;

/// Time limit for the end of standard error, which children may hold open after the command.
const ERROR_TIME: Duration = Duration::from_millis(200);

/// Longest value of a variable, in characters; the system has a limit of its own.
const MAX_VARIABLE: usize = 4096;

/// Variables withheld from commands: the receiver's own settings, with secrets among them, and
/// systemd's variables for the receiver alone, such as the credentials directory.
const OWN: &[&str] = &[
    "CREDENTIALS_DIRECTORY",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

/// Whether a variable is one of the receiver's own.
pub(super) fn is_own(name: &str) -> bool {
    name.starts_with("FLEXFEED_") || OWN.contains(&name)
}

/// Command.
#[derive(Debug)]
pub struct Exec {
    command: String,
    timeout: Duration,
}

impl Exec {
    /// Returns the hook that runs `command`, at most for `timeout`.
    #[must_use]
    pub fn new(command: String, timeout: Duration) -> Self {
        Self { command, timeout }
    }

    fn prepare(&self, event: &Event, attempt: u32) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(&self.command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        for (name, _) in std::env::vars_os() {
            if is_own(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        let (seq, attempt) = (event.seq.to_string(), attempt.to_string());
        for (name, value) in [
            ("FLEXFEED_CHANNEL", event.channel.as_str()),
            ("FLEXFEED_INCARNATION", event.incarnation()),
            ("FLEXFEED_SEQ", &seq),
            ("FLEXFEED_EVENT_ID", &event.id),
            ("FLEXFEED_EVENT_TYPE", &event.kind),
            ("FLEXFEED_TIME", &event.time),
            ("FLEXFEED_FEED", &event.source),
            ("FLEXFEED_ENTRY_ID", &event.subject),
            ("FLEXFEED_ENTRY_URL", event.url().unwrap_or_default()),
            ("FLEXFEED_ENTRY_TITLE", event.title().unwrap_or_default()),
            ("FLEXFEED_ATTEMPT", &attempt),
        ] {
            command.env(name, variable(value));
        }
        command
    }
}

impl Target for Exec {
    const KIND: &'static str = "exec";

    async fn attempt(&self, event: &Event, attempt: u32) -> Verdict {
        let again = |reason| Verdict::Again {
            reason,
            after: None,
        };
        let child = match self.prepare(event, attempt).spawn() {
            Ok(child) => child,
            Err(error) => return again(format!("/bin/sh cannot be started: {error}")),
        };
        let mut group = Group::of(child);
        let input = group.child.stdin.take();
        let errors = group.child.stderr.take();
        let feed = async {
            if let Some(mut input) = input {
                // A command need not read its input.
                let _ = input.write_all(&event.json).await;
            }
            std::future::pending::<()>().await;
        };
        let mut tail = Vec::new();
        let ended = {
            let listen = async {
                if let Some(errors) = errors {
                    keep_tail(errors, &mut tail).await;
                }
            };
            let run = tokio::time::timeout(self.timeout, group.child.wait());
            tokio::pin!(feed, listen, run);
            let mut listening = true;
            let ended = loop {
                tokio::select! {
                    ended = &mut run => break ended,
                    () = &mut feed => {}
                    () = &mut listen, if listening => listening = false,
                }
            };
            if listening && ended.is_ok() {
                let _ = tokio::time::timeout(ERROR_TIME, listen).await;
            }
            ended
        };
        match ended {
            Ok(Ok(status)) => {
                group.is_over = true;
                if status.success() {
                    return Verdict::Done;
                }
                again(format!(
                    "the command {}{}",
                    words(status),
                    last_words(&tail)
                ))
            }
            Ok(Err(error)) => again(format!("waiting for the command failed: {error}")),
            Err(_) => {
                group.end().await;
                again(format!(
                    "the command timed out after {} s and was killed{}",
                    self.timeout.as_secs_f64(),
                    last_words(&tail)
                ))
            }
        }
    }
}

/// Process group of a command, killed when dropped before its end.
struct Group {
    child: Child,
    leader: Option<Pid>,
    is_over: bool,
}

impl Group {
    fn of(child: Child) -> Self {
        let leader = child.id().and_then(|id| i32::try_from(id).ok());
        Self {
            leader: leader.and_then(Pid::from_raw),
            child,
            is_over: false,
        }
    }

    fn signal(&self, signal: Signal) {
        // Until the leader is reaped, its process id is not reused.
        if let Some(leader) = self.leader.filter(|_| !self.is_over) {
            let _ = kill_process_group(leader, signal);
        }
    }

    /// Sends SIGTERM, and SIGKILL after a while.
    async fn end(&mut self) {
        self.signal(Signal::TERM);
        let waited = tokio::time::timeout(LAST_WORDS, self.child.wait()).await;
        // Children of the leader may have ignored SIGTERM. The group's id is not reused as long as
        // one of them lives; without any, the signal hits no process, as ids are not reused that
        // soon. The leader is kept until then: `drop` above still kills the group.
        self.signal(Signal::KILL);
        self.leader = None;
        if waited.is_err() {
            let _ = self.child.wait().await;
        }
        self.is_over = true;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Reads to the end, and keeps the last bytes.
async fn keep_tail(mut from: impl AsyncRead + Unpin, tail: &mut Vec<u8>) {
    let mut buffer = [0; 1024];
    while let Ok(n) = from.read(&mut buffer).await {
        let Some(read) = buffer.get(..n).filter(|read| !read.is_empty()) else {
            return;
        };
        tail.extend_from_slice(read);
        let excess = tail.len().saturating_sub(ERROR_TAIL);
        tail.drain(..excess);
    }
}

fn last_words(tail: &[u8]) -> String {
    let text = plain(String::from_utf8_lossy(tail).trim());
    if text.is_empty() {
        text
    } else {
        format!("; standard error: {text}")
    }
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("failed with exit status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "failed".to_owned(),
    }
}

/// Returns a text fit for a variable: without null characters, and not too long.
fn variable(text: &str) -> String {
    let kept = text.chars().filter(|c| *c != '\0');
    kept.take(MAX_VARIABLE).collect()
}
