//! The program from outside: settings, status, signals.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use amt::Message;
use amt::report::{Record, RecordKind, write_report};
use kit::program::{Program, Signal};
use kit::wait::{PATIENCE, pause};

fn relay(arguments: &[&str]) -> Command {
    let mut command = kit::program::command(env!("CARGO_BIN_EXE_flexfeed-relay"));
    command.args(arguments);
    command
}

/// Returns the exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let ended = kit::program::run(&mut relay(arguments));
    (ended.code().unwrap(), ended.printed, ended.log)
}

/// Running relay.
struct Running {
    program: Program,
    /// HTTP address.
    http: String,
    /// Address for gateways.
    gateways: SocketAddr,
}

impl Running {
    fn start(more: &[&str]) -> Self {
        let arguments = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        let program = Program::start(&mut relay(&[&arguments, more].concat()));
        let (_, http) = split(&program.wait_for("http://"), "http://");
        let log = program.log();
        let (_, gateways) = split(&log, "reach this relay at ");
        let (gateways, _) = split(&gateways, ";");
        Self {
            program,
            http: http.trim_end_matches('/').to_owned(),
            gateways: gateways.parse().unwrap(),
        }
    }
}

/// Returns what is before and after the separator.
fn split(text: &str, separator: &str) -> (String, String) {
    let (before, after) = text.split_once(separator).expect(separator);
    (before.to_owned(), after.to_owned())
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
    assert!(err.contains("--mtu: \"x\" is no whole number"), "{err}");
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
    for setting in flexfeed_relay::config::TABLE.settings() {
        assert!(
            out.contains(&format!("--{}", setting.arg.get_long().unwrap_or_default())),
            "{out}"
        );
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
    let running = Running::start(&[]);
    let (code, out, err) = run(&["status", "--http", &running.http]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("0 of 10000 gateways, 0 groups"), "{out}");
    let (code, out, _) = run(&["status", "--json", "--http", &running.http]);
    assert_eq!(code, 0);
    assert!(out.contains("\"draining\": false"), "{out}");
    let (code, out, err) = run(&["health", "--http", &running.http]);
    assert_eq!((code, out.as_str()), (0, "alive\n"), "{err}");
    let (code, out, err) = run(&["health", "--ready", "--http", &running.http]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("\"ready\":true"), "{out}");
    // From elsewhere: by name, whatever the settings here are.
    let port = running.http.rsplit(':').next().unwrap();
    for host in ["localhost", "[127.0.0.1]"] {
        let at = format!("{host}:{port}");
        let (code, out, err) = run(&["health", "--http", "off", "--at", &at]);
        assert_eq!((code, out.as_str()), (0, "alive\n"), "{at}: {err}");
    }
    let (code, _, err) = run(&["health", "--at", "localhost"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("feeds.example.org:8080"), "{err}");
    assert!(running.program.terminate().status.success());
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
            pause(Duration::from_millis(1));
        }
    }
    socket
}

#[test]
fn a_gateway_that_joins_and_leaves_a_thousand_times_does_not_fill_the_log() {
    // Without a route for multicast, each failed join is logged instead.
    let running = Running::start(&["--native-interface", "lo"]);
    let begun = Instant::now();
    let _gateway = tunnel(running.gateways, 1000);
    let summary = running.program.wait_for("log lines suppressed");
    let log = running.program.log();
    let about = log.lines().filter(|line| line.contains("239.1.1.2"));
    let about = about.count();
    // Three places in the code, each with twenty lines and one more in ten seconds.
    let most = 60 + 3 * (begun.elapsed().as_secs() as usize / 10 + 1);
    assert!((20..=most).contains(&about), "{about} lines");
    assert!(
        summary.contains("peers=1") && summary.contains("127.0.0.1:"),
        "{summary}"
    );
}

#[test]
fn a_second_signal_ends_the_drain() {
    let running = Running::start(&["--drain-time", "600s"]);
    let gateway = tunnel(running.gateways, 0);
    let until = |what: &str, done: fn(&serde_json::Value) -> bool| {
        let begun = Instant::now();
        loop {
            let (_, out, _) = run(&["status", "--json", "--http", &running.http]);
            if done(&serde_json::from_str(&out).unwrap()) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {out}");
        }
    };
    until("a tunnel", |status| status["gateways"]["count"] == 1);
    running.program.signal(Signal::TERM);
    until("the signal", |status| status["draining"] == true);
    pause(Duration::from_millis(300));
    assert!(running.program.is_running(), "it serves on");
    assert_eq!(running.program.terminate().code(), Some(1));
    drop(gateway);
}
