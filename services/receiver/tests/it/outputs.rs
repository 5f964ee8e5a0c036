//! The program's outputs besides the Atom file, against a real source: JSON Feed, events, webhooks,
//! commands; across kills, a full disk, and hanging consumers.

mod full_disk;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kit::wait::on_tokio::until;
use serde_json::Value;
use tempfile::TempDir;

use crate::hook_server::HookServer;
use crate::program::{self, PATIENCE, Running, receiver, text};
use crate::site::{Site, entries};

/// A receiver's data folder, its settings, and how to start it.
struct Home {
    folder: TempDir,
    data: PathBuf,
    link: String,
    http: SocketAddr,
    settings: String,
}

impl Home {
    fn new(link: String, settings: String) -> Home {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        Home {
            data,
            folder,
            link,
            http: kit::ports::free(),
            settings,
        }
    }

    fn command(&self) -> Command {
        let config = self.folder.path().join("receiver.toml");
        std::fs::write(&config, &self.settings).unwrap();
        let http = self.http.to_string();
        let mut command = receiver(&["--data", text(&self.data), "--config", text(&config)]);
        command
            .args(["--name", "r1", "--http", &http])
            .env("FLEXFEED_LINK", &self.link);
        command
    }

    fn start(&self) -> Running {
        let running = Running::start(&mut self.command());
        running.wait_for("feeds, events and status are at");
        running
    }

    async fn get(&self, path: &str) -> Option<(u16, String)> {
        let client = client();
        let response = client.get(format!("http://{}{path}", self.http));
        let response = response.send().await.ok()?;
        Some((response.status().as_u16(), response.text().await.ok()?))
    }

    async fn status(&self) -> Value {
        let page = self.get("/status.json").await;
        page.map_or(Value::Null, |(_, text)| {
            serde_json::from_str(&text).unwrap()
        })
    }

    async fn cursor(&self, seq: u64) {
        until("the cursor", async || {
            self.status().await["channels"][0]["cursor"] == seq
        })
        .await;
    }

    async fn hook(&self, name: &str) -> Value {
        let status = self.status().await;
        let hooks = status["hooks"].as_array().cloned().unwrap_or_default();
        let mut found = hooks.into_iter().filter(|hook| hook["name"] == name);
        found.next().unwrap_or(Value::Null)
    }

    fn dead(&self, hook: &str) -> Vec<u64> {
        let path = self.data.join(format!("dead-letters/{hook}.jsonl"));
        let text = whole_lines(&path);
        let letters = text.lines().map(|line| {
            let letter: Value = serde_json::from_str(line).unwrap();
            assert_eq!(
                letter["event"]["data"]["id"],
                format!("urn:entry:{}", letter["seq"])
            );
            assert!(letter["reason"].as_str().is_some_and(|r| !r.is_empty()));
            letter["seq"].as_u64().unwrap()
        });
        letters.collect()
    }

    /// The numbers of the entries in the JSON Feed file, in its order.
    fn items(&self) -> Vec<u64> {
        let file = std::fs::read(self.data.join("lore.json")).unwrap();
        let feed: Value = serde_json::from_slice(&file).unwrap();
        let items = feed["items"].as_array().unwrap().iter();
        let ids = items.map(|item| item["id"].as_str().unwrap().to_owned());
        ids.map(|id| id["urn:entry:".len()..].parse().unwrap())
            .collect()
    }
}

fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .tls_certs_only([])
        .build()
        .unwrap()
}

fn kill(mut running: Running) {
    running.signal(program::Signal::KILL);
    running.exit_code();
}

fn stop(mut running: Running) {
    let begun = Instant::now();
    running.signal(program::Signal::TERM);
    assert_eq!(running.exit_code(), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(28),
        "{:?}",
        begun.elapsed()
    );
}

fn in_order(last: u64) -> Vec<u64> {
    (1..=last).collect()
}

fn newest_first(last: u64) -> Vec<u64> {
    (1..=last).rev().collect()
}

/// Each once, in the order of their first time.
fn first_times(seqs: &[u64]) -> Vec<u64> {
    let mut seen = Vec::new();
    for seq in seqs {
        if !seen.contains(seq) {
            seen.push(*seq);
        }
    }
    seen
}

/// Returns the whole lines of a file that is being written.
fn whole_lines(path: &Path) -> String {
    let mut text = std::fs::read_to_string(path).unwrap_or_default();
    text.truncate(text.rfind('\n').map_or(0, |at| at + 1));
    text
}

/// The numbers that a command wrote down, one in a line.
fn numbers(path: &Path) -> Vec<u64> {
    let text = whole_lines(path);
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// A client of `/events` that comes back by the id of the last event that it has.
struct Listener {
    url: String,
    last: Option<String>,
    /// The numbers of the updates that it got.
    seqs: Vec<u64>,
    /// Other events.
    notes: Vec<(String, Value)>,
}

impl Listener {
    fn new(home: &Home) -> Listener {
        Listener {
            url: format!("http://{}/events?last_event_id=0", home.http),
            last: None,
            seqs: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Reads until it has `count` updates, or the connection ends.
    async fn read(&mut self, count: usize) {
        let mut request = client().get(&self.url);
        if let Some(last) = &self.last {
            request = request.header("last-event-id", last);
        }
        let Ok(mut response) = request.send().await else {
            return;
        };
        assert_eq!(response.status(), 200);
        let mut text = String::new();
        while self.seqs.len() < count {
            let chunk = tokio::time::timeout(PATIENCE, response.chunk()).await;
            let Ok(Some(chunk)) = chunk.expect("nothing comes") else {
                return;
            };
            text.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some((block, rest)) = text.split_once("\n\n") {
                self.take(block);
                text = rest.to_owned();
            }
        }
    }

    fn take(&mut self, block: &str) {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        if let Some(id) = field("id: ") {
            self.last = Some(id.to_owned());
        }
        let Some(data) = field("data: ") else { return };
        let data: Value = serde_json::from_str(data).unwrap();
        match field("event: ") {
            Some(kind) => self.notes.push((kind.to_owned(), data)),
            None => {
                let id = data["data"]["id"].as_str().unwrap();
                self.seqs.push(id["urn:entry:".len()..].parse().unwrap());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_kills_events_come_once_and_hooks_at_least_once() {
    let site = Site::start().await;
    let hooks = HookServer::start();
    let ran = tempfile::tempdir().unwrap();
    let ran = ran.path().join("ran");
    let settings = format!(
        "[[webhook]]\nurl = \"{}\"\nname = \"good\"\nsecret = \"0123456789abcdef\"\n\
         [[webhook]]\nurl = \"http://127.0.0.1:1/\"\nname = \"away\"\n\
         [[exec]]\ncommand = \"echo $FLEXFEED_SEQ >> {}\"\nname = \"note\"\n",
        hooks.url("/good"),
        ran.display()
    );
    let home = Home::new(site.link(), settings);
    let mut listener = Listener::new(&home);
    let mut seq = 0;
    for round in 0..6u64 {
        let running = home.start();
        if round == 0 {
            // From here on it is known where the first delivery began.
            until("a cursor", async || {
                home.data.join("state/lore.json").exists()
            })
            .await;
        }
        for _ in 0..30 {
            seq += 1;
            site.publish(seq).await;
        }
        // Somewhere on the way.
        listener.read(seq as usize - 20 + round as usize).await;
        kill(running);
    }
    let running = home.start();
    listener.read(seq as usize).await;
    assert_eq!(listener.seqs, in_order(seq));
    assert_eq!(listener.notes, [] as [(String, Value); 0]);
    until("webhook and command", async || {
        hooks.seqs("/good").last() == Some(&seq) && numbers(&ran).last() == Some(&seq)
    })
    .await;
    assert_eq!(first_times(&hooks.seqs("/good")), in_order(seq));
    assert_eq!(first_times(&numbers(&ran)), in_order(seq));
    let posts = hooks.posts("/good");
    assert!(
        posts
            .iter()
            .all(|post| post.headers["webhook-signature"].starts_with("v1,"))
    );
    let item: Value = serde_json::from_slice(&posts[0].body).unwrap();
    assert_eq!(item["id"], "urn:entry:1");
    // The hook without an answer holds nothing up, and its updates wait.
    until("the status", async || {
        home.hook("away").await["pending"] == seq
    })
    .await;
    until("the first attempt of this run", async || {
        let away = home.hook("away").await;
        let error = away["error"].as_str().map(str::to_owned);
        error.is_some_and(|error| error.contains("refused"))
    })
    .await;
    until("the files", async || {
        entries(&home.data) == newest_first(seq) && home.items() == newest_first(seq)
    })
    .await;
    until("ready", async || {
        home.get("/readyz").await.unwrap().0 == 200
    })
    .await;
    stop(running);
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_consumers_hold_up_nothing_nor_the_shutdown() {
    let site = Site::start().await;
    let hooks = HookServer::start();
    hooks.answer("/mute", 0);
    hooks.answer("/gone", 410);
    let settings = format!(
        "journal_updates = 64\n\
         [[webhook]]\nurl = \"{}\"\nname = \"mute\"\ntimeout = \"600s\"\n\
         [[webhook]]\nurl = \"{}\"\nname = \"gone\"\n\
         [[webhook]]\nurl = \"{}\"\nname = \"good\"\n\
         [[exec]]\ncommand = \"sleep 600\"\nname = \"asleep\"\ntimeout = \"600s\"\n",
        hooks.url("/mute"),
        hooks.url("/gone"),
        hooks.url("/good"),
    );
    let home = Home::new(site.link(), settings);
    let running = home.start();
    running.wait_for("connected to the source");
    until("a cursor", async || {
        home.data.join("state/lore.json").exists()
    })
    .await;
    for seq in 1..=300 {
        site.publish(seq).await;
        // The good one keeps up.
        if seq % 20 == 0 {
            until("the good one", async || {
                hooks.seqs("/good").last() == Some(&seq)
            })
            .await;
        }
    }
    home.cursor(300).await;
    assert_eq!(hooks.seqs("/good"), in_order(300));
    assert_eq!(hooks.seqs("/mute"), [1]);
    assert_eq!(hooks.seqs("/gone"), [1]);
    until("the status", async || {
        home.hook("good").await["delivered"] == 300
    })
    .await;
    let gone = home.hook("gone").await;
    assert_eq!(gone["disabled"], true, "{gone}");
    // Updates that leave the journal are in the hooks' dead letters; none is lost. The status is
    // sampled hook by hook, and may be slightly old.
    for name in ["mute", "gone", "asleep"] {
        until(name, async || {
            let hook = home.hook(name).await;
            let Some(pending) = hook["pending"].as_u64() else {
                return false;
            };
            pending <= 64
                && home.dead(name) == in_order(300 - pending)
                && hook["dead"].as_u64() == Some(300 - pending)
        })
        .await;
    }
    assert_eq!(home.dead("good"), [] as [u64; 0]);
    let metrics = home.get("/metrics").await.unwrap().1;
    for line in [
        "flexfeed_receiver_hook_delivered_updates_total{hook=\"good\",kind=\"webhook\"} 300\n",
        "flexfeed_receiver_hook_disabled{hook=\"gone\",kind=\"webhook\"} 1\n",
        "flexfeed_receiver_hook_running_attempts{hook=\"asleep\",kind=\"exec\"} 1\n",
        "flexfeed_receiver_cursor_seq{channel=\"lore\"} 300\n",
        "flexfeed_receiver_connected 1\n",
    ] {
        assert!(metrics.contains(line), "{line} is not in:\n{metrics}");
    }
    // With two of them in hand.
    stop(running);
    // At the next start the one that is gone is asked again, and goes on with what is kept.
    hooks.answer("/gone", 200);
    let running = home.start();
    until("the rest", async || {
        hooks.seqs("/gone").last() == Some(&300)
    })
    .await;
    let notified = hooks.seqs("/gone");
    let dead = home.dead("gone");
    assert_eq!(notified[1], dead.last().unwrap() + 1);
    stop(running);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_channel_reaches_its_hooks() {
    let site = Site::with(&["lore", "net"]).await;
    let hooks = HookServer::start();
    let settings = format!(
        "[[webhook]]\nurl = \"{}\"\nname = \"all\"\n\
         [[webhook]]\nurl = \"{}\"\nname = \"net\"\nchannels = [\"net\"]\n",
        hooks.url("/all"),
        hooks.url("/net"),
    );
    let home = Home::new(site.link(), settings);
    let running = home.start();
    until("cursors", async || {
        ["lore", "net"]
            .iter()
            .all(|c| home.data.join(format!("state/{c}.json")).exists())
    })
    .await;
    for seq in 1..=20 {
        site.publish_on("lore", seq).await;
        site.publish_on("net", seq).await;
    }
    until("all of it", async || {
        hooks.posts("/all").len() == 40 && hooks.posts("/net").len() == 20
    })
    .await;
    assert_eq!(hooks.seqs("/net"), in_order(20));
    for channel in ["lore", "net"] {
        let posts = hooks.posts("/all").into_iter();
        let mine = posts.filter(|post| post.headers["ce-channel"] == channel);
        assert_eq!(
            mine.map(|post| post.seq()).collect::<Vec<_>>(),
            in_order(20)
        );
    }
    let mut listener = Listener::new(&home);
    listener.read(40).await;
    let ids = listener.last.unwrap();
    assert_eq!(ids.split(',').count(), 2, "{ids}");
    assert_eq!(home.get("/feeds/net.json").await.unwrap().0, 200);
    stop(running);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_notified_of_gaps_and_of_a_new_store() {
    let mut site = Site::start().await;
    let home = Home::new(site.link(), String::new());
    let running = home.start();
    until("a cursor", async || {
        home.data.join("state/lore.json").exists()
    })
    .await;
    site.publish(1).await;
    let mut listener = Listener::new(&home);
    listener.read(1).await;
    stop(running);
    for seq in 2..=9 {
        site.publish(seq).await;
    }
    site.stop().await;
    site.forget_before(7);
    site.again().await;
    let running = home.start();
    listener.read(4).await;
    assert_eq!(listener.seqs, [1, 7, 8, 9]);
    let (kind, gap) = listener.notes.remove(0);
    assert_eq!(
        (kind.as_str(), &gap["from"], &gap["to"]),
        ("gap", &2.into(), &6.into())
    );
    // Another store, which begins again with 1.
    site.stop().await;
    site.replace_store();
    site.again().await;
    running.wait_for("numbering restarted");
    for seq in 1..=3 {
        site.publish(seq).await;
    }
    listener.read(7).await;
    assert_eq!(listener.seqs, [1, 7, 8, 9, 1, 2, 3]);
    let (kind, resync) = listener.notes.remove(0);
    assert_eq!(
        (kind.as_str(), &resync["incarnation"]),
        ("resync", &site.incarnation.to_string().into())
    );
    assert_eq!(listener.notes, []);
    stop(running);
}

/// A feed download in progress when the receiver stops is completed.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_cuts_no_answer_short() {
    const LONG: usize = 24 << 20;
    let site = Site::start().await;
    let home = Home::new(site.link(), String::new());
    let running = home.start();
    site.publish(1).await;
    home.cursor(1).await;
    stop(running);
    // More than the buffers between two sockets hold.
    let file = home.data.join("lore.atom");
    let text = std::fs::read_to_string(&file).unwrap();
    let long = format!("<summary>{}</summary></entry>", ".".repeat(LONG));
    std::fs::write(&file, text.replacen("</entry>", &long, 1)).unwrap();
    let mut running = home.start();
    let mut reader = std::net::TcpStream::connect(home.http).unwrap();
    reader
        .write_all(b"GET /feeds/lore.atom HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    let mut all = vec![0; 9];
    reader.read_exact(&mut all).unwrap();
    running.signal(program::Signal::TERM);
    running.wait_for("finishing work in progress");
    reader.read_to_end(&mut all).unwrap();
    assert!(all.len() > LONG, "{}", all.len());
    assert_eq!(running.exit_code(), Some(0));
}

/// Faults take off what the tests above rely on.
#[cfg(feature = "fault-injection")]
#[tokio::test(flavor = "multi_thread")]
async fn injected_faults_are_noticed() {
    let site = Site::start().await;
    let hooks = HookServer::start();
    let settings = format!(
        "webhook_secret = \"0123456789abcdef\"\n[[webhook]]\nurl = \"{}\"\nname = \"h\"\n",
        hooks.url("/h")
    );
    let home = Home::new(site.link(), settings);
    let start = |switch: &str| Running::start(home.command().env("FLEXFEED_FAULTS", switch));
    let running = start("signature-off");
    until("a cursor", async || {
        home.data.join("state/lore.json").exists()
    })
    .await;
    site.publish(1).await;
    until("the webhook", async || hooks.seqs("/h") == [1]).await;
    assert!(
        !hooks.posts("/h")[0]
            .headers
            .contains_key("webhook-signature")
    );
    stop(running);

    let running = start("journal-after-cursor");
    running.wait_for("connected to the source");
    site.publish(2).await;
    until("the file", async || entries(&home.data) == [2, 1]).await;
    let cursor = home.data.join("state/lore.json");
    until("the cursor", async || {
        std::fs::read_to_string(&cursor)
            .unwrap()
            .contains("\"seq\":2}")
    })
    .await;
    kill(running);
    let running = start("journal-after-cursor");
    site.publish(3).await;
    until("the rest", async || hooks.seqs("/h").last() == Some(&3)).await;
    assert_eq!(hooks.seqs("/h"), [1, 3], "update 2 was not lost");
    stop(running);
}
