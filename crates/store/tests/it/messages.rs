//! Messages of live channels: queued by publishers, taken once by the source that sends them.

use std::collections::BTreeSet;
use std::time::Duration;

use store::{ChannelSettings, Fence, Holder, LeaseOutcome, Store, StoreError};
use uuid::Uuid;

use crate::migrations::Raw;
use crate::site::{Site, on_both};

on_both! {
    messages_are_taken_once_and_in_order,
    only_live_channels_have_messages,
    a_message_is_not_sent_twice,
    two_takers_get_each_message_once,
    only_the_holder_of_the_lease_takes_messages,
    expired_messages_are_counted_and_not_taken,
    expired_messages_take_no_room,
    the_queue_of_a_channel_has_an_end,
    messages_are_in_no_backup_and_go_with_their_channel,
}

/// Makes a channel live.
pub async fn live(opened: &Store, channel: &str, deadline_ms: u64) {
    let settings = ChannelSettings {
        deadline_ms: Some(deadline_ms),
        ..ChannelSettings::default()
    };
    opened.channels().put(channel, &settings).await.unwrap();
}

/// Makes a live channel, and takes its lease.
async fn lease(opened: &Store, channel: &str) -> Fence {
    live(opened, channel, 60_000).await;
    let holder = Holder {
        id: Uuid::from_u128(1),
        name: "attic".to_owned(),
    };
    let ttl = Duration::from_secs(600);
    match opened.leases().take(channel, &holder, ttl).await.unwrap() {
        LeaseOutcome::Held(lease) => Fence {
            channel: lease.channel,
            fence: lease.fence,
        },
        other => panic!("{other:?}"),
    }
}

async fn send(opened: &Store, channel: &str, event_id: &str) {
    let sent = opened.messages().send(channel, event_id, b"x").await;
    assert!(!sent.unwrap().is_repeat, "{event_id}");
}

async fn take(opened: &Store, held: &[Fence]) -> Vec<String> {
    let taken = opened.messages().take(held, 100).await.unwrap();
    assert!(taken.is_sorted_by_key(|message| message.id));
    taken.into_iter().map(|message| message.event_id).collect()
}

/// Lets so many milliseconds pass for all messages.
async fn age(raw: &mut Raw, ms: u32) {
    raw.run(&format!(
        "UPDATE messages SET created_at = created_at - {ms}, expires_at = expires_at - {ms},
             taken_at = taken_at - {ms}"
    ))
    .await;
}

async fn messages_are_taken_once_and_in_order(site: Site) {
    let opened = site.open().await;
    let held = [lease(&opened, "lore").await, lease(&opened, "news").await];
    assert!(take(&opened, &held).await.is_empty());
    let payload = vec![7; 70_000];
    let sent = opened.messages().send("lore", "a", &payload).await.unwrap();
    send(&opened, "news", "b").await;
    send(&opened, "lore", "c").await;
    let first = opened.messages().take(&held, 1).await.unwrap().remove(0);
    assert_eq!((&*first.channel, &*first.event_id), ("lore", "a"));
    assert_eq!(first.payload, payload);
    assert_eq!(first.expires_ms, sent.expires_ms);
    // Both were read from a clock that goes on.
    let whole = first.expires_ms - first.created_ms;
    assert!((60_000..60_100).contains(&whole), "{whole}");
    assert!((1..=60_000).contains(&first.left_ms), "{}", first.left_ms);
    assert_eq!(take(&opened, &held).await, ["b", "c"]);
    assert!(take(&opened, &held).await.is_empty());
    let mut raw = Raw::to(&site.url).await;
    let kept = "SELECT COUNT(*) FROM messages WHERE LENGTH(payload) > 0";
    assert_eq!(raw.count(kept).await, 0);
    raw.close().await;
    assert!(
        opened
            .messages()
            .take_expired(&held)
            .await
            .unwrap()
            .is_empty()
    );
}

async fn only_live_channels_have_messages(site: Site) {
    let opened = site.lore().await;
    let sent = async |channel: &str, id: &str, payload: &[u8]| {
        let sent = opened.messages().send(channel, id, payload).await;
        sent.unwrap_err()
    };
    let error = sent("lore", "a", b"").await;
    assert!(matches!(error, StoreError::NotLive { .. }), "{error:?}");
    assert!(error.to_string().contains("set lore --deadline"), "{error}");
    let error = sent("none", "a", b"").await;
    assert!(
        matches!(error, StoreError::UnknownChannel { .. }),
        "{error:?}"
    );
    live(&opened, "lore", 60_000).await;
    let error = sent("lore", "", b"").await;
    assert!(matches!(error, StoreError::Empty { .. }), "{error:?}");
    let error = sent("lore", &"x".repeat(129), b"").await;
    assert!(
        matches!(error, StoreError::TooLong { limit: 128, .. }),
        "{error:?}"
    );
    let error = sent("lore", "a", &[0; 70_001]).await;
    assert!(
        matches!(error, StoreError::TooLong { limit: 70_000, .. }),
        "{error:?}"
    );
    assert!(opened.channels().set_active("lore", false).await.unwrap());
    let error = sent("lore", "a", b"").await;
    assert!(
        matches!(error, StoreError::UnknownChannel { .. }),
        "{error:?}"
    );
}

async fn a_message_is_not_sent_twice(site: Site) {
    let opened = site.open().await;
    let held = [lease(&opened, "lore").await];
    live(&opened, "news", 60_000).await;
    let first = opened.messages().send("lore", "a", b"1").await.unwrap();
    let again = opened.messages().send("lore", "a", b"2").await.unwrap();
    assert!(!first.is_repeat && again.is_repeat);
    assert_eq!(first.expires_ms, again.expires_ms);
    // Ids are those of one channel.
    send(&opened, "news", "a").await;
    let taken = opened.messages().take(&held, 9).await.unwrap();
    assert_eq!((taken.len(), &*taken[0].payload), (1, &b"1"[..]));
    let again = opened.messages().send("lore", "a", b"3").await.unwrap();
    assert!(again.is_repeat);
    let mut raw = Raw::to(&site.url).await;
    age(&mut raw, 590_000).await;
    let again = opened.messages().send("lore", "a", b"4").await.unwrap();
    assert!(again.is_repeat);
    // That of `news`, which no source takes, expired later than the other was taken.
    age(&mut raw, 11_000).await;
    assert!(take(&opened, &held).await.is_empty());
    assert_eq!(raw.count("SELECT COUNT(*) FROM messages").await, 1);
    send(&opened, "lore", "a").await;
    assert_eq!(take(&opened, &held).await, ["a"]);
    age(&mut raw, 60_000).await;
    send(&opened, "lore", "b").await;
    assert_eq!(raw.count("SELECT COUNT(*) FROM messages").await, 2);
    raw.close().await;
}

async fn two_takers_get_each_message_once(site: Site) {
    let opened = site.open().await;
    let held = lease(&opened, "lore").await;
    let sent: BTreeSet<String> = (0..60).map(|n| n.to_string()).collect();
    for event_id in &sent {
        send(&opened, "lore", event_id).await;
    }
    let mut takers = Vec::new();
    for _ in 0..3 {
        let (opened, held) = (site.open().await, [held.clone()]);
        takers.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let some = opened.messages().take(&held, 7).await.unwrap();
                assert!(some.len() <= 7);
                if some.is_empty() {
                    return mine;
                }
                mine.extend(some.into_iter().map(|message| message.event_id));
            }
        }));
    }
    let mut taken = Vec::new();
    for taker in takers {
        taken.extend(taker.await.unwrap());
    }
    // Some may have found the rest in another's hands and have gone; nothing is left.
    taken.extend(take(&opened, &[held]).await);
    assert_eq!(taken.len(), 60);
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), sent);
}

async fn only_the_holder_of_the_lease_takes_messages(site: Site) {
    let opened = site.open().await;
    let (lore, news) = (lease(&opened, "lore").await, lease(&opened, "news").await);
    send(&opened, "lore", "a").await;
    send(&opened, "news", "b").await;
    let old = Fence {
        fence: lore.fence - 1,
        ..lore.clone()
    };
    let none = Fence {
        channel: "none".to_owned(),
        fence: 0,
    };
    assert!(take(&opened, &[]).await.is_empty());
    assert!(take(&opened, &[old.clone(), none]).await.is_empty());
    assert_eq!(take(&opened, &[old.clone(), news]).await, ["b"]);
    let mut raw = Raw::to(&site.url).await;
    age(&mut raw, 60_100).await;
    raw.close().await;
    let expired = async |held: Fence| {
        let held = [held];
        opened.messages().take_expired(&held).await.unwrap()
    };
    assert!(expired(old).await.is_empty());
    assert_eq!(expired(lore).await, [("lore".to_owned(), 1)]);
}

async fn expired_messages_are_counted_and_not_taken(site: Site) {
    let opened = site.open().await;
    let held = [lease(&opened, "lore").await, lease(&opened, "news").await];
    for event_id in ["a", "b"] {
        send(&opened, "lore", event_id).await;
    }
    let mut raw = Raw::to(&site.url).await;
    age(&mut raw, 60_100).await;
    send(&opened, "lore", "c").await;
    let kept = "SELECT COUNT(*) FROM messages WHERE LENGTH(payload) > 0";
    assert_eq!(raw.count(kept).await, 1, "those that expired are blank");
    assert_eq!(take(&opened, &held).await, ["c"]);
    let expired = async || opened.messages().take_expired(&held).await.unwrap();
    assert_eq!(expired().await, [("lore".to_owned(), 2)]);
    assert!(expired().await.is_empty(), "each once");
    // An id stays known.
    let again = opened.messages().send("lore", "a", b"x").await.unwrap();
    assert!(again.is_repeat);
    // What no source counts for a minute is not counted.
    send(&opened, "lore", "d").await;
    age(&mut raw, 121_000).await;
    send(&opened, "lore", "e").await;
    assert!(expired().await.is_empty());
    raw.close().await;
}

async fn expired_messages_take_no_room(site: Site) {
    let opened = site.open().await;
    live(&opened, "lore", 10).await;
    for n in 0..50 {
        let sent = opened
            .messages()
            .send("lore", &n.to_string(), &[1; 60_000])
            .await;
        assert!(!sent.unwrap().is_repeat);
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    send(&opened, "lore", "last").await;
    let mut raw = Raw::to(&site.url).await;
    let kept = "SELECT COUNT(*) FROM messages WHERE LENGTH(payload) > 1";
    assert_eq!(raw.count(kept).await, 0);
    raw.close().await;
}

async fn the_queue_of_a_channel_has_an_end(site: Site) {
    let opened = site.open().await;
    let held = [lease(&opened, "lore").await];
    live(&opened, "news", 60_000).await;
    send(&opened, "lore", "first").await;
    let mut raw = Raw::to(&site.url).await;
    let mut rows = String::new();
    for n in 1..1000 {
        rows.push_str(&format!(
            "((SELECT id FROM channels WHERE name = 'lore'), '{n}', \
             (SELECT MAX(created_at) FROM messages), (SELECT MAX(expires_at) FROM messages), ''),"
        ));
    }
    rows.pop();
    raw.run(&format!(
        "INSERT INTO messages (channel_id, event_id, created_at, expires_at, payload) VALUES {rows}"
    ))
    .await;
    let error = opened
        .messages()
        .send("lore", "more", b"x")
        .await
        .unwrap_err();
    assert!(
        matches!(error, StoreError::TooMany { limit: 1000, .. }),
        "{error:?}"
    );
    // One that was sent before is known all the same, and other channels have their own room.
    let again = opened.messages().send("lore", "7", b"x").await.unwrap();
    assert!(again.is_repeat);
    send(&opened, "news", "a").await;
    assert_eq!(take(&opened, &held).await.len(), 100);
    send(&opened, "lore", "more").await;
    age(&mut raw, 60_100).await;
    send(&opened, "lore", "again").await;
    raw.close().await;
}

async fn messages_are_in_no_backup_and_go_with_their_channel(site: Site) {
    let opened = site.open().await;
    lease(&opened, "lore").await;
    send(&opened, "lore", "a").await;
    let archive = site.path("archive");
    opened.backup(&archive).await.unwrap();
    let other = site.another();
    store::restore(&other.url, &archive, &mut |_| ())
        .await
        .unwrap();
    for (url, expected) in [(&other.url, 0), (&site.url, 1)] {
        let mut raw = Raw::to(url).await;
        assert_eq!(raw.count("SELECT COUNT(*) FROM messages").await, expected);
        raw.close().await;
    }
    assert!(opened.channels().remove("lore").await.unwrap());
    let mut raw = Raw::to(&site.url).await;
    assert_eq!(raw.count("SELECT COUNT(*) FROM messages").await, 0);
    raw.close().await;
}
