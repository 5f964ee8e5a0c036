//! Channels and feeds that are set up, changed, switched off and removed; polls and gaps.

use std::collections::BTreeSet;

use store::{
    AuthenticationType, ChannelRow, ChannelSettings, FeedEdit, FeedSettings, GapRecord, GapState,
    Origin, PollRecord, Retention, StoreError,
};

use crate::migrations::Raw;
use crate::site::{Site, URL, draft, drafts, encode, etag, on_both, token};

on_both! {
    a_channel_is_made_changed_switched_off_and_removed,
    a_channel_is_added_once,
    an_unknown_erasure_coding_is_reported,
    a_feed_keeps_its_entries_when_changed_or_deactivated,
    a_feed_is_added_once,
    a_feed_is_changed_by_several_and_not_brought_back,
    polls_record_intervals_redirects_and_ends,
    gaps_are_recorded_and_change,
    the_version_grows_with_settings_and_revocations_only,
    long_and_odd_texts_are_cut_refused_or_stored,
}

fn settings() -> ChannelSettings {
    ChannelSettings {
        groups: Some("239.1.2.3:4000".to_owned()),
        rate_bps: Some(u64::MAX),
        private: true,
        packet_authentication: AuthenticationType::Auto,
        fec: "proactive:2/20,xor".parse().unwrap(),
        deadline_ms: Some(1500),
        keep: Retention {
            count: Some(1000),
            age_ms: Some(86_400_000),
        },
        origin: Origin::Managed,
    }
}

fn feed(url: &str) -> FeedSettings {
    FeedSettings {
        url: url.to_owned(),
        address: url.replace("://", "://user:secret@"),
        local: true,
        min_interval_ms: Some(20_000),
        max_interval_ms: None,
        title: Some("News".to_owned()),
        origin: Origin::Managed,
    }
}

async fn a_channel_is_made_changed_switched_off_and_removed(site: Site) {
    let store = site.lore().await;
    let made = store.channels().put("news", &settings()).await.unwrap();
    assert!(made.channel.is_new && made.active);
    let expected = ChannelSettings {
        // The database knows no larger number.
        rate_bps: Some(i64::MAX as u64),
        ..settings()
    };
    assert_eq!(made.settings, expected);
    let changed = ChannelSettings {
        groups: None,
        keep: Retention::default(),
        ..expected
    };
    let row = store.channels().put("news", &changed).await.unwrap();
    assert!(!row.channel.is_new);
    assert_eq!(row.channel.incarnation, made.channel.incarnation);
    assert_eq!((&row.settings, row.active), (&changed, true));

    assert!(store.channels().set_active("news", false).await.unwrap());
    assert!(!store.channels().set_active("nope", false).await.unwrap());
    let rows = store.channels().list().await.unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| (row.channel.name.as_str(), row.active))
        .collect();
    assert_eq!(names, [("lore", true), ("news", false)]);
    assert_eq!(rows[1].settings, changed);
    assert_eq!(rows[0].settings, ChannelSettings::default());
    assert!(rows[0].created_ms > 1_700_000_000_000);
    let row = store.channels().put("news", &changed).await.unwrap();
    assert!(row.active, "what is put is active");

    // More updates than are deleted in one part.
    for channel in ["news", "lore"] {
        store
            .updates()
            .append(channel, URL, None, &drafts(0, 2100), None, &encode)
            .await
            .unwrap();
    }
    assert!(store.channels().remove("news").await.unwrap());
    assert!(!store.channels().remove("news").await.unwrap());
    let error = store.updates().read("news", 1, 1, 1).await.unwrap_err();
    assert!(
        matches!(error, StoreError::UnknownChannel { .. }),
        "{error}"
    );
    assert_eq!(store.channels().open("lore").await.unwrap().head, 2100);
    assert_eq!(store.channels().list().await.unwrap().len(), 1);
    let again = store.channels().open("news").await.unwrap();
    assert_eq!((again.head, again.is_new), (0, true));
    assert_ne!(again.incarnation, made.channel.incarnation);
    assert!(store.feeds().list(Some("news")).await.unwrap().is_empty());
}

async fn an_unknown_erasure_coding_is_reported(site: Site) {
    let store = site.lore().await;
    let mut raw = Raw::to(&site.url).await;
    raw.run("UPDATE channels SET fec = 'fountain'").await;
    let error = store.channels().list().await.unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    let words = "the erasure coding of channel \"lore\" is \"fountain\"";
    assert!(error.to_string().contains(words), "{error}");
}

async fn a_channel_is_added_once(site: Site) {
    let store = site.lore().await;
    let own = |group: &str| ChannelSettings {
        groups: Some(group.to_owned()),
        ..ChannelSettings::default()
    };
    let never = |_: &[ChannelRow]| -> Option<ChannelSettings> { panic!("it is there already") };
    assert_eq!(store.channels().add("lore", &never).await.unwrap(), None);
    let version = store.version().await.unwrap();
    let refused = store.channels().add("news", &|_| None).await.unwrap();
    assert_eq!(refused, None);
    assert_eq!(
        store.channels().list().await.unwrap().len(),
        1,
        "nothing is made"
    );
    assert_eq!(store.version().await.unwrap(), version);
    let names = std::sync::Mutex::new(Vec::new());
    let choose = |rows: &[ChannelRow]| {
        let all = rows.iter().map(|row| row.channel.name.clone());
        *names.lock().unwrap() = all.collect();
        Some(own("239.9.9.9:1"))
    };
    let made = store
        .channels()
        .add("news", &choose)
        .await
        .unwrap()
        .unwrap();
    assert!(made.active && made.channel.is_new);
    assert_eq!(made.settings, own("239.9.9.9:1"));
    assert_eq!(*names.lock().unwrap(), ["lore"]);
    assert!(store.version().await.unwrap() > version);
    // One that is not active is another one's for the taking.
    store.channels().set_active("news", false).await.unwrap();
    let again = |_: &[ChannelRow]| Some(own("239.9.9.8:1"));
    let row = store.channels().add("news", &again).await.unwrap().unwrap();
    assert!(row.active && !row.channel.is_new);
    assert_eq!(row.channel.incarnation, made.channel.incarnation);
    let long = |_: &[ChannelRow]| Some(own(&"x".repeat(5_000)));
    let error = store.channels().add("long", &long).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLong { .. }), "{error}");
    assert_eq!(store.channels().list().await.unwrap().len(), 2);
    // The second caller sees the result of the first, or that it exists.
    let tries = (0..16).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            let name = format!("many-{}", n / 2);
            let next = |rows: &[ChannelRow]| {
                let many = rows.iter().filter(|row| row.channel.name.contains("many"));
                Some(ChannelSettings {
                    groups: Some(format!("239.8.8.{}:1", many.count())),
                    ..ChannelSettings::default()
                })
            };
            store.channels().add(&name, &next).await.unwrap()
        })
    });
    let tries: Vec<_> = tries.collect();
    let mut groups = BTreeSet::new();
    for one in tries {
        if let Some(row) = one.await.unwrap() {
            assert!(groups.insert(row.settings.groups.unwrap()));
        }
    }
    let expected: BTreeSet<_> = (0..8).map(|n| format!("239.8.8.{n}:1")).collect();
    assert_eq!(groups, expected);
}

async fn a_feed_keeps_its_entries_when_changed_or_deactivated(site: Site) {
    let store = site.lore().await;
    let one = feed("https://example.org/1");
    let row = store.feeds().put("lore", &one).await.unwrap();
    assert_eq!((&row.settings, row.active), (&one, true));
    assert_eq!(row.channel, "lore");
    assert_eq!((row.last_poll, row.gone_ms), (None, None));
    let url = one.url.as_str();
    store
        .updates()
        .append(
            "lore",
            url,
            None,
            &[draft("a", 1)],
            Some(&etag("1")),
            &encode,
        )
        .await
        .unwrap();
    assert!(store.feeds().set_active("lore", url, false).await.unwrap());
    assert!(!store.feeds().set_active("lore", "no", false).await.unwrap());
    assert!(
        !store
            .feeds()
            .get("lore", url)
            .await
            .unwrap()
            .unwrap()
            .active
    );
    let changed = FeedSettings {
        title: None,
        origin: Origin::Flags,
        max_interval_ms: Some(1),
        ..one.clone()
    };
    let row = store.feeds().put("lore", &changed).await.unwrap();
    assert_eq!((&row.settings, row.active), (&changed, true));
    assert_eq!(row.validators, etag("1"));
    let again = store
        .updates()
        .append("lore", url, None, &[draft("a", 1)], None, &encode)
        .await
        .unwrap();
    assert!(again.is_empty(), "its entries are known");

    // One that was never set up is there when something is stored of it.
    store.channels().open("news").await.unwrap();
    store
        .updates()
        .append("news", URL, None, &[draft("a", 1)], None, &encode)
        .await
        .unwrap();
    let all = store.feeds().list(None).await.unwrap();
    let all: Vec<_> = all
        .iter()
        .map(|row| (row.channel.as_str(), row.settings.url.as_str()))
        .collect();
    assert_eq!(all, [("lore", url), ("news", URL)]);
    let news = store.feeds().list(Some("news")).await.unwrap();
    assert_eq!(news.len(), 1);
    assert_eq!(news[0].settings.address, URL);
    assert_eq!(news[0].settings.origin, Origin::Flags);
    assert!(store.feeds().list(Some("nope")).await.is_err());
    assert!(store.feeds().put("nope", &one).await.is_err());
}

async fn a_feed_is_added_once(site: Site) {
    let store = site.lore().await;
    let url = "https://example.org/1";
    // Of several at once one does, and what it says stays.
    let tries: Vec<_> = (0..8)
        .map(|n| {
            let store = store.clone();
            let settings = FeedSettings {
                title: Some(format!("try {n}")),
                ..feed(url)
            };
            tokio::spawn(async move { store.feeds().add("lore", &settings).await.unwrap() })
        })
        .collect();
    let mut added = Vec::new();
    for one in tries {
        added.extend(one.await.unwrap());
    }
    assert_eq!(added.len(), 1);
    let row = store.feeds().get("lore", url).await.unwrap().unwrap();
    assert_eq!(row, added[0]);
    assert!(row.active && !row.paused);
    // One that was removed is there again, as a new one, and with what is known of it.
    let validators = Some(&etag("1"));
    let drafts = [draft("a", 1)];
    let stored = store
        .updates()
        .append("lore", url, None, &drafts, validators, &encode);
    stored.await.unwrap();
    let records = site.open().await;
    assert!(records.feeds().set_paused("lore", url, true).await.unwrap());
    let gone = PollRecord {
        at_ms: 6000,
        gone: true,
        ..PollRecord::default()
    };
    store.feeds().record_poll("lore", url, &gone).await.unwrap();
    assert_eq!(store.feeds().add("lore", &feed(url)).await.unwrap(), None);
    assert!(store.feeds().set_active("lore", url, false).await.unwrap());
    assert!(!records.feeds().set_paused("lore", url, true).await.unwrap());
    let version = store.version().await.unwrap();
    let again = store
        .feeds()
        .add("lore", &feed(url))
        .await
        .unwrap()
        .unwrap();
    assert!(store.version().await.unwrap() > version);
    assert_eq!((again.settings, again.active), (feed(url), true));
    assert_eq!((again.gone_ms, again.paused), (None, false));
    assert_eq!(again.validators, etag("1"));
    let error = store.feeds().add("nope", &feed(url)).await.unwrap_err();
    assert!(
        matches!(error, StoreError::UnknownChannel { .. }),
        "{error}"
    );
    let long = format!("https://example.org/{}", "x".repeat(2048));
    let error = store.feeds().add("lore", &feed(&long)).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLong { .. }), "{error}");
}

async fn a_feed_is_changed_by_several_and_not_brought_back(site: Site) {
    let store = site.lore().await;
    let url = "https://example.org/1";
    let one = FeedSettings {
        origin: Origin::Managed,
        ..feed(url)
    };
    store.feeds().put("lore", &one).await.unwrap();
    let title = FeedEdit {
        title: Some("Other".to_owned()),
        ..FeedEdit::default()
    };
    let times = FeedEdit {
        min_interval_ms: Some(5_000),
        max_interval_ms: Some(6_000),
        ..FeedEdit::default()
    };
    let edit = async |edit: &FeedEdit| store.feeds().edit("lore", url, edit).await.unwrap();
    let (first, second) = tokio::join!(edit(&title), edit(&times));
    assert!(first.is_some() && second.is_some());
    let changed = FeedSettings {
        title: Some("Other".to_owned()),
        min_interval_ms: Some(5_000),
        max_interval_ms: Some(6_000),
        ..one.clone()
    };
    let row = store.feeds().get("lore", url).await.unwrap().unwrap();
    assert_eq!(row.settings, changed);
    let version = store.version().await.unwrap();
    let none = FeedEdit {
        title: Some(String::new()),
        ..FeedEdit::default()
    };
    assert_eq!(edit(&none).await.unwrap().settings.title, None);
    assert!(store.version().await.unwrap() > version);
    // A removal wins, and settings of flags are changed there.
    assert!(store.feeds().set_active("lore", url, false).await.unwrap());
    assert_eq!(edit(&title).await, None);
    assert!(
        !store
            .feeds()
            .get("lore", url)
            .await
            .unwrap()
            .unwrap()
            .active
    );
    let flags = FeedSettings {
        origin: Origin::Flags,
        ..one
    };
    store.feeds().put("lore", &flags).await.unwrap();
    assert_eq!(edit(&title).await, None);
    assert!(store.feeds().edit("nope", url, &title).await.is_err());
}

async fn polls_record_intervals_redirects_and_ends(site: Site) {
    let store = site.lore().await;
    let url = "https://example.org/1";
    store.feeds().put("lore", &feed(url)).await.unwrap();
    let poll = PollRecord {
        at_ms: 5000,
        state: "ok".to_owned(),
        detail: "3 entries".to_owned(),
        interval_ms: Some(60_000),
        next_ms: Some(3_605_000),
        moved_to: Some("https://example.net/1".to_owned()),
        gone: false,
    };
    store.feeds().record_poll("lore", url, &poll).await.unwrap();
    let row = store.feeds().get("lore", url).await.unwrap().unwrap();
    assert_eq!(row.last_poll, Some(poll.clone()));
    assert_eq!(row.interval_ms, Some(60_000));
    assert_eq!(row.moved_to, poll.moved_to);

    let gone = PollRecord {
        at_ms: 6000,
        next_ms: None,
        moved_to: None,
        gone: true,
        ..poll.clone()
    };
    store.feeds().record_poll("lore", url, &gone).await.unwrap();
    let later = PollRecord {
        at_ms: 7000,
        ..gone.clone()
    };
    store
        .feeds()
        .record_poll("lore", url, &later)
        .await
        .unwrap();
    let row = store.feeds().get("lore", url).await.unwrap().unwrap();
    assert_eq!(row.gone_ms, Some(6000), "since the first time");
    assert_eq!(row.last_poll.unwrap().next_ms, None, "there is none");
    assert_eq!(row.moved_to, poll.moved_to, "what is not given stays");
    let row = store.feeds().put("lore", &feed(url)).await.unwrap();
    assert_eq!(row.gone_ms, None, "who puts it again wants it polled");
}

async fn gaps_are_recorded_and_change(site: Site) {
    let store = site.lore().await;
    let mut gap = GapRecord {
        id: 0,
        url: URL.to_owned(),
        at_ms: 1000,
        state: GapState::Suspected,
        detail: "none of 25 entries was there before".to_owned(),
        entries: 0,
        after: Some(7),
    };
    gap.id = store.gaps().record("lore", &gap).await.unwrap();
    let mut second = gap.clone();
    second.id = 0;
    second.id = store.gaps().record("lore", &second).await.unwrap();
    assert_ne!(gap.id, second.id);
    gap.state = GapState::Filled;
    gap.entries = 75;
    assert_eq!(store.gaps().record("lore", &gap).await.unwrap(), gap.id);
    let gaps = store.gaps().list("lore", 10).await.unwrap();
    assert_eq!(gaps, [second.clone(), gap]);
    assert_eq!(
        store.gaps().list("lore", 1).await.unwrap(),
        [second.clone()]
    );
    assert!(store.gaps().list("nope", 1).await.is_err());
    // Of many, the last ones stay.
    for n in 0..1005 {
        second.id = 0;
        second.entries = n;
        store.gaps().record("lore", &second).await.unwrap();
    }
    let gaps = store.gaps().list("lore", 9999).await.unwrap();
    assert_eq!(
        (gaps.len(), gaps[0].entries, gaps[999].entries),
        (1000, 1004, 5)
    );
}

async fn the_version_grows_with_settings_and_revocations_only(site: Site) {
    let store = site.lore().await;
    let mut version = store.version().await.unwrap();
    assert!(version > 0);
    let one = feed("https://example.org/1");
    macro_rules! grows {
        ($call:expr, $grows:expr) => {
            $call.await.unwrap();
            let now = store.version().await.unwrap();
            assert_eq!(now > version, $grows, "{}", stringify!($call));
            version = now;
        };
    }
    grows!(store.channels().put("news", &settings()), true);
    grows!(store.feeds().put("news", &one), true);
    grows!(store.feeds().put("news", &one), false);
    grows!(store.feeds().set_active("news", &one.url, false), true);
    grows!(store.feeds().put("news", &one), true);
    grows!(store.channels().set_active("news", false), true);
    grows!(
        store
            .updates()
            .append("lore", URL, None, &drafts(0, 9), Some(&etag("1")), &encode),
        false
    );
    let polled = PollRecord::default();
    grows!(store.feeds().record_poll("lore", URL, &polled), false);
    let added = store.tokens().add(&token(1, "x")).await.unwrap();
    grows!(store.tokens().revoke(added.id), true);
    grows!(store.channels().remove("news"), true);
    let _ = version;
}

async fn long_and_odd_texts_are_cut_refused_or_stored(site: Site) {
    let store = site.lore().await;
    // NUL is no character of a text in PostgreSQL, and a feed in JSON may have it.
    let odd = "a\0b";
    let stored = store
        .updates()
        .append("lore", URL, None, &[draft(odd, 1)], None, &encode)
        .await
        .unwrap();
    assert_eq!(stored.len(), 1);
    let known = store.entries().hashes("lore", URL, &[odd]).await.unwrap();
    assert_eq!(known.get(odd), Some(&[1; 32]));
    let again = store
        .updates()
        .append("lore", URL, None, &[draft(odd, 1)], None, &encode)
        .await
        .unwrap();
    assert!(again.is_empty());
    // The longest id that a feed may have, of what compresses worst, is a key in any database.
    let long: String = (0..2048_u32)
        .map(|n| char::from(33 + (n.wrapping_mul(2_654_435_761).rotate_left(13) % 94) as u8))
        .collect();
    let stored = store
        .updates()
        .append("lore", &long, None, &[draft(&long, 1)], None, &encode)
        .await
        .unwrap();
    assert_eq!(stored.len(), 1);
    let longer = format!("{long}x");
    for (url, id) in [(URL, longer.as_str()), (longer.as_str(), "a")] {
        let error = store
            .updates()
            .append("lore", url, None, &[draft(id, 1)], None, &encode)
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::TooLong { .. }), "{error}");
    }
    let poll = PollRecord {
        state: "\0".to_owned(),
        detail: "\0".repeat(2000),
        ..PollRecord::default()
    };
    store.feeds().record_poll("lore", URL, &poll).await.unwrap();
    let error = store.channels().open("a\0").await.unwrap_err();
    assert!(matches!(error, StoreError::ChannelName { .. }), "{error}");
    let error = store.updates().read("a\0", 1, 1, 1).await.unwrap_err();
    assert!(
        matches!(error, StoreError::UnknownChannel { .. }),
        "{error}"
    );
}
