//! Lists as files.

use feed::Entry;
use feed::payload::encode;
use serde_json::json;
use store::{Batch, Draft, Kind, Role, StateRow};

use super::*;

on_both! {
    files_are_whole_and_harmless,
    every_list_is_there_as_a_file,
}

async fn files_are_whole_and_harmless(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    bench.populate().await;
    let csv = operator.get("/api/v1/receivers/export").await;
    assert_eq!(csv.header("content-type"), "text/csv; charset=utf-8");
    assert_eq!(
        csv.header("content-disposition"),
        "attachment; filename=\"receivers.csv\""
    );
    assert_eq!(csv.body.lines().count(), 4);
    assert!(csv.body.contains(",\"'=1+1\","), "{}", csv.body);
    let json = operator
        .get("/api/v1/receivers/export?format=json&rung=amt")
        .await
        .json();
    assert_eq!(json.as_array().unwrap().len(), 1);
    let none = operator
        .get("/api/v1/receivers/export?format=json&q=nothing")
        .await
        .json();
    assert_eq!(none, serde_json::json!([]));
    let moves = operator.get("/api/v1/moves/export?format=csv").await;
    assert_eq!(moves.body.lines().count(), 3);
    let moves = operator
        .get("/api/v1/moves/export?format=json")
        .await
        .json();
    assert_eq!(moves.as_array().unwrap().len(), 2);
    for bad in [
        "/api/v1/moves/export?format=xml",
        "/api/v1/moves/export?chanel=lore",
        "/api/v1/receivers/export?format=csv&limit=1",
        "/api/v1/feeds/export?q=x",
        "/api/v1/updates/export?limit=1",
        "/api/v1/audit/export?cursor=1",
    ] {
        operator.get(bad).await.is_problem(400, "malformed");
    }
}

async fn every_list_is_there_as_a_file(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    bench.populate().await;
    let path = "/api/v1/feeds/export";
    let empty = operator.get(path).await;
    assert_eq!(empty.body.lines().count(), 1, "{}", empty.body);
    assert!(empty.body.starts_with("id,channel,url,title,state,"));
    let feed = json!({"channel": "lore", "url": "https://example.org/f", "title": "=news, all"});
    assert_eq!(operator.post("/api/v1/feeds", &feed).await.code, 201);
    bench.until(|site| !site.board().feeds.is_empty()).await;
    let feeds = operator.get(path).await;
    let line = feeds.body.lines().nth(1).unwrap();
    assert!(
        line.contains(",lore,https://example.org/f,\"'=news, all\",pending,"),
        "{line}"
    );
    let feeds = operator
        .get(&format!("{path}?format=json&channel=lore"))
        .await;
    assert_eq!(feeds.json()[0]["title"], "=news, all");
    let none = operator
        .get(&format!("{path}?format=json&channel=other"))
        .await;
    assert_eq!(none.json(), json!([]));

    const MANY: usize = 230;
    let drafts: Vec<Draft> = (0..MANY)
        .map(|number| Draft {
            entry_id: format!("urn:{number}"),
            hash: [u8::try_from(number).unwrap(); 32],
            kind: Kind::Created,
            index: number,
        })
        .collect();
    let store = &bench.opened;
    let channel = store.channels().get("lore").await.unwrap();
    let url = "https://example.org/f";
    let encode = |seq: u64, draft: &Draft| {
        let entry = Entry {
            id: draft.entry_id.clone(),
            title: Some(format!("title {}", draft.index)),
            xml: "<entry/>".into(),
            ..Entry::default()
        };
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
        .append("lore", url, None, &drafts, None, &encode);
    assert_eq!(appended.await.unwrap().len(), MANY);
    let updates = operator.get("/api/v1/updates/export").await;
    assert_eq!(updates.body.lines().count(), 1 + MANY, "more than one part");
    let seqs = updates
        .body
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(1).unwrap());
    assert!(seqs.eq((1..=MANY).rev().map(|seq| seq.to_string())));
    let updates = operator
        .get("/api/v1/updates/export?format=json&channel=lore")
        .await;
    assert_eq!(updates.json().as_array().unwrap().len(), MANY);

    let audit = operator.get("/api/v1/audit/export").await;
    assert!(
        audit
            .body
            .starts_with("id,at,actor,via,action,target,detail,outcome,address\r\n")
    );
    assert!(
        audit
            .body
            .contains(",olga,session,feed.add,https://example.org/f,"),
        "{}",
        audit.body
    );
    let only = operator
        .get("/api/v1/audit/export?format=json&action=feed.add")
        .await;
    assert_eq!(only.json().as_array().unwrap().len(), 1);
    bench.add_user("vera", Role::Viewer).await;
    let viewer = bench.sign_in("vera").await;
    let answer = viewer.get("/api/v1/audit/export").await;
    answer.is_problem(403, "forbidden");
}

/// Tags may have whatever separates others.
#[tokio::test(flavor = "multi_thread")]
async fn tags_come_back_from_a_file() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    let [alpha, ..] = bench.populate().await;
    let tags = json!({"tags": ["rack 3", "a,b", "plain"]});
    let path = format!("/api/v1/receivers/{alpha}");
    assert_eq!(operator.patch(&path, &tags).await.code, 200);
    let csv = operator.get("/api/v1/receivers/export?tag=rack%203").await;
    assert_eq!(csv.body.lines().count(), 2, "{}", csv.body);
    let wanted = r#",alpha,,"[""rack 3"",""a,b"",""plain""]","#;
    assert!(csv.body.contains(wanted), "{}", csv.body);
}

/// With a channel filter, rungs are those of that channel, as in the list.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_a_channel_has_its_rungs() {
    let bench = Bench::start(bench::TestDatabase::sqlite()).await;
    let operator = bench.operator().await;
    bench.populate().await;
    bench.opened.channels().open("news").await.unwrap();
    let both = bench.admit("both", &["lore", "news"]).await;
    let states = vec![
        bench::state(both, "multicast"),
        StateRow {
            channel: "news".into(),
            ..bench::state(both, "unicast")
        },
    ];
    let batch = Batch {
        states,
        ..Batch::default()
    };
    bench.write(batch).await;
    bench.site.nudge();
    bench
        .until(|site| {
            let all = site.fleet().receiver(both);
            all.is_some_and(|row| row.rung == crate::fleet::Rung::Unicast)
        })
        .await;
    for (channel, rung) in [("lore", "multicast"), ("news", "unicast")] {
        let query = format!("channel={channel}&rung={rung}");
        let list = operator.get(&format!("/api/v1/receivers?{query}")).await;
        let path = format!("/api/v1/receivers/export?format=json&{query}");
        let file = operator.get(&path).await;
        let (list, file) = (list.json(), file.json());
        assert_eq!(list["items"], file, "{channel}");
        assert!(!file.as_array().unwrap().is_empty(), "{channel}");
        assert!(
            file.as_array()
                .unwrap()
                .iter()
                .all(|row| row["rung"] == rung)
        );
    }
}
