//! Programs under test: their output, their signals, their end.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

use crate::wait::{self, PATIENCE, pause};

/// Returns a command without the settings in the environment of the user who runs the tests, and
/// without input.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLEXFEED_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// The end of a program.
#[derive(Debug)]
pub struct ProgramEnd {
    /// Its exit code or signal.
    pub status: ExitStatus,
    /// All of its standard error.
    pub log: String,
    /// All of its standard output.
    pub printed: String,
}

impl ProgramEnd {
    /// Its exit code; none after a signal.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// Runs a program to its end.
pub fn run(command: &mut Command) -> ProgramEnd {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    ProgramEnd {
        status: output.status,
        log: text(output.stderr),
        printed: text(output.stdout),
    }
}

/// A running program, which is killed when this is dropped. A test that fails shows its log.
#[derive(Debug)]
pub struct Program {
    id: u32,
    child: Mutex<Child>,
    log: OutputBuffer,
    printed: OutputBuffer,
    /// End of the part of the log that [`Program::wait_for`] has passed.
    passed: Mutex<usize>,
}

impl Program {
    /// Starts it. Its output is read at all times, so that no full pipe stops it.
    pub fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let mut child =
            child.unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
        Self {
            log: OutputBuffer::of(child.stderr.take().unwrap()),
            printed: OutputBuffer::of(child.stdout.take().unwrap()),
            id: child.id(),
            child: Mutex::new(child),
            passed: Mutex::new(0),
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Standard error so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Standard output so far.
    pub fn printed(&self) -> String {
        self.printed.text()
    }

    /// Waits until the condition holds; fails if the program ends before.
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let begun = std::time::Instant::now();
        while !holds() {
            assert!(self.is_running(), "ended before: {what}; {}", self.log());
            let is_late = begun.elapsed() >= PATIENCE;
            assert!(!is_late, "not in time: {what}; {}", self.log());
            pause(Duration::from_millis(20));
        }
    }

    /// Waits for a line of the log that contains the text, after the one found by the last call.
    /// Returns the line.
    pub fn wait_for(&self, text: &str) -> String {
        let mut passed = self.passed.lock().unwrap();
        let begun = std::time::Instant::now();
        loop {
            // Only what has ended can be read from it for certain.
            let is_over = self.log.is_over();
            let log = self.log();
            for line in log[*passed..].split_inclusive('\n') {
                *passed += line.len();
                if line.contains(text) {
                    return line.trim_end().to_owned();
                }
            }
            assert!(
                !is_over && begun.elapsed() < PATIENCE,
                "no line with {text:?}:\n{log}"
            );
            pause(Duration::from_millis(5));
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.lock().unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.child.lock().unwrap().try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub fn wait(&self) -> ExitStatus {
        wait::until_some("the end of the program", || {
            self.child.lock().unwrap().try_wait().unwrap()
        })
    }

    /// Waits for its end and takes its output.
    pub fn end(mut self) -> ProgramEnd {
        let status = self.wait();
        ProgramEnd {
            status,
            log: self.log.whole(),
            printed: self.printed.whole(),
        }
    }

    /// Asks it to stop (SIGTERM) and waits for its end.
    pub fn terminate(self) -> ProgramEnd {
        self.signal(Signal::TERM);
        self.end()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("process {}:\n{}", self.id, self.log());
        }
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Output of a program, read line by line on a thread of its own.
#[derive(Debug)]
struct OutputBuffer {
    text: Arc<Mutex<String>>,
    reading: Option<JoinHandle<()>>,
}

impl OutputBuffer {
    fn of(from: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&text);
        let reading = thread::spawn(move || {
            let mut lines = BufReader::new(from);
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
                kept.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        Self {
            text,
            reading: Some(reading),
        }
    }

    fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    fn is_over(&self) -> bool {
        self.reading.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// All of it, once the program has closed it.
    fn whole(&mut self) -> String {
        if let Some(reading) = self.reading.take() {
            reading.join().unwrap();
        }
        self.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_end_are_kept() {
        let mut sh = Command::new("sh");
        sh.args([
            "-c",
            "echo one >&2; echo two >&2; echo three; exec sleep 1000",
        ]);
        let program = Program::start(&mut sh);
        assert_eq!(program.wait_for("o"), "one");
        assert_eq!(program.wait_for("o"), "two");
        program.until("the third line", || program.printed() == "three\n");
        assert!(program.is_running());
        let ended = program.terminate();
        assert_eq!((ended.code(), ended.log.as_str()), (None, "one\ntwo\n"));
    }

    #[test]
    #[should_panic(expected = "no line with \"never\"")]
    fn a_program_that_ends_is_not_waited_for() {
        let mut sh = Command::new("sh");
        Program::start(sh.args(["-c", "echo once >&2"])).wait_for("never");
    }
}
