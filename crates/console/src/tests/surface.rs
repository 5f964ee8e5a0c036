//! Errors, headers, health, metrics, and names of other sites.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{get, post};
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::auth::caller::Caller;

#[tokio::test(flavor = "multi_thread")]
async fn every_error_is_a_problem_document() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    operator
        .get("/api/v1/nonsense")
        .await
        .is_problem(404, "not-found");
    operator.get("/api").await.is_problem(404, "not-found");
    operator
        .get("/api/v2/overview")
        .await
        .is_problem(404, "not-found");
    let wrong = operator.send("PUT", "/api/v1/overview", None).await;
    wrong.is_problem(405, "method");
    assert!(wrong.header("allow").contains("GET"), "{}", wrong.headers);
    let path = "/api/v1/channels";
    operator
        .send("POST", path, Some("{"))
        .await
        .is_problem(400, "malformed");
    operator
        .send("POST", path, Some(""))
        .await
        .is_problem(400, "malformed");
    let text = operator.with("content-type", "text/plain");
    text.send("POST", path, Some("{}"))
        .await
        .is_problem(415, "media-type");
    let huge = json!({"name": "x".repeat(70_000)}).to_string();
    operator
        .send("POST", path, Some(&huge))
        .await
        .is_problem(413, "too-large");
    let deep = "[".repeat(10_000);
    operator
        .send("POST", path, Some(&deep))
        .await
        .is_problem(422, "invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_safe_to_open() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    for path in [
        "/api/v1/overview",
        "/",
        "/receivers",
        "/healthz",
        "/api/v1/nonsense",
    ] {
        let answer = operator.get(path).await;
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("x-frame-options"), "DENY", "{path}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer", "{path}");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
    }
    let overview = operator.get("/api/v1/overview").await;
    assert_eq!(overview.header("cache-control"), "no-store");
    assert!(
        overview
            .header("content-security-policy")
            .contains("sandbox")
    );
    let page = bench.anonymous().get("/").await;
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(
        page.header("content-security-policy")
            .contains("frame-ancestors 'none'")
    );
    let description = bench.anonymous().get("/api/v1/openapi.json").await;
    assert_eq!(
        description.json()["openapi"]
            .as_str()
            .unwrap()
            .split('.')
            .next(),
        Some("3")
    );
    // Another site's name that leads here does not get in.
    let evil = bench.anonymous().with("host", "evil.example");
    evil.get("/api/v1/overview")
        .await
        .is_problem(421, "misdirected");
    let page = evil.get("/").await;
    assert_eq!(page.code, 421);
    assert!(page.header("content-type").starts_with("text/plain"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_is_answered_and_noted() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    // The same console with calls that are wrong; one in the place of one that changes something.
    let wrong = || async {
        if bench::PASSWORD.is_empty() {
            return "";
        }
        panic!("wanted by the test")
    };
    let wrong_for = move |_: Caller| async move { wrong().await };
    let router = Router::new()
        .route("/api/v1/wrong", get(wrong))
        .route("/api/v1/source/drain", post(wrong_for))
        .route("/wrong", get(wrong));
    let router = crate::http::finished(router, Arc::clone(&bench.site), true);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (places, stop) = (Arc::clone(&bench.site.places), bench.site.stop.clone());
    tokio::spawn(service::server::serve(listener, router, places, stop));
    let client = Client {
        address,
        ..operator.clone()
    };
    for _ in 0..2 {
        let answer = client.get("/api/v1/wrong").await;
        answer.is_problem(500, "internal");
        assert_eq!(answer.header("x-frame-options"), "DENY");
        let answer = client.post("/api/v1/source/drain", &json!({})).await;
        answer.is_problem(500, "internal");
        assert_eq!(client.get("/wrong").await.code, 500);
    }
    let path = "/api/v1/audit?action=source.drain";
    let audit = operator.get(path).await.json();
    assert_eq!(audit["items"].as_array().unwrap().len(), 2, "{audit}");
    assert_eq!(audit["items"][0]["actor"], "olga");
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_complete_and_are_audited_without_a_client() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    bench.populate().await;
    let all = bench.site.lookups.available_permits();
    let body = json!({"channel": "lore", "url": "https://slow.example/f"}).to_string();
    let stream = operator.open("POST", "/api/v1/feeds", Some(&body)).await;
    // Its name is being looked up, which takes longer than anybody waits.
    bench
        .until(|site| site.lookups.available_permits() < all)
        .await;
    drop(stream);
    bench.until(|site| site.board().feeds.len() == 1).await;
    let path = "/api/v1/audit?action=feed.add";
    let noted = async || operator.get(path).await.json()["items"][0].clone();
    let began = Instant::now();
    while noted().await.is_null() {
        assert!(began.elapsed() < Duration::from_secs(60), "it is not noted");
    }
    let line = noted().await;
    assert_eq!(line["outcome"], "ok", "{line}");
    assert_eq!(line["target"], "https://slow.example/f");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_readiness_are_reported() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let anonymous = bench.anonymous();
    assert_eq!(anonymous.get("/healthz").await.body, "alive\n");
    assert_eq!(anonymous.get("/readyz").await.code, 200);
    let operator = bench.operator().await;
    bench.populate().await;
    bench.opened.close().await;
    let answer = anonymous.get("/readyz").await;
    assert_eq!(answer.code, 503);
    assert!(
        answer.body.contains("the database does not answer"),
        "{}",
        answer.body
    );
    assert_eq!(anonymous.get("/healthz").await.code, 200);
    // Without a database no caller can be identified, and the answer says so.
    let answer = operator.get("/api/v1/overview").await;
    assert!([500, 503].contains(&answer.code), "{}", answer.body);
    assert_eq!(answer.header("content-type"), "application/problem+json");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_are_those_of_the_document() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let accept = "application/openmetrics-text;version=1.0.0,*/*;q=0.1";
    let scraper = bench.anonymous().with("accept", accept);
    let looked = |text: &str| {
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with("flexfeed_console_data_timestamp_seconds"));
        line.unwrap().to_owned()
    };
    let began = Instant::now();
    let (plain, answer) = loop {
        let plain = bench.anonymous().get("/metrics").await;
        let answer = scraper.get("/metrics").await;
        assert_eq!((plain.code, answer.code), (200, 200));
        // Without a look at the database in between.
        if looked(&plain.body) == looked(&answer.body) {
            break (plain, answer);
        }
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(60), "{}", answer.body);
    };
    let kind = plain.header("content-type");
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    // One more answer was counted in between, and the connections of before end when they do.
    let differ = |line: &&str| {
        line.starts_with("flexfeed_console_answers_total")
            || line.starts_with("flexfeed_console_connections ")
    };
    let same = |text: &str| {
        let lines = text.lines().filter(|line| !differ(line));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let wrong = openmetrics::forms(&same(&plain.body), &same(&answer.body));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let families = openmetrics::parse(&answer.body).unwrap();
    let document = include_str!("../../../../docs/metrics.md");
    let found = openmetrics::differences(document, "flexfeed_console_", &families);
    let table = openmetrics::table(&families).join("\n");
    assert!(
        found.is_empty(),
        "{}\n\nIt should be:\n\n{table}",
        found.join("\n")
    );
}
