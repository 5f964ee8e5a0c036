//! Displayed state.

use std::collections::BTreeSet;

use feed::Entry;
use feed::payload::encode;
use serde_json::Value;
use store::{
    Batch, Draft, FeedEvent, FeedHour, Kind, MoveRow, ProgressRow, ReceiverCounts, RelayRow,
    SampleRow, SentBytes, SourceInfo, StateRow,
};

use super::*;
use crate::clock::now_ms;
use crate::fleet::{Facts, Rung, State};

on_both! {
    the_overview_shows_the_state,
    a_silent_source_is_noticed_whatever_its_clock_says,
    receivers_are_listed_and_found,
    moves_and_sessions_go_back_in_time,
    reports_of_forged_packets_name_the_receiver_the_channel_and_the_time,
    the_past_comes_in_steps,
    updates_are_shown_with_their_delivery,
}

async fn the_overview_shows_the_state(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let empty = operator.get("/api/v1/overview").await.json();
    assert_eq!(empty["source"]["state"], "none");
    assert_eq!(empty["channels"], serde_json::json!([]));
    let [.., last] = bench.populate().await;
    let overview = operator.get("/api/v1/overview").await.json();
    assert_eq!(overview["source"]["state"], "ok");
    assert_eq!(overview["source"]["public_address"], "feeds.example:4433");
    assert_eq!(overview["source"]["warnings"][0]["code"], "public-address");
    let overload = serde_json::json!({"since_ms": 5, "until_ms": 7, "late": ["engine"]});
    assert_eq!(
        overview["source"]["overloads"][0], overload,
        "the newest first"
    );
    assert_eq!(overview["receivers"]["total"], 3);
    assert_eq!(overview["receivers"]["amt"], 1);
    assert_eq!(overview["receivers"]["behind"], 1);
    assert_eq!(overview["channels"][0]["head"], 9);
    assert_eq!(overview["channels"][0]["delivered"], 2);
    assert_eq!(overview["moves"].as_array().unwrap().len(), 2);
    assert_eq!(overview["moves"][0]["to"], "unicast");
    assert_eq!(overview["database_ok"], true);
    let channel = operator.get("/api/v1/channels/lore").await.json();
    assert_eq!(channel["key_sequence"], 4);
    assert_eq!(channel["fec"], "adaptive");
    let symbols = (
        &channel["flow"]["repair_symbols"],
        &channel["flow"]["rebuilt"],
    );
    assert_eq!(symbols, (&Value::from(340), &Value::from(12_030)));
    operator
        .get("/api/v1/channels/nowhere")
        .await
        .is_problem(404, "not-found");
    let relay = RelayRow {
        address: "192.0.2.9".into(),
        healthy: true,
        answer_us: Some(1_250),
        at_ms: now_ms(),
        ..RelayRow::default()
    };
    bench
        .write(Batch {
            relays: vec![relay],
            ..Batch::default()
        })
        .await;
    bench.until(|site| !site.board().relays.is_empty()).await;
    let relays = operator.get("/api/v1/relays").await.json();
    assert_eq!(relays["items"][0]["answer_ms"], 1.3);
    assert_eq!(
        operator.get("/api/v1/overview").await.json()["relays"]["healthy"],
        1
    );
    // An absent receiver is neither behind nor complete.
    let away = StateRow {
        connected: false,
        ..bench::state(last, "offline")
    };
    let mut pulse = bench::pulse();
    (pulse.counts.connected, pulse.counts.unicast) = (2, 0);
    pulse.counts.behind = 0;
    bench
        .write(Batch {
            states: vec![away],
            pulses: vec![pulse],
            ..Batch::default()
        })
        .await;
    bench
        .until(|site| {
            site.board()
                .pulses
                .values()
                .any(|p| p.counts.connected == 2)
        })
        .await;
    let overview = operator.get("/api/v1/overview").await.json();
    let of = |name: &str| overview["receivers"][name].as_u64().unwrap();
    let counts = ["total", "connected", "delivered", "behind"].map(of);
    assert_eq!(counts, [3, 2, 2, 0]);
}

async fn a_silent_source_is_noticed_whatever_its_clock_says(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let shown = async || {
        let overview = operator.get("/api/v1/overview").await.json();
        let list = operator.get("/api/v1/receivers").await.json();
        assert_eq!(overview["unknown_since_ms"], list["unknown_since_ms"]);
        let state = overview["source"]["state"].as_str().unwrap().to_owned();
        (state, overview["unknown_since_ms"].as_i64())
    };
    let say = async |at_ms: i64| {
        let info = SourceInfo {
            at_ms,
            ..bench::source()
        };
        bench
            .write(Batch {
                info: Some(info),
                ..Batch::default()
            })
            .await;
        bench.site.nudge();
        let is_told = |source: &SourceInfo| source.at_ms == at_ms;
        bench
            .until(|site| site.board().source.as_ref().is_some_and(is_told))
            .await;
    };
    assert_eq!(shown().await, ("none".to_owned(), None));
    // One report; the same as from a source that ended an hour ago.
    let said = now_ms() - 3_600_000;
    say(said).await;
    assert_eq!(shown().await, ("stale".to_owned(), Some(said)));
    // A second one: its clock is an hour behind.
    say(said + 5_000).await;
    assert_eq!(shown().await, ("ok".to_owned(), None));
    // Or it was set.
    say(said - 5_000).await;
    assert_eq!(shown().await, ("ok".to_owned(), None));
}

async fn receivers_are_listed_and_found(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, ..] = bench.populate().await;
    let list = operator
        .get("/api/v1/receivers?sort=rung&order=desc")
        .await
        .json();
    assert_eq!(list["total"], 3);
    assert_eq!(list["items"][0]["rung"], "unicast");
    assert_eq!(list["items"][2]["id"], alpha.to_string());
    assert_eq!(list["items"][2]["rtt_ms"], 12.3);
    assert!(list["next_cursor"].is_null());
    let count = |answer: TestResponse| answer.json()["filtered"].clone();
    for (query, expected) in [
        ("q=ALPHA", 1),
        ("rung=amt", 1),
        ("connected=false", 0),
        ("channel=lore", 3),
        ("channel=other", 0),
        ("cause=joined", 3),
        ("behind=true", 0),
        ("tag=edge", 0),
    ] {
        let answer = operator.get(&format!("/api/v1/receivers?{query}")).await;
        assert_eq!(count(answer), expected, "{query}");
    }
    for bad in [
        "limit=0",
        "limit=501",
        "limit=x",
        "limit=-1",
        "rung=best",
        "sort=id",
        "order=up",
        "connected=perhaps",
        "cursor=x",
        "cursor=e30&offset=1",
        "unknown=1",
        "q=a&q=b",
        &format!("q={}", "x".repeat(201)),
    ] {
        let answer = operator.get(&format!("/api/v1/receivers?{bad}")).await;
        answer.is_problem(400, "malformed");
    }
    let one = operator
        .get(&format!("/api/v1/receivers/{alpha}"))
        .await
        .json();
    assert_eq!(one["channels"][0]["cursor"], 7);
    for bad in ["1", "x", "00000000-0000-0000-0000-000000000000", "%ff"] {
        let answer = operator.get(&format!("/api/v1/receivers/{bad}")).await;
        answer.is_problem(404, "not-found");
    }
}

async fn reports_of_forged_packets_name_the_receiver_the_channel_and_the_time(
    place: bench::TestDatabase,
) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, beta, ..] = bench.populate().await;
    let overview = operator.get("/api/v1/overview").await.json();
    assert_eq!(overview["forgeries"], serde_json::json!([]));
    let now = now_ms();
    let report = |receiver, at_ms, from: &str, to: &str| MoveRow {
        at_ms,
        cause: "forged".into(),
        ..bench::moved(receiver, from, to)
    };
    let moves = vec![
        report(alpha, now - 4_000, "multicast", "multicast"),
        report(alpha, now - 2_000, "multicast", "unicast"),
        report(beta, now - 3_000, "amt", "unicast"),
    ];
    bench
        .write(Batch {
            moves,
            ..Batch::default()
        })
        .await;
    bench
        .until(|site| !site.fleet().forgeries().is_empty())
        .await;
    let own = serde_json::json!({"first_ms": now - 4_000, "last_ms": now - 2_000, "reports": 2});
    let shown = operator.get(&format!("/api/v1/receivers/{alpha}")).await;
    let shown = shown.json();
    assert_eq!(shown["forgeries"], own);
    assert_eq!(shown["channels"][0]["channel"], "lore");
    assert_eq!(shown["channels"][0]["forgeries"], own);
    let all = serde_json::json!([{
        "channel": "lore", "receivers": 2,
        "first_ms": now - 4_000, "last_ms": now - 2_000, "reports": 3,
    }]);
    let overview = operator.get("/api/v1/overview").await.json();
    assert_eq!(overview["forgeries"], all);
    let number = async |filter: &str| {
        let page = operator.get(&format!("/api/v1/receivers?{filter}")).await;
        page.json()["filtered"].as_u64().unwrap()
    };
    assert_eq!(number("forged=true").await, 2);
    assert_eq!(number("forged=false").await, 1);
    assert_eq!(number("forged=true&channel=lore").await, 2);
}

async fn moves_and_sessions_go_back_in_time(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let [alpha, beta, _] = bench.populate().await;
    let moves = (0..5)
        .map(|_| bench::moved(beta, "amt", "unicast"))
        .collect();
    bench
        .write(Batch {
            moves,
            ..Batch::default()
        })
        .await;
    let mut seen = BTreeSet::new();
    let mut path = "/api/v1/moves?limit=3".to_owned();
    loop {
        let part = operator.get(&path).await.json();
        let items = part["items"].as_array().unwrap().clone();
        assert!(items.len() <= 3);
        seen.extend(items.iter().map(|m| m["id"].as_i64().unwrap()));
        match part["next_cursor"].as_str() {
            Some(next) => path = format!("/api/v1/moves?limit=3&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 7);
    let count = |answer: TestResponse| answer.json()["items"].as_array().unwrap().len();
    let of = format!("/api/v1/receivers/{beta}/moves");
    assert_eq!(count(operator.get(&of).await), 6);
    assert_eq!(count(operator.get("/api/v1/moves?rung=amt").await), 1);
    assert_eq!(count(operator.get("/api/v1/moves?cause=nothing").await), 0);
    assert_eq!(count(operator.get("/api/v1/moves?to_ms=1").await), 0);
    // Under the name that it has now.
    let first = operator.get(&of).await.json();
    assert_eq!(first["items"][0]["name"], "=1+1");
    let sessions = operator
        .get(&format!("/api/v1/receivers/{alpha}/sessions"))
        .await
        .json();
    assert_eq!(sessions["items"].as_array().unwrap().len(), 1);
    assert!(sessions["items"][0]["ended_ms"].is_null());
    operator
        .get("/api/v1/moves?cursor=x")
        .await
        .is_problem(400, "malformed");
    let unknown = "/api/v1/receivers/00000000-0000-0000-0000-000000000000/sessions";
    operator.get(unknown).await.is_problem(404, "not-found");
}

async fn the_past_comes_in_steps(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    bench.populate().await;
    let now = now_ms() / 10_000 * 10_000;
    let samples = (1..=30)
        .map(|step| SampleRow {
            channel: "lore".into(),
            step_ms: 10_000,
            at_ms: now - step * 10_000,
            weight: 10,
            counts: ReceiverCounts {
                receivers: 30,
                connected: 20,
                multicast: 20,
                ..ReceiverCounts::default()
            },
            bytes: SentBytes {
                flow: 5,
                ..SentBytes::default()
            },
            ..SampleRow::default()
        })
        .collect();
    bench
        .write(Batch {
            samples,
            ..Batch::default()
        })
        .await;
    let path = format!(
        "/api/v1/samples?channel=lore&from_ms={}&to_ms={now}",
        now - 300_000
    );
    let answer = operator.get(&path).await.json();
    assert_eq!(answer["step_ms"], 10_000);
    let points = answer["points"].as_array().unwrap();
    assert_eq!(points.len(), 30);
    assert_eq!(points[0]["connected"], 2.0);
    assert_eq!(points[0]["offline"], 1.0);
    // Larger steps that do not exist yet are computed from the small ones.
    let coarse = operator.get(&format!("{path}&points=2")).await.json();
    assert_eq!(coarse["step_ms"], 300_000);
    let bytes: u64 = coarse["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["flow_bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(bytes, 150);
    assert_eq!(
        operator.get("/api/v1/samples").await.json()["channel"],
        Value::Null
    );
    operator
        .get("/api/v1/samples?channel=x")
        .await
        .is_problem(404, "not-found");
    for bad in ["from_ms=5&to_ms=5", "points=0", "points=2001", "from_ms=x"] {
        let answer = operator.get(&format!("/api/v1/samples?{bad}")).await;
        answer.is_problem(400, "malformed");
    }
    for odd in [
        "from_ms=-9223372036854775808",
        "to_ms=9223372036854775807",
        "from_ms=0&points=1",
    ] {
        let answer = operator.get(&format!("/api/v1/samples?{odd}")).await;
        assert_eq!(answer.code, 200, "{odd} {}", answer.body);
    }
}

async fn updates_are_shown_with_their_delivery(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    assert_eq!(operator.get("/api/v1/updates").await.code, 200);
    bench.populate().await;
    let store = &bench.opened;
    let channel = store.channels().get("lore").await.unwrap();
    let entry = |number: usize| Entry {
        id: format!("urn:{number}"),
        title: Some(format!("<b>{number}</b> \u{202e}title")),
        content_html: Some("<script>alert(1)</script>".into()),
        xml: "<entry/>".into(),
        ..Entry::default()
    };
    let drafts: Vec<Draft> = (0..5)
        .map(|number| Draft {
            entry_id: format!("urn:{number}"),
            hash: [u8::try_from(number).unwrap(); 32],
            kind: Kind::Created,
            index: number,
        })
        .collect();
    let encode = |seq: u64, draft: &Draft| {
        let now = jiff::Timestamp::now();
        encode(
            &entry(draft.index),
            feed::Kind::Created,
            "https://example.org/f",
            channel.incarnation,
            seq,
            now,
        )
    };
    let appended = store.updates().append(
        "lore",
        "https://example.org/f",
        None,
        &drafts,
        None,
        &encode,
    );
    assert_eq!(appended.await.unwrap().len(), 5);
    let progress = ProgressRow {
        channel: "lore".into(),
        seq: 5,
        published_ms: now_ms(),
        expected: 3,
        delivered: 2,
        half_ms: Some(10),
        ..ProgressRow::default()
    };
    bench
        .write(Batch {
            progress: vec![progress],
            ..Batch::default()
        })
        .await;
    let page = operator
        .get("/api/v1/updates?channel=lore&limit=2")
        .await
        .json();
    assert_eq!(page["items"][0]["seq"], 5);
    assert_eq!(page["items"][0]["progress"]["delivered"], 2);
    assert!(page["items"][0]["progress"]["all_ms"].is_null());
    assert!(page["items"][1]["progress"].is_null());
    assert_eq!(page["items"][0]["title"], "<b>4</b> \u{202e}title");
    let next = page["next_cursor"].as_str().unwrap();
    let rest = operator
        .get(&format!("/api/v1/updates?channel=lore&cursor={next}"))
        .await
        .json();
    assert_eq!(rest["items"].as_array().unwrap().len(), 3);
    assert!(rest["next_cursor"].is_null());
    for none in ["-5", "x", "18446744073709551615"] {
        let path = format!("/api/v1/updates?channel=lore&cursor={none}");
        operator.get(&path).await.is_problem(400, "malformed");
    }
    let one = operator.get("/api/v1/updates/lore/5").await.json();
    assert_eq!(one["content_type"], "html");
    assert_eq!(one["content"], "<script>alert(1)</script>");
    assert_eq!(one["title"], "<b>4</b> \u{202e}title");
    assert_eq!(one["progress"]["expected"], 3);
    for bad in [
        "lore/6",
        "lore/0",
        "other/1",
        "lore/18446744073709551615",
        "lore/x",
        "lore/-1",
    ] {
        let answer = operator.get(&format!("/api/v1/updates/{bad}")).await;
        answer.is_problem(404, "not-found");
    }
    operator
        .get("/api/v1/updates?channel=other")
        .await
        .is_problem(404, "not-found");
    let huge = "/api/v1/updates?channel=lore&before=18446744073709551615";
    operator.get(huge).await.is_problem(400, "malformed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_of_a_feed_is_shown() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    bench.populate().await;
    let body = serde_json::json!({"channel": "lore", "url": "https://example.org/f"});
    let id = operator.post("/api/v1/feeds", &body).await.json()["id"].clone();
    let (channel, url) = ("lore".to_owned(), "https://example.org/f".to_owned());
    let event = FeedEvent {
        channel: channel.clone(),
        url: url.clone(),
        at_ms: now_ms(),
        state: "challenged".into(),
        detail: "a bot check".into(),
        excerpt: Some("<title>Just a moment".into()),
        ..FeedEvent::default()
    };
    let hour = FeedHour {
        channel,
        url,
        hour_ms: now_ms() / 3_600_000 * 3_600_000,
        polls: 3,
        challenged: 3,
        ..FeedHour::default()
    };
    let batch = Batch {
        feed_events: vec![event],
        feed_hours: vec![hour],
        ..Batch::default()
    };
    bench.write(batch).await;
    bench.until(|site| !site.board().seen.is_empty()).await;
    let id = id.as_str().unwrap();
    let past = operator
        .get(&format!("/api/v1/feeds/{id}/history"))
        .await
        .json();
    assert_eq!(past["hours"][0]["challenged"], 3);
    assert_eq!(past["events"][0]["excerpt"], "<title>Just a moment");
    let feed = operator.get(&format!("/api/v1/feeds/{id}")).await.json();
    assert_eq!(feed["seen"]["state"], "challenged");
    assert_eq!(feed["state"], "pending");
}

/// Puts so many receivers into the fleet alone: the database would take its time.
fn fill(bench: &Bench, all: usize) {
    let mut fleet = bench.site.fleet_mut();
    for number in 0..all {
        let id = uuid::Uuid::from_u128(number as u128 + 1);
        fleet.put_receiver(Facts {
            id,
            name: format!("node-{:06}", all - number),
            label: String::new(),
            tags: Vec::new(),
            software: "x".into(),
            address: "192.0.2.1:1".into(),
            channels: Vec::new(),
            enrolled_ms: 1,
            seen_ms: 1,
            revoked_ms: None,
            held: false,
        });
        let state = State {
            channel: fleet.word("lore"),
            connected: true,
            rung: Rung::ALL[number % 4],
            since_ms: 1,
            cause: None,
            cursor: Some(1),
            backlog: 0,
            key_sequence: None,
            rtt_us: None,
            legs: None,
            updated_ms: 1,
        };
        fleet.put_state(id, state);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_are_paged() {
    const ALL: usize = 100_000;
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    bench.opened.channels().open("lore").await.unwrap();
    fill(&bench, ALL);
    let mut names = Vec::new();
    let mut path = "/api/v1/receivers?limit=500&rung=amt".to_owned();
    // Some of its many pages, and the end.
    for _ in 0..10 {
        let page = operator.get(&path).await.json();
        assert_eq!(
            (&page["total"], &page["filtered"]),
            (&ALL.into(), &(ALL / 4).into())
        );
        for row in page["items"].as_array().unwrap() {
            names.push(row["name"].as_str().unwrap().to_owned());
        }
        let next = page["next_cursor"].as_str().unwrap();
        path = format!("/api/v1/receivers?limit=500&rung=amt&cursor={next}");
    }
    assert_eq!(names.len(), 5_000);
    assert!(names.is_sorted());
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 5_000);
    let end = operator
        .get("/api/v1/receivers?limit=500&offset=99900")
        .await
        .json();
    assert_eq!(end["items"].as_array().unwrap().len(), 100);
    assert_eq!(end["items"][99]["name"], "node-100000");
    let file = operator.get("/api/v1/receivers/export").await;
    assert_eq!(file.body.lines().count(), ALL + 1);
}
