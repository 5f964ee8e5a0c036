//! Events.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection};
use store::{Batch, Role};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use uuid::Uuid;

use super::*;
use crate::auth::caller::{Caller, Via};
use crate::auth::client::Client as Address;
use crate::auth::secret;

/// Nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A watcher.
struct EventReader {
    stream: TcpStream,
    text: String,
}

/// One event.
#[derive(Debug)]
struct Event {
    id: String,
    name: String,
    data: Value,
}

impl EventReader {
    async fn begin(client: &Client, path: &str) -> Self {
        let stream = client.open("GET", path, None).await;
        let mut watching = Self {
            stream,
            text: String::new(),
        };
        let head = watching.block("\r\n\r\n").await;
        assert!(head.contains(" 200 OK"), "{head}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        watching
    }

    /// Waits until there is nothing more to come.
    async fn ends(mut self) {
        let mut rest = Vec::new();
        let reading = self.stream.read_to_end(&mut rest);
        // Without a notification it would take a minute.
        let within = Duration::from_secs(30);
        let read = tokio::time::timeout(within, reading).await;
        read.expect("it goes on").unwrap();
    }

    /// The text up to and without `end`.
    async fn block(&mut self, end: &str) -> String {
        loop {
            if let Some((block, rest)) = self.text.split_once(end) {
                let block = block.to_owned();
                self.text = rest.to_owned();
                return block;
            }
            let mut bytes = vec![0; 64 << 10];
            let reading = self.stream.read(&mut bytes);
            let read = tokio::time::timeout(PATIENCE, reading)
                .await
                .unwrap()
                .unwrap();
            assert!(read > 0, "it ended: {}", self.text);
            // Of these tests' texts, none is cut within a character that matters.
            self.text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    async fn event(&mut self) -> Event {
        loop {
            let block = self.block("\n\n").await;
            let field = |name: &str| {
                let lines = block.lines();
                let found = lines.filter_map(|line| line.strip_prefix(name)).next();
                found.map(str::to_owned)
            };
            if let (Some(id), Some(name)) = (field("id: "), field("event: ")) {
                let data = serde_json::from_str(&field("data: ").unwrap()).unwrap();
                return Event { id, name, data };
            }
        }
    }
}

on_both! {
    a_snapshot_comes_first_and_then_differences,
    a_returning_watcher_continues,
    a_revoked_watcher_gets_no_more_events,
}

fn rung(id: Uuid, rung: &str) -> Batch {
    Batch {
        states: vec![bench::state(id, rung)],
        moves: vec![bench::moved(id, "multicast", rung)],
        ..Batch::default()
    }
}

async fn a_snapshot_comes_first_and_then_differences(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, beta, _] = bench.populate().await;
    let mut all = EventReader::begin(&operator, "/api/v1/events?limit=10&sort=rung").await;
    let mut one = EventReader::begin(&operator, &format!("/api/v1/events?receiver={beta}")).await;
    let mut none = EventReader::begin(&operator, "/api/v1/events").await;
    let snapshot = all.event().await;
    assert_eq!(snapshot.name, "snapshot");
    assert_eq!(
        snapshot.data["receivers"]["items"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert_eq!(snapshot.data["overview"]["receivers"]["multicast"], 1);
    assert_eq!(
        one.event().await.data["receivers"]["items"][0]["id"],
        beta.to_string()
    );
    assert_eq!(none.event().await.data["receivers"], Value::Null);
    bench.write(rung(alpha, "unicast")).await;
    // The population may come as an event of its own.
    let delta = loop {
        let event = all.event().await;
        assert_eq!(event.name, "delta");
        if !event.data["moves"].as_array().unwrap().is_empty()
            && event.data["receivers"]
                .as_array()
                .unwrap()
                .iter()
                .any(|r| r["rung"] == "unicast")
        {
            break event.data;
        }
    };
    let changed = delta["receivers"].as_array().unwrap();
    assert_eq!(changed.len(), 1, "{delta}");
    assert_eq!(changed[0]["id"], alpha.to_string());
    assert_eq!(delta["moves"][0]["to"], "unicast");
    assert_eq!(delta["overview"]["receivers"]["multicast"], 0);
    assert_eq!(delta["order"].as_array().unwrap().len(), 3);
    // A watcher of another receiver gets the move, and nothing of the receiver.
    let other = loop {
        let event = one.event().await;
        if !event.data["moves"].as_array().unwrap().is_empty() {
            break event.data;
        }
    };
    assert_eq!(other["receivers"], json!([]));
    operator
        .patch(&format!("/api/v1/receivers/{beta}"), &json!({"label": "b"}))
        .await;
    let named = loop {
        let event = one.event().await;
        if let Some(row) = event.data["receivers"].as_array().unwrap().first() {
            break row.clone();
        }
    };
    assert_eq!(named["label"], "b");
    let path = format!("/api/v1/receivers/{beta}?forget=true");
    assert_eq!(operator.delete(&path).await.code, 204);
    let gone = loop {
        let event = one.event().await;
        if let Some(id) = event.data["gone"].as_array().unwrap().first() {
            break id.clone();
        }
    };
    assert_eq!(gone, beta.to_string());
    assert!(bench.site.hub.clients() == 3 && bench.site.hub.topics() == 3);
    drop((all, one, none));
    bench.until(|site| site.hub.clients() == 0).await;
}

async fn a_returning_watcher_continues(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, ..] = bench.populate().await;
    let path = "/api/v1/events?limit=10";
    let mut first = EventReader::begin(&operator, path).await;
    let snapshot = first.event().await;
    bench.write(rung(alpha, "amt")).await;
    let last = loop {
        let event = first.event().await;
        let moves = event.data["moves"].as_array().unwrap().clone();
        if moves
            .iter()
            .any(|m| m["to"] == "amt" && m["from"] == "multicast")
        {
            break event;
        }
    };
    drop(first);
    bench.write(rung(alpha, "replicated")).await;
    let back = operator.with("last-event-id", &last.id);
    let mut back = EventReader::begin(&back, path).await;
    let event = back.event().await;
    assert_eq!(event.name, "delta");
    assert_eq!(event.data["moves"][0]["to"], "replicated");
    // From the beginning: every event that is there comes again.
    let again = operator.with("last-event-id", &snapshot.id);
    let mut again = EventReader::begin(&again, path).await;
    assert_eq!(again.event().await.name, "delta");
    // An unknown id is no point to continue from, nor is one of another list.
    for id in [
        "",
        "x",
        "0-0-0",
        &format!("{}9", last.id),
        &last.id.replace('-', ""),
    ] {
        let client = operator.with("last-event-id", id);
        let mut watching = EventReader::begin(&client, path).await;
        assert_eq!(watching.event().await.name, "snapshot", "{id}");
    }
    let other = operator.with("last-event-id", &last.id);
    let mut other = EventReader::begin(&other, "/api/v1/events?limit=11").await;
    assert_eq!(other.event().await.name, "snapshot");
}

async fn a_revoked_watcher_gets_no_more_events(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let path = "/api/v1/events";
    let mut others = EventReader::begin(&operator, path).await;
    others.event().await;
    let watch = async |client: &Client| {
        let mut watching = EventReader::begin(client, path).await;
        assert_eq!(watching.event().await.name, "snapshot");
        watching
    };
    let ann = bench.add_user("ann", Role::Viewer).await;
    let own = format!("/api/v1/users/{ann}");
    // She signs out.
    let client = bench.sign_in("ann").await;
    let watching = watch(&client).await;
    assert_eq!(client.delete("/api/v1/session").await.code, 204);
    watching.ends().await;
    // She is kept out, gets a new password, and is forgotten.
    for (patch, back) in [
        (json!({"disabled": true}), Some(json!({"disabled": false}))),
        (json!({"password": bench::PASSWORD}), None),
    ] {
        let watching = watch(&bench.sign_in("ann").await).await;
        assert_eq!(operator.patch(&own, &patch).await.code, 200);
        watching.ends().await;
        if let Some(back) = back {
            assert_eq!(operator.patch(&own, &back).await.code, 200);
        }
    }
    let client = bench.sign_in("ann").await;
    let watching = watch(&client).await;
    let body = json!({"current": bench::PASSWORD, "password": bench::PASSWORD});
    let changed = client.post("/api/v1/session/password", &body).await;
    assert_eq!(changed.code, 204, "{}", changed.body);
    watching.ends().await;
    let watching = watch(&bench.sign_in("ann").await).await;
    assert_eq!(operator.delete(&own).await.code, 204);
    watching.ends().await;
    // A program's token is revoked.
    let body = json!({"name": "robot", "scopes": ["read"]});
    let made = operator.post("/api/v1/api-tokens", &body).await.json();
    let token = format!("Bearer {}", made["token"].as_str().unwrap());
    let watching = watch(&bench.anonymous().with("authorization", &token)).await;
    let revoke = format!("/api/v1/api-tokens/{}", made["id"]);
    assert_eq!(operator.delete(&revoke).await.code, 204);
    watching.ends().await;
    // No other watcher is cut off by that.
    bench.populate().await;
    assert_eq!(others.event().await.name, "delta");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_topics_are_refused() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    for bad in [
        "limit=501",
        "limit=10&cursor=x",
        "limit=5&offset=1&cursor=x",
        "x=1",
        "receiver=1",
    ] {
        let answer = operator.get(&format!("/api/v1/events?{bad}")).await;
        answer.is_problem(400, "malformed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_watch_the_same_for_the_price_of_one() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    let [alpha, ..] = bench.populate().await;
    let mut all = Vec::new();
    for _ in 0..50 {
        all.push(EventReader::begin(&operator, "/api/v1/events?limit=10").await);
    }
    for watching in &mut all {
        assert_eq!(watching.event().await.name, "snapshot");
    }
    assert_eq!(bench.site.hub.topics(), 1);
    bench.write(rung(alpha, "amt")).await;
    let mut ids = std::collections::BTreeSet::new();
    for watching in &mut all {
        loop {
            let event = watching.event().await;
            if event.data["moves"]
                .as_array()
                .unwrap()
                .iter()
                .any(|m| m["from"] == "multicast" && m["to"] == "amt")
            {
                ids.insert(event.id);
                break;
            }
        }
    }
    assert_eq!(ids.len(), 1, "everybody has the same event");
}

/// One user has a share of the slots, and topics without watchers give way.
#[tokio::test(flavor = "multi_thread")]
async fn a_heavy_watcher_does_not_exclude_others() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    bench.add_user("vera", store::Role::Viewer).await;
    let viewer = bench.sign_in("vera").await;
    let path = |n: usize| format!("/api/v1/events?limit=10&q=x{n}");
    let mut all = Vec::new();
    for n in 0..64 {
        all.push(EventReader::begin(&operator, &path(n)).await);
    }
    operator.get(&path(64)).await.is_problem(429, "too-many");
    // A topic watched already costs no slot, and others have theirs.
    all.push(EventReader::begin(&operator, &path(63)).await);
    EventReader::begin(&viewer, &path(64)).await;
    drop(all);
    bench.until(|site| site.hub.clients() == 0).await;
    for n in 0..300 {
        EventReader::begin(&viewer, &path(n)).await;
        bench.until(|site| site.hub.clients() == 0).await;
    }
    assert!(bench.site.hub.topics() <= 256);
    EventReader::begin(&operator, &path(1_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_is_not_being_busy() {
    let place = bench::TestDatabase::sqlite();
    let url = place.url.clone();
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let cookie = operator.cookie.clone().unwrap();
    let hash = secret::hash(cookie.strip_prefix("flexfeed=").unwrap()).unwrap();
    let session = async || {
        let idle = bench.site.settings.session_time;
        let found = bench.site.store.web_sessions().get(&hash, idle).await;
        found.unwrap().unwrap()
    };
    // Busy two minutes ago.
    let mut raw = SqliteConnection::connect(&url).await.unwrap();
    sqlx::query("UPDATE web_sessions SET seen_at = seen_at - 120000")
        .execute(&mut raw)
        .await
        .unwrap();
    let before = session().await;
    let mut watching = EventReader::begin(&operator, "/api/v1/events").await;
    assert_eq!(watching.event().await.name, "snapshot");
    let caller = Caller {
        user: before.user.clone(),
        via: Via::Session {
            hash,
            csrf: before.csrf.clone(),
        },
        client: Address {
            ip: bench.address.ip(),
            by_https: false,
        },
    };
    assert!(caller.is_still_admitted(&bench.site).await);
    assert_eq!(session().await.seen_ms, before.seen_ms);
    assert_eq!(operator.get("/api/v1/session").await.code, 200);
    assert!(session().await.seen_ms >= before.seen_ms + 120_000);
}
