//! Signing in and out, the first operator, people.

use serde_json::json;
use store::{Role, UserEdit};
use url::Url;

use super::bench::PASSWORD;
use super::*;
use crate::config::SiteSettings;
use crate::setup;

on_both! {
    the_first_operator_comes_by_the_link,
    a_session_begins_and_ends,
    a_new_password_beats_a_pending_sign_in_with_the_old_one,
    guesses_run_out,
    guesses_at_many_names_run_out,
    tries_to_set_up_are_noted,
    users_are_added_and_removed,
}

async fn the_first_operator_comes_by_the_link(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let anonymous = bench.anonymous();
    let signed_out = anonymous.get("/api/v1/session").await;
    signed_out.is_problem(401, "signed-out");
    assert_eq!(signed_out.json()["setup_needed"], true);
    let first = setup::new_link(&bench.opened, "http://h/").await.unwrap();
    let link = setup::new_link(&bench.opened, "http://h/").await.unwrap();
    let token = |link: Option<String>| {
        let link = link.unwrap();
        link.strip_prefix("http://h/setup#").unwrap().to_owned()
    };
    let (old, token) = (token(first), token(link));
    let body =
        |token: &str, password: &str| json!({"token": token, "name": "olga", "password": password});
    let path = "/api/v1/setup";
    anonymous
        .post(path, &body("nonsense", PASSWORD))
        .await
        .is_problem(401, "refused");
    // Only the last link counts.
    anonymous
        .post(path, &body(&old, PASSWORD))
        .await
        .is_problem(401, "refused");
    anonymous
        .post(path, &body(&token, "short"))
        .await
        .is_problem(422, "invalid");
    let done = anonymous.post(path, &body(&token, PASSWORD)).await;
    assert_eq!(done.code, 201, "{}", done.body);
    assert_eq!(done.json()["user"]["role"], "operator");
    assert!(done.header("set-cookie").starts_with("flexfeed="));
    anonymous
        .post(path, &body(&token, PASSWORD))
        .await
        .is_problem(409, "conflict");
    assert_eq!(
        anonymous.get("/api/v1/session").await.json()["setup_needed"],
        false
    );
    assert_eq!(setup::new_link(&bench.opened, "http://h/").await, Ok(None));
    bench.sign_in("olga").await;
}

async fn a_session_begins_and_ends(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    bench.add_user("vera", Role::Viewer).await;
    let anonymous = bench.anonymous();
    for (name, password) in [
        ("vera", "wrong"),
        ("unknown", PASSWORD),
        ("", ""),
        ("vera", ""),
    ] {
        let body = json!({"name": name, "password": password});
        anonymous
            .post("/api/v1/session", &body)
            .await
            .is_problem(401, "refused");
    }
    let viewer = bench.sign_in("vera").await;
    let answer = anonymous
        .post(
            "/api/v1/session",
            &json!({"name": "vera", "password": PASSWORD}),
        )
        .await;
    let cookie = answer.header("set-cookie");
    assert!(
        cookie.contains("; Path=/; Max-Age=604800; HttpOnly; SameSite=Lax"),
        "{cookie}"
    );
    assert!(!cookie.contains("Secure"), "{cookie}");
    assert_eq!(answer.header("cache-control"), "no-store");
    let session = viewer.get("/api/v1/session").await.json();
    assert_eq!(session["user"], json!({"name": "vera", "role": "viewer"}));
    assert_eq!(session["csrf"], viewer.csrf.clone().unwrap());
    let ended = viewer.delete("/api/v1/session").await;
    assert_eq!(ended.code, 204);
    assert!(ended.header("set-cookie").contains("Max-Age=0"));
    viewer
        .get("/api/v1/session")
        .await
        .is_problem(401, "signed-out");
    // A new password ends all sessions.
    let (one, two) = (bench.sign_in("vera").await, bench.sign_in("vera").await);
    let path = "/api/v1/session/password";
    let body = json!({"current": "wrong", "password": "another good one"});
    one.post(path, &body).await.is_problem(422, "invalid");
    let body = json!({"current": PASSWORD, "password": "short"});
    one.post(path, &body).await.is_problem(422, "invalid");
    let body = json!({"current": PASSWORD, "password": "another good one"});
    assert_eq!(one.post(path, &body).await.code, 204);
    for client in [one, two] {
        client
            .get("/api/v1/overview")
            .await
            .is_problem(401, "signed-out");
    }
}

/// Looking at a password takes a while, and longer where many sign in.
async fn a_new_password_beats_a_pending_sign_in_with_the_old_one(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let vera = bench.add_user("vera", Role::Viewer).await;
    let store = &bench.opened;
    let (_, old) = store.users().get("vera").await.unwrap().unwrap();
    // All places are taken until the password is another one.
    let turns = bench.site.passwords.all_turns().await;
    let anonymous = bench.anonymous();
    let signing_in = tokio::spawn(async move {
        let body = json!({"name": "vera", "password": PASSWORD});
        anonymous.post("/api/v1/session", &body).await
    });
    let site = &bench.site;
    bench.until(|_| site.passwords.waiting() > 0).await;
    let edit = UserEdit {
        password: Some(crate::auth::password::hash("another good one").unwrap()),
        ..UserEdit::default()
    };
    store.users().edit(vera, &edit).await.unwrap();
    drop(turns);
    let answer = signing_in.await.unwrap();
    answer.is_problem(401, "refused");
    assert_eq!(answer.header("set-cookie"), "");
    let (_, new) = store.users().get("vera").await.unwrap().unwrap();
    assert_ne!(old, new);
}

#[tokio::test(flavor = "multi_thread")]
async fn cookies_are_secure_behind_https() {
    let settings = SiteSettings {
        public_url: Some(Url::parse("https://console.example").unwrap()),
        ..SiteSettings::default()
    };
    let bench = Bench::with(bench::TestDatabase::sqlite(), settings).await;
    bench.add_user("vera", Role::Viewer).await;
    let body = json!({"name": "vera", "password": PASSWORD});
    let browser = bench.anonymous().with("host", "console.example");
    let browser = browser.with("origin", "https://console.example");
    let answer = browser.post("/api/v1/session", &body).await;
    let cookie = answer.header("set-cookie").to_owned();
    assert!(cookie.starts_with("__Host-flexfeed="), "{cookie}");
    assert!(cookie.ends_with("; Secure"), "{cookie}");
    assert_eq!(
        answer.header("strict-transport-security"),
        "max-age=31536000"
    );
    let value = cookie.split(';').next().unwrap();
    assert_eq!(
        browser
            .with("cookie", value)
            .get("/api/v1/session")
            .await
            .code,
        200
    );
    // Under the other name it may have been set by anybody.
    let plain = value.trim_start_matches("__Host-");
    let answer = browser.with("cookie", plain).get("/api/v1/session").await;
    answer.is_problem(401, "signed-out");
}

async fn guesses_run_out(place: bench::TestDatabase) {
    let settings = SiteSettings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..SiteSettings::default()
    };
    let bench = Bench::with(place, settings).await;
    bench.add_user("vera", Role::Viewer).await;
    let from = |ip: &str| bench.anonymous().with("x-forwarded-for", ip);
    let guess = json!({"name": "vera", "password": "a wrong password"});
    // One comes back every 30 s: a slow machine may need some more.
    let begun = std::time::Instant::now();
    let mut guesses: u64 = 0;
    loop {
        let answer = from("203.0.113.1").post("/api/v1/session", &guess).await;
        if answer.code == 429 {
            break;
        }
        answer.is_problem(401, "refused");
        guesses += 1;
        assert!(guesses < 60, "they do not run out");
    }
    let back = begun.elapsed().as_secs() / 30;
    assert!((10..=10 + back).contains(&guesses), "{guesses}, {back}");
    let right = json!({"name": "vera", "password": PASSWORD});
    let answer = from("203.0.113.1").post("/api/v1/session", &right).await;
    answer.is_problem(429, "too-many");
    let wait: u64 = answer.header("retry-after").parse().unwrap();
    assert!((1..=30).contains(&wait), "{wait}");
    let answer = from("203.0.113.1").post("/api/v1/session", &right).await;
    answer.is_problem(429, "too-many");
    // Others are not kept out.
    let answer = from("203.0.113.2").post("/api/v1/session", &right).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    // One line says that, however often it is tried.
    let operator = bench.operator().await;
    let path = "/api/v1/audit?action=session.create&limit=1000";
    let audit = operator.get(path).await.json();
    let lines = audit["items"].as_array().unwrap().iter();
    let limited: Vec<_> = lines.filter(|line| line["outcome"] == "limited").collect();
    assert_eq!(limited.len(), 1, "{audit}");
    assert_eq!(limited[0]["address"], "203.0.113.1");
    assert_eq!(limited[0]["actor"], "vera");
}

/// A success in between, with a name of one's own, brings no further guesses at others' names,
/// nor at one's own present password, which a stolen session would try.
async fn guesses_at_many_names_run_out(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    bench.add_user("vera", Role::Viewer).await;
    let vera = bench.sign_in("vera").await;
    let anonymous = bench.anonymous();
    let path = "/api/v1/session";
    let right = json!({"name": "vera", "password": PASSWORD});
    let begun = std::time::Instant::now();
    let mut guesses: u64 = 0;
    for name in 0..40 {
        let guess = json!({"name": format!("name-{name}"), "password": "a wrong password"});
        let answer = anonymous.post(path, &guess).await;
        if answer.code == 429 {
            break;
        }
        answer.is_problem(401, "refused");
        guesses += 1;
        let answer = anonymous.post(path, &right).await;
        assert!([200, 429].contains(&answer.code), "{}", answer.body);
    }
    let back = begun.elapsed().as_secs() / 30;
    assert!((9..=10 + back).contains(&guesses), "{guesses}, {back}");
    let body = json!({"current": "wrong", "password": "another good one"});
    let change = "/api/v1/session/password";
    while vera.post(change, &body).await.code != 429 {
        assert!(begun.elapsed().as_secs() < 300, "they do not run out");
    }
}

/// Attempts to set up are audited, whatever their outcome.
async fn tries_to_set_up_are_noted(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let anonymous = bench.anonymous();
    let path = "/api/v1/setup";
    let body =
        |name: &str, password: &str| json!({"token": "x", "name": name, "password": password});
    let tries = [
        (body("eve", PASSWORD), 401),
        (body("eve", "short"), 422),
        (body("", PASSWORD), 422),
    ];
    for (body, code) in &tries {
        assert_eq!(anonymous.post(path, body).await.code, *code);
    }
    let operator = bench.operator().await;
    let closed = anonymous.post(path, &tries[0].0).await;
    closed.is_problem(409, "conflict");
    let mut limited = 0;
    for _ in 0..12 {
        limited += usize::from(anonymous.post(path, &tries[0].0).await.code == 429);
    }
    assert!(limited >= 2, "{limited}");
    let audit = operator.get("/api/v1/audit?action=setup").await.json();
    let lines = audit["items"].as_array().unwrap();
    let count = |wanted: &str| {
        let outcomes = lines.iter().map(|line| line["outcome"].as_str().unwrap());
        outcomes.filter(|outcome| outcome.contains(wanted)).count()
    };
    assert_eq!(lines.len(), 3 + 1 + (12 - limited) + 1, "{audit}");
    assert_eq!(count("limited"), 1, "however often it is tried");
    assert_eq!(count("that is not the link"), 1);
    assert_eq!(count("there is an operator"), 1 + 12 - limited);
    assert!(lines.iter().all(|line| line["via"] == "setup link"));
    assert!(!audit.to_string().contains(PASSWORD));
}

async fn users_are_added_and_removed(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let path = "/api/v1/users";
    let body = json!({"name": " ann ", "password": PASSWORD, "role": "viewer"});
    let made = operator.post(path, &body).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let id = made.json()["id"].clone();
    assert_eq!(made.json()["name"], "ann");
    operator.post(path, &body).await.is_problem(409, "conflict");
    for bad in [
        json!({"name": "", "password": PASSWORD}),
        json!({"name": "bob", "password": "short"}),
        json!({"name": "b\u{7}ob", "password": PASSWORD}),
        json!({"name": "x".repeat(101), "password": PASSWORD}),
        json!({"name": "bob", "password": PASSWORD, "role": "root"}),
    ] {
        operator.post(path, &bad).await.is_problem(422, "invalid");
    }
    let ann = bench.sign_in("ann").await;
    let own = format!("{path}/{id}");
    let kept_out = operator.patch(&own, &json!({"disabled": true})).await;
    assert!(kept_out.json()["disabled_ms"].is_i64(), "{}", kept_out.body);
    ann.get("/api/v1/overview")
        .await
        .is_problem(401, "signed-out");
    let body = json!({"name": "ann", "password": PASSWORD});
    bench
        .anonymous()
        .post("/api/v1/session", &body)
        .await
        .is_problem(401, "refused");
    let changed = operator
        .patch(&own, &json!({"disabled": false, "role": "operator"}))
        .await;
    assert_eq!(changed.json()["role"], "operator");
    // The last operator stays.
    assert_eq!(operator.delete(&own).await.code, 204);
    operator.delete(&own).await.is_problem(404, "not-found");
    let users = operator.get(path).await.json();
    let me = users["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|u| u["is_self"] == true)
        .unwrap();
    let me = format!("{path}/{}", me["id"]);
    operator
        .patch(&me, &json!({"role": "viewer"}))
        .await
        .is_problem(409, "conflict");
    operator.delete(&me).await.is_problem(409, "conflict");
    // All of it is in the log, and no password.
    let audit = operator.get("/api/v1/audit?limit=1000").await;
    for action in ["session.create", "user.add", "user.edit", "user.remove"] {
        assert!(audit.body.contains(action), "{action}");
    }
    assert!(!audit.body.contains(PASSWORD));
    let some = operator
        .get("/api/v1/audit?action=user.add&limit=2")
        .await
        .json();
    assert_eq!(some["items"].as_array().unwrap().len(), 2);
    let cursor = some["next_cursor"].as_str().unwrap();
    let next = operator
        .get(&format!("/api/v1/audit?action=user.add&cursor={cursor}"))
        .await;
    assert!(next.json()["items"].as_array().unwrap().len() > 2);
}
