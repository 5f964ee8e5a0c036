//! The program against a real source: outputs, failures, reports.

mod gaps;
mod live;
mod verify;

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{self, PATIENCE, Running, ends, receiver, text};
use crate::site::{Site, entries, entries_of};

/// A receiver's data folder and how to start a receiver on it.
struct Home {
    folder: TempDir,
    link: String,
}

impl Home {
    fn new(link: String) -> Home {
        let folder = tempfile::tempdir().unwrap();
        Home { folder, link }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("delivery.jsonl")
    }

    fn command(&self) -> Command {
        let (data, log) = (self.data(), self.log());
        let mut command = receiver(&["--data", text(&data), "--delivery-log", text(&log)]);
        command
            .args(["--name", "r1"])
            .env("FLEXFEED_LINK", &self.link);
        command
    }

    fn start(&self) -> Running {
        Running::start(&mut self.command())
    }

    /// The `seq` of each line of the delivery log.
    fn logged(&self) -> Vec<u64> {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["seq"].as_u64().unwrap()).collect()
    }

    /// Returns the output of `status --json` and its exit code; null while there is none.
    fn status(&self) -> (Value, Option<i32>) {
        let output = receiver(&["status", "--json", "--data", text(&self.data())])
            .output()
            .unwrap();
        let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (value, output.status.code())
    }

    /// Waits until the status is so; returns it.
    async fn until(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let (status, _) = self.status();
            if condition(&status) {
                return status;
            }
            assert!(
                tokio::time::Instant::now() < end,
                "not in time: {what}\n{status}"
            );
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Waits until the Atom file has these entries: it follows the cursor.
    async fn entries(&self, expected: &[u64]) {
        let what = format!("entries {expected:?}");
        self.until(&what, |_| entries(&self.data()) == expected)
            .await;
    }

    async fn cursor(&self, seq: u64) -> Value {
        let what = format!("cursor {seq}");
        self.until(&what, |status| status["channels"][0]["cursor"] == seq)
            .await
    }
}

fn stop(mut running: Running) {
    running.signal(program::Signal::TERM);
    running.wait_for("stopped; the next start");
    assert_eq!(running.exit_code(), Some(0));
}

fn newest_first(last: u64) -> Vec<u64> {
    (1..=last).rev().collect()
}

fn in_order(last: u64) -> Vec<u64> {
    (1..=last).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_come_out_once_and_in_order_whatever_restarts() {
    let mut site = Site::start().await;
    for seq in 1..=5 {
        site.publish(seq).await;
    }
    let home = Home::new(site.link());
    let running = home.start();
    running.wait_for("channel=\"lore\" head=5");
    home.cursor(5).await;
    for seq in 6..=40 {
        site.publish(seq).await;
    }
    let status = home.cursor(40).await;
    assert_eq!(home.status().1, Some(0));
    let channel = &status["channels"][0];
    assert_eq!(
        (&status["name"], &status["error"]),
        (&Value::from("r1"), &Value::Null)
    );
    assert_eq!(
        (&channel["updates"], &channel["rung"]),
        (&Value::from(40), &Value::from("unicast"))
    );
    assert_eq!(channel["via"]["unicast"], 40);
    assert_eq!(channel["incarnation"], site.incarnation.to_string());
    assert!(channel["latency_ms"]["p99"].is_f64(), "{channel}");
    assert_eq!(home.logged(), in_order(40));
    let line = std::fs::read_to_string(home.log()).unwrap();
    let line: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&line["id"], &line["via"]),
        (&Value::from("urn:entry:1"), &Value::from("unicast"))
    );
    assert!(
        line["at_ms"].is_f64() && line["latency_ms"].is_f64(),
        "{line}"
    );
    let shown = receiver(&["status", "--data", text(&home.data())])
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("up to date, at update 40"), "{shown}");
    stop(running);

    // While it is away, the source goes on and restarts.
    for seq in 41..=45 {
        site.publish(seq).await;
    }
    site.stop().await;
    site.again().await;
    let running = home.start();
    home.cursor(45).await;
    // The source restarts beneath it.
    site.stop().await;
    site.again().await;
    site.publish(46).await;
    home.cursor(46).await;
    stop(running);
    assert_eq!(home.logged(), in_order(46));
    assert_eq!(entries(&home.data()), newest_first(46));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_loses_nothing_and_repeats_nothing_in_the_file() {
    let site = Site::start().await;
    let home = Home::new(site.link());
    let mut seq = 0;
    for _ in 0..6 {
        let mut running = home.start();
        running.wait_for("connected to the source");
        // From here on it is known where the first delivery began.
        home.until("a cursor", |_| home.data().join("state/lore.json").exists())
            .await;
        for _ in 0..30 {
            seq += 1;
            site.publish(seq).await;
        }
        running.signal(program::Signal::KILL);
        running.exit_code();
    }
    let running = home.start();
    home.cursor(seq).await;
    stop(running);
    assert_eq!(entries(&home.data()), newest_first(seq));
    let mut logged = home.logged();
    logged.sort_unstable();
    logged.dedup();
    assert_eq!(logged, in_order(seq));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_ends_it_with_advice() {
    let site = Site::start().await;
    let home = Home::new(site.link_with_wrong_token());
    let mut command = home.command();
    let (code, said) = tokio::task::spawn_blocking(move || ends(&mut command))
        .await
        .unwrap();
    assert_eq!(code, Some(1), "{said}");
    for part in [
        "refused this receiver",
        "there is no such token",
        "ask the source's operator for a new link",
    ] {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
    let (status, code) = home.status();
    assert_eq!((&status["running"], code), (&Value::Bool(false), Some(1)));
    assert!(
        status["error"].as_str().unwrap().contains("token"),
        "{status}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_pin_is_reported_and_retried() {
    let site = Site::start().await;
    let home = Home::new(site.link_with_wrong_pin());
    let running = home.start();
    running.wait_for("wrong pin");
    let status = home
        .until("the error", |status| status["error"].is_string())
        .await;
    assert!(
        status["error"].as_str().unwrap().contains("pin"),
        "{status}"
    );
    assert_eq!(
        (&status["running"], &status["connected"]),
        (&Value::Bool(true), &Value::Bool(false))
    );
    stop(running);
    assert_eq!(entries(&home.data()), [] as [u64; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unwritten_updates_wait_and_arrive_in_the_end() {
    let site = Site::start().await;
    let home = Home::new(site.link());
    // Nothing can be appended to a folder.
    std::fs::create_dir(home.log()).unwrap();
    let running = home.start();
    running.wait_for("connected to the source");
    for seq in 1..=400 {
        site.publish(seq).await;
    }
    let line = running.wait_for("nothing is lost");
    assert!(line.contains(text(&home.log())), "{line}");
    let status = home
        .until("the error", |status| status["error"].is_string())
        .await;
    assert_eq!(status["channels"][0]["cursor"], 0);
    // Stopping works all the same.
    stop(running);
    let running = home.start();
    running.wait_for("nothing is lost");
    std::fs::remove_dir(home.log()).unwrap();
    running.wait_for("writing works again");
    home.cursor(400).await;
    home.until("no error", |status| status["error"].is_null())
        .await;
    stop(running);
    assert_eq!(home.logged(), in_order(400));
    assert_eq!(entries(&home.data()), newest_first(400));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_update_is_reported_and_skipped() {
    let site = Site::start().await;
    let home = Home::new(site.link());
    let running = home.start();
    running.wait_for("connected to the source");
    site.publish(1).await;
    site.publish_as(2, Bytes::from_static(b"\x07 from the future"))
        .await;
    site.publish_as(3, Bytes::from_static(b"\0{}")).await;
    site.publish(4).await;
    let line = running.wait_for("update 2 is invalid");
    assert!(line.contains("encoding 7"), "{line}");
    let status = home.cursor(4).await;
    assert_eq!(status["channels"][0]["undecodable"], 2);
    stop(running);
    assert_eq!(entries(&home.data()), [4, 1]);
    assert_eq!(home.logged(), [1, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_channel_of_the_link_has_its_own_file_and_cursor() {
    let names = ["lore", "net", "bpf"];
    let mut site = Site::with(&names).await;
    let home = Home::new(site.link());
    for seq in 1..=4 {
        site.publish_on("net", seq).await;
    }
    let running = home.start();
    for seq in 5..=30 {
        site.publish_on("net", seq).await;
        site.publish_on("lore", seq - 4).await;
    }
    let cursors = |status: &Value| {
        let channels = status["channels"].as_array().cloned().unwrap_or_default();
        let cursors = channels.iter().map(|c| c["cursor"].as_u64());
        cursors.collect::<Option<Vec<_>>>().unwrap_or_default()
    };
    let status = home
        .until("all of it", |status| cursors(status) == [26, 30, 0])
        .await;
    let channels = status["channels"].as_array().unwrap();
    for (channel, name) in channels.iter().zip(names) {
        assert_eq!(channel["channel"], name);
    }
    assert_ne!(channels[0]["incarnation"], channels[1]["incarnation"]);
    stop(running);
    assert_eq!(entries(&home.data()), newest_first(26));
    assert_eq!(entries_of(&home.data(), "net"), newest_first(30));
    assert_eq!(entries_of(&home.data(), "bpf"), [] as [u64; 0]);
    let log = std::fs::read_to_string(home.log()).unwrap();
    let of = |channel: &str| {
        let end = format!("\"channel\":\"{channel}\"}}");
        log.lines().filter(|line| line.ends_with(&end)).count()
    };
    assert_eq!((of("lore"), of("net"), of("bpf")), (26, 30, 0));

    // A gap in one concerns that one only, and each goes on from its own place.
    for seq in 27..=40 {
        site.publish_on("lore", seq).await;
    }
    site.publish_on("net", 31).await;
    site.publish_on("bpf", 1).await;
    site.stop().await;
    site.forget_on("lore", 36);
    site.again().await;
    let running = home.start();
    let line = running.wait_for("are gone at the source");
    assert!(line.contains("first=27 last=35"), "{line}");
    assert!(line.contains("channel=\"lore\""), "{line}");
    let status = home
        .until("the rest", |status| cursors(status) == [40, 31, 1])
        .await;
    let missing = |at: usize| status["channels"][at]["missing"].as_u64();
    assert_eq!(
        [missing(0), missing(1), missing(2)],
        [Some(9), Some(0), Some(0)]
    );
    let shown = receiver(&["status", "--data", text(&home.data())])
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for name in names {
        assert!(shown.contains(&format!("\n{name}: on unicast")), "{shown}");
    }
    stop(running);
    assert_eq!(entries_of(&home.data(), "net"), newest_first(31));
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_taken_unless_they_are_not_wanted() {
    let mut site = Site::start().await;
    site.stop().await;
    site.copies = true;
    // A long heartbeat: a stalled machine would otherwise miss some and fall back to unicast.
    site.heartbeat = std::time::Duration::from_secs(20);
    site.again().await;
    let (taking, refusing) = (Home::new(site.link()), Home::new(site.link()));
    let first = taking.start();
    let second = Running::start(refusing.command().arg("--no-replicate"));
    let on = |rung: &'static str| {
        move |status: &Value| status["connected"] == true && status["channels"][0]["rung"] == rung
    };
    // A flow that nothing is sent on proves itself by what the source sends for that.
    taking.until("copies", on("replicated")).await;
    refusing.until("no copies", on("unicast")).await;
    for seq in 1..=50 {
        site.publish(seq).await;
    }
    let status = taking.cursor(50).await;
    let via = &status["channels"][0]["via"];
    assert!(via["flow"].as_u64() >= Some(40), "{via}");
    let status = refusing.cursor(50).await;
    assert_eq!(status["channels"][0]["via"]["unicast"], 50);
    stop(first);
    stop(second);
    for home in [taking, refusing] {
        assert_eq!(home.logged(), in_order(50));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_are_restarted_and_refilled() {
    let site = Site::start().await;
    for seq in 1..=9 {
        site.publish(seq).await;
    }
    let home = Home::new(site.link());
    let running = home.start();
    home.cursor(9).await;
    stop(running);
    let check = async |expected: &str, file: &Path, content: Option<&str>| {
        match content {
            Some(content) => std::fs::write(file, content).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
        let running = home.start();
        running.wait_for(expected);
        let all = || entries(&home.data()) == newest_first(9);
        home.until("all entries", |status| {
            status["channels"][0]["cursor"] == 9 && all()
        })
        .await;
        stop(running);
    };
    let atom = home.data().join("lore.atom");
    check("was damaged", &atom, Some("<feed><entry>")).await;
    check("rebuilding the feed file from the journal", &atom, None).await;
    let cursor = home.data().join("state/lore.json");
    check("cursor file is damaged", &cursor, Some("{}")).await;
}

/// Memory of a burst is returned; that of the feeds stays.
#[cfg(all(target_os = "linux", target_env = "gnu"))] // Where memory is trimmed.
#[tokio::test(flavor = "multi_thread")]
async fn memory_does_not_stay_as_large_as_a_burst_made_it() {
    const UPDATES: u64 = 3_000;
    let site = Site::start().await;
    for seq in 1..=UPDATES {
        let text: String = (0..6_000).map(|_| rand::random_range('0'..='z')).collect();
        let entry = feed::Entry {
            id: format!("urn:entry:{seq}"),
            content_text: Some(text),
            ..feed::Entry::default()
        };
        let (kind, now) = (feed::Kind::Created, jiff::Timestamp::now());
        let encoded = feed::payload::encode(&entry, kind, "u", site.incarnation, seq, now);
        site.publish_as(seq, encoded.into()).await;
    }
    let home = Home::new(site.link());
    let mut command = home.command();
    let running = Running::start(command.args(["--history", "all"]));
    home.cursor(UPDATES).await;
    let path = format!("/proc/{}/status", running.id());
    let private = || {
        let text = std::fs::read_to_string(&path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.unwrap().trim().strip_suffix("kB").unwrap();
        kib.trim().parse::<u64>().unwrap()
    };
    home.until("24 MiB of private memory", |_| private() <= 24 << 10)
        .await;
    stop(running);
}

/// The promise that the order of output and cursor keeps, broken on purpose.
#[cfg(feature = "fault-injection")]
#[tokio::test(flavor = "multi_thread")]
async fn with_the_cursor_first_a_power_cut_loses_updates() {
    let site = Site::start().await;
    let home = Home::new(site.link());
    let mut command = home.command();
    let mut running = Running::start(command.env("FLEXFEED_FAULTS", "cursor-first"));
    running.wait_for("connected to the source");
    let cursor = home.data().join("state/lore.json");
    let has = |text: &str| {
        let found = std::fs::read_to_string(&cursor).unwrap_or_default();
        found.contains(text)
    };
    home.until("the first cursor", |_| has("\"seq\":0}")).await;
    site.publish(1).await;
    home.until("the next cursor", |_| has("\"seq\":1}")).await;
    running.signal(program::Signal::KILL);
    running.exit_code();
    // An honest receiver would see that its journal is behind the cursor, and ask again.
    let mut command = home.command();
    let running = Running::start(command.env("FLEXFEED_FAULTS", "cursor-first"));
    site.publish(2).await;
    home.cursor(2).await;
    stop(running);
    assert_eq!(entries(&home.data()), [2]);
}
