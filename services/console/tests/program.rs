//! The program from outside: settings, users, the link, signals.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Bound on everything that has to happen.
const PATIENCE: Duration = Duration::from_secs(30);

fn console(database: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexfeed-console"));
    command
        .args(arguments)
        .env("DATABASE_URL", database)
        .env_remove("RUST_LOG");
    command
}

/// Returns the exit code, standard output and standard error.
fn run(database: &str, arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut child = console(database, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

fn database() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/console.db", folder.path().display());
    (folder, url)
}

/// Console that is stopped with the test.
struct Running {
    child: Child,
    /// Setup link.
    link: String,
    address: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts a console without users.
    fn start(database: &str) -> Self {
        let mut child = console(database, &["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut seen = Vec::new();
        while !seen
            .iter()
            .any(|line: &String| line.contains("is on standard output"))
        {
            seen.push(lines.next().expect("no setup link").unwrap());
        }
        // A full pipe must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        assert!(
            !seen.iter().any(|line| line.contains("setup#")),
            "no log line"
        );
        let printed = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut links = printed
            .map(Result::unwrap)
            .filter(|line| line.contains("/setup#"));
        let link = links.next().unwrap().trim().to_owned();
        let start = "the console is at http://";
        let at = seen.iter().find_map(|line| line.split_once(start));
        let address = at.unwrap().1.trim_end_matches('/').to_owned();
        Self {
            child,
            link,
            address,
        }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn settings_are_checked() {
    let (_folder, url) = database();
    let (code, out, _) = run(&url, &["config", "check", "--session-time", "90m"], "");
    assert_eq!(code, 0);
    assert!(out.contains("90m   (--session-time)"), "{out}");
    let (code, _, err) = run(&url, &["config", "check", "--listen", "x"], "");
    assert_eq!(code, 2);
    assert!(err.contains("--listen: \"x\" is no address"), "{err}");
    let (code, out, _) = run("", &["config", "check", "--json"], "");
    assert_eq!(code, 2);
    assert!(out.contains("\"ok\": false"), "{out}");
    let (code, _, err) = run(&url, &["--listen", "192.0.2.1:1"], "");
    assert_eq!(code, 1);
    assert!(err.contains("cannot answer HTTP on 192.0.2.1:1"), "{err}");
}

#[test]
fn users_sign_in_and_strangers_do_not() {
    let (folder, url) = database();
    let (code, out, _) = run(&url, &["user", "list"], "");
    assert_eq!((code, out.contains("No users yet")), (0, true), "{out}");
    let add = ["user", "add", "ann", "--role", "operator"];
    let (code, _, err) = run(&url, &add, "short\n");
    assert_eq!(code, 2);
    assert!(err.contains("at least 10 characters"), "{err}");
    let (code, out, err) = run(&url, &add, "correct horse battery\n");
    assert_eq!(
        (code, out.as_str()),
        (0, "Added ann as operator.\n"),
        "{err}"
    );
    let (code, _, err) = run(&url, &add, "correct horse battery\n");
    assert_eq!(code, 1);
    assert!(err.contains("already"), "{err}");
    let file = folder.path().join("password");
    std::fs::write(&file, "another good one\n").unwrap();
    let file = file.to_str().unwrap();
    let passwd = ["user", "passwd", "ann", "--password-file", file];
    let (code, _, err) = run(&url, &passwd, "");
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = run(&url, &["user", "disable", "ann"], "");
    assert_eq!(code, 1);
    assert!(err.contains("the last operator"), "{err}");
    let (code, _, err) = run(&url, &["user", "add", "vera"], "correct horse battery");
    assert_eq!(code, 0, "{err}");
    assert_eq!(run(&url, &["user", "disable", "vera"], "").0, 0);
    let (_, out, _) = run(&url, &["user", "list"], "");
    assert_eq!(out, "operator  ann\nviewer    vera  disabled\n");
    assert_eq!(run(&url, &["user", "enable", "vera"], "").0, 0);
    let (_, out, _) = run(&url, &["user", "list", "--json"], "");
    assert!(out.contains("\"disabled_ms\": null"), "{out}");
    assert!(!out.contains("argon2"), "{out}");
    let (code, _, err) = run(&url, &["user", "enable", "bob"], "");
    assert_eq!(code, 1);
    assert!(err.contains("user list"), "{err}");
    let (code, _, err) = run(&url, &["setup-link"], "");
    assert_eq!(code, 1);
    assert!(err.contains("there is a user already"), "{err}");
}

#[test]
fn the_program_answers_prints_the_link_and_stops_on_request() {
    let (_folder, url) = database();
    let link = ["setup-link", "--public-url", "https://c.example"];
    let (code, out, _) = run(&url, &link, "");
    assert_eq!(code, 0);
    assert!(out.contains("https://c.example/setup#"), "{out}");
    // The link leads to the console's address.
    let (code, out, _) = run(&url, &["setup-link", "--listen", ":9999"], "");
    assert_eq!(code, 0);
    assert!(out.contains(":9999/setup#"), "{out}");
    let said = console(&url, &["setup-link"])
        .env("FLEXFEED_CONSOLE_LISTEN", "0.0.0.0:9998")
        .output()
        .unwrap();
    let out = String::from_utf8(said.stdout).unwrap();
    assert!(out.contains("http://127.0.0.1:9998/setup#"), "{out}");
    let (_, out, _) = run(&url, &["setup-link"], "");
    assert!(out.contains("http://127.0.0.1:9470/setup#"), "{out}");
    let mut running = Running::start(&url);
    let link = format!("http://{}/setup#", running.address);
    assert!(running.link.starts_with(&link), "{}", running.link);
    assert!(running.get("/healthz").contains("alive"));
    let session = running.get("/api/v1/session");
    assert!(session.contains("\"setup_needed\":true"), "{session}");
    assert!(running.get("/anything").contains("<html"));
    let (code, out, err) = run("", &["health", "--listen", &running.address], "");
    assert_eq!((code, out.as_str()), (0, "alive\n"), "{err}");
    let ready = ["health", "--ready", "--listen", &running.address];
    let (code, out, err) = run("", &ready, "");
    assert_eq!(code, 0, "{out}{err}");
    // As in a container with the address in a variable.
    let port = running.address.rsplit(':').next().unwrap();
    let asked = console("", &["health"])
        .env("FLEXFEED_CONSOLE_LISTEN", format!(":{port}"))
        .output();
    assert_eq!(asked.unwrap().status.code(), Some(0));
    let (code, out, err) = run("", &["health", "--at", &format!("localhost:{port}")], "");
    assert_eq!((code, out.as_str()), (0, "alive\n"), "{err}");
    let (code, _, err) = run("", &["health", "--listen", "127.0.0.1:1"], "");
    assert_eq!(code, 1);
    assert!(err.contains("flexfeed-console does not answer at"), "{err}");
    let pid = running.child.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(killed.success());
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = running.child.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < PATIENCE, "the console does not stop");
        std::thread::yield_now();
    };
    assert!(status.success());
}
