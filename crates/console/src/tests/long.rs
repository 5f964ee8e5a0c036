//! Texts that are far too long, or are something else than text to a browser.

use feed::payload::encode;
use feed::{Author, Entry};
use serde_json::json;
use store::{Draft, Kind};

use super::feeds::server;
use super::*;
use crate::config::SiteSettings;

on_both! {
    texts_of_feeds_are_cut,
    operators_texts_are_bounded_and_kept,
}

/// A script, marks that turn the direction of what follows, and characters of four bytes.
const ODD: &str = "<script>alert('x')</script>\u{202e}\u{05d0}\u{1f980}\"&amp;";

/// Of about so many bytes.
fn long(bytes: usize) -> String {
    ODD.repeat(bytes / ODD.len())
}

async fn texts_of_feeds_are_cut(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    bench.populate().await;
    let store = &bench.opened;
    let channel = store.channels().get("lore").await.unwrap();
    let author = Author {
        name: Some(long(10_000)),
        ..Author::default()
    };
    let entry = Entry {
        id: "urn:long".into(),
        title: Some(long(4_000_000)),
        url: Some(format!("https://example.org/{}", "x".repeat(100_000))),
        authors: vec![author; 64],
        summary: Some(long(1_000_000)),
        content_html: Some(long(6_000_000)),
        xml: "<entry/>".into(),
        ..Entry::default()
    };
    let draft = Draft {
        entry_id: entry.id.clone(),
        hash: [1; 32],
        kind: Kind::Created,
        index: 0,
    };
    let url = "https://example.org/f";
    let encoded = |seq: u64, _: &Draft| {
        let now = jiff::Timestamp::now();
        encode(
            &entry,
            feed::Kind::Created,
            url,
            channel.incarnation,
            seq,
            now,
        )
    };
    let appended = store
        .updates()
        .append("lore", url, None, &[draft], None, &encoded)
        .await;
    assert_eq!(appended.unwrap().len(), 1);
    let list = operator.get("/api/v1/updates?channel=lore").await;
    let title = list.json()["items"][0]["title"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(title.starts_with(ODD), "{title}");
    assert_eq!(title.chars().count(), 300);
    assert!(list.body.len() < 10_000, "{}", list.body.len());
    let one = operator.get("/api/v1/updates/lore/1").await;
    let found = one.json();
    assert_eq!(found["title"].as_str().unwrap().chars().count(), 2_000);
    assert_eq!(found["link"], json!(null));
    assert_eq!(found["content_cut"], true);
    let authors = found["authors"].as_array().unwrap();
    let longest = authors
        .iter()
        .map(|name| name.as_str().unwrap().chars().count());
    assert_eq!((authors.len(), longest.max()), (64, Some(200)));
    assert!(found["summary"].as_str().unwrap().len() <= 16 << 10);
    assert!(one.body.len() < 2 << 20, "{}", one.body.len());
}

async fn operators_texts_are_bounded_and_kept(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, ..] = bench.populate().await;
    // The start of ten megabytes: the rest is not waited for.
    let huge = operator.with("content-length", "10485760");
    let title = "x".repeat(100_000);
    let body = format!("{{\"channel\": \"lore\", \"title\": \"{title}");
    let added = huge.send("POST", "/api/v1/feeds", Some(&body)).await;
    added.is_problem(413, "too-large");
    let receiver = format!("/api/v1/receivers/{alpha}");
    let body = format!("{{\"label\": \"{title}");
    let labelled = huge.send("PATCH", &receiver, Some(&body)).await;
    labelled.is_problem(413, "too-large");
    let feed = json!({"channel": "lore", "url": "https://example.org/f", "title": ODD});
    let added = operator.post("/api/v1/feeds", &feed).await;
    assert_eq!(added.code, 201, "{}", added.body);
    // As text it comes back, and as nothing else.
    assert!(added.header("content-type").starts_with("application/json"));
    assert_eq!(added.header("x-content-type-options"), "nosniff");
    assert_eq!(added.json()["title"], ODD);
    let labelled = operator
        .patch(&receiver, &json!({"label": ODD, "tags": ["\u{1f980}"]}))
        .await;
    assert_eq!(labelled.code, 200, "{}", labelled.body);
    assert_eq!(labelled.json()["label"], ODD);
    let audit = operator.get("/api/v1/audit").await;
    assert!(audit.header("content-type").starts_with("application/json"));
    assert!(audit.body.len() < 100_000, "{}", audit.body.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_with_a_huge_title_is_looked_at() {
    let settings = SiteSettings {
        allow_private_feeds: true,
        ..SiteSettings::default()
    };
    let bench = Bench::with(bench::TestDatabase::sqlite(), settings).await;
    let operator = bench.operator().await;
    let look = async |title: String| {
        let feed = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
             <rss version=\"2.0\"><channel><title>{title}</title>\
             <item><title>{title}</title></item></channel></rss>"
        );
        let url = server(feed.leak()).await;
        let answer = operator
            .post("/api/v1/feeds/test", &json!({"url": url}))
            .await;
        assert_eq!(answer.code, 200, "{}", answer.body);
        assert!(answer.body.len() < 20_000, "{}", answer.body.len());
        answer.json()
    };
    let found = look("&lt;script&gt;x&lt;/script&gt;\u{202e}\u{1f980}".repeat(10_000)).await;
    assert_eq!(found["state"], "ok", "{found}");
    let title = found["title"].as_str().unwrap();
    assert!(
        title.starts_with("<script>x</script>\u{202e}\u{1f980}"),
        "{title}"
    );
    assert_eq!(title.chars().count(), 301, "with the mark that it goes on");
    let found = look("x".repeat(10 << 20)).await;
    assert_eq!(found["state"], "error", "{found}");
    let detail = found["detail"].as_str().unwrap();
    assert!(detail.contains("larger than"), "{detail}");
}
