//! Entries published over the API.

use feed::Entry;
use feed::publication::Publication;
use serde_json::json;
use store::{ChannelSettings, Role};

use super::*;

on_both! {
    entries_are_published_in_every_form,
    entries_that_cannot_be_published_are_refused,
    publishing_entries_needs_its_scope_and_has_limits,
}

const PATH: &str = "/api/v1/channels/lore/publish";

async fn start(place: bench::TestDatabase) -> Bench {
    let bench = Bench::start(place).await;
    let channels = bench.opened.channels();
    let log = ChannelSettings::default();
    channels.put("lore", &log).await.unwrap();
    bench
}

/// Returns the entries that wait for the source.
async fn waiting(bench: &Bench) -> Vec<Entry> {
    let read = bench.opened.publications();
    let read = read.waiting("lore", 1000, 64 << 20).await.unwrap();
    let entries = read.iter();
    entries
        .map(|one| Publication::decode(&one.payload).unwrap())
        .collect()
}

async fn publish(client: &Client, kind: &str, query: &str, body: &str) -> TestResponse {
    let client = client.with("content-type", kind);
    let path = format!("{PATH}{query}");
    client.send("POST", &path, Some(body)).await
}

fn event(id: &str) -> serde_json::Value {
    json!({"specversion": "1.0", "id": id, "source": "/builds", "type": "t", "subject": "Build",
        "datacontenttype": "text/html", "data": "<p>done</p>"})
}

async fn entries_are_published_in_every_form(place: bench::TestDatabase) {
    let bench = start(place).await;
    let operator = bench.operator().await;
    let query = "?id=a%201&title=Gr%C3%BC%C3%9Fe&url=https://example.org/1";
    let first = publish(&operator, "text/plain; charset=utf-8", query, "hello").await;
    assert_eq!(first.code, 202, "{}", first.body);
    let entry = json!({"id": "a 1", "repeated": false});
    assert_eq!(first.json(), json!({"entries": [entry]}));
    let again = publish(&operator, "text/plain", query, "hello").await;
    let entry = json!({"id": "a 1", "repeated": true});
    assert_eq!(
        (again.code, again.json()),
        (200, json!({"entries": [entry]}))
    );

    let made = publish(&operator, "", "", "First line\nmore").await.json();
    let made = made["entries"][0]["id"].as_str().unwrap().to_owned();
    assert!(made.starts_with("urn:uuid:"), "{made}");
    let item = r#"{"title": "An item", "content_text": "x", "tags": ["a"]}"#;
    let sent = publish(&operator, "application/json", "?id=item", item).await;
    assert_eq!(sent.code, 202, "{}", sent.body);
    let named = r#"{"id": "item", "title": "An item"}"#;
    let again = publish(&operator, "application/json", "", named).await;
    assert_eq!(again.code, 200, "an item has an id: {}", again.body);

    let structured = "application/cloudevents+json; charset=utf-8";
    let sent = publish(&operator, structured, "", &event("1").to_string()).await;
    assert_eq!(
        (sent.code, &sent.json()["entries"][0]["id"]),
        (202, &json!("/builds#1"))
    );
    let batch = json!([event("1"), event("2")]).to_string();
    let sent = publish(&operator, "application/cloudevents-batch+json", "", &batch).await;
    let repeated = |number: usize| sent.json()["entries"][number]["repeated"].clone();
    assert_eq!(
        (sent.code, repeated(0), repeated(1)),
        (202, json!(true), json!(false))
    );
    let binary = operator
        .with("ce-specversion", "1.0")
        .with("ce-id", "gr%C3%BCn")
        .with("ce-source", "/builds")
        .with("ce-type", "t")
        .with("ce-time", "2027-01-15T08:00:00Z")
        .with("ce-subject", "Build%20three");
    let sent = publish(&binary, "text/plain", "", "done").await;
    assert_eq!(sent.code, 202, "{}", sent.body);

    let entries = waiting(&bench).await;
    let ids: Vec<_> = entries.iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "a 1",
            &made,
            "item",
            "/builds#1",
            "/builds#2",
            "/builds#grün"
        ]
    );
    assert_eq!(entries[0].title.as_deref(), Some("Grüße"));
    assert_eq!(entries[0].url.as_deref(), Some("https://example.org/1"));
    assert_eq!(entries[0].content_text.as_deref(), Some("hello"));
    assert_eq!(entries[1].title.as_deref(), Some("First line"));
    assert_eq!(
        (entries[2].title.as_deref(), &*entries[2].tags),
        (Some("An item"), &["a".into()][..])
    );
    assert_eq!(entries[3].content_html.as_deref(), Some("<p>done</p>"));
    assert_eq!(entries[5].title.as_deref(), Some("Build three"));
    assert_eq!(entries[5].published, "2027-01-15T08:00:00Z".parse().ok());
    let audit = operator.get("/api/v1/audit").await;
    assert!(!audit.body.contains("entry.publish"), "{}", audit.body);
}

async fn entries_that_cannot_be_published_are_refused(place: bench::TestDatabase) {
    let bench = start(place).await;
    let operator = bench.operator().await;
    let text = operator.with("content-type", "text/plain");
    let unknown = text.send("POST", "/api/v1/channels/none/publish", Some("x"));
    unknown.await.is_problem(404, "not-found");
    let event_type = "application/cloudevents+json";
    let batch_type = "application/cloudevents-batch+json";
    let long = "x".repeat((1 << 20) + 1);
    let cases = [
        ("text/plain", "?id=", "x", 422),
        ("text/plain", "?id=a%0Ab", "x", 422),
        ("text/plain", "?ttl=5", "x", 400),
        ("text/plain", "", "", 400),
        ("text/plain", "", long.as_str(), 413),
        ("text/plain", "", &long[1..], 413),
        ("image/png", "", "x", 422),
        ("application/json", "", "{", 400),
        (event_type, "", "{", 400),
        (event_type, "", "[]", 422),
        (event_type, "?id=x", "{}", 400),
        (batch_type, "", "{}", 400),
        (batch_type, "", "[]", 422),
        ("application/cloudevents+avro", "", "x", 400),
    ];
    for (kind, query, body, code) in cases {
        let refused = publish(&operator, kind, query, body).await;
        assert_eq!(refused.code, code, "{kind} {query}: {}", refused.body);
    }
    let mixed = json!([event("1"), {"specversion": "1.0"}]).to_string();
    let refused = publish(&operator, batch_type, "", &mixed).await;
    refused.is_problem(400, "malformed");
    assert!(
        refused.body.contains("event 2 of the batch"),
        "{}",
        refused.body
    );
    let old = json!([event("1"), {"specversion": "0.3", "id": "2", "source": "s", "type": "t"}]);
    let refused = publish(&operator, batch_type, "", &old.to_string()).await;
    refused.is_problem(422, "invalid");
    let nameless = operator.with("ce-specversion", "1.0");
    publish(&nameless, "text/plain", "", "x")
        .await
        .is_problem(422, "invalid");
    assert!(waiting(&bench).await.is_empty());
}

async fn publishing_entries_needs_its_scope_and_has_limits(place: bench::TestDatabase) {
    let bench = start(place).await;
    let operator = bench.operator().await;
    bench.add_user("vera", Role::Viewer).await;
    let viewer = bench.sign_in("vera").await;
    publish(&viewer, "text/plain", "", "x")
        .await
        .is_problem(403, "forbidden");
    let new = json!({"name": "ci", "scopes": ["publish"]});
    let made = operator.post("/api/v1/api-tokens", &new).await.json();
    let secret = made["token"].as_str().unwrap();
    let publisher = bench.anonymous();
    let publisher = publisher.with("authorization", &format!("Bearer {secret}"));
    assert_eq!(publish(&publisher, "text/plain", "", "x").await.code, 202);
    let hash = crate::auth::secret::hash(secret).unwrap();
    let later = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while bench.site.limits.messages.take(hash, later).is_ok() {}
    let refused = publish(&publisher, "text/plain", "", "x").await;
    refused.is_problem(429, "too-many");

    // So has a channel's queue.
    let many = |from: u32| {
        let ids = from..from + 1000;
        ids.map(|id| store::NewPublication {
            entry_id: id.to_string(),
            payload: b"{}".to_vec(),
        })
    };
    for part in 0..10 {
        let part: Vec<_> = many(part * 1000).collect();
        let publications = bench.opened.publications();
        if publications.add("lore", "urn:x", &part).await.is_err() {
            break;
        }
    }
    let batch: Vec<_> = (0..1000).map(|id| event(&id.to_string())).collect();
    let batch_type = "application/cloudevents-batch+json";
    let full = publish(&operator, batch_type, "", &json!(batch).to_string()).await;
    full.is_problem(429, "too-many");
    assert!(full.body.contains("10000 publications"), "{}", full.body);
}
