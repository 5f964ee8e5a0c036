//! Databases that go away and come back, and disks without room.

use std::process::Command;
use std::time::Duration;

use flexicast_tokio::receiver::Event;
use kit::postgres::Postgres;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;

use crate::pipe::Pipe;
use crate::receiving::{Listening, configuration};
use crate::running::{Feed, Running, source};

fn status(running: &Running) -> Value {
    serde_json::from_str(&running.page("/status.json").1).unwrap()
}

/// Reads for a while, in which nothing may happen to the connection.
async fn stays_connected(receiver: &mut Listening, time: Duration) {
    let lost = receiver.until("the end of the connection", |event| match event {
        Event::Disconnected { reason, .. } | Event::Refused { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    if let Ok(reason) = tokio::time::timeout(time, lost).await {
        panic!("disconnected: {reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_database_pauses_publishing_until_it_returns() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(3);
    let mut server = Postgres::start().unwrap();
    let database = server.create("away").unwrap();
    server.stop().unwrap();
    let mut command = source(folder.path(), &feed);
    command.args(["--database-url", &database]);

    // Not there yet: containers start in any order.
    let mut running = Running::begin(command);
    running.until("it waits", |running| {
        running.log().contains("waiting for the database")
    });
    server.restart().unwrap();
    running.until("it serves", |running| {
        running.log().contains("status pages on")
    });
    let mut receiver = Listening::start(configuration(folder.path()));
    receiver.update(3).await;
    running.until("ready", |running| running.page("/readyz").0 == 200);

    server.kill().unwrap();
    feed.grow(2);
    running.until("it says so", |running| {
        let (code, page) = running.page("/readyz");
        code == 503 && page.contains("cannot be")
    });
    // Longer than any lease lasts.
    stays_connected(&mut receiver, Duration::from_secs(8)).await;
    assert_eq!(running.page("/healthz").0, 200);
    assert_eq!(status(&running)["receivers"].as_array().unwrap().len(), 1);
    assert_eq!(status(&running)["role"], "lapsed");

    server.restart().unwrap();
    receiver.update(5).await;
    running.until("ready again", |running| running.page("/readyz").0 == 200);
    feed.grow(1);
    receiver.update(6).await;
    assert_eq!(receiver.seqs, [1, 2, 3, 4, 5, 6]);
    let log = running.log();
    // A database that is slow at first when it is back may be lost a second time.
    assert!(log.contains("Receivers stay connected"), "{log}");
    assert!(log.contains("the database is back"), "{log}");
    assert!(!log.contains("not published here any more"), "{log}");

    let (code, log, _) = running.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
}

/// The way to the server is cut without a word: what is asked is never answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_hangs_pauses_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(3);
    let server = Postgres::start().unwrap();
    let pipe = Pipe::to(([127, 0, 0, 1], server.port()).into());
    let url = server.create("hangs").unwrap();
    let behind = format!(":{}/", server.port());
    assert!(url.contains(&behind), "{url}");
    let url = url.replace(&behind, &format!(":{}/", pipe.address.port()));
    let mut command = source(folder.path(), &feed);
    // A long time for receivers, which need none of it: a hung shutdown would last to the test's
    // own limit.
    command.args(["--database-url", &url, "--drain-time", "60s"]);
    let mut running = Running::start(command);
    let mut receiver = Listening::start(configuration(folder.path()));
    receiver.update(3).await;
    running.until("ready", |running| running.page("/readyz").0 == 200);

    pipe.hang(true);
    feed.grow(2);
    running.until("it says so", |running| {
        let (code, page) = running.page("/readyz");
        code == 503 && page.contains("answer")
    });
    running.until("it publishes no more", |running| {
        status(running)["role"] == "lapsed"
    });
    stays_connected(&mut receiver, Duration::from_secs(8)).await;
    assert_eq!(receiver.seqs, [1, 2, 3]);
    // Nothing that is asked of itself waits for the database.
    assert_eq!(running.page("/healthz").0, 200);
    let metrics = running.page("/metrics").1;
    assert!(
        metrics.contains("flexfeed_source_database_up 0\n"),
        "{metrics}"
    );
    assert_eq!(status(&running)["receivers"].as_array().unwrap().len(), 1);

    pipe.hang(false);
    receiver.update(5).await;
    running.until("ready again", |running| running.page("/readyz").0 == 200);
    feed.grow(1);
    receiver.update(6).await;
    assert_eq!(receiver.seqs, [1, 2, 3, 4, 5, 6]);
    let log = running.log();
    assert!(log.contains("the database is back"), "{log}");
    assert!(!log.contains("not published here any more"), "{log}");

    // While it hangs, a signal ends it all the same, soon.
    pipe.hang(true);
    running.until("it says so", |running| running.page("/readyz").0 == 503);
    let (code, log, _) = running.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
    assert!(!log.contains("not everything was closed"), "{log}");
}

#[test]
fn a_database_that_refuses_is_not_waited_for_and_a_signal_ends_the_wait() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(1);
    let mut server = Postgres::start().unwrap();
    let missing = server.url_of("missing");
    let mut command = source(folder.path(), &feed);
    command.args(["--database-url", &missing]);
    let (code, said) = crate::running::fails(command);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("missing") && said.contains("--database-url"),
        "{said}"
    );

    let database = server.create("later").unwrap();
    server.stop().unwrap();
    let mut command = source(folder.path(), &feed);
    command.args(["--database-url", &database]);
    let mut running = Running::begin(command);
    running.until("it waits", |running| {
        running.log().contains("waiting for the database")
    });
    let (code, log, _) = running.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
}

/// The same command, in which writing beyond the limit for files fails instead of killing.
fn limited(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// From now on no file may be longer than this.
fn limit(running: &Running, bytes: Option<u64>) {
    let pid = Pid::from_raw(running.id().try_into().unwrap());
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    prlimit(pid, Resource::Fsize, limit).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_pauses_ingest_and_stored_updates_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(3);
    let mut running = Running::start(limited(&source(folder.path(), &feed)));
    let mut receiver = Listening::start(configuration(folder.path()));
    receiver.update(3).await;
    running.until("ready", |running| running.page("/readyz").0 == 200);

    limit(&running, Some(0));
    feed.grow(4);
    running.until("it says so", |running| {
        let (code, page) = running.page("/readyz");
        code == 503 && page.contains("disk")
    });
    let failures = "flexfeed_source_store_failures_total{channel=\"lore\"} 0\n";
    assert!(!running.page("/metrics").1.contains(failures));
    stays_connected(&mut receiver, Duration::from_secs(7)).await;
    assert_eq!(receiver.seqs, [1, 2, 3]);

    limit(&running, None);
    receiver.update(7).await;
    running.until("ready again", |running| running.page("/readyz").0 == 200);
    assert_eq!(receiver.seqs, (1..=7).collect::<Vec<_>>());
    let (code, log, _) = running.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_signal_lets_receivers_finish_and_the_second_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(1);
    let slow = |rate: &str| {
        let mut command = source(folder.path(), &feed);
        // Sending takes a while.
        command.args(["--rate", rate, "--drain-time", "60s"]);
        command
    };
    let mut running = Running::start(slow("64k"));
    let mut receiver = Listening::start(configuration(folder.path()));
    receiver.update(1).await;
    feed.grow(300);
    let mut page = Value::Null;
    running.until("stored", |running| {
        page = status(running);
        page["head"] == 301
    });
    let cursor = page["receivers"][0]["channels"][0]["cursor"].as_u64();
    assert!(
        cursor.is_none_or(|seq| seq < 301),
        "it takes a while: {page}"
    );
    running.signal(Signal::TERM);
    receiver.update(301).await;
    let reason = receiver
        .until("the goodbye", |event| match event {
            Event::Disconnected { reason, .. } => Some(reason.clone()),
            _ => None,
        })
        .await;
    assert!(!reason.is_empty());
    let (code, log, _) = running.end();
    assert_eq!(code.code(), Some(0), "{log}");
    assert_eq!(receiver.seqs, (1..=301).collect::<Vec<_>>());
    receiver.handle.shutdown().await;

    // So much that it is under way still at the second signal.
    feed.grow(900);
    let mut running = Running::start(slow("64k"));
    running.until("stored", |running| status(running)["head"] == 1201);
    let mut behind = configuration(folder.path());
    behind.channels[0].1 = Some(flexicast_tokio::Cursor {
        incarnation: status(&running)["incarnation"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap(),
        seq: 1,
    });
    let mut receiver = Listening::start(behind);
    receiver.update(2).await;
    running.signal(Signal::TERM);
    running.until("it drains", |running| {
        running.log().contains("no receivers are taken any more")
    });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    running.signal(Signal::TERM);
    let (code, log, _) = running.end();
    assert_eq!(code.code(), Some(143), "{log}");
}
