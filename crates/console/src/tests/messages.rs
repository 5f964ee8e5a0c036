//! Messages published over the API.

use std::time::{Duration, Instant};

use feed::message::Message;
use serde_json::json;
use store::{ChannelSettings, Fence, Holder, LeaseOutcome, Role};

use super::*;

on_both! {
    messages_are_published,
    what_cannot_be_published_is_refused,
    publishing_needs_its_scope_and_has_limits,
}

const PATH: &str = "/api/v1/channels/lore/messages";

/// Starts a console with the live channel `lore` and the log `news`.
async fn start(place: bench::TestDatabase) -> Bench {
    let bench = Bench::start(place).await;
    let live = ChannelSettings {
        deadline_ms: Some(60_000),
        ..ChannelSettings::default()
    };
    let channels = bench.opened.channels();
    channels.put("lore", &live).await.unwrap();
    let log = ChannelSettings::default();
    channels.put("news", &log).await.unwrap();
    bench
}

/// Takes all messages of `lore` as its source would.
async fn taken(bench: &Bench) -> Vec<Message> {
    let holder = Holder {
        id: uuid::Uuid::from_u128(1),
        name: "attic".to_owned(),
    };
    let leases = bench.opened.leases();
    let ttl = Duration::from_secs(60);
    let LeaseOutcome::Held(lease) = leases.take("lore", &holder, ttl).await.unwrap() else {
        panic!("the lease is free");
    };
    let held = [Fence {
        channel: lease.channel,
        fence: lease.fence,
    }];
    let taken = bench.opened.messages().take(&held, 100).await.unwrap();
    let taken = taken.into_iter();
    taken
        .map(|message| Message::decode(&message.payload).unwrap())
        .collect()
}

async fn publish(client: &Client, kind: &str, query: &str, body: &str) -> TestResponse {
    let client = client.with("content-type", kind);
    client
        .send("POST", &format!("{PATH}{query}"), Some(body))
        .await
}

async fn messages_are_published(place: bench::TestDatabase) {
    let bench = start(place).await;
    let operator = bench.operator().await;
    let text = "text/plain; charset=utf-8";
    let first = publish(
        &operator,
        text,
        "?id=a%20b&subject=Gr%C3%BC%C3%9Fe",
        "hello",
    )
    .await;
    assert_eq!(first.code, 202, "{}", first.body);
    let first = first.json();
    assert_eq!(first["id"], "a b");
    let ends = first["expires_ms"].as_i64().unwrap() - crate::clock::now_ms();
    assert!((1..=61_000).contains(&ends), "{ends}");
    let again = publish(&operator, text, "?id=a%20b", "hello").await;
    assert_eq!((again.code, again.json()), (200, first), "it is sent once");
    let named = operator.with("ce-id", "gr%C3%BCn").with("ce-subject", "x");
    assert_eq!(
        publish(&named, "image/png", "", "x").await.json()["id"],
        "grün"
    );
    let made = publish(&operator, "", "", "{").await.json();
    let made = made["id"].as_str().unwrap().to_owned();
    assert_eq!(made.len(), 36, "{made}");
    let event = json!({"specversion": "1.0", "id": "e", "source": "s", "type": "t",
        "time": "2027-01-15T08:00:00Z", "data": {"level": 7.5}});
    let kind = "application/cloudevents+json; charset=utf-8";
    let sent = publish(&operator, kind, "", &event.to_string()).await;
    assert_eq!(
        (sent.code, &sent.json()["id"]),
        (202, &json!("e")),
        "{}",
        sent.body
    );
    let largest = json!({"specversion": "1.0", "id": "f", "source": "s", "type": "t",
        "datacontenttype": "text/plain", "data": "\u{1}".repeat(65_536)});
    assert_eq!(
        publish(&operator, kind, "", &largest.to_string())
            .await
            .code,
        202
    );
    let body = "x".repeat(65_536);
    assert_eq!(
        publish(&operator, "text/plain", "?id=g", &body).await.code,
        202
    );

    let taken = taken(&bench).await;
    let ids: Vec<&str> = taken.iter().map(|message| message.id.as_str()).collect();
    assert_eq!(ids, ["a b", "grün", &made, "e", "f", "g"]);
    assert_eq!(taken[0].content_type, text);
    assert_eq!(taken[0].subject.as_deref(), Some("Grüße"));
    assert_eq!(taken[0].body, b"hello");
    let age = crate::clock::now_ms().unsigned_abs() - taken[0].time_ms;
    assert!(age < 60_000, "{age}");
    assert_eq!(
        (&*taken[1].content_type, taken[1].subject.as_deref()),
        ("image/png", Some("x"))
    );
    assert_eq!(taken[2].content_type, "text/plain; charset=utf-8");
    assert_eq!(taken[3].time_ms, 1_800_000_000_000);
    assert_eq!(
        (&*taken[3].content_type, &*taken[3].body),
        ("application/json", &b"{\"level\":7.5}"[..])
    );
    assert_eq!(taken[4].body.len(), 65_536);
    assert_eq!(taken[5].body.len(), 65_536);
    let audit = operator.get("/api/v1/audit").await;
    assert!(!audit.body.contains("message.publish"), "{}", audit.body);
}

async fn what_cannot_be_published_is_refused(place: bench::TestDatabase) {
    let bench = start(place).await;
    let operator = bench.operator().await;
    let text = operator.with("content-type", "text/plain");
    let to = async |path: &str| text.send("POST", path, Some("x")).await;
    to("/api/v1/channels/none/messages")
        .await
        .is_problem(404, "not-found");
    let log = to("/api/v1/channels/news/messages").await;
    log.is_problem(409, "conflict");
    assert!(log.body.contains("--deadline"), "{}", log.body);
    to(&format!("{PATH}?id=a%0Ab"))
        .await
        .is_problem(422, "invalid");
    to(&format!("{PATH}?id=")).await.is_problem(422, "invalid");
    to(&format!("{PATH}?id={}", "x".repeat(129)))
        .await
        .is_problem(422, "invalid");
    to(&format!("{PATH}?ttl=5"))
        .await
        .is_problem(400, "malformed");
    let long = "x".repeat(65_537);
    publish(&operator, "text/plain", "", &long)
        .await
        .is_problem(413, "too-large");
    let event = "application/cloudevents+json";
    publish(&operator, event, "", "{")
        .await
        .is_problem(400, "malformed");
    publish(&operator, event, "", "[]")
        .await
        .is_problem(422, "invalid");
    publish(&operator, event, "", &" ".repeat(420_000))
        .await
        .is_problem(413, "too-large");
    let long = json!({"specversion": "1.0", "id": "f", "source": "s", "type": "t", "data": long});
    publish(&operator, event, "", &long.to_string())
        .await
        .is_problem(413, "too-large");
    let batch = "application/cloudevents-batch+json";
    publish(&operator, batch, "", "[]")
        .await
        .is_problem(400, "malformed");
    publish(&operator, "text", "", "x")
        .await
        .is_problem(422, "invalid");
    assert!(taken(&bench).await.is_empty());
    let audit = operator.get("/api/v1/audit").await;
    assert!(audit.body.contains("message.publish"), "{}", audit.body);
}

async fn publishing_needs_its_scope_and_has_limits(place: bench::TestDatabase) {
    let bench = start(place).await;
    let operator = bench.operator().await;
    bench.add_user("vera", Role::Viewer).await;
    let viewer = bench.sign_in("vera").await;
    publish(&viewer, "text/plain", "", "x")
        .await
        .is_problem(403, "forbidden");
    let token = async |scope: &str| {
        let new = json!({"name": scope, "scopes": [scope]});
        let made = operator.post("/api/v1/api-tokens", &new).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let token = made.json()["token"].as_str().unwrap().to_owned();
        let client = bench
            .anonymous()
            .with("authorization", &format!("Bearer {token}"));
        (client, token)
    };
    let (reader, _) = token("channels").await;
    publish(&reader, "text/plain", "", "x")
        .await
        .is_problem(403, "forbidden");
    let (publisher, secret) = token("publish").await;
    assert_eq!(publish(&publisher, "text/plain", "", "x").await.code, 202);
    publisher
        .get("/api/v1/channels")
        .await
        .is_problem(403, "forbidden");
    let (all, _) = token("operate").await;
    assert_eq!(publish(&all, "text/plain", "", "x").await.code, 202);

    // Each token has a rate of its own.
    let hash = crate::auth::secret::hash(&secret).unwrap();
    // As if it had sent many in the next minute: what refills meanwhile is no matter.
    let later = Instant::now() + Duration::from_secs(60);
    while bench.site.limits.messages.take(hash, later).is_ok() {}
    let refused = publish(&publisher, "text/plain", "", "x").await;
    refused.is_problem(429, "too-many");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((50..=61).contains(&wait), "{wait}");
    assert_eq!(publish(&all, "text/plain", "", "x").await.code, 202);

    // So has a channel a queue.
    loop {
        let id = uuid::Uuid::new_v4().to_string();
        if bench
            .opened
            .messages()
            .send("lore", &id, b"x")
            .await
            .is_err()
        {
            break;
        }
    }
    let full = publish(&all, "text/plain", "", "x").await;
    full.is_problem(429, "too-many");
    assert_eq!(full.header("retry-after"), "1");
    assert!(full.body.contains("1000 messages"), "{}", full.body);
}
