//! Integration tests, one program: swarms at a source of the test on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod site;

use std::process::Command;

use kit::program::{Program, ProgramEnd, Signal, command, run};
use serde_json::Value;
use site::Site;

fn swarm(arguments: &[&str]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_flexfeed-swarm"));
    command.args(["--interface", "127.0.0.1"]).args(arguments);
    command
}

/// Runs a swarm to its end beside a source that publishes.
async fn beside(site: &Site, mut command: Command) -> ProgramEnd {
    let ended = tokio::task::spawn_blocking(move || run(&mut command));
    tokio::select! {
        ended = ended => ended.unwrap(),
        () = site.keep_publishing() => unreachable!(),
    }
}

fn summary(ended: &ProgramEnd) -> Value {
    let json = serde_json::from_str(&ended.printed);
    json.unwrap_or_else(|error| panic!("{error}: {} {}", ended.printed, ended.log))
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_receivers_get_every_update_despite_loss_and_churn() {
    let site = Site::start().await;
    let link = site.link();
    let command = swarm(&[
        &link,
        "--receivers=50",
        "--loss=2",
        "--churn=4/s",
        "--warm-up=2s",
        "--duration=4s",
        "--json",
    ]);
    let ended = beside(&site, command).await;
    assert_eq!(ended.code(), Some(0), "{}{}", ended.printed, ended.log);
    assert!(!ended.log.contains(site::TOKEN) && !ended.printed.contains(site::TOKEN));
    let summary = summary(&ended);
    let count = |path: &str| summary.pointer(path).and_then(Value::as_u64);
    assert_eq!(count("/receivers/served"), Some(50), "{summary}");
    assert!(count("/receivers/returned") >= Some(5), "{summary}");
    assert!(count("/rungs/lore/multicast") >= Some(25), "{summary}");
    // A lost packet had all of its update.
    assert!(count("/via/unicast") > Some(0), "{summary}");
    assert!(count("/via/flow") > count("/via/unicast"), "{summary}");
    assert!(count("/updates/min") >= Some(50), "{summary}");
    assert_eq!(count("/updates/min"), count("/updates/max"), "{summary}");
    assert!(count("/latency_ms/count") > Some(1000), "{summary}");
    assert!(count("/cost/resident_bytes_per_receiver") > Some(0));
    // Members acknowledge as all receivers do: hardly on their connections.
    assert!(site.feedback_packets().await >= 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_is_the_same_receivers() {
    let site = Site::start().await;
    for enrolled in [5, 5] {
        let link = site.link();
        let arguments = ["--receivers=5", "--seed=7", "--warm-up=1s", "--duration=1s"];
        let ended = beside(&site, swarm(&[&[&*link], &arguments[..]].concat())).await;
        assert_eq!(ended.code(), Some(0), "{}{}", ended.printed, ended.log);
        assert!(
            ended.printed.contains("5 started, 5 served"),
            "{}",
            ended.printed
        );
        assert!(
            ended.printed.contains("seed         7\n"),
            "{}",
            ended.printed
        );
        assert_eq!(site.enrolled(), enrolled);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_run_with_a_summary_and_closed_connections() {
    let site = Site::start().await;
    let http = kit::ports::free().to_string();
    let link = site.link();
    let program = Program::start(&mut swarm(&[&link, "--receivers=20", "--http", &http]));
    kit::wait::until("all receivers", || site.connected() == 20);
    let metrics = std::thread::spawn(move || get(&http, "/metrics"))
        .join()
        .unwrap();
    assert!(
        metrics.contains("\nflexfeed_swarm_served_receivers 20\n"),
        "{metrics}"
    );
    program.signal(Signal::TERM);
    let ended = tokio::task::spawn_blocking(|| program.end()).await.unwrap();
    assert_eq!(ended.code(), Some(0), "{}", ended.log);
    assert!(
        ended.printed.contains("20 started, 20 served"),
        "{}",
        ended.printed
    );
    kit::wait::until("the end of all connections", || site.connected() == 0);
}

fn get(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_that_are_refused_are_a_failure() {
    let site = Site::start().await;
    let link = site.link().replace(site::TOKEN, "another-token");
    let command = swarm(&[&link, "--receivers=3", "--warm-up=10ms", "--duration=10ms"]);
    let ended = beside(&site, command).await;
    assert_eq!(ended.code(), Some(1));
    assert!(
        ended.log.contains("0 of 3 receivers are served"),
        "{}",
        ended.log
    );
    let refused = "refusals     3 × there is no such token";
    assert!(ended.printed.contains(refused), "{}", ended.printed);
    assert!(!ended.log.contains("another-token"), "{}", ended.log);
}

#[test]
fn a_wrong_command_line_ends_with_2_and_does_not_show_the_token() {
    for arguments in [
        &["flexfeed://s3cret@h"][..],
        &["flexfeed://s3cret@h?ch=lore", "--receivers=0"],
        &["flexfeed://s3cret@h?ch=lore", "--wrong"],
    ] {
        let ended = run(&mut swarm(arguments));
        assert_eq!(ended.code(), Some(2), "{}", ended.log);
        assert!(!ended.log.contains("s3cret"), "{}", ended.log);
    }
    let help = run(&mut swarm(&["--help"]));
    assert_eq!(help.code(), Some(0));
    assert!(help.printed.contains("Exit codes:"), "{}", help.printed);
}

#[cfg(feature = "fault-injection")]
#[tokio::test(flavor = "multi_thread")]
async fn an_update_lost_by_one_receiver_is_noticed() {
    let site = Site::start().await;
    let link = site.link();
    let mut command = swarm(&[&link, "--receivers=5", "--duration=2s"]);
    command.env("FLEXFEED_FAULTS", "update-lost");
    let ended = beside(&site, command).await;
    assert_eq!(ended.code(), Some(1), "{}{}", ended.printed, ended.log);
    let text = "updates left out without a word";
    assert!(ended.log.contains(text), "{}", ended.log);
}
