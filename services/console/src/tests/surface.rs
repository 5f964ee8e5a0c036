//! Errors, headers, health, metrics, and names of other sites.

use serde_json::json;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_wrong_is_a_problem() {
    let bench = Bench::start(bench::Place::sqlite()).await;
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
    let bench = Bench::start(bench::Place::sqlite()).await;
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
    let page = bench.nobody().get("/").await;
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(
        page.header("content-security-policy")
            .contains("frame-ancestors 'none'")
    );
    let description = bench.nobody().get("/api/v1/openapi.json").await;
    assert_eq!(
        description.json()["openapi"]
            .as_str()
            .unwrap()
            .split('.')
            .next(),
        Some("3")
    );
    // Another site's name that leads here does not get in.
    let evil = bench.nobody().with("host", "evil.example");
    assert_eq!(evil.get("/api/v1/overview").await.code, 421);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_how_it_is() {
    let bench = Bench::start(bench::Place::sqlite()).await;
    let nobody = bench.nobody();
    assert_eq!(nobody.get("/healthz").await.body, "alive\n");
    assert_eq!(nobody.get("/readyz").await.code, 200);
    let operator = bench.operator().await;
    bench.populate().await;
    bench.opened.store.close().await;
    let answer = nobody.get("/readyz").await;
    assert_eq!(answer.code, 503);
    assert!(
        answer.body.contains("the database does not answer"),
        "{}",
        answer.body
    );
    assert_eq!(nobody.get("/healthz").await.code, 200);
    // Nobody can be known without it, and that is said.
    let answer = operator.get("/api/v1/overview").await;
    assert!([500, 503].contains(&answer.code), "{}", answer.body);
    assert_eq!(answer.header("content-type"), "application/problem+json");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_are_those_of_the_document() {
    let bench = Bench::start(bench::Place::sqlite()).await;
    let answer = bench.nobody().get("/metrics").await;
    assert_eq!(answer.code, 200);
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
