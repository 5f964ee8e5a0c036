//! The audit log: what fails is in it, and what became of what was asked.

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, SqliteConnection};
use store::{Fence, Holder, LeaseOutcome, NewCommand};

use super::*;
use crate::api::actions::action_of;
use crate::api::document;

on_both! {
    early_failures_are_audited,
    impossible_actions_are_audited,
    strangers_are_noted_where_they_come_in,
    command_results_are_audited,
    expired_commands_are_marked,
    audit_entries_name_created_objects_by_number,
}

/// The lines of an action, the newest first.
async fn lines(operator: &Client, action: &str) -> Vec<Value> {
    let path = format!("/api/v1/audit?limit=1000&action={action}");
    let audit = operator.get(&path).await.json();
    audit["items"].as_array().unwrap().clone()
}

async fn early_failures_are_audited(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let (olga, _) = bench.opened.users().get("olga").await.unwrap().unwrap();
    let mut without = operator.clone();
    without.csrf = None;
    let text = operator.with("content-type", "text/plain");
    let mut count = 0;
    for (path, item) in document().paths.paths {
        let known = path.replace("{id}", "7").replace("{name}", "lore");
        for (method, call) in [
            ("POST", item.post),
            ("PATCH", item.patch),
            ("DELETE", item.delete),
        ] {
            let Some(call) = call else { continue };
            let id = call.operation_id.unwrap();
            let action = action_of(&method.parse().unwrap(), &path).unwrap();
            if ["sign_in", "setup"].contains(&id.as_str()) {
                continue;
            }
            // There are more of them than are noted at once.
            bench.site.limits.refusals.forgive(&olga.id);
            let before = lines(&operator, action).await.len();
            let answer = without.send(method, &known, Some("{}")).await;
            answer.is_problem(403, "cross-site");
            let mut expected = before + 1;
            // Messages are of any type, and entries of several.
            let takes_any = ["publish_message", "publish_entries"].contains(&id.as_str());
            let takes_json = call.request_body.is_some() && !takes_any;
            if takes_json && !known.contains("/receivers/") {
                let answer = text.send(method, &known, Some("{}")).await;
                answer.is_problem(415, "media-type");
                expected += 1;
            }
            let found = lines(&operator, action).await;
            assert_eq!(found.len(), expected, "{method} {path}: {found:?}");
            for line in &found[..expected - before] {
                let [actor, via] = ["actor", "via"].map(|member| line[member].clone());
                assert_eq!((actor, via), (json!("olga"), json!("session")), "{line}");
                assert_ne!(line["outcome"], "ok");
                assert_eq!(line["address"], "127.0.0.1");
                let target = match path.contains('{') {
                    true if path.contains("{name}") => "lore",
                    true => "7",
                    false => "",
                };
                assert_eq!(line["target"], target, "{line}");
            }
            count += 1;
        }
    }
    assert_eq!(count, 22);
    // A caller with nothing but refusals does not fill the log.
    bench.site.limits.refusals.forgive(&olga.id);
    let before = lines(&operator, "source.drain").await.len();
    for _ in 0..40 {
        without.post("/api/v1/source/drain", &json!({})).await;
    }
    let after = lines(&operator, "source.drain").await.len();
    assert!((30..40).contains(&(after - before)), "{before} {after}");
}

async fn impossible_actions_are_audited(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, ..] = bench.populate().await;
    let unknown = "00000000-0000-0000-0000-000000000000";
    let alpha = alpha.to_string();
    let long = json!({"label": "x".repeat(101)});
    let none = json!({});
    for (method, path, body, code, action, target) in [
        ("POST", "channels/x/rekey", &none, 404, "channel.rekey", "x"),
        (
            "POST",
            &format!("receivers/{unknown}/disconnect"),
            &none,
            404,
            "receiver.disconnect",
            unknown,
        ),
        ("PATCH", "feeds/none", &none, 404, "feed.edit", "none"),
        ("DELETE", "feeds/none", &none, 404, "feed.remove", "none"),
        (
            "POST",
            "feeds/none/refresh",
            &none,
            404,
            "feed.refresh",
            "none",
        ),
        (
            "PATCH",
            &format!("receivers/{alpha}"),
            &long,
            422,
            "receiver.edit",
            &alpha,
        ),
        (
            "PATCH",
            "receivers/nonsense",
            &none,
            404,
            "receiver.edit",
            "nonsense",
        ),
        (
            "POST",
            "feeds/test",
            &json!({"url": "ftp://u:sesame@example.org/"}),
            422,
            "feed.test",
            "",
        ),
        (
            "POST",
            "channels",
            &json!({"nam": 1}),
            422,
            "channel.create",
            "",
        ),
    ] {
        let path = format!("/api/v1/{path}");
        let answer = operator.send(method, &path, Some(&body.to_string())).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.body);
        let found = lines(&operator, action).await;
        let line = found.first().unwrap_or_else(|| panic!("no {action}"));
        assert_eq!(line["target"], target, "{line}");
        assert_eq!(line["actor"], "olga");
        assert_eq!(line["detail"], json!({"status": code}));
        let outcome = line["outcome"].as_str().unwrap();
        let said = answer.json()["detail"].as_str().unwrap().to_owned();
        let title = answer.json()["title"].as_str().unwrap().to_owned();
        // Request bodies are not repeated.
        let is_of_body = answer.json()["field"] == "body";
        let expected = if is_of_body { title } else { said };
        assert!(expected.starts_with(outcome), "{outcome}: {expected}");
    }
    let secret = json!({"current": 918_273_645, "password": "x"});
    let answer = operator.post("/api/v1/session/password", &secret).await;
    answer.is_problem(422, "invalid");
    assert_eq!(lines(&operator, "session.password").await.len(), 1);
    // Too often, too.
    let (olga, _) = bench.opened.users().get("olga").await.unwrap().unwrap();
    // As if it had been tried for an hour.
    let now = std::time::Instant::now() + std::time::Duration::from_secs(3_600);
    while bench.site.limits.fetches.take(olga.id, now).is_ok() {}
    let test = json!({"url": "https://example.org/"});
    let answer = operator.post("/api/v1/feeds/test", &test).await;
    answer.is_problem(429, "too-many");
    while bench
        .site
        .limits
        .by_address
        .take("127.0.0.1".parse().unwrap(), now)
        .is_ok()
    {}
    let body = json!({"current": "x", "password": "y"});
    let answer = operator.post("/api/v1/session/password", &body).await;
    answer.is_problem(429, "too-many");
    for action in ["feed.test", "session.password"] {
        let found = lines(&operator, action).await;
        let outcome = found[0]["outcome"].as_str().unwrap();
        assert!(outcome.starts_with("too many"), "{outcome}");
    }
    let audit = operator.get("/api/v1/audit?limit=1000").await;
    assert!(!audit.body.contains("sesame") && !audit.body.contains("918273645"));
}

async fn strangers_are_noted_where_they_come_in(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let anonymous = bench.anonymous();
    let signing_in = lines(&operator, "session.create").await.len();
    let text = anonymous.with("content-type", "text/plain");
    for _ in 0..5 {
        let answer = text.send("POST", "/api/v1/session", Some("{}")).await;
        answer.is_problem(415, "media-type");
    }
    let found = lines(&operator, "session.create").await;
    assert_eq!(found.len(), signing_in + 1, "one a minute: {found:?}");
    assert_eq!(found[0]["via"], "password");
    // An unauthenticated request leaves no entry.
    let answer = anonymous.post("/api/v1/source/drain", &json!({})).await;
    answer.is_problem(401, "signed-out");
    let answer = operator.send("POST", "/api/v1/nonsense", Some("{}")).await;
    answer.is_problem(404, "not-found");
    assert!(lines(&operator, "source.drain").await.is_empty());
}

async fn command_results_are_audited(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, ..] = bench.populate().await;
    let holder = Holder {
        id: uuid::Uuid::new_v4(),
        name: "source".into(),
    };
    let ttl = std::time::Duration::from_secs(60);
    let store = &bench.opened;
    let LeaseOutcome::Held(lease) = store.leases().take("lore", &holder, ttl).await.unwrap() else {
        panic!("the lease is taken");
    };
    let held = [Fence {
        channel: lease.channel,
        fence: lease.fence,
    }];
    let feed = json!({"channel": "lore", "url": "https://example.org/f"});
    let feed = operator.post("/api/v1/feeds", &feed).await.json();
    let feed = feed["id"].as_str().unwrap().to_owned();
    let alpha = alpha.to_string();
    for (path, action, target, outcome) in [
        (
            format!("receivers/{alpha}/disconnect"),
            "receiver.disconnect",
            alpha.as_str(),
            Err("it is not connected"),
        ),
        (
            "channels/lore/rekey".to_owned(),
            "channel.rekey",
            "lore",
            Err("the channel has no flow"),
        ),
        (
            format!("feeds/{feed}/refresh"),
            "feed.refresh",
            "https://example.org/f",
            Ok("there was nothing new"),
        ),
        ("source/drain".to_owned(), "source.drain", "", Ok("bye")),
    ] {
        let asked = operator.post(&format!("/api/v1/{path}"), &json!({})).await;
        assert_eq!(asked.code, 202, "{}", asked.body);
        let id = asked.json()["command_id"].as_i64().unwrap();
        let found = lines(&operator, action).await;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0]["outcome"], "ok", "it is asked");
        assert_eq!(found[0]["detail"]["command_id"], id);
        assert_eq!(found[0]["target"], target);
        let store = &bench.opened;
        assert_eq!(store.commands().take(&held, 9).await.unwrap().len(), 1);
        store.commands().finish(id, outcome).await.unwrap();
        let found = lines(&operator, action).await;
        assert_eq!(found.len(), 2, "{found:?}");
        let line = &found[0];
        assert_eq!(
            (&line["actor"], &line["via"]),
            (&json!("olga"), &json!("source"))
        );
        assert_eq!(line["target"], target);
        match outcome {
            Ok(result) => {
                assert_eq!(line["outcome"], "ok");
                let detail = json!({"command_id": id, "result": result});
                assert_eq!(line["detail"], detail);
            }
            Err(reason) => {
                assert_eq!(line["outcome"], reason);
                assert_eq!(line["detail"], json!({"command_id": id}));
            }
        }
    }
}

/// Runs a statement on a database in use.
async fn run(url: &str, sql: &'static str) {
    if url.starts_with("postgres") {
        let mut raw = PgConnection::connect(url).await.unwrap();
        sqlx::query(sql).execute(&mut raw).await.unwrap();
    } else {
        let mut raw = SqliteConnection::connect(url).await.unwrap();
        sqlx::query(sql).execute(&mut raw).await.unwrap();
    }
}

/// Without a source, and without further requests.
async fn expired_commands_are_marked(place: bench::TestDatabase) {
    let opened = store::open(&place.url).await.unwrap();
    let asked = NewCommand {
        kind: "drain".to_owned(),
        asked_by: "ann".to_owned(),
        ..NewCommand::default()
    };
    opened.commands().ask(&asked).await.unwrap();
    let sql = "UPDATE commands SET asked_at = asked_at - 61000";
    run(&place.url, sql).await;
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let began = std::time::Instant::now();
    let line = loop {
        if let Some(line) = lines(&operator, "source.drain").await.first() {
            break line.clone();
        }
        assert!(began.elapsed().as_secs() < 30, "no line was written");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(line["outcome"], "no source took it within a minute");
    assert_eq!(line["actor"], "ann");
}

/// Their numbers are all that later lines say of them, and names are not unique for ever.
async fn audit_entries_name_created_objects_by_number(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let token = json!({"name": "backup", "scopes": ["read"]});
    let path = "/api/v1/api-tokens";
    let made = [
        operator.post(path, &token).await.json(),
        operator.post(path, &token).await.json(),
    ];
    let found = lines(&operator, "api-token.create").await;
    for (made, line) in made.iter().zip(found.iter().rev()) {
        assert_eq!(line["detail"]["token_id"], made["id"]);
        assert_eq!(line["detail"]["scopes"], json!(["read"]));
    }
    let user = json!({"name": "ann", "password": bench::PASSWORD, "role": "viewer"});
    let path = "/api/v1/users";
    let ann = operator.post(path, &user).await.json();
    operator.post(path, &user).await.is_problem(409, "conflict");
    let found = lines(&operator, "user.add").await;
    assert_eq!(found[1]["detail"]["user_id"], ann["id"]);
    assert_eq!(found[0]["detail"]["user_id"], json!(null));
    let own = format!("{path}/{}", ann["id"]);
    operator.patch(&own, &json!({"role": "operator"})).await;
    let found = lines(&operator, "user.edit").await;
    assert_eq!(found[0]["detail"]["name"], "ann");
    assert_eq!(found[0]["target"], ann["id"].to_string());
}
