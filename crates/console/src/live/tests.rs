#![allow(clippy::unwrap_used)]
//! Watchers do not delay one another.

use std::cell::Cell;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;

use super::hub::{Hub, TopicKey, notify_all};
use crate::api::overview::Overview;
use crate::config::SiteSettings;
use crate::fleet::{Page, PageStart, Selection};
use crate::live::events::Update;
use crate::site::{Parts, Site};

fn key(offset: usize) -> TopicKey {
    TopicKey {
        list: Some((Selection::default(), PageStart::Offset(offset), 10)),
    }
}

/// A long list takes a while; watchers of other topics go on.
#[test]
fn topics_start_without_blocking_others() {
    let hub = Arc::new(Hub::default());
    let begun = hub.begin(key(0), 1, || {
        let (done, waiting) = mpsc::sync_channel(1);
        let other = Arc::clone(&hub);
        std::thread::spawn(move || {
            let begun = other.begin(key(1), 2, Page::default);
            let _ = done.send(begun.is_ok() && other.topics() == 1);
        });
        let other = waiting.recv_timeout(Duration::from_secs(60));
        assert_eq!(other, Ok(true));
        Page::default()
    });
    assert!(begun.is_ok());
    assert_eq!(hub.topics(), 2);
    // Two watchers that start the same topic at once share it.
    let begun = hub.begin(key(2), 1, || {
        assert!(hub.begin(key(2), 2, Page::default).is_ok());
        Page::default()
    });
    assert!(begun.is_ok());
    assert_eq!(hub.topics(), 3);
}

/// A console without requests, and its database.
async fn empty() -> (tempfile::TempDir, Site) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/console.db", folder.path().display());
    let store = store::open(&url).await.unwrap();
    let site = Site::new(Parts {
        store,
        settings: SiteSettings::default(),
        stop: CancellationToken::new(),
    });
    (folder, site)
}

/// Else a page that nothing happens on would say for hours how it was when something did.
#[tokio::test]
async fn unchanged_state_is_confirmed_at_intervals() {
    let (_folder, site) = empty().await;
    let overview = Overview::of(&site);
    let at = |ms: Option<i64>| Overview {
        as_of_ms: ms,
        ..overview.clone()
    };
    let sent = at(Some(1_000_000));
    assert!(sent.is_like(&at(Some(1_014_000))), "not each second");
    assert!(!sent.is_like(&at(Some(1_015_000))));
    assert!(!sent.is_like(&at(Some(900_000))), "the clock was set back");
    assert!(!at(None).is_like(&sent), "now something is known");
    assert!(at(None).is_like(&at(None)));
}

/// Between two topics, everything else has its turn.
#[tokio::test]
async fn requests_continue_during_updates() {
    const TOPICS: usize = 50;
    let (_folder, site) = empty().await;
    let topics: Vec<_> = (0..TOPICS)
        .zip(0..)
        .map(|(n, user)| site.hub.begin(key(n), user, Page::default).unwrap())
        .collect();
    let latest = Update {
        feeds_gone: vec!["a feed".to_owned()],
        ..Update::default()
    };
    let (sent, turns) = (Cell::new(false), Cell::new(0));
    let telling = async {
        notify_all(&topics, &site, &latest).await;
        sent.set(true);
    };
    let asking = async {
        while !sent.get() {
            turns.set(turns.get() + 1);
            yield_now().await;
        }
    };
    tokio::join!(telling, asking);
    assert!(turns.get() >= TOPICS, "{} turns", turns.get());
    assert!(topics.iter().all(|topic| *topic.latest.borrow() == 1));
}
