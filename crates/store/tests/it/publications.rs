//! Publications: stored by publishers, read in order by the source, and never twice.

use store::{Draft, Kind, NewPublication, Store, StoreError, Topic};

use crate::site::{Site, on_both};

on_both! {
    publications_are_read_in_order,
    an_entry_is_not_published_twice,
    publications_need_an_active_channel,
    the_publications_of_a_channel_have_an_end,
    publications_wake_the_source_and_survive_it,
}

const FEED: &str = "urn:flexfeed:published";

fn publication(entry_id: &str, bytes: usize) -> NewPublication {
    NewPublication {
        entry_id: entry_id.to_owned(),
        payload: vec![7; bytes],
    }
}

async fn add(opened: &Store, channel: &str, ids: &[&str]) -> Vec<bool> {
    let new: Vec<_> = ids.iter().map(|id| publication(id, 3)).collect();
    let added = opened.publications().add(channel, FEED, &new).await;
    added.unwrap()
}

async fn waiting(opened: &Store, limit: usize, bytes: usize) -> Vec<String> {
    let read = opened.publications().waiting("lore", limit, bytes).await;
    let read = read.unwrap();
    assert!(read.is_sorted_by_key(|publication| publication.id));
    read.into_iter().map(|one| one.entry_id).collect()
}

/// Stores an update of an entry, as the source does with a publication.
async fn append(opened: &Store, id: &str) {
    let draft = [Draft {
        entry_id: id.to_owned(),
        hash: [1; 32],
        kind: Kind::Created,
        index: 0,
    }];
    let encode = |_: u64, _: &Draft| b"update".to_vec();
    let updates = opened.updates();
    let stored = updates.append("lore", FEED, None, &draft, None, &encode);
    assert_eq!(stored.await.unwrap().len(), 1);
}

async fn publications_are_read_in_order(site: Site) {
    let opened = site.lore().await;
    assert!(waiting(&opened, 10, 100).await.is_empty());
    assert_eq!(add(&opened, "lore", &["b", "a"]).await, [false, false]);
    assert_eq!(add(&opened, "lore", &["c"]).await, [false]);
    let large = [publication("d", 5000)];
    let added = opened.publications().add("lore", FEED, &large).await;
    assert_eq!(added.unwrap(), [false]);
    assert_eq!(waiting(&opened, 10, 100).await, ["b", "a", "c"]);
    assert_eq!(waiting(&opened, 2, 100).await, ["b", "a"]);
    assert_eq!(waiting(&opened, 10, 1).await, ["b"], "at least one");
    let read = opened
        .publications()
        .waiting("lore", 10, 10_000)
        .await
        .unwrap();
    assert_eq!(
        (read.len(), read[3].payload.as_slice()),
        (4, &[7; 5000][..])
    );
    opened
        .publications()
        .delete("lore", read[1].id)
        .await
        .unwrap();
    assert_eq!(waiting(&opened, 10, 10_000).await, ["c", "d"]);
    // The feed that they belong to is not polled.
    let feed = opened.feeds().get("lore", FEED).await.unwrap().unwrap();
    assert!(!feed.active);
}

async fn an_entry_is_not_published_twice(site: Site) {
    let opened = site.lore().await;
    assert_eq!(
        add(&opened, "lore", &["a", "a", "b"]).await,
        [false, true, false]
    );
    assert_eq!(add(&opened, "lore", &["b", "c"]).await, [true, false]);
    assert_eq!(waiting(&opened, 10, 100).await, ["a", "b", "c"]);
    append(&opened, "a").await;
    let read = opened
        .publications()
        .waiting("lore", 10, 100)
        .await
        .unwrap();
    opened
        .publications()
        .delete("lore", read[2].id)
        .await
        .unwrap();
    // Of an entry that became an update, the hash is known.
    assert_eq!(add(&opened, "lore", &["a", "b"]).await, [true, false]);
    // An id is that of one channel.
    opened
        .channels()
        .put("news", &Default::default())
        .await
        .unwrap();
    assert_eq!(add(&opened, "news", &["a"]).await, [false]);
}

async fn publications_need_an_active_channel(site: Site) {
    let opened = site.lore().await;
    let failure = async |channel: &str, new: NewPublication| {
        let added = opened.publications().add(channel, FEED, &[new]).await;
        added.unwrap_err()
    };
    let error = failure("none", publication("a", 1)).await;
    assert!(
        matches!(error, StoreError::UnknownChannel { .. }),
        "{error:?}"
    );
    let error = failure("lore", publication("", 1)).await;
    assert!(matches!(error, StoreError::Empty { .. }), "{error:?}");
    let error = failure("lore", publication(&"x".repeat(2049), 1)).await;
    assert!(
        matches!(error, StoreError::TooLong { limit: 2048, .. }),
        "{error:?}"
    );
    let error = failure("lore", publication("a", 8_000_001)).await;
    assert!(
        matches!(
            error,
            StoreError::TooLong {
                limit: 8_000_000,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(opened.channels().set_active("lore", false).await.unwrap());
    let error = failure("lore", publication("a", 1)).await;
    assert!(
        matches!(error, StoreError::UnknownChannel { .. }),
        "{error:?}"
    );
}

async fn the_publications_of_a_channel_have_an_end(site: Site) {
    let opened = site.lore().await;
    let mut number = 0;
    let mut many = |count: u32| -> Vec<_> {
        let ids = number..number + count;
        number += count;
        ids.map(|id| publication(&id.to_string(), 1)).collect()
    };
    for _ in 0..10 {
        let all = many(1000);
        opened.publications().add("lore", FEED, &all).await.unwrap();
    }
    let error = opened.publications().add("lore", FEED, &many(1)).await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, StoreError::TooMany { limit: 10_000, .. }),
        "{error:?}"
    );
    // One that is there already needs no room.
    assert_eq!(add(&opened, "lore", &["5"]).await, [true]);
    let first = opened.publications().waiting("lore", 1, 1).await.unwrap();
    opened
        .publications()
        .delete("lore", first[0].id)
        .await
        .unwrap();
    opened
        .publications()
        .add("lore", FEED, &many(1))
        .await
        .unwrap();
}

async fn publications_wake_the_source_and_survive_it(site: Site) {
    let (source, publisher) = (site.lore().await, site.open().await);
    let mut watch = source.watch(Topic::Publications);
    // The first one may be for what was there before.
    tokio::time::timeout(std::time::Duration::from_secs(10), watch.changed())
        .await
        .unwrap();
    add(&publisher, "lore", &["a"]).await;
    tokio::time::timeout(std::time::Duration::from_secs(10), watch.changed())
        .await
        .unwrap();
    source.close().await;
    publisher.close().await;
    assert_eq!(waiting(&site.open().await, 10, 100).await, ["a"]);
}
