//! Channels, feeds and receivers that are changed by others while the source runs.

use std::fs;

use flexicast_tokio::receiver::{Event, ReceiverConfig};
use serde_json::Value;
use store::{
    AuthenticationType, ChannelSettings, FecSetting, FeedSettings, Origin, Retention, Store,
};
use uuid::Uuid;

use crate::receiving::{Listening, configuration};
use crate::running::{Feed, Running, SOON, source};

async fn open(data: &std::path::Path) -> Store {
    store::open_file(&data.join("flexfeed.db")).await.unwrap()
}

fn status(running: &Running) -> Value {
    serde_json::from_str(&running.page("/status.json").1).unwrap()
}

fn feed_settings(feed: &Feed) -> FeedSettings {
    FeedSettings {
        url: feed.url.clone(),
        address: feed.url.clone(),
        local: true,
        min_interval_ms: Some(100),
        max_interval_ms: Some(100),
        title: None,
        origin: Origin::Managed,
    }
}

fn channel_settings() -> ChannelSettings {
    ChannelSettings {
        groups: Some(String::new()),
        rate_bps: None,
        private: false,
        packet_authentication: AuthenticationType::default(),
        fec: FecSetting::default(),
        deadline_ms: None,
        keep: Retention::default(),
        origin: Origin::Managed,
    }
}

/// Reads until the receiver has this update of this channel.
async fn has(receiver: &mut Listening, channel: &str, seq: u64) {
    let wanted = (channel.to_owned(), seq);
    if receiver.updates.contains(&wanted) {
        return;
    }
    let is = |event: &Event| match event {
        Event::Update {
            channel: of,
            seq: is,
            ..
        } => (*of == channel && *is == seq).then_some(()),
        _ => None,
    };
    receiver
        .until(&format!("update {seq} of {channel}"), is)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_and_feeds_come_change_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second, other) = (Feed::with(2), Feed::with(1), Feed::with(3));
    let mut running = Running::start(source(folder.path(), &first));
    let store = open(folder.path()).await;
    let mut receiver = Listening::start(configuration(folder.path()));
    has(&mut receiver, "lore", 2).await;

    // A second feed of the same channel.
    store
        .feeds()
        .put("lore", &feed_settings(&second))
        .await
        .unwrap();
    has(&mut receiver, "lore", 3).await;
    second.grow(1);
    has(&mut receiver, "lore", 4).await;
    running.until("both are shown", |running| {
        status(running)["channels"][0]["feeds"]
            .as_array()
            .unwrap()
            .len()
            == 2
    });

    // A second channel, which newcomers can have, and the link says so.
    store
        .channels()
        .put("net", &channel_settings())
        .await
        .unwrap();
    store
        .feeds()
        .put("net", &feed_settings(&other))
        .await
        .unwrap();
    running.until("it is in the link", |_| {
        let link = fs::read_to_string(folder.path().join("enrolment-link")).unwrap();
        link.trim().ends_with("&ch=lore&ch=net")
    });
    running.until("it is served", |running| {
        let channel = status(running)["channels"][1].clone();
        channel["role"] == "active" && channel["flow"]["fec"] == "adaptive"
    });
    let mut both = Listening::start(ReceiverConfig {
        receiver_id: Uuid::new_v4(),
        credential: [9; 32],
        ..configuration(folder.path())
    });
    has(&mut both, "net", 3).await;
    has(&mut both, "lore", 4).await;

    // A feed that is removed brings nothing more.
    assert!(
        store
            .feeds()
            .set_active("lore", &second.url, false)
            .await
            .unwrap()
    );
    running.until("it is gone", |running| {
        status(running)["channels"][0]["feeds"]
            .as_array()
            .unwrap()
            .len()
            == 1
    });
    second.grow(5);
    first.grow(1);
    has(&mut receiver, "lore", 5).await;

    // Another flow: receivers come back for it and miss nothing.
    let private = ChannelSettings {
        private: true,
        packet_authentication: AuthenticationType::Tags,
        fec: "off".parse().unwrap(),
        keep: Retention {
            count: Some(2),
            age_ms: None,
        },
        ..channel_settings()
    };
    store.channels().put("net", &private).await.unwrap();
    running.until("it is changed", |running| {
        let channel = status(running)["channels"][1].clone();
        let flow = &channel["flow"];
        let uncoded = flow["id"].is_string() && flow["fec"].is_null();
        channel["private"] == true && channel["first"] == 2 && uncoded
    });
    other.grow(1);
    has(&mut both, "net", 4).await;

    // The removal of a channel is announced.
    assert!(store.channels().set_active("net", false).await.unwrap());
    both.until("the refusal", |event| match event {
        Event::Refused { reason, .. } => {
            assert!(reason.contains("net"), "{reason}");
            Some(())
        }
        _ => None,
    })
    .await;
    first.grow(1);
    has(&mut receiver, "lore", 6).await;
    assert_eq!(receiver.seqs, (1..=6).collect::<Vec<_>>());
    let net: Vec<u64> = both
        .updates
        .iter()
        .filter(|(channel, _)| channel == "net")
        .map(|(_, seq)| *seq)
        .collect();
    assert_eq!(net, [1, 2, 3, 4]);
    let (code, log, _) = running.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_without_settings_starts_and_shows_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = crate::running::program();
    command
        .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"])
        .arg(folder.path());
    let mut running = Running::start(command);
    running.until("it says what to do", |running| {
        running.log().contains("flexfeed-source channel add")
    });
    let page = running.page("/readyz").1;
    assert!(page.contains("flexfeed-source channel add"), "{page}");
    let store = open(folder.path()).await;
    let feed = Feed::with(2);
    store
        .channels()
        .put("news", &channel_settings())
        .await
        .unwrap();
    running.until("it is served", |running| {
        running
            .page("/readyz")
            .1
            .contains("flexfeed-source feed add news")
    });
    store
        .feeds()
        .put("news", &feed_settings(&feed))
        .await
        .unwrap();
    running.until("stored", |running| status(running)["head"] == 2);
    running.until("the link is there", |_| {
        folder.path().join("enrolment-link").exists()
    });
    let mut receiver = Listening::start(configuration(folder.path()));
    receiver.update(2).await;
    running.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_are_not_given_any_more_go() {
    let folder = tempfile::tempdir().unwrap();
    let (lore, net) = (Feed::with(1), Feed::with(1));
    let mut command = source(folder.path(), &lore);
    command.args(["--channel-spec", &format!("net,feed={}", net.url)]);
    let mut running = Running::start(command);
    let names = |running: &Running| {
        let page = status(running);
        let channels = page["channels"].as_array().unwrap().clone();
        let names: Vec<String> = channels
            .iter()
            .map(|channel| channel["channel"].as_str().unwrap().to_owned())
            .collect();
        names
    };
    running.until("both", |running| names(running) == ["lore", "net"]);
    running.terminate();
    // With another feed, and without the second channel; what a command added stays.
    let store = open(folder.path()).await;
    store
        .channels()
        .put("own", &channel_settings())
        .await
        .unwrap();
    let other = Feed::with(1);
    let mut running = Running::start(source(folder.path(), &other));
    running.until("changed", |running| names(running) == ["lore", "own"]);
    let feeds = status(&running)["channels"][0]["feeds"].clone();
    assert_eq!(feeds.as_array().unwrap().len(), 1);
    assert_eq!(feeds[0]["url"], other.url);
    running.terminate();
}

async fn a_revoked_receiver_gets_nothing_more(fault: Option<&str>) {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(2);
    let mut command = source(folder.path(), &feed);
    if let Some(fault) = fault {
        command.env("FLEXFEED_FAULTS", fault);
    }
    let mut running = Running::start(command);
    let store = open(folder.path()).await;
    let good = configuration(folder.path());
    let bad = ReceiverConfig {
        receiver_id: Uuid::new_v4(),
        credential: [8; 32],
        name: "bad".into(),
        ..good.clone()
    };
    let (mut good, mut kept) = (Listening::start(good), bad.clone());
    let mut bad = Listening::start(bad);
    if fault.is_some() {
        // The receiver stays connected: there are no pauses between attempts to wait for.
        bad.patience = SOON;
    }
    good.update(2).await;
    bad.update(2).await;
    assert!(store.receivers().revoke(kept.receiver_id).await.unwrap());
    bad.until("it is disconnected with the reason", |event| match event {
        Event::Refused { fatal, reason, .. } => {
            assert!(*fatal && reason.contains("revoked"), "{reason}");
            Some(())
        }
        _ => None,
    })
    .await;
    feed.grow(3);
    good.update(5).await;
    running.until("one is left", |running| {
        status(running)["receivers"].as_array().unwrap().len() == 1
    });
    assert_eq!(bad.seqs, [1, 2]);
    // Nor with the link once more.
    kept.name = "again".into();
    let mut again = Listening::start(kept.clone());
    again
        .until("the refusal", |event| match event {
            Event::Refused { fatal, .. } => fatal.then_some(()),
            Event::Welcome { .. } => panic!("it is served"),
            _ => None,
        })
        .await;
    // Another credential for a known id is another receiver's.
    let mut thief = Listening::start(ReceiverConfig {
        credential: [7; 32],
        receiver_id: store.receivers().list().await.unwrap()[0].id,
        ..kept
    });
    thief
        .until("the refusal", |event| match event {
            Event::Refused { reason, .. } => {
                assert!(
                    reason.contains("data folder") || reason.contains("revoked"),
                    "{reason}"
                );
                Some(())
            }
            Event::Welcome { .. } => panic!("it is served"),
            _ => None,
        })
        .await;
    let (code, log, _) = running.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_receivers_are_put_out_and_stay_out() {
    a_revoked_receiver_gets_nothing_more(None).await;
}

#[cfg(feature = "fault-injection")]
#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "not in time: it is disconnected with the reason")]
async fn a_source_that_serves_revoked_receivers_is_noticed() {
    a_revoked_receiver_gets_nothing_more(Some("revocation-off")).await;
}
