//! The key that signs updates: pinned in links, replaced, and lost.

use std::fs;

use flexicast_tokio::receiver::{Event, ReceiverConfig};
use kit::ports;
use serde_json::json;
use uuid::Uuid;

use crate::receiving::{Listening, configuration};
use crate::running::{Feed, Running, source_at};
use crate::site::Site;

/// A source whose key is replaced, with a receiver that pins the first key.
#[tokio::test(flavor = "multi_thread")]
async fn receivers_follow_a_rotated_key_and_stop_at_a_stranger() {
    let site = Site::new(None);
    let feed = Feed::with(3);
    let listen = ports::free().to_string();
    let start = || Running::start(source_at(&listen, &site.data(), &feed));
    let key_of = |config: &ReceiverConfig| config.pinned_keys[0].to_string();
    let shown = || site.json(&["key", "show"]);

    let running = start();
    let first = configuration(&site.data());
    let mut old = Listening::start(first.clone());
    old.update(3).await;
    assert_eq!(shown()["key"], json!(key_of(&first)));
    assert_eq!(shown()["keys"][0]["state"], "signs");

    // While it runs, the old key goes on.
    let rotated = site.json(&["key", "rotate"]);
    assert_eq!(
        (&rotated["before"], &rotated["vouched_for"]),
        (&json!(key_of(&first)), &json!(true))
    );
    feed.grow(1);
    old.update(4).await;
    assert_eq!(shown()["keys"][1]["state"], "not used yet");
    running.terminate();
    let running = start();
    feed.grow(1);
    old.update(5).await;
    assert_eq!(old.seqs, (1..=5).collect::<Vec<_>>());
    let states = shown()["keys"].clone();
    assert_eq!(
        (&states[0]["state"], &states[1]["state"]),
        (&json!("replaced"), &json!("signs"))
    );

    // A new link pins the new key, by which the older updates are proved, too.
    let second = configuration(&site.data());
    assert_eq!(json!(key_of(&second)), rotated["key"]);
    let mut new = Listening::start(ReceiverConfig {
        receiver_id: Uuid::new_v4(),
        ..second.clone()
    });
    new.update(5).await;
    assert_eq!(new.seqs, (1..=5).collect::<Vec<_>>());
    running.terminate();

    // The key is lost.
    let file = site.data().join("signing.key");
    fs::remove_file(&file).unwrap();
    let said = site.fails(1, &["key", "rotate"]);
    assert!(said.contains("--lost"), "{said}");
    let text = site.text(&["key", "rotate", "--lost"]);
    assert!(text.contains("auth-failed"), "{text}");
    assert_eq!(fs::read(&file).unwrap().len(), 32);
    let kept = fs::read(site.data().join("signing.key.old")).unwrap();
    assert_eq!(kept.len(), 32, "of the rotation before");
    let said = site.fails(2, &["key", "rotate", "--lost"]);
    assert!(said.contains("without --lost"), "{said}");
    let running = start();
    feed.grow(1);
    for receiver in [&mut old, &mut new] {
        let failed = |event: &Event| match event {
            Event::AuthenticationFailed { failure, .. } => Some(failure.seq),
            Event::Update { seq: 6.., .. } => panic!("an update by a strange key"),
            _ => None,
        };
        assert_eq!(receiver.until("the failure", failed).await, 6);
    }
    // Those with a new link go on, and so do those that pin nothing.
    for config in [
        configuration(&site.data()),
        ReceiverConfig {
            pinned_keys: Vec::new(),
            ..first
        },
    ] {
        let mut receiver = Listening::start(ReceiverConfig {
            receiver_id: Uuid::new_v4(),
            ..config
        });
        receiver.update(6).await;
        assert_eq!(receiver.seqs, (1..=6).collect::<Vec<_>>());
    }
    running.terminate();
}

/// For a Secret: the file of the present key stays.
#[test]
fn a_new_key_can_be_written_elsewhere() {
    let site = Site::new(None);
    let running = site.source(&Feed::with(1));
    running.terminate();
    let file = site.data().join("signing.key");
    let before = fs::read(&file).unwrap();
    let out = site.file("next.key");
    let path = out.to_str().unwrap();
    let rotated = site.json(&["key", "rotate", "--out", path]);
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_ne!(fs::read(&out).unwrap(), before);
    let shown = site.json(&["key", "show", "--signing-key", path]);
    assert_eq!(shown["key"], rotated["key"]);
    let nowhere = site.file("no/next.key");
    let said = site.fails(1, &["key", "rotate", "--out", nowhere.to_str().unwrap()]);
    assert!(said.contains("no/next.key"), "{said}");
}

/// A restored database may be published with any key, but receivers that pin it need its word for
/// what others signed.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_another_key_can_vouch_for_the_old_one() {
    let (before, after) = (Site::new(None), Site::new(None));
    let feed = Feed::with(1);
    before.source(&feed).terminate();
    let backup = before.file("backup");
    let file = backup.to_str().unwrap();
    before.text(&["backup", file]);
    fs::create_dir_all(after.data()).unwrap();
    after.text(&["restore", file]);
    let listen = ports::free().to_string();
    let start = || Running::start(source_at(&listen, &after.data(), &feed));
    let running = start();
    assert_eq!(configuration(&after.data()).pinned_keys, []);
    let old = before.json(&["key", "show"])["key"].clone();
    let vouched = after.json(&["key", "vouch"]);
    assert_eq!(vouched["vouched_for"], json!([old]));
    assert_eq!(after.json(&["key", "vouch"])["vouched_for"], json!([]));
    let said = before.fails(1, &["key", "vouch", "--signing-key", file]);
    assert!(said.contains("no signing key"), "{said}");
    running.terminate();
    let running = start();
    let config = configuration(&after.data());
    assert_eq!(json!(config.pinned_keys[0].to_string()), vouched["key"]);
    let mut receiver = Listening::start(config);
    receiver.update(1).await;
    running.terminate();
}

/// A source of a version before signatures has the channel for a while, and signs nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_older_source_stored_is_signed_by_the_next_one() {
    const OLDER: usize = 150;
    let site = Site::new(None);
    let feed = Feed::with(3);
    let listen = ports::free().to_string();
    let start = || Running::start(source_at(&listen, &site.data(), &feed));
    let running = start();
    let mut pinned = Listening::start(configuration(&site.data()));
    pinned.update(3).await;
    running.terminate();

    let store = store::open_file(&site.data().join("flexfeed.db"))
        .await
        .unwrap();
    let signed = store.updates().read("lore", 3, 1, 1).await.unwrap();
    let drafts: Vec<_> = (0..OLDER)
        .map(|index| store::Draft {
            entry_id: format!("urn:x-older:{index}"),
            hash: [7; 32],
            kind: store::Kind::Created,
            index,
        })
        .collect();
    let channel = store.channels().open("lore").await.unwrap();
    let url = feed.url.clone();
    let encode = |seq: u64, draft: &store::Draft| {
        let entry = ::feed::Entry {
            id: draft.entry_id.clone(),
            ..::feed::Entry::default()
        };
        let now = jiff::Timestamp::now();
        ::feed::payload::encode(
            &entry,
            ::feed::Kind::Created,
            &url,
            channel.incarnation,
            seq,
            now,
        )
    };
    let updates = store.updates();
    updates
        .append("lore", &url, None, &drafts, None, &encode)
        .await
        .unwrap();

    let running = start();
    feed.grow(1);
    let last = 3 + OLDER as u64 + 1;
    pinned.update(last).await;
    assert_eq!(pinned.seqs, (1..=last).collect::<Vec<_>>());
    let all = store
        .updates()
        .read("lore", 1, 1000, usize::MAX)
        .await
        .unwrap();
    for update in &all {
        let header = signing::header_len(&update.encoded);
        assert!(header.is_some(), "update {} is not signed", update.seq);
    }
    assert_eq!(all[2], signed[0], "what was signed stays as it is");
    let log = running.log();
    assert!(log.contains("signing what an older source stored"), "{log}");
    assert!(log.contains(&format!("updates={OLDER}")), "{log}");
    running.terminate();
}
