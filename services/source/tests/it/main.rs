//! The program as it is run: starts, files, messages, signals, receivers.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod amt_relays;
mod certificates;
mod changes;
mod channels;
mod commands;
mod console;
mod enrolment;
mod faults;
mod leases;
mod pipe;
mod receiving;
mod records;
mod relay;
mod restored;
mod running;
mod service;
mod signing_keys;
mod site;
mod ssrf;

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::Signal;

use running::{Feed, Running, fails, program, source};

fn mode(path: PathBuf) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_first_start_a_restart_and_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let feed = Feed::with(1);
    let mut first = Running::start(source(&data, &feed));
    first.until("ready", |running| running.page("/readyz").0 == 200);
    first.until("one update", |running| {
        running.page("/status.json").1.contains("\"head\":1,")
    });
    assert_eq!(first.page("/healthz").0, 200);
    let asked = |arguments: &[&str]| {
        let output = program().arg("health").args(arguments).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let http = first.address();
    assert_eq!(asked(&["--http", &http]), (Some(0), "alive\n".to_owned()));
    let (code, said) = asked(&["--ready", "--http", &http]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(asked(&["--http", "127.0.0.1:1"]), (Some(1), String::new()));
    assert!(
        first
            .page("/metrics")
            .1
            .contains("flexfeed_source_head_seq{channel=\"lore\"} 1\n")
    );

    // Another one cannot take the same folder, and the first goes on.
    let (code, said) = fails(source(&data, &feed));
    assert_eq!(code, 1);
    assert!(said.contains(&format!("process {}", first.id())), "{said}");
    assert_eq!(first.page("/healthz").0, 200);

    let (status, log, printed) = first.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("not everything was closed"), "{log}");
    for (name, expected) in [
        ("", 0o700),
        ("key.pem", 0o600),
        ("reset.key", 0o600),
        ("signing.key", 0o600),
        ("enrolment-link", 0o600),
        ("flexfeed.db", 0o600),
        ("lore.head", 0o600),
        ("cert.pem", 0o644),
    ] {
        assert_eq!(mode(data.join(name)), expected, "{name}");
    }
    let link = fs::read_to_string(data.join("enrolment-link")).unwrap();
    let link = link.trim();
    assert!(
        link.starts_with("flexfeed://") && link.ends_with("&ch=lore"),
        "{link}"
    );
    let line = format!("flexfeed-receiver '{link}'");
    assert!(printed.contains(&line), "{printed}");
    let token = link.split(['/', '@']).nth(2).unwrap();
    assert!(!log.contains(token), "{log}");
    assert!(
        log.contains("--public-address"),
        "the missing one is warned about: {log}"
    );

    // The port is another one at each start here, so the link is renewed; it is not printed again.
    let mut second = Running::start(source(&data, &feed));
    second.until("ready", |running| running.page("/readyz").0 == 200);
    let (_, page) = second.page("/status.json");
    assert!(
        page.contains("\"head\":1,"),
        "nothing is stored twice: {page}"
    );
    let (status, log, printed) = second.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(printed, "");
    assert!(log.contains("enrolment-link"), "{log}");
    assert!(!log.contains(token), "{log}");
    let again = fs::read_to_string(data.join("enrolment-link")).unwrap();
    let end = |link: &str| link.split_once('?').unwrap().1.trim().to_owned();
    assert_eq!(end(&again), end(link), "the same certificate");
    assert!(again.contains(token), "the same token");
}

#[test]
fn a_new_database_in_an_old_folder_is_warned_about() {
    const WARNING: &str = "the database is new although this data folder is not";
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(1);
    let mut first = Running::start(source(folder.path(), &feed));
    first.until("one update", |running| {
        running.page("/status.json").1.contains("\"head\":1,")
    });
    let (_, log, _) = first.terminate();
    assert!(!log.contains(WARNING), "{log}");
    let (_, log, _) = Running::start(source(folder.path(), &feed)).terminate();
    assert!(!log.contains(WARNING), "{log}");
    for file in fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        if file
            .file_name()
            .to_string_lossy()
            .starts_with("flexfeed.db")
        {
            fs::remove_file(file.path()).unwrap();
        }
    }
    let (_, log, _) = Running::start(source(folder.path(), &feed)).terminate();
    assert!(log.contains(WARNING), "{log}");
}

/// A command finds the running source by itself.
#[test]
fn a_database_that_lies_unused_is_warned_about() {
    const WARNING: &str = "flexfeed.db is not used";
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let feed = Feed::with(1);
    let begun = |database: Option<PathBuf>| {
        let mut command = source(&data, &feed);
        if let Some(file) = database {
            command.arg("--database-url");
            command.arg(format!("sqlite://{}", file.display()));
        }
        let (status, log, _) = Running::start(command).terminate();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    };
    let other = folder.path().join("other.db");
    assert!(!begun(Some(other.clone())).contains(WARNING));
    assert!(!begun(None).contains(WARNING));
    let log = begun(Some(other));
    assert_eq!(log.matches(WARNING).count(), 1, "{log}");
    let put_away = format!("mv {}* ", data.join("flexfeed.db").display());
    assert!(log.contains(&put_away), "{log}");
    // The same file by another name.
    let log = begun(Some(data.join("../data/flexfeed.db")));
    assert!(!log.contains(WARNING), "{log}");
}

#[test]
fn garbage_on_the_quic_port_disturbs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = source(folder.path(), &Feed::with(1));
    command.env("FLEXFEED_TYPO", "1");
    let running = Running::start(command);
    let log = running.log();
    assert!(log.contains("FLEXFEED_TYPO is no setting"), "{log}");
    let port = log
        .split("on UDP ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in [0, 1, 20, 100, 1200] {
        for first in [0x00, 0x40, 0xc0, 0xff] {
            let mut datagram: Vec<u8> = vec![first; length];
            datagram
                .iter_mut()
                .skip(1)
                .for_each(|b| *b = b.wrapping_mul(31));
            socket.send_to(&datagram, port).unwrap();
        }
    }
    assert_eq!(running.page("/healthz").0, 200);
    let (status, log, _) = running.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn an_interrupt_ends_it_as_well_and_json_lines_are_json() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = source(folder.path(), &Feed::with(1));
    command.args(["--log-format", "json"]);
    let running = Running::start(command);
    // As `timeout` does: to the program, and at once to its group.
    running.signal(Signal::INT);
    running.signal(Signal::INT);
    let (status, log, _) = running.end();
    assert_eq!(status.code(), Some(0), "{log}");
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["message"].is_string(), "{line}");
    }
}

#[test]
fn wrong_usage_is_explained() {
    let mut wrong = program();
    wrong.args(["--rate", "fast", "--retention", "some"]);
    let (code, said) = fails(wrong);
    assert_eq!(code, 2);
    assert!(
        said.contains("--rate") && said.contains("--retention"),
        "{said}"
    );

    let folder = tempfile::tempdir().unwrap();
    let mut private = program();
    private
        .args(["--feed", "http://127.0.0.1:1/f", "--data"])
        .arg(folder.path());
    let (code, said) = fails(private);
    assert_eq!(code, 2);
    assert!(said.contains("--allow-private-feed"), "{said}");

    let mut database = program();
    let missing = folder.path().join("data");
    database
        .args(["--feed", "https://example.org/f"])
        .args(["--database-url", "mysql://u:hidden@h/d", "--data"])
        .arg(&missing);
    let (code, said) = fails(database);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--database-url"), "{said}");
    assert!(!said.contains("hidden"), "{said}");
    assert!(!missing.exists());

    let mut unicast_group = program();
    unicast_group.args(["--feed", "https://example.org/f", "--group", "10.0.0.1:1"]);
    let (code, said) = fails(unicast_group);
    assert_eq!(code, 2);
    assert!(said.contains("multicast"), "{said}");

    let mut help = program();
    help.arg("--help");
    let (code, said) = fails(help);
    assert_eq!(code, 0);
    assert!(said.contains("FLEXFEED_POLL_INTERVAL"), "{said}");
}

#[test]
fn obstacles_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(1);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = program();
    command
        .env("FLEXFEED_FEED", &feed.url)
        .env("FLEXFEED_ALLOW_PRIVATE_FEED", "1")
        .env("FLEXFEED_GROUP", "")
        .env("FLEXFEED_LISTEN", "127.0.0.1:0")
        .env("FLEXFEED_HTTP", taken.local_addr().unwrap().to_string())
        .env("FLEXFEED_DATA", folder.path());
    // Variables that a container file passes on without a value.
    for empty in [
        "RATE",
        "PUBLIC_ADDRESS",
        "CHANNEL_SPEC",
        "QLOG",
        "RETENTION",
        "UNICAST_RATE",
        "NO_REPLICATE",
        "PRIVATE",
        "ASM",
        "FLOW_SOURCE",
        "DATABASE_URL",
        "LOG_LEVEL",
    ] {
        command.env(format!("FLEXFEED_{empty}"), "");
    }
    let (code, said) = fails(command);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("--http"), "{said}");

    let busy = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut command = program();
    command
        .args(["--feed", &feed.url, "--allow-private-feed", "--group", ""])
        .args(["--listen", &busy.local_addr().unwrap().to_string()])
        .args(["--http", "127.0.0.1:0", "--data"])
        .arg(folder.path());
    let (code, said) = fails(command);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("--listen"), "{said}");

    fs::write(folder.path().join("cert.pem"), "damaged").unwrap();
    let (code, said) = fails(source(folder.path(), &feed));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("cert.pem"), "{said}");

    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("flexfeed.db"), "no database ".repeat(100)).unwrap();
    let (code, said) = fails(source(other.path(), &feed));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("flexfeed.db"), "{said}");
}

#[test]
fn faults_need_their_feature() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = source(folder.path(), &Feed::with(1));
    command.env("FLEXFEED_FAULTS", "repair-off");
    let (status, log, _) = Running::start(command).terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("FLEXFEED_FAULTS"), "{log}");
    assert_eq!(
        log.contains("is ignored"),
        !cfg!(feature = "fault-injection"),
        "{log}"
    );
}
