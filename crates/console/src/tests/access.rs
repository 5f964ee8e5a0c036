//! Access rights.

use serde_json::json;
use store::Role;
use utoipa::openapi::path::Operation;

use super::*;
use crate::api::document;

/// All calls: method, path with something in its variable parts, and id.
fn calls() -> Vec<(&'static str, String, String)> {
    let mut calls = Vec::new();
    for (path, item) in document().paths.paths {
        let path = match path.starts_with("/api/v1/receivers/{id}") {
            true => path.replace("{id}", "00000000-0000-0000-0000-000000000001"),
            false => path.replace("{id}", "1"),
        };
        let path = path
            .replace("{name}", "lore")
            .replace("{channel}", "lore")
            .replace("{seq}", "1");
        let all: [(&str, Option<Operation>); 4] = [
            ("GET", item.get),
            ("POST", item.post),
            ("PATCH", item.patch),
            ("DELETE", item.delete),
        ];
        for (method, call) in all {
            if let Some(call) = call {
                calls.push((method, path.clone(), call.operation_id.unwrap()));
            }
        }
    }
    assert!(calls.len() > 40);
    calls
}

on_both! {
    every_call_but_two_needs_authentication,
    a_viewer_looks_and_does_nothing,
    changing_requests_come_from_this_site,
    a_token_works_within_its_scopes,
}

async fn every_call_but_two_needs_authentication(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let anonymous = bench.anonymous();
    let bad_cookie = anonymous.with(
        "cookie",
        "flexfeed=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    );
    let bad_token = anonymous.with("authorization", "Bearer flexfeed_nonsense");
    for (method, path, id) in calls() {
        let body = (method != "GET").then_some("{}");
        for client in [&anonymous, &bad_cookie, &bad_token] {
            let answer = client.send(method, &path, body).await;
            match id.as_str() {
                // Refused for their content, not for their caller.
                "sign_in" => assert!([401, 429].contains(&answer.code), "{}", answer.body),
                "setup" => assert!([422, 429].contains(&answer.code), "{}", answer.body),
                _ => answer.is_problem(401, "signed-out"),
            }
        }
    }
}

async fn a_viewer_looks_and_does_nothing(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    bench.add_user("vera", Role::Viewer).await;
    let viewer = bench.sign_in("vera").await;
    let own = ["session", "sign_in", "sign_out", "setup", "change_password"];
    let closed = ["users", "api_tokens", "audit", "export_audit", "enrolments"];
    for (method, path, id) in calls() {
        if own.contains(&id.as_str()) || id == "events" {
            continue;
        }
        let body = (method != "GET").then_some("{}");
        let answer = viewer.send(method, &path, body).await;
        if method == "GET" && !closed.contains(&id.as_str()) {
            assert!([200, 404].contains(&answer.code), "{id} {}", answer.body);
        } else {
            answer.is_problem(403, "forbidden");
        }
    }
    // Attempts are audited.
    let operator = bench.operator().await;
    let audit = operator.get("/api/v1/audit?actor=vera").await.json();
    let lines = audit["items"].as_array().unwrap();
    for action in [
        "api-token.create",
        "channel.rekey",
        "enrolment.revoke",
        "feed.edit",
        "receiver.disconnect",
        "source.drain",
        "user.remove",
    ] {
        let line = lines.iter().find(|line| line["action"] == action);
        let line = line.unwrap_or_else(|| panic!("no {action} in {audit}"));
        let outcome = line["outcome"].as_str().unwrap();
        assert!(outcome.contains("is a viewer"), "{line}");
    }
}

async fn changing_requests_come_from_this_site(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let mut without = operator.clone();
    without.csrf = None;
    let mut other = operator.clone();
    other.csrf = Some("x".repeat(43));
    let foreign = operator.with("origin", "https://evil.example");
    let cross = operator.with("sec-fetch-site", "cross-site");
    for (method, path, id) in calls() {
        if method == "GET" || ["sign_in", "setup"].contains(&id.as_str()) {
            continue;
        }
        for client in [&without, &other, &foreign, &cross] {
            let answer = client.send(method, &path, Some("{}")).await;
            answer.is_problem(403, "cross-site");
        }
    }
    // Another site cannot sign a browser in, either.
    let body = json!({"name": "olga", "password": bench::PASSWORD});
    let answer = bench.anonymous().with("origin", "https://evil.example");
    answer
        .post("/api/v1/session", &body)
        .await
        .is_problem(403, "cross-site");
    // From here it may, and still is signed in.
    let here = operator.with("origin", &format!("http://{}", bench.address));
    let body = json!({"name": "news"});
    assert_eq!(here.post("/api/v1/channels", &body).await.code, 201);
    assert_eq!(here.get("/api/v1/session").await.code, 200);
}

async fn a_token_works_within_its_scopes(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let new = |scopes: &[&str]| json!({"name": "robot", "scopes": scopes});
    let made = operator
        .post("/api/v1/api-tokens", &new(&["read", "feeds"]))
        .await;
    assert_eq!(made.code, 201, "{}", made.body);
    let (id, token) = (made.json()["id"].clone(), made.json()["token"].clone());
    let token = token.as_str().unwrap();
    assert!(token.starts_with("flexfeed_"));
    let robot = bench
        .anonymous()
        .with("authorization", &format!("Bearer {token}"));
    let session = robot.get("/api/v1/session").await.json();
    assert_eq!(session["user"]["name"], "olga");
    assert!(session["csrf"].is_null());
    assert_eq!(robot.get("/api/v1/overview").await.code, 200);
    // Without any token against other sites: a program has no cookies that could be abused.
    let feed = json!({"channel": "nowhere", "url": "https://example.org/f"});
    robot
        .post("/api/v1/feeds", &feed)
        .await
        .is_problem(422, "invalid");
    robot
        .post("/api/v1/channels", &json!({"name": "x"}))
        .await
        .is_problem(403, "forbidden");
    robot
        .get("/api/v1/users")
        .await
        .is_problem(403, "forbidden");
    robot
        .delete("/api/v1/session")
        .await
        .is_problem(403, "forbidden");
    // No token makes one that may do more.
    let admin = operator
        .post("/api/v1/api-tokens", &new(&["admin"]))
        .await
        .json();
    let admin = admin["token"].as_str().unwrap().to_owned();
    let admin = bench
        .anonymous()
        .with("authorization", &format!("Bearer {admin}"));
    let more = admin
        .post("/api/v1/api-tokens", &new(&["admin", "operate"]))
        .await;
    more.is_problem(422, "invalid");
    for bad in [
        json!({"name": "", "scopes": ["read"]}),
        json!({"name": "x", "scopes": []}),
        json!({"name": "x", "scopes": ["root"]}),
        json!({"name": "x", "scopes": ["read"], "expires_ms": 1}),
        json!({"name": "x", "scopes": ["read"], "expires_ms": i64::MAX}),
        json!({"name": "x", "scopes": ["read"], "more": 1}),
    ] {
        let answer = operator.post("/api/v1/api-tokens", &bad).await;
        answer.is_problem(422, "invalid");
    }
    let listed = operator.get("/api/v1/api-tokens").await;
    assert!(!listed.body.contains(token));
    assert_eq!(listed.json()["items"].as_array().unwrap().len(), 2);
    let path = format!("/api/v1/api-tokens/{id}");
    assert_eq!(operator.delete(&path).await.code, 204);
    robot
        .get("/api/v1/overview")
        .await
        .is_problem(401, "signed-out");
    operator
        .delete("/api/v1/api-tokens/999999")
        .await
        .is_problem(404, "not-found");
    // Nor does one make a user with more rights than its own, or change their password.
    let users = "/api/v1/users";
    let viewer = bench.add_user("vera", Role::Viewer).await;
    let vera = format!("{users}/{viewer}");
    let zoe = json!({"name": "zoe", "password": bench::PASSWORD, "role": "viewer"});
    let password = json!({"password": "another good one"});
    assert_eq!(admin.get(users).await.code, 200);
    admin.post(users, &zoe).await.is_problem(403, "forbidden");
    let edit = admin.patch(&vera, &password).await;
    edit.is_problem(403, "forbidden");
    let all = operator
        .post("/api/v1/api-tokens", &new(&["admin", "operate"]))
        .await
        .json();
    let all = all["token"].as_str().unwrap().to_owned();
    let all = bench
        .anonymous()
        .with("authorization", &format!("Bearer {all}"));
    assert_eq!(all.post(users, &zoe).await.code, 201);
    assert_eq!(all.patch(&vera, &password).await.code, 200);
}
