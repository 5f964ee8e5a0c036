//! The program, its log and its end.

use std::path::Path;
use std::process::{Command, Output};

use kit::program::Program;
pub use kit::program::Signal;
pub use kit::wait::PATIENCE;

pub fn receiver(arguments: &[&str]) -> Command {
    let mut command = kit::program::command(env!("CARGO_BIN_EXE_flexfeed-receiver"));
    command.args(arguments);
    command
}

pub fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("s3cret"), "the token was shown:\n{text}");
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// Runs it to its end; returns its exit code and what it said on standard error.
pub fn ends(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), said(&output))
}

/// A receiver that runs, with its log.
pub struct Running(Program);

impl Running {
    pub fn start(command: &mut Command) -> Running {
        Running(Program::start(command))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits for a log line with this text, after the last one that was waited for.
    pub fn wait_for(&self, text: &str) -> String {
        let line = self.0.wait_for(text);
        let log = self.0.log();
        assert!(!log.contains("s3cret"), "{log}");
        line
    }

    pub fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    /// Waits for its end and returns its exit code.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.0.wait().code()
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
