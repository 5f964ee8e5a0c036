#![allow(clippy::unwrap_used)]
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::add::{NewFeed, add};
use super::change::{FeedPatch, edit};
use super::check::read_address;
use super::id_of;
use crate::config::SiteSettings;
use crate::site::{Parts, Site};

const URL: &str = "https://example.org/feed";

/// A console without requests, with a channel; and its database.
async fn site() -> (tempfile::TempDir, Site) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/console.db", folder.path().display());
    let store = store::open(&url).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let site = Site::new(Parts {
        store,
        settings: SiteSettings::default(),
        stop: CancellationToken::new(),
    });
    (folder, site)
}

fn new(title: &str) -> NewFeed {
    NewFeed {
        channel: "lore".to_owned(),
        url: URL.to_owned(),
        title: Some(title.to_owned()),
        ..NewFeed::default()
    }
}

#[tokio::test]
async fn concurrent_additions_of_a_feed_make_one() {
    let (_folder, site) = site().await;
    let all: Vec<NewFeed> = (0..8).map(|n| new(&format!("title {n}"))).collect();
    let done = join_all(all.iter().map(|new| add(&site, new))).await;
    let (added, others): (Vec<_>, Vec<_>) = done.into_iter().partition(Result::is_ok);
    assert_eq!(added.len(), 1);
    let codes = others.into_iter().map(|done| done.unwrap_err().status);
    assert!(codes.eq([409; 7]));
    let row = site.store.feeds().get("lore", URL).await.unwrap().unwrap();
    assert_eq!(added.into_iter().next().unwrap().unwrap(), row);
}

/// Between reading and writing, others change and remove it.
#[tokio::test]
async fn concurrent_feed_edits_do_not_overwrite_each_other() {
    let (_folder, site) = site().await;
    let row = add(&site, &new("One")).await.unwrap();
    let title = FeedPatch {
        title: Some("Other".to_owned()),
        ..FeedPatch::default()
    };
    let shortest = FeedPatch {
        min_interval_ms: Some(7_000),
        ..FeedPatch::default()
    };
    let pause = FeedPatch {
        paused: Some(true),
        ..FeedPatch::default()
    };
    for patch in [&title, &shortest] {
        edit(&site, row.clone(), patch).await.unwrap();
    }
    let now = site.store.feeds().get("lore", URL).await.unwrap().unwrap();
    assert_eq!(now.settings.title.as_deref(), Some("Other"));
    assert_eq!(now.settings.min_interval_ms, Some(7_000));
    let off = site.store.feeds().set_active("lore", URL, false).await;
    assert!(off.unwrap());
    for patch in [&title, &pause] {
        let late = FeedPatch {
            title: patch.title.as_ref().map(|_| "Late".to_owned()),
            ..patch.clone()
        };
        let done = edit(&site, row.clone(), &late).await;
        assert_eq!(done.unwrap_err().status, 404);
    }
    let now = site.store.feeds().get("lore", URL).await.unwrap().unwrap();
    assert!(!now.active && !now.paused);
    assert_eq!(now.settings.title.as_deref(), Some("Other"));
}

#[test]
fn addresses_are_shown_without_their_passwords() {
    let (shown, secret) = read_address(" https://u:p@example.org/f#x ").unwrap();
    assert_eq!(shown, "https://example.org/f");
    assert_eq!(secret, "https://u:p@example.org/f");
    let long = format!("https://example.org/{}", "ü".repeat(900));
    for bad in ["", "x", "ftp://example.org/", "file:///etc/passwd", &long] {
        assert!(read_address(bad).is_err(), "{bad}");
    }
}

#[test]
fn ids_are_of_channel_and_address() {
    assert_eq!(id_of("a", "b"), id_of("a", "b"));
    assert_ne!(id_of("a", "b"), id_of("ab", ""));
    assert_eq!(id_of("a", "b").len(), 16);
}
