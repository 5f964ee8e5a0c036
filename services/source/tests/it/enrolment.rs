//! Tokens and receivers through their lives: made and revoked by commands, while the source runs,
//! on both databases.

use flexicast_tokio::receiver::{Event, ReceiverConfig};
use kit::postgres::Postgres;
use serde_json::{Value, json};
use uuid::Uuid;

use super::receiving::{Listening, configuration_of};
use super::running::{Feed, Running};
use super::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite() {
    everything(&Site::new(None)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgresql() {
    let server = Postgres::start().unwrap();
    let url = server.create("enrolment").unwrap();
    everything(&Site::new(Some(url))).await;
}

async fn everything(site: &Site) {
    let feed = Feed::with(1);
    let mut running = site.source(&feed);
    let made = site.json(&["token", "create", "--limit", "1", "--label", "one"]);
    let link = made["link"].as_str().unwrap();
    let number = made["token"]["id"].as_i64().unwrap();
    let of_token = |site: &Site| {
        let list = site.json(&["token", "list"]);
        let tokens = list["tokens"].as_array().unwrap().clone();
        tokens
            .into_iter()
            .find(|token| token["id"] == number)
            .unwrap()
    };
    assert_eq!(of_token(site)["state"], "valid");

    // The first one is let in, and uses it up.
    let first = configuration_of(link);
    let mut receiver = Listening::start(first.clone());
    receiver.update(1).await;
    let list = site.json(&["receiver", "list"]);
    let [row] = list["receivers"].as_array().unwrap().as_slice() else {
        panic!("{list}");
    };
    assert_eq!(row["id"], first.receiver_id.to_string());
    assert_eq!(
        (&row["name"], &row["software"]),
        (&json!("r1"), &json!("test"))
    );
    assert_eq!(
        (&row["token_id"], &row["channels"]),
        (&json!(number), &json!(["lore"]))
    );
    assert!(
        row["address"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{row}"
    );
    assert!(
        row["enrolled_ms"].is_i64() && row["seen_ms"].is_i64(),
        "{row}"
    );
    assert_eq!(row["revoked_ms"], Value::Null);
    assert!(site.text(&["receiver", "list"]).contains("enrolled"));
    let token = of_token(site);
    assert_eq!(
        (&token["state"], &token["uses"]),
        (&json!("used-up"), &json!(1))
    );

    let second = ReceiverConfig {
        receiver_id: Uuid::new_v4(),
        credential: [9; 32],
        ..first.clone()
    };
    let reason = refusal(second.clone()).await;
    assert!(reason.contains("as many receivers"), "{reason}");
    assert!(reason.contains("has lost its data folder"), "{reason}");
    counted(&mut running, "used-up");

    // Its own credential is enough from now on: another token's end is not its own.
    site.json(&["token", "revoke", &number.to_string()]);
    // The receiver said goodbye before it returns.
    receiver.handle.shutdown().await;
    let mut receiver = Listening::start(first.clone());
    feed.grow(1);
    receiver.update(2).await;
    counted(&mut running, "known");

    // The name is enough to say which, but the beginning of another id is not.
    let is_f = row["id"].as_str().unwrap().starts_with('f');
    let other = if is_f { "0000" } else { "ffff" };
    assert!(
        site.fails(1, &["receiver", "revoke", other])
            .contains("receiver list")
    );
    let revoked = site.json(&["receiver", "revoke", "r1"]);
    assert!(revoked["receiver"]["revoked_ms"].is_i64(), "{revoked}");
    let ended = |event: &Event| match event {
        Event::Disconnected { .. } => Some(()),
        Event::Refused { .. } => Some(()),
        _ => None,
    };
    receiver.until("the end of the revoked one", ended).await;
    receiver.handle.shutdown().await;
    assert!(refusal(first.clone()).await.contains("revoked"));
    assert!(site.text(&["receiver", "list"]).contains("revoked"));

    // Forgotten, it may come again, but not with the token that is used up and revoked.
    let id = first.receiver_id.to_string();
    assert!(
        site.fails(2, &["receiver", "forget", &id[..8]])
            .contains("--yes")
    );
    let forgotten = site.json(&["receiver", "forget", &id[..8], "--yes"]);
    assert_eq!(forgotten, json!({"forgotten": id}));
    assert_eq!(site.json(&["receiver", "list"]), json!({"receivers": []}));
    assert!(refusal(first.clone()).await.contains("revoked"));
    let made = site.json(&["token", "create", "--public", "--expires", "1d"]);
    let again = configuration_of(made["link"].as_str().unwrap());
    let mut receiver = Listening::start(ReceiverConfig {
        receiver_id: first.receiver_id,
        credential: first.credential,
        ..again
    });
    receiver.update(2).await;
    counted(&mut running, "enrolled");

    // A forgotten receiver is disconnected, too.
    site.json(&["receiver", "forget", &id, "--yes"]);
    receiver.until("the end of the forgotten one", ended).await;
    let (status, log, _) = running.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Returns the refusal of a receiver.
async fn refusal(config: ReceiverConfig) -> String {
    let mut receiver = Listening::start(config);
    let refused = |event: &Event| match event {
        Event::Refused { reason, .. } => Some(reason.clone()),
        Event::Welcome { .. } => panic!("it was let in"),
        _ => None,
    };
    receiver.until("the refusal", refused).await
}

/// Counted as such.
fn counted(running: &mut Running, result: &str) {
    let name = format!("flexfeed_source_admissions_total{{result=\"{result}\"}} ");
    running.until(result, |running| {
        let (_, text) = running.page("/metrics");
        let line = text.lines().find(|line| line.starts_with(&name));
        line.is_some_and(|line| !line.ends_with(" 0"))
    });
}
