//! Running the program, and a feed for it to read.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kit::program::{Program, Signal};
pub use kit::wait::PATIENCE as SOON;

/// A feed that can grow, on a thread of its own for as long as the test runs. Its entries are
/// called 1, 2, 3, …
pub struct Feed {
    pub url: String,
    entries: Arc<AtomicUsize>,
}

impl Feed {
    pub fn with(entries: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/f", listener.local_addr().unwrap());
        let entries = Arc::new(AtomicUsize::new(entries));
        let count = Arc::clone(&entries);
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(&mut stream.unwrap(), count.load(Ordering::Relaxed));
            }
        });
        Self { url, entries }
    }

    pub fn grow(&self, entries: usize) {
        self.entries.fetch_add(entries, Ordering::Relaxed);
    }
}

fn answer(stream: &mut TcpStream, count: usize) {
    // The request ends with its header; what it says does not matter.
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
        line.clear();
    }
    let entries: String = (1..=count)
        .rev()
        .map(|n| format!("<entry><id>{n}</id><title>{n}</title><content>{n}</content></entry>"))
        .collect();
    let body =
        format!("<feed xmlns=\"http://www.w3.org/2005/Atom\"><title>x</title>{entries}</feed>");
    // The program may have been killed meanwhile.
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}

pub fn program() -> Command {
    kit::program::command(env!("CARGO_BIN_EXE_flexfeed-source"))
}

/// A source that runs by unicast on free ports.
pub fn source(data: &Path, feed: &Feed) -> Command {
    source_at("127.0.0.1:0", data, feed)
}

/// A source that runs by unicast on the given address.
pub fn source_at(listen: &str, data: &Path, feed: &Feed) -> Command {
    let mut command = program();
    command
        .args([
            "run",
            "--feed",
            &feed.url,
            "--allow-private-feed",
            "--group",
            "",
        ])
        .args(["--listen", listen, "--http", "127.0.0.1:0"])
        .args(["--poll-interval", "100ms"])
        .arg("--data")
        .arg(data);
    command
}

/// A source that runs.
pub struct Running(Program);

impl Running {
    /// Starts it and waits until it says that it serves.
    pub fn start(command: Command) -> Self {
        let mut running = Self::begin(command);
        running.until("it serves", |running| {
            running.log().contains("status pages on")
        });
        running
    }

    /// Starts it.
    pub fn begin(mut command: Command) -> Self {
        Self(Program::start(&mut command))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn log(&self) -> String {
        self.0.log()
    }

    /// Returns its standard output.
    pub fn printed(&self) -> String {
        self.0.printed()
    }

    pub fn until(&mut self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let running = &*self;
        running.0.until(what, || is(running));
    }

    /// Where it answers HTTP.
    pub fn address(&self) -> String {
        let log = self.log();
        let address = log.split("status pages on http://").nth(1).unwrap();
        address.split_whitespace().next().unwrap().to_owned()
    }

    /// Asks a page and returns the code and the body.
    pub fn page(&self, path: &str) -> (u16, String) {
        kit::http::get(&self.address(), path)
    }

    pub fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    /// Waits for its end; returns how it ended, its log and what it printed.
    pub fn end(self) -> (ExitStatus, String, String) {
        let ended = self.0.end();
        (ended.status, ended.log, ended.printed)
    }

    pub fn terminate(self) -> (ExitStatus, String, String) {
        self.signal(Signal::TERM);
        self.end()
    }
}

/// Runs it to its end; returns the exit code and everything that it said.
pub fn fails(mut command: Command) -> (i32, String) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(said).unwrap(),
    )
}
