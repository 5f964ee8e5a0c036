//! Running the program, and a feed for it to read.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use uuid::Uuid;

/// For everything that should happen soon.
pub const SOON: Duration = Duration::from_secs(30);

/// A feed that can grow, on a thread of its own for as long as the test runs. Its entries are called
/// 1, 2, 3, …
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexfeed-source"));
    // A developer's environment must not decide.
    for (name, _) in std::env::vars() {
        if name.starts_with("FLEXFEED_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
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

/// Returns a free UDP address for consecutive processes. None is given twice, and requests for any
/// port do not get it: those are above 32,767.
pub fn free() -> SocketAddr {
    static NEXT: LazyLock<AtomicU16> =
        LazyLock::new(|| AtomicU16::new(Uuid::new_v4().as_u128() as u16));
    loop {
        // Another process may have this one.
        let port = 21_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 11_000;
        if let Ok(socket) = UdpSocket::bind(("127.0.0.1", port)) {
            return socket.local_addr().unwrap();
        }
    }
}

pub struct Running {
    pub child: Child,
    log: Arc<Mutex<String>>,
    printed: Arc<Mutex<String>>,
    reading: Vec<thread::JoinHandle<()>>,
}

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
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (log, log_ends) = kept(child.stderr.take().unwrap());
        let (printed, printed_ends) = kept(child.stdout.take().unwrap());
        Self {
            child,
            log,
            printed,
            reading: vec![log_ends, printed_ends],
        }
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Returns its standard output.
    pub fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    pub fn until(&mut self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !is(self) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "ended before: {what}; {}", self.log());
            assert!(
                began.elapsed() < SOON,
                "not in time: {what}; {}",
                self.log()
            );
            pause();
        }
    }

    /// Where it answers HTTP.
    pub fn address(&self) -> String {
        let log = self.log();
        let address = log.split("status pages on http://").nth(1).unwrap();
        address.split_whitespace().next().unwrap().to_owned()
    }

    /// Asks a page and returns the code and the body.
    pub fn page(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (code, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end; returns how it ended, its log and what it printed.
    pub fn end(mut self) -> (ExitStatus, String, String) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < SOON, "does not end: {}", self.log());
            pause();
        };
        // Nothing of what it wrote last is missing.
        for reading in self.reading.drain(..) {
            reading.join().unwrap();
        }
        (status, self.log(), self.printed())
    }

    pub fn terminate(self) -> (ExitStatus, String, String) {
        self.signal(Signal::TERM);
        self.end()
    }
}

/// Reads everything on a thread of its own, and keeps it.
fn kept(from: impl Read + Send + 'static) -> (Arc<Mutex<String>>, thread::JoinHandle<()>) {
    let all = Arc::new(Mutex::new(String::new()));
    let keep = Arc::clone(&all);
    let reading = thread::spawn(move || {
        let mut lines = BufReader::new(from);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
            keep.lock().unwrap().push_str(&line);
            line.clear();
        }
    });
    (all, reading)
}

// A failed test leaves no process behind, and prints its output.
impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("process {}:\n{}", self.child.id(), self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "these tests are plain threads")]
pub fn pause() {
    thread::sleep(Duration::from_millis(20));
}

/// Waits until it is so.
pub fn soon(what: &str, is: impl Fn() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < SOON, "not in time: {what}");
        pause();
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
