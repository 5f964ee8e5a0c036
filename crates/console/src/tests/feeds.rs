//! Feeds, and where the console does not go.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use serde_json::json;
use store::{Batch, FeedEvent, PollRecord};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::config::SiteSettings;

/// Names as tests know them.
pub(crate) fn lookup(
    host: String,
) -> Pin<Box<dyn Future<Output = std::io::Result<Vec<SocketAddr>>> + Send>> {
    Box::pin(async move {
        let all: &[&str] = match host.as_str() {
            "metadata.example" => &["169.254.169.254"],
            "inside.example" => &["10.1.2.3", "fd00::1"],
            "both.example" => &["10.1.2.3", "1.1.1.1"],
            "own.example" => &["127.0.1.1"],
            "nowhere.example" => return Err(std::io::Error::other("there is no such name")),
            "slow.example" => std::future::pending().await,
            _ => &["1.1.1.1"],
        };
        let all = all.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0));
        Ok(all.collect())
    })
}

on_both! {
    feeds_come_and_go,
    a_feed_says_since_when_it_is_so_and_when_it_is_polled_next,
    private_networks_are_not_reached,
    names_of_private_networks_are_refused_at_once,
}

async fn feeds_come_and_go(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    bench.populate().await;
    let path = "/api/v1/feeds";
    let body = json!({
        "channel": "lore",
        "url": "https://user:sesame@example.org/f#x",
        "title": "An example",
        "min_interval_ms": 5_000,
    });
    let made = operator.post(path, &body).await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert!(!made.body.contains("sesame"));
    let feed = made.json();
    assert_eq!(feed["url"], "https://example.org/f");
    assert_eq!(
        (&feed["state"], &feed["origin"]),
        (&json!("pending"), &json!("managed"))
    );
    let row = bench
        .opened
        .feeds()
        .get("lore", "https://example.org/f")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(row.settings.address, "https://user:sesame@example.org/f");
    operator.post(path, &body).await.is_problem(409, "conflict");
    let own = format!("{path}/{}", feed["id"].as_str().unwrap());
    let paused = operator.patch(&own, &json!({"paused": true})).await.json();
    assert_eq!(paused["state"], "paused");
    let stored = bench
        .opened
        .feeds()
        .get("lore", "https://example.org/f")
        .await
        .unwrap();
    assert!(stored.unwrap().paused);
    let body = json!({"paused": false, "title": "", "max_interval_ms": 60_000});
    let changed = operator.patch(&own, &body).await.json();
    assert_eq!(
        (&changed["title"], &changed["max_interval_ms"]),
        (&json!(null), &json!(60_000))
    );
    assert_eq!(changed["min_interval_ms"], 5_000);
    assert_eq!(changed["state"], "pending");
    for bad in [
        json!({"min_interval_ms": 1}),
        json!({"min_interval_ms": 80_000_000}),
        json!({"title": "x".repeat(201)}),
        json!({"url": "https://example.org/g"}),
    ] {
        operator.patch(&own, &bad).await.is_problem(422, "invalid");
    }
    for bad in [
        json!({"channel": "lore", "url": "example.org"}),
        json!({"channel": "lore", "url": "ftp://example.org/"}),
        json!({"channel": "nowhere", "url": "https://example.org/"}),
        json!({"channel": "lore", "url": format!("https://example.org/{}", "x".repeat(2_100))}),
        json!({"channel": "lore"}),
    ] {
        operator.post(path, &bad).await.is_problem(422, "invalid");
    }
    let refresh = operator.post(&format!("{own}/refresh"), &json!({})).await;
    assert_eq!(refresh.code, 202);
    let id = &refresh.json()["command_id"];
    let command = operator.get(&format!("/api/v1/commands/{id}")).await.json();
    assert_eq!(
        (&command["kind"], &command["url"]),
        (&json!("refresh-feed"), &feed["url"])
    );
    bench.until(|site| site.board().feeds.len() == 1).await;
    assert_eq!(
        operator.get(path).await.json()["items"][0]["id"],
        feed["id"]
    );
    assert_eq!(operator.delete(&own).await.code, 204);
    operator.get(&own).await.is_problem(404, "not-found");
    operator.delete(&own).await.is_problem(404, "not-found");
    let audit = operator.get("/api/v1/audit").await;
    assert!(!audit.body.contains("sesame"));
    assert!(audit.body.contains("feed.remove"));
}

async fn a_feed_says_since_when_it_is_so_and_when_it_is_polled_next(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    bench.populate().await;
    let url = "https://example.org/f";
    let body = json!({"channel": "lore", "url": url});
    let made = operator.post("/api/v1/feeds", &body).await.json();
    let own = format!("/api/v1/feeds/{}", made["id"].as_str().unwrap());
    assert_eq!(made["next_poll_ms"], json!(null));
    let poll = |state: &str| PollRecord {
        at_ms: 1_000_000,
        state: state.to_owned(),
        interval_ms: Some(20_000),
        next_ms: Some(1_900_000),
        ..PollRecord::default()
    };
    let record = async |poll: &PollRecord| {
        let done = bench.opened.feeds().record_poll("lore", url, poll).await;
        done.unwrap();
        operator.get(&own).await.json()
    };
    // While it fails, it is left alone for longer than it ordinarily is.
    let failing = record(&poll("error")).await;
    assert_eq!(
        (&failing["interval_ms"], &failing["next_poll_ms"]),
        (&json!(20_000), &json!(1_900_000))
    );
    assert_eq!(failing["since_ms"], json!(null));
    // An older source does not say when.
    let older = PollRecord {
        next_ms: None,
        ..poll("error")
    };
    assert_eq!(record(&older).await["next_poll_ms"], json!(null));
    // Healthy since then, with or without new entries.
    let event = FeedEvent {
        channel: "lore".to_owned(),
        url: url.to_owned(),
        at_ms: 900_000,
        state: "ok".to_owned(),
        ..FeedEvent::default()
    };
    bench
        .write(Batch {
            feed_events: vec![event],
            ..Batch::default()
        })
        .await;
    bench.until(|site| !site.board().seen.is_empty()).await;
    for state in ["ok", "not-modified"] {
        let well = record(&poll(state)).await;
        assert_eq!(
            (&well["state"], &well["since_ms"]),
            (&json!(state), &json!(900_000))
        );
    }
    let failing = record(&poll("challenged")).await;
    assert_eq!(failing["since_ms"], json!(null), "it was not reported yet");
    let paused = operator.patch(&own, &json!({"paused": true})).await.json();
    assert_eq!(paused["next_poll_ms"], json!(null));
}

async fn private_networks_are_not_reached(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    bench.populate().await;
    // Nothing may come here.
    let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = trap.local_addr().unwrap().port();
    let literal = [
        format!("http://127.0.0.1:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://0x7f.1:{port}/"),
        format!("http://0177.0.0.1:{port}/"),
        format!("http://017700000001:{port}/"),
        format!("http://0x7f000001:{port}/"),
        format!("http://127.1:{port}/"),
        format!("http://127.0.0.1.:{port}/"),
        // Characters that browsers map to ASCII digits and dots.
        format!("http://１２７。０。０。１:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://[::]:{port}/"),
        format!("http://[0:0:0:0:0:ffff:127.0.0.1]:{port}/"),
        format!("http://[::ffff:7f00:1]:{port}/"),
        format!("http://[::127.0.0.1]:{port}/"),
        format!("http://[64:ff9b::7f00:1]:{port}/"),
        format!("http://localhost:{port}/"),
        format!("http://Feeds.LocalHost.:{port}/"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://[fe80::1]/".to_owned(),
        "http://[fd00:ec2::254]/latest/meta-data/".to_owned(),
        "http://10.0.0.1/".to_owned(),
        "http://0.0.0.0/".to_owned(),
        "http://u:p@192.168.1.1/".to_owned(),
    ];
    let (olga, _) = bench.opened.users().get("olga").await.unwrap().unwrap();
    for url in &literal {
        // There are more of them than may be tested at once.
        bench.site.limits.fetches.forgive(&olga.id);
        let tested = operator
            .post("/api/v1/feeds/test", &json!({"url": url}))
            .await;
        tested.is_problem(422, "private-address");
        assert!(
            tested.body.contains("--allow-private-feeds"),
            "{}",
            tested.body
        );
        assert!(!tested.body.contains("u:p"));
    }
    for url in &literal {
        let body = json!({"channel": "lore", "url": url});
        let added = operator.post("/api/v1/feeds", &body).await;
        added.is_problem(422, "private-address");
    }
    for bad in ["file:///etc/passwd", "gopher://example.org/", "", "http://"] {
        let tested = operator
            .post("/api/v1/feeds/test", &json!({"url": bad}))
            .await;
        tested.is_problem(422, "invalid");
    }
    let came = tokio::time::timeout(std::time::Duration::from_millis(50), trap.accept()).await;
    assert!(came.is_err(), "something was fetched");
}

async fn names_of_private_networks_are_refused_at_once(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    bench.populate().await;
    let add = async |host: &str| {
        let url = format!("http://u:sesame@{host}/feed");
        let body = json!({"channel": "lore", "url": url});
        operator.post("/api/v1/feeds", &body).await
    };
    for (host, address) in [
        ("metadata.example", "169.254.169.254"),
        ("inside.example", "10.1.2.3"),
        ("Inside.Example", "10.1.2.3"),
        ("own.example", "127.0.1.1"),
    ] {
        let added = add(host).await;
        added.is_problem(422, "private-address");
        assert!(added.body.contains(address), "{}", added.body);
        assert!(!added.body.contains("sesame"), "{}", added.body);
    }
    assert!(bench.opened.feeds().list(None).await.unwrap().is_empty());
    // The source decides about those each time that it connects.
    for host in ["both.example", "nowhere.example", "slow.example"] {
        let added = add(host).await;
        assert_eq!(added.code, 201, "{host}: {}", added.body);
    }
}

/// Answers each request with the same.
pub(super) async fn server(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    format!("http://{address}/")
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_are_looked_at_before_they_are_added() {
    let settings = SiteSettings {
        allow_private_feeds: true,
        ..SiteSettings::default()
    };
    let bench = Bench::with(bench::TestDatabase::sqlite(), settings).await;
    let operator = bench.operator().await;
    let look = async |url: String| {
        let answer = operator
            .post("/api/v1/feeds/test", &json!({"url": url}))
            .await;
        assert_eq!(answer.code, 200, "{}", answer.body);
        answer.json()
    };
    let feed = server(
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<rss version=\"2.0\"><channel><title>News \
         </title><item><title>&lt;script&gt;x&lt;/script&gt;</title><link>https://example.org/1\
         </link></item></channel></rss>",
    );
    let found = look(feed.await).await;
    assert_eq!(
        (&found["state"], &found["title"]),
        (&json!("ok"), &json!("News"))
    );
    assert_eq!(found["entry_count"], 1);
    assert_eq!(found["entries"][0]["link"], "https://example.org/1");
    let page = server("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html><title>Hi</title></html>");
    let found = look(page.await).await;
    assert_eq!(found["state"], "not-a-feed");
    assert!(found["excerpt"].as_str().unwrap().starts_with("<html>"));
    let gone = server("HTTP/1.1 410 Gone\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(look(gone.await).await["state"], "gone");
    let error = server("HTTP/1.1 500 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(look(error.await).await["state"], "error");
    let other =
        server("HTTP/1.1 302 Found\r\nconnection: close\r\nlocation: file:///etc/passwd\r\n\r\n");
    let found = look(other.await).await;
    assert_eq!(found["state"], "error");
    assert!(
        found["detail"].as_str().unwrap().contains("scheme file"),
        "{found}"
    );
    assert_eq!(
        look("http://127.0.0.1:1/".to_owned()).await["state"],
        "error"
    );
}
