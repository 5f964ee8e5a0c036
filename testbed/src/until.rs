//! Programs that run until they have what they need, or until asked to end, so that no test has to
//! guess durations.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// The line that a program prints when it has joined.
pub const JOINED: &str = "joined";

/// When a program ends: after a time, or sooner, when its standard input is closed.
#[derive(Debug, Clone)]
pub struct StopCondition {
    end: Instant,
    closed: Arc<AtomicBool>,
}

impl StopCondition {
    /// After a time.
    pub fn after(time: Duration) -> StopCondition {
        StopCondition {
            end: Instant::now() + time,
            closed: Arc::default(),
        }
    }

    /// When standard input is closed; after a time if that does not happen.
    pub fn closed_or_after(time: Duration) -> StopCondition {
        let until = StopCondition::after(time);
        let closed = Arc::clone(&until.closed);
        std::thread::spawn(move || {
            // Whatever is said there means nothing, and an error is an end.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            closed.store(true, Ordering::Relaxed);
        });
        until
    }

    /// When the time is over.
    pub fn end(&self) -> Instant {
        self.end
    }

    /// Whether standard input was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether the end has come.
    pub fn is_over(&self) -> bool {
        self.is_closed() || Instant::now() >= self.end
    }
}

/// Program started with `--until-closed`, which reports line by line and ends when its standard
/// input is closed: by [`Talker::finish`], or on drop.
#[derive(Debug)]
pub struct Talker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Talker {
    /// Starts it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Result<Talker> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let output = child.stdout.take().context("it has no output")?;
        Ok(Talker {
            child,
            lines: BufReader::new(output).lines(),
        })
    }

    /// Waits for the next line.
    ///
    /// # Errors
    /// When it ends before.
    pub fn line(&mut self) -> Result<String> {
        let line = self.lines.next().context("it has ended")?;
        line.context("reading what it tells")
    }

    /// Waits until it has joined.
    ///
    /// # Errors
    /// When it ends before, or says something else.
    pub fn joined(&mut self) -> Result<()> {
        let line = self.line()?;
        ensure!(line == JOINED, "it has not joined, but said {line:?}");
        Ok(())
    }

    /// Asks it to end, without waiting.
    pub fn close(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Ends it, and returns the lines that were not read yet.
    ///
    /// # Errors
    /// When it fails.
    pub fn finish(mut self) -> Result<Vec<String>> {
        self.close();
        let lines = self.lines.collect::<std::io::Result<_>>()?;
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_talker_reports_lines_and_ends_on_request() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo joined; echo one; cat; echo two"]);
        let mut talker = Talker::start(command).unwrap();
        talker.joined().unwrap();
        assert_eq!(talker.line().unwrap(), "one");
        assert_eq!(talker.finish().unwrap(), ["two"]);
    }

    #[test]
    fn a_talker_that_fails_is_noticed() {
        let talk = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Talker::start(command).unwrap()
        };
        assert!(talk("echo other").joined().is_err());
        assert!(talk("exit 0").joined().is_err());
        assert!(talk("cat; exit 3").finish().is_err());
    }

    #[test]
    fn a_time_ends() {
        assert!(StopCondition::after(Duration::ZERO).is_over());
        assert!(!StopCondition::after(Duration::from_secs(600)).is_over());
    }
}
