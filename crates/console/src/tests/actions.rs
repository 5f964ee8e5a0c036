//! Actions of operators.

use serde_json::{Value, json};
use store::{Batch, CommandState, Fence, Holder, LeaseOutcome, SourceInfo};

use super::*;

on_both! {
    receivers_are_named_held_and_removed,
    channels_are_made,
    links_are_made_and_revoked,
    the_source_is_asked,
    a_client_sees_its_own_change,
    two_at_once_make_one_channel,
    names_of_a_hundred_characters_are_kept_whole,
}

async fn receivers_are_named_held_and_removed(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, beta, gamma] = bench.populate().await;
    let path = format!("/api/v1/receivers/{alpha}");
    let body = json!({"label": " Kiosk \u{202e}🦀 ", "tags": ["edge", "x"], "held": true});
    let named = operator.patch(&path, &body).await;
    assert_eq!(named.code, 200, "{}", named.body);
    let named = named.json();
    assert_eq!(named["label"], "Kiosk \u{202e}🦀");
    assert_eq!(
        (&named["tags"], &named["held"]),
        (&json!(["edge", "x"]), &json!(true))
    );
    let found = operator
        .get("/api/v1/receivers?tag=edge&q=kiosk")
        .await
        .json();
    assert_eq!(found["filtered"], 1);
    assert_eq!(bench.opened.receivers().held().await.unwrap(), [alpha]);
    // Members left out stay.
    let freed = operator.patch(&path, &json!({"held": false})).await.json();
    assert_eq!(
        (&freed["label"], &freed["held"]),
        (&named["label"], &json!(false))
    );
    for bad in [
        json!({"label": "x".repeat(101)}),
        json!({"tags": [""]}),
        json!({"tags": vec!["x"; 33]}),
        json!({"tags": ["x".repeat(65)]}),
        json!({"held": "yes"}),
        json!({"name": "x"}),
        json!([]),
    ] {
        operator.patch(&path, &bad).await.is_problem(422, "invalid");
    }
    let unknown = "/api/v1/receivers/00000000-0000-0000-0000-000000000000";
    operator
        .patch(unknown, &json!({}))
        .await
        .is_problem(404, "not-found");
    operator.delete(unknown).await.is_problem(404, "not-found");
    let disconnect = operator
        .post(&format!("{path}/disconnect"), &json!({}))
        .await;
    assert_eq!(disconnect.code, 202);
    let id = disconnect.json()["command_id"].clone();
    let command = operator.get(&format!("/api/v1/commands/{id}")).await.json();
    assert_eq!(
        (&command["kind"], &command["state"]),
        (&json!("disconnect"), &json!("queued"))
    );
    assert_eq!(command["receiver"], alpha.to_string());
    assert_eq!(command["asked_by"], "olga");
    // Removed, it is still known; forgotten, it is not.
    assert_eq!(
        operator
            .delete(&format!("/api/v1/receivers/{beta}"))
            .await
            .code,
        204
    );
    assert_eq!(bench.opened.receivers().revoked().await.unwrap(), [beta]);
    let gone = format!("/api/v1/receivers/{gamma}");
    assert_eq!(
        operator.delete(&format!("{gone}?forget=true")).await.code,
        204
    );
    operator.get(&gone).await.is_problem(404, "not-found");
    let rows = bench.opened.receivers().list().await.unwrap();
    assert_eq!(rows.len(), 2);
    let audit = operator.get("/api/v1/audit").await;
    for action in ["receiver.edit", "receiver.disconnect", "receiver.remove"] {
        assert!(audit.body.contains(action), "{action}");
    }
}

async fn channels_are_made(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let path = "/api/v1/channels";
    let one = operator.post(path, &json!({"name": "lore"})).await;
    assert_eq!(one.code, 201, "{}", one.body);
    assert_eq!(one.json()["groups"], json!(["232.70.70.1:4434"]));
    assert_eq!(one.json()["origin"], "managed");
    assert_eq!(one.json()["packet_authentication"], "none");
    assert_eq!(one.json()["fec"], "adaptive");
    let body = json!({"name": "news", "private": true, "rate_bps": 5_000_000, "keep_updates": 10,
        "packet_authentication": "auto", "fec": "tail,xor", "deadline_ms": 500});
    let two = operator.post(path, &body).await.json();
    assert_eq!(two["groups"], json!(["232.70.70.2:4434"]));
    assert_eq!(
        (
            &two["private"],
            &two["keep_updates"],
            &two["packet_authentication"],
            &two["fec"],
            &two["deadline_ms"]
        ),
        (
            &json!(true),
            &json!(10),
            &json!("auto"),
            &json!("tail,xor"),
            &json!(500)
        )
    );
    let body = json!({"name": "quiet", "groups": []});
    assert_eq!(operator.post(path, &body).await.json()["groups"], json!([]));
    operator
        .post(path, &json!({"name": "lore"}))
        .await
        .is_problem(409, "conflict");
    for bad in [
        json!({}),
        json!({"name": "a b"}),
        json!({"name": "x", "rate_bps": 1}),
        json!({"name": "x", "keep_updates": 0}),
        json!({"name": "x", "packet_authentication": "all"}),
        json!({"name": "x", "fec": "proactive:5/4"}),
        json!({"name": "x", "keep_ms": 1}),
        json!({"name": "x", "deadline_ms": 9}),
        json!({"name": "x", "deadline_ms": 86_400_001}),
        json!({"name": "x", "groups": ["192.0.2.1:1"]}),
        json!({"name": "x", "groups": ["232.70.70.1:4434"]}),
        json!({"name": "x", "rate_bps": -1}),
        json!({"name": null}),
    ] {
        operator.post(path, &bad).await.is_problem(422, "invalid");
    }
    let bad = json!({"name": "x", "fec": "tail,ldpc"});
    let refused = operator.post(path, &bad).await;
    assert!(
        refused.body.contains("adaptive, tail, reactive"),
        "{}",
        refused.body
    );
    bench.until(|site| site.board().channels.len() == 3).await;
    let listed = operator.get(path).await.json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 3);
    assert_eq!(
        operator
            .post(&format!("{path}/lore/rekey"), &json!({}))
            .await
            .code,
        202
    );
    let unknown = operator
        .post(&format!("{path}/nowhere/rekey"), &json!({}))
        .await;
    unknown.is_problem(404, "not-found");
}

async fn links_are_made_and_revoked(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let path = "/api/v1/enrolments";
    operator
        .post(path, &json!({}))
        .await
        .is_problem(409, "conflict");
    operator
        .post("/api/v1/channels", &json!({"name": "empty"}))
        .await;
    // No source has said where it is.
    operator
        .post(path, &json!({}))
        .await
        .is_problem(409, "conflict");
    bench.populate().await;
    let body = json!({"label": "kiosks", "channels": ["lore"], "limit": 5});
    let made = operator.post(path, &body).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let made = made.json();
    let link = made["link"].as_str().unwrap();
    let rest = link.strip_prefix("flexfeed://").unwrap();
    let (token, rest) = rest.split_once('@').unwrap();
    assert_eq!(rest, "feeds.example:4433?pin=sha256:AAAA&ch=lore");
    for line in ["docker_run", "helm_install", "binary"] {
        assert!(
            made[line].as_str().unwrap().contains(&format!("'{link}'")),
            "{line}"
        );
    }
    // The source's warnings about its address come with the link.
    assert_eq!(made["warning"], "it is not routable");
    // The source admits its holder.
    let hash = crate::auth::secret::hash(token).unwrap();
    let applicant = store::Applicant {
        token: Some(hash),
        receiver: uuid::Uuid::new_v4(),
        credential: [9; 32],
        name: "new",
        software: "x",
        address: "x",
        channels: &["lore".to_owned()],
    };
    let verdict = bench.opened.receivers().admit(&applicant).await.unwrap();
    assert_eq!(verdict, store::Verdict::Admitted { enrolled: true });
    let listed = operator.get(path).await;
    assert!(!listed.body.contains(token));
    let row = listed.json()["items"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone();
    assert_eq!((&row["used"], &row["limit"]), (&json!(1), &json!(5)));
    for bad in [
        json!({"limit": 0}),
        json!({"channels": ["nowhere"]}),
        json!({"expires_ms": 1}),
        json!({"expires_ms": i64::MAX}),
        json!({"label": "x".repeat(101)}),
    ] {
        operator.post(path, &bad).await.is_problem(422, "invalid");
    }
    let own = format!("{path}/{}", made["token_id"]);
    assert_eq!(operator.delete(&own).await.code, 204);
    operator
        .delete(&format!("{path}/99999"))
        .await
        .is_problem(404, "not-found");
    let again = store::Applicant {
        receiver: uuid::Uuid::new_v4(),
        credential: [8; 32],
        ..applicant
    };
    let verdict = bench.opened.receivers().admit(&again).await.unwrap();
    assert_eq!(verdict, store::Verdict::TokenRevoked);
    // Warnings about something else do not.
    let info = SourceInfo {
        warnings: vec!["the disk is slow".into()],
        ..bench::source()
    };
    bench
        .write(Batch {
            info: Some(info),
            ..Batch::default()
        })
        .await;
    bench.site.nudge();
    let is_told = |source: &SourceInfo| source.warnings == ["the disk is slow"];
    bench
        .until(|site| site.board().source.as_ref().is_some_and(is_told))
        .await;
    let made = operator.post(path, &json!({})).await.json();
    assert_eq!(made["warning"], Value::Null);
}

async fn the_source_is_asked(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    bench.populate().await;
    let asked = operator.post("/api/v1/source/drain", &json!({})).await;
    assert_eq!(asked.code, 202);
    let id = asked.json()["command_id"].as_i64().unwrap();
    let holder = Holder {
        id: uuid::Uuid::new_v4(),
        name: "source".into(),
    };
    let ttl = std::time::Duration::from_secs(60);
    let store = &bench.opened;
    let LeaseOutcome::Held(lease) = store.leases().take("lore", &holder, ttl).await.unwrap() else {
        panic!("the lease is taken");
    };
    let fence = Fence {
        channel: lease.channel,
        fence: lease.fence,
    };
    let taken = bench.opened.commands().take(&[fence], 10).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].state, CommandState::Taken);
    bench
        .opened
        .commands()
        .finish(id, Ok("no receiver is left"))
        .await
        .unwrap();
    let command = operator.get(&format!("/api/v1/commands/{id}")).await.json();
    assert_eq!(
        (&command["state"], &command["result"]),
        (&json!("done"), &json!("no receiver is left"))
    );
    let all = operator.get("/api/v1/commands?limit=1").await.json();
    assert_eq!(all["items"][0]["id"], id);
    operator
        .get("/api/v1/commands/9999")
        .await
        .is_problem(404, "not-found");
    operator
        .get("/api/v1/commands/x")
        .await
        .is_problem(404, "not-found");
}

async fn a_client_sees_its_own_change(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, beta, gamma] = bench.populate().await;
    for round in 0..5 {
        let name = format!("round-{round}");
        let made = operator
            .post("/api/v1/channels", &json!({"name": name}))
            .await;
        assert_eq!(made.code, 201, "{}", made.body);
        let own = format!("/api/v1/channels/{name}");
        assert_eq!(operator.get(&own).await.code, 200, "{name}");
        let samples = format!("/api/v1/samples?channel={name}");
        let samples = operator.get(&samples).await;
        assert_eq!(samples.code, 200, "{}", samples.body);
        let rekey = operator.post(&format!("{own}/rekey"), &json!({})).await;
        assert_eq!(rekey.code, 202, "{}", rekey.body);
        let feed = json!({"channel": name, "url": "https://example.org/f"});
        let feed = operator.post("/api/v1/feeds", &feed).await.json();
        let list = format!("/api/v1/feeds?channel={name}");
        let listed = async || operator.get(&list).await.json()["items"].clone();
        assert_eq!(listed().await[0]["id"], feed["id"]);
        let own = format!("/api/v1/feeds/{}", feed["id"].as_str().unwrap());
        operator.patch(&own, &json!({"paused": true})).await;
        assert_eq!(listed().await[0]["state"], "paused");
        operator.patch(&own, &json!({"paused": false})).await;
        assert_eq!(listed().await[0]["state"], "pending");
        operator.delete(&own).await;
        assert_eq!(listed().await, json!([]));
        let label = json!({"label": name});
        let own = format!("/api/v1/receivers/{gamma}");
        assert_eq!(operator.patch(&own, &label).await.code, 200);
        assert_eq!(operator.get(&own).await.json()["label"], name);
    }
    for (id, rest) in [(alpha, ""), (beta, "?forget=true")] {
        let own = format!("/api/v1/receivers/{id}");
        assert_eq!(operator.delete(&format!("{own}{rest}")).await.code, 204);
        let found = operator.get(&own).await;
        match rest {
            "" => assert_eq!(found.json()["revoked"], true),
            _ => found.is_problem(404, "not-found"),
        }
    }
}

async fn two_at_once_make_one_channel(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let make = async |name: String, group: Option<String>| {
        let mut body = json!({"name": name});
        if let Some(group) = group {
            body["groups"] = json!([group]);
        }
        operator.post("/api/v1/channels", &body).await
    };
    // One name and several groups: one of them has it, with its own groups.
    let tries = (1..=8).map(|n| make("one".into(), Some(format!("232.9.9.{n}:4434"))));
    let answers = futures_util::future::join_all(tries).await;
    let mut made = Vec::new();
    for answer in answers {
        match answer.code {
            201 => made.push(answer.json()),
            _ => answer.is_problem(409, "conflict"),
        }
    }
    assert_eq!(made.len(), 1, "{made:?}");
    let kept = operator.get("/api/v1/channels/one").await.json();
    assert_eq!(kept["groups"], made[0]["groups"]);
    // Several names at once: no two get one group.
    let tries = (0..8).map(|n| make(format!("next-{n}"), None));
    let answers = futures_util::future::join_all(tries).await;
    let mut groups = std::collections::BTreeSet::new();
    for answer in &answers {
        assert_eq!(answer.code, 201, "{}", answer.body);
        groups.insert(answer.json()["groups"].to_string());
    }
    assert_eq!(groups.len(), 8, "{groups:?}");
    let same = || Some("232.8.8.8:4434".to_owned());
    let tries = (0..4).map(|n| make(format!("same-{n}"), same()));
    let answers = futures_util::future::join_all(tries).await;
    let made = answers.iter().filter(|answer| answer.code == 201).count();
    assert_eq!(made, 1);
    // One that was removed can be made again.
    let store = &bench.opened;
    assert!(store.channels().set_active("one", false).await.unwrap());
    let again = make("one".into(), Some("232.9.9.99:4434".into())).await;
    assert_eq!(again.code, 201, "{}", again.body);
    assert_eq!(again.json()["groups"], json!(["232.9.9.99:4434"]));
}

async fn names_of_a_hundred_characters_are_kept_whole(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, ..] = bench.populate().await;
    let long = "\u{1f980}".repeat(100);
    let own = format!("/api/v1/receivers/{alpha}");
    let named = operator.patch(&own, &json!({"label": long})).await;
    assert_eq!(named.json()["label"], long);
    assert_eq!(operator.get(&own).await.json()["label"], long);
    let path = "/api/v1/enrolments";
    let made = operator.post(path, &json!({"label": long})).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let listed = operator.get(path).await.json();
    let last = listed["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["label"], long);
    let body = json!({"name": long, "scopes": ["read"]});
    let made = operator.post("/api/v1/api-tokens", &body).await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(made.json()["name"], long);
}
