//! Signals, to a process of its own: this test program once more.

#![expect(clippy::disallowed_methods, reason = "these tests are plain threads")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use service::logging::{self, LogFormat};
use service::signals::{Stop, stop_token};

/// Bound on everything that has to happen.
const TIME: Duration = Duration::from_secs(60);

/// Set in the child.
const CHILD: &str = "SIGNALS_TEST_CHILD";

/// A program that never finishes its orderly stop; prints when it is ready and when it stops.
/// One peer has caused more log lines than are logged.
async fn stop_for_ever() {
    let filter = logging::filter("the test", "info").unwrap();
    logging::start(LogFormat::Text, filter).unwrap();
    for _ in 0..30 {
        tracing::info!(from = "192.0.2.1:4000", "joined");
    }
    let stop = stop_token("stopping", Stop::exit_code).unwrap();
    println!("ready");
    stop.cancelled().await;
    println!("stopping");
    tokio::time::sleep(10 * TIME).await;
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([name, &pid]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_second_signal_after_a_third_of_a_second_ends_the_program_at_once() {
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(stop_for_ever());
    }
    for (first, second, code) in [("-TERM", "-TERM", 143), ("-TERM", "-INT", 130)] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("signals::a_second_signal_after_a_third_of_a_second_ends_the_program_at_once")
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut wait_for = |what: &str| {
            let found = lines.any(|line| line.unwrap().ends_with(what));
            assert!(found, "the program ended before it printed {what:?}");
        };
        wait_for("ready");
        signal(&child, first);
        wait_for("stopping");
        std::thread::sleep(Duration::from_millis(300));
        signal(&child, second);
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > TIME {
                child.kill().unwrap();
                panic!("{first}, then {second}: it does not end");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(code), "{first}, then {second}");
        let mut log = String::new();
        let mut stderr = child.stderr.take().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        assert!(log.contains("log lines suppressed"), "{log}");
    }
}
