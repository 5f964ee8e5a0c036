//! The program from outside: settings, status, signals.

#![expect(clippy::disallowed_methods, reason = "these tests are plain threads")]

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use amt::Message;
use amt::report::{Record, RecordKind, write_report};

/// Timeout of all waits.
const PATIENCE: Duration = Duration::from_secs(30);

fn relay(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexfeed-relay"));
    command.args(arguments).env_remove("RUST_LOG");
    command
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = relay(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Relay that is stopped on drop, with its HTTP address, its address for gateways, and its log.
struct Running(Child, String, SocketAddr, Arc<Mutex<Vec<String>>>);

impl Running {
    fn start(more: &[&str]) -> Self {
        let arguments = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        let mut command = relay(&[&arguments, more].concat());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut gateways = None;
        let http = loop {
            let line = lines.next().expect("it says where it answers").unwrap();
            if let Some((_, rest)) = line.split_once("reach this relay at ") {
                let (address, _) = rest.split_once(';').unwrap();
                gateways = Some(address.parse().unwrap());
            }
            if let Some((_, rest)) = line.split_once("http://") {
                break rest.trim_end_matches('/').to_owned();
            }
        };
        // The relay must not stop because its output is not read.
        let log = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                own.lock().unwrap().push(line);
            }
        });
        let gateways = gateways.expect("it says where gateways reach it");
        Self(child, http, gateways, log)
    }

    fn terminate(&self) {
        let pid = self.0.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(killed.success());
    }

    fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn settings_are_checked() {
    let (code, out, _) = run(&["config", "check", "--mtu", "1280"]);
    assert_eq!(code, 0);
    assert!(
        out.contains("mtu") && out.contains("1280   (--mtu)"),
        "{out}"
    );
    let (code, _, err) = run(&["config", "check", "--mtu", "x"]);
    assert_eq!(code, 2);
    assert!(err.contains("--mtu: \"x\" is no number of bytes"), "{err}");
    let (code, out, _) = run(&["config", "check", "--json", "--mtu", "x"]);
    assert_eq!(code, 2);
    assert!(out.contains("\"ok\": false"), "{out}");
    let (code, _, err) = run(&[
        "--native-interface",
        "nowhere",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
    ]);
    assert_eq!(code, 1);
    assert!(err.contains("no interface nowhere"), "{err}");
}

#[test]
fn help_names_every_setting() {
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, 0);
    for setting in flexfeed_relay::config::TABLE.settings {
        assert!(out.contains(&format!("--{}", setting.flag)), "{out}");
    }
}

#[test]
fn the_relay_reports_its_status_and_stops_on_a_signal() {
    let (code, _, err) = run(&["status", "--http", "127.0.0.1:1"]);
    assert_eq!(code, 1);
    assert!(err.contains("no relay answers"), "{err}");
    let (code, _, err) = run(&["health", "--http", "127.0.0.1:1"]);
    assert_eq!(code, 1);
    assert!(
        err.contains("does not answer at http://127.0.0.1:1/healthz"),
        "{err}"
    );
    let (code, _, err) = run(&["health", "--http", "off"]);
    assert_eq!(code, 1);
    assert!(err.contains("--http ADDRESS:PORT"), "{err}");
    let (code, _, err) = run(&["health", "--http", "x"]);
    assert_eq!(code, 1);
    assert!(err.contains("--http: \"x\" is no address"), "{err}");
    let mut running = Running::start(&[]);
    let (code, out, err) = run(&["status", "--http", &running.1]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("0 of 10000 gateways, 0 groups"), "{out}");
    let (code, out, _) = run(&["status", "--json", "--http", &running.1]);
    assert_eq!(code, 0);
    assert!(out.contains("\"draining\": false"), "{out}");
    let (code, out, err) = run(&["health", "--http", &running.1]);
    assert_eq!((code, out.as_str()), (0, "alive\n"), "{err}");
    let (code, out, err) = run(&["health", "--ready", "--http", &running.1]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("\"ready\":true"), "{out}");
    // From elsewhere: by name, whatever the settings here are.
    let port = running.1.rsplit(':').next().unwrap();
    for host in ["localhost", "[127.0.0.1]"] {
        let at = format!("{host}:{port}");
        let (code, out, err) = run(&["health", "--http", "off", "--at", &at]);
        assert_eq!((code, out.as_str()), (0, "alive\n"), "{at}: {err}");
    }
    let (code, _, err) = run(&["health", "--at", "localhost"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("feeds.example.org:8080"), "{err}");
    running.terminate();
    assert!(running.end().success());
}

/// Makes a tunnel, and joins and leaves `often` times; returns the socket of the gateway's end.
fn tunnel(relay: SocketAddr, often: u32) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(relay).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let send = |message: Message<'_>| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        socket.send(&bytes).unwrap();
    };
    send(Message::Request {
        nonce: 1,
        mld: false,
    });
    let mut buffer = [0; 2048];
    let len = socket.recv(&mut buffer).unwrap();
    let Ok(Message::Query { mac, nonce, .. }) = Message::parse(&buffer[..len]) else {
        panic!("not a Query");
    };
    let report = |kind, group: &str| {
        let record = Record {
            kind,
            group: group.parse().unwrap(),
            sources: Vec::new(),
        };
        write_report(false, &[record], 1280, |packet| {
            send(Message::Update { mac, nonce, packet });
        });
    };
    report(RecordKind::ToEx, "239.1.1.1");
    for _ in 0..often {
        for kind in [RecordKind::ToEx, RecordKind::ToIn] {
            report(kind, "239.1.1.2");
            // A join and a leave at once cancel each other out.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    socket
}

#[test]
fn a_gateway_that_joins_and_leaves_a_thousand_times_does_not_fill_the_log() {
    // Without a route for multicast, each failed join is logged instead.
    let running = Running::start(&["--native-interface", "lo"]);
    let begun = Instant::now();
    let _gateway = tunnel(running.2, 1000);
    let log = || running.3.lock().unwrap().clone();
    let waited = Instant::now();
    while !log()
        .iter()
        .any(|line| line.contains("log lines suppressed"))
    {
        assert!(
            waited.elapsed() < PATIENCE,
            "nothing is summed up: {:?}",
            log()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = log();
    let about = log.iter().filter(|line| line.contains("239.1.1.2"));
    let about = about.count();
    // Three places in the code, each with twenty lines and one more in ten seconds.
    let most = 60 + 3 * (begun.elapsed().as_secs() as usize / 10 + 1);
    assert!((20..=most).contains(&about), "{about} lines");
    let mut summaries = log
        .iter()
        .filter(|line| line.contains("log lines suppressed"));
    let summary = summaries.next().unwrap();
    assert!(
        summary.contains("peers=1") && summary.contains("127.0.0.1:"),
        "{summary}"
    );
}

#[test]
fn a_second_signal_ends_the_drain() {
    let mut running = Running::start(&["--drain-time", "600s"]);
    let gateway = tunnel(running.2, 0);
    let until = |what: &str, done: fn(&serde_json::Value) -> bool| {
        let begun = Instant::now();
        loop {
            let (_, out, _) = run(&["status", "--json", "--http", &running.1]);
            if done(&serde_json::from_str(&out).unwrap()) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {out}");
        }
    };
    until("a tunnel", |status| status["gateways"]["count"] == 1);
    running.terminate();
    until("the signal", |status| status["draining"] == true);
    std::thread::sleep(Duration::from_millis(300));
    assert!(running.0.try_wait().unwrap().is_none(), "it serves on");
    running.terminate();
    assert_eq!(running.end().code(), Some(1));
    drop(gateway);
}
