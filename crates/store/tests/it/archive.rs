//! Backups and what becomes of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use store::{
    Applicant, AuthenticationType, Batch, ChannelSettings, Contents, FecSetting, FeedSettings,
    GapRecord, GapState, Holder, NewPublication, NewToken, Origin, PollRecord, Progress,
    ReceiverEdit, RestoreReport, Retention, Store, StoreError, Verdict,
};
use uuid::Uuid;

use crate::site::{Site, URL, draft, drafts, encode, etag, on_both, token};

on_both! {
    a_backup_is_restored_into_a_database_of_either_kind,
    an_archive_of_form_1_is_restored,
    an_archive_of_form_2_is_restored,
    a_restored_database_has_a_new_epoch_of_changes,
    a_backup_is_one_state_while_others_write,
    a_damaged_archive_is_refused_and_leaves_nothing,
    a_restore_needs_an_empty_database,
    a_backup_replaces_only_a_backup,
}

pub async fn restore(site: &Site, from: &std::path::Path) -> Result<RestoreReport, StoreError> {
    store::restore(&site.url, from, &mut |_| {}).await
}

/// A store with something of everything.
async fn full(site: &Site) -> Store {
    let store = site.lore().await;
    let settings = ChannelSettings {
        groups: Some("239.1.2.3:4000".to_owned()),
        rate_bps: Some(5_000_000),
        private: true,
        packet_authentication: AuthenticationType::Tags,
        fec: "off".parse().unwrap(),
        deadline_ms: Some(500),
        keep: Retention {
            count: Some(1000),
            age_ms: Some(5000),
        },
        origin: Origin::Managed,
    };
    store.channels().put("news", &settings).await.unwrap();
    store.channels().set_active("news", false).await.unwrap();
    let feed = FeedSettings {
        url: "https://example.org/2".to_owned(),
        address: "https://u:p@example.org/2".to_owned(),
        local: true,
        min_interval_ms: Some(1),
        max_interval_ms: Some(2),
        title: Some("Two".to_owned()),
        origin: Origin::Managed,
    };
    store.feeds().put("news", &feed).await.unwrap();
    let poll = PollRecord {
        at_ms: 77,
        state: "gone".to_owned(),
        detail: "410".to_owned(),
        interval_ms: Some(3),
        next_ms: None,
        moved_to: Some("https://example.net/2".to_owned()),
        gone: true,
    };
    store
        .feeds()
        .record_poll("news", &feed.url, &poll)
        .await
        .unwrap();
    store
        .updates()
        .append(
            "lore",
            URL,
            None,
            &drafts(0, 1700),
            Some(&etag("7")),
            &encode,
        )
        .await
        .unwrap();
    store
        .updates()
        .append("lore", URL, None, &[draft("e0", 2)], None, &|_, _| {
            vec![0; 300_000]
        })
        .await
        .unwrap();
    store
        .updates()
        .append("news", &feed.url, None, &drafts(0, 3), None, &encode)
        .await
        .unwrap();
    let first = Retention {
        count: Some(1600),
        age_ms: None,
    };
    assert_eq!(
        store.updates().retain("lore", &first, 1701).await.unwrap(),
        102
    );
    let gap = GapRecord {
        id: 0,
        url: URL.to_owned(),
        at_ms: 5,
        state: GapState::Partly,
        detail: "some".to_owned(),
        entries: 4,
        after: Some(1690),
    };
    store.gaps().record("lore", &gap).await.unwrap();
    let publications: Vec<_> = (0..20)
        .map(|number| NewPublication {
            entry_id: format!("p{number}"),
            payload: vec![number; 1000],
        })
        .collect();
    let added = store.publications();
    added.add("lore", "urn:x", &publications).await.unwrap();
    store
        .signing_eras()
        .begin("lore", None, &[6; 32])
        .await
        .unwrap();
    store.tokens().add(&token(9, "revoked")).await.unwrap();
    let limited = NewToken {
        limit: Some(2),
        expires_ms: Some(i64::MAX / 2),
        channels: vec!["lore".to_owned()],
        ..token(1, "limited")
    };
    store.tokens().add(&limited).await.unwrap();
    store
        .tokens()
        .revoke(store.tokens().list().await.unwrap()[0].id)
        .await
        .unwrap();
    for id in 1..=2 {
        store
            .receivers()
            .admit(&applicant(id, &["lore".to_owned()]))
            .await
            .unwrap();
    }
    store.receivers().revoke(Uuid::from_u128(2)).await.unwrap();
    let records = site.open().await;
    let edit = ReceiverEdit {
        label: Some("Cellar, left".to_owned()),
        tags: Some(vec!["north".to_owned()]),
        held: Some(true),
    };
    let set = records.receivers().edit(Uuid::from_u128(1), &edit).await;
    assert!(set.unwrap().is_some());
    assert!(
        records
            .feeds()
            .set_paused("news", &feed.url, true)
            .await
            .unwrap()
    );
    store
}

fn applicant(id: u128, channels: &[String]) -> Applicant<'_> {
    Applicant {
        token: Some([1; 32]),
        receiver: Uuid::from_u128(id),
        credential: [3; 32],
        name: "cellar",
        software: "flexfeed",
        address: "192.0.2.1:1",
        channels,
    }
}

const FULL: Contents = Contents {
    channels: 2,
    feeds: 3,
    entries: 1703,
    updates: 1603,
    publications: 20,
    signing_eras: 1,
    signing_keys: 1,
    gaps: 1,
    tokens: 2,
    receivers: 2,
    users: 0,
    api_tokens: 0,
    audit: 0,
};

async fn a_backup_is_restored_into_a_database_of_either_kind(site: Site) {
    let store = full(&site).await;
    let me = Holder {
        id: Uuid::new_v4(),
        name: "me".to_owned(),
    };
    let ttl = Duration::from_secs(600);
    store.leases().take("lore", &me, ttl).await.unwrap();
    let file = site.path("backup");
    let report = store.backup(&file).await.unwrap();
    assert_eq!(report.contents, FULL);
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!(metadata.len(), report.bytes);
    assert_eq!(
        metadata.permissions().mode() & 0o077,
        0,
        "for its owner only"
    );
    for other in [Site::sqlite(), Site::postgres()] {
        let mut reported: Vec<Progress> = Vec::new();
        let report = store::restore(&other.url, &file, &mut |progress| reported.push(progress))
            .await
            .unwrap();
        assert_eq!(report.contents, FULL);
        assert!(report.made_ms > 1_700_000_000_000);
        assert!(reported.len() > 3);
        assert!(reported.iter().all(|progress| progress.of == FULL));
        assert_eq!(reported.last().unwrap().done, FULL);
        let restored = other.open().await;
        is_the_same(&store, &restored).await;
        // The life of it goes on.
        let stored = restored
            .updates()
            .append("lore", URL, None, &drafts(1699, 1701), None, &encode)
            .await
            .unwrap();
        let seqs: Vec<_> = stored.iter().map(|update| update.seq).collect();
        assert_eq!(seqs, [1702]);
        let gap = GapRecord {
            id: 0,
            ..restored.gaps().list("lore", 1).await.unwrap().remove(0)
        };
        assert!(restored.gaps().record("lore", &gap).await.unwrap() > 0);
        assert!(restored.tokens().add(&token(7, "new")).await.unwrap().id > 0);
        let lore = ["lore".to_owned()];
        let known = restored
            .receivers()
            .admit(&applicant(1, &lore))
            .await
            .unwrap();
        assert_eq!(known, Verdict::Admitted { enrolled: false });
        let spent = restored
            .receivers()
            .admit(&applicant(5, &lore))
            .await
            .unwrap();
        assert_eq!(spent, Verdict::Spent);
        let revoked = restored
            .receivers()
            .admit(&applicant(2, &lore))
            .await
            .unwrap();
        assert_eq!(revoked, Verdict::Revoked);
    }
}

/// But for incarnations and leases.
async fn is_the_same(store: &Store, restored: &Store) {
    let (before, after) = (
        store.channels().list().await.unwrap(),
        restored.channels().list().await.unwrap(),
    );
    assert_eq!(before.len(), after.len());
    for (before, mut after) in before.into_iter().zip(after) {
        assert_ne!(before.channel.incarnation, after.channel.incarnation);
        assert_eq!(after.lease, None);
        after.channel.incarnation = before.channel.incarnation;
        after.lease.clone_from(&before.lease);
        assert_eq!(after.last_holder, None);
        after.last_holder = before.last_holder;
        assert_eq!(before, after);
        let name = &before.channel.name;
        assert_eq!(
            store
                .updates()
                .read(name, 0, 65_536, usize::MAX)
                .await
                .unwrap(),
            restored
                .updates()
                .read(name, 0, 65_536, usize::MAX)
                .await
                .unwrap()
        );
    }
    assert_eq!(
        store.feeds().list(None).await.unwrap(),
        restored.feeds().list(None).await.unwrap()
    );
    let mut waiting = Vec::new();
    for store in [store, restored] {
        let read = store.publications().waiting("lore", 100, 1 << 20).await;
        let read = read.unwrap().into_iter();
        waiting.push(read.map(|one| (one.entry_id, one.payload)).collect());
    }
    let [before, after]: [Vec<_>; 2] = waiting.try_into().unwrap();
    assert_eq!((before.len(), before), (20, after));
    let ids: Vec<_> = (0..1700).map(|n| format!("e{n}")).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    assert_eq!(
        store.entries().hashes("lore", URL, &ids).await.unwrap(),
        restored.entries().hashes("lore", URL, &ids).await.unwrap()
    );
    assert_eq!(
        store.gaps().list("lore", 9).await.unwrap(),
        restored.gaps().list("lore", 9).await.unwrap()
    );
    assert_eq!(
        store.tokens().list().await.unwrap(),
        restored.tokens().list().await.unwrap()
    );
    assert_eq!(
        store.receivers().list().await.unwrap(),
        restored.receivers().list().await.unwrap()
    );
}

/// `tests/data/backup-1` was made by the version before there was a console: two channels, a feed
/// with three updates, a token, and two receivers.
async fn an_archive_of_form_1_is_restored(site: Site) {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/backup-1");
    let report = restore(&site, &file).await.unwrap();
    let wanted = Contents {
        channels: 2,
        feeds: 1,
        entries: 3,
        updates: 3,
        gaps: 1,
        tokens: 1,
        receivers: 2,
        ..Contents::default()
    };
    assert_eq!(report.contents, wanted);
    let opened = site.open().await;
    assert_eq!(opened.channels().open("lore").await.unwrap().head, 3);
    let channels = opened.channels().list().await.unwrap();
    let default = FecSetting::default();
    assert!(channels.iter().all(|row| row.settings.fec == default));
    let rows = opened.receivers().list().await.unwrap();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.tags.is_empty() && !row.held));
    assert!(!opened.feeds().list(None).await.unwrap()[0].paused);
    assert!(opened.users().setup_open().await.unwrap());
    goes_on_unsigned(&opened).await;
}

/// `tests/data/backup-2` was made by the version before there were signing eras: two channels, a
/// feed with three updates, a token, a receiver, and a user.
async fn an_archive_of_form_2_is_restored(site: Site) {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/backup-2");
    let report = restore(&site, &file).await.unwrap();
    let wanted = Contents {
        channels: 2,
        feeds: 1,
        entries: 2,
        updates: 3,
        tokens: 1,
        receivers: 1,
        users: 1,
        ..Contents::default()
    };
    assert_eq!(report.contents, wanted);
    let opened = site.open().await;
    let receiver = opened.receivers().list().await.unwrap().remove(0);
    assert_eq!(
        (receiver.tags, receiver.held),
        (vec!["north".to_owned()], true)
    );
    assert_eq!(opened.users().list().await.unwrap()[0].name, "ann");
    goes_on_unsigned(&opened).await;
}

/// The three restored updates have no era, and the next one may have one.
async fn goes_on_unsigned(restored: &Store) {
    let eras = restored.signing_eras();
    assert_eq!(eras.list("lore").await.unwrap(), []);
    let begun = eras.begin("lore", None, &[1; 32]).await.unwrap();
    assert_eq!((begun.len(), begun[0].first), (1, 4));
}

async fn a_restored_database_has_a_new_epoch_of_changes(site: Site) {
    let opened = site.open().await;
    opened.channels().open("lore").await.unwrap();
    opened.tokens().add(&token(1, "all")).await.unwrap();
    opened.receivers().admit(&applicant(1, &[])).await.unwrap();
    opened.records().write(&Batch::default()).await.unwrap();
    let before = opened.records().snapshot().await.unwrap();
    let file = site.path("backup");
    opened.backup(&file).await.unwrap();
    let other = site.another();
    restore(&other, &file).await.unwrap();
    let after = other.open().await;
    let changes = after.records().changes_since(before.upto, 9).await.unwrap();
    assert_ne!(changes.epoch, before.epoch);
    assert!(changes.upto > before.upto);
    let now = after.records().snapshot().await.unwrap();
    assert_eq!((now.epoch, now.receivers.len()), (changes.epoch, 1));
    assert!(now.states.is_empty());
}

async fn a_backup_is_one_state_while_others_write(site: Site) {
    let store = site.lore().await;
    let done = Arc::new(AtomicBool::new(false));
    let writer = {
        let (store, done) = (store.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            let mut appends = 0;
            while !done.load(Ordering::Relaxed) {
                let seven = drafts(appends * 7, appends * 7 + 7);
                let validators = etag(&(appends * 7 + 7).to_string());
                store
                    .updates()
                    .append("lore", URL, None, &seven, Some(&validators), &encode)
                    .await
                    .unwrap();
                appends += 1;
            }
            appends
        })
    };
    let mut heads = Vec::new();
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        if round == 3 {
            let started = Instant::now();
            while store.channels().open("lore").await.unwrap().head <= heads[0] {
                assert!(started.elapsed() < Duration::from_secs(60), "no progress");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let file = site.path(&format!("backup{round}"));
        store.backup(&file).await.unwrap();
        let other = Site::sqlite();
        restore(&other, &file).await.unwrap();
        let restored = other.open().await;
        let channel = restored.channels().open("lore").await.unwrap();
        assert_eq!(channel.head % 7, 0, "appends are whole");
        let updates = restored.updates().read("lore", 1, 65_536, usize::MAX).await;
        assert_eq!(updates.unwrap().len() as u64, channel.head);
        let validators = restored.feeds().validators("lore", URL).await.unwrap();
        assert_eq!(
            validators.etag.unwrap_or_else(|| "0".into()),
            channel.head.to_string()
        );
        heads.push(channel.head);
    }
    done.store(true, Ordering::Relaxed);
    let appends = writer.await.unwrap();
    assert!(heads.is_sorted() && heads[0] < heads[3], "{heads:?}");
    assert!(heads[3] <= appends as u64 * 7);
}

async fn a_damaged_archive_is_refused_and_leaves_nothing(site: Site) {
    let store = full(&site).await;
    let file = site.path("backup");
    store.backup(&file).await.unwrap();
    let whole = fs::read(&file).unwrap();
    let target = site.another();
    let refused = async |bytes: &[u8], words: &str| {
        let path = target.path("broken");
        fs::write(&path, bytes).unwrap();
        let error = restore(&target, &path).await.unwrap_err();
        assert!(matches!(error, StoreError::Archive { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        assert!(text.contains("broken"), "{text}");
    };
    refused(b"", "is not a backup").await;
    refused(&[b'x'; 5000], "is not a backup").await;
    refused(b"flexfeed-backup 6\nxyz", "newer version").await;
    for end in [18, 30, whole.len() / 3, whole.len() - 5, whole.len() - 1] {
        refused(&whole[..end], "cut off").await;
    }
    for at in (20..whole.len()).step_by(whole.len() / 12) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        refused(&damaged, "").await;
    }
    let mut longer = whole.clone();
    longer.extend_from_slice(b"and more");
    refused(&longer, "").await;
    let missing = target.path("missing");
    let text = restore(&target, &missing).await.unwrap_err().to_string();
    assert!(
        text.contains("missing") && text.contains("cannot be read"),
        "{text}"
    );
    // After all of that the database is as empty as before.
    assert_eq!(restore(&target, &file).await.unwrap().contents, FULL);
}

async fn a_restore_needs_an_empty_database(site: Site) {
    let store = full(&site).await;
    let file = site.path("backup");
    store.backup(&file).await.unwrap();
    let error = restore(&site, &file).await.unwrap_err();
    assert!(error.to_string().contains("empty database"), "{error}");
    assert_eq!(store.channels().list().await.unwrap().len(), 2);
    let other = site.another();
    other
        .open()
        .await
        .tokens()
        .add(&token(1, "x"))
        .await
        .unwrap();
    let error = restore(&other, &file).await.unwrap_err();
    assert!(error.to_string().contains("empty database"), "{error}");
}

async fn a_backup_replaces_only_a_backup(site: Site) {
    let store = full(&site).await;
    let file = site.path("backup");
    store.backup(&file).await.unwrap();
    store.tokens().add(&token(50, "later")).await.unwrap();
    assert_eq!(store.backup(&file).await.unwrap().contents.tokens, 3);
    let other = site.path("important");
    fs::write(&other, "another program's file").unwrap();
    let text = store.backup(&other).await.unwrap_err().to_string();
    assert!(text.contains("choose another name"), "{text}");
    assert_eq!(fs::read(&other).unwrap(), b"another program's file");
    let nowhere = site.path("no/such/folder/backup");
    let text = store.backup(&nowhere).await.unwrap_err().to_string();
    assert!(text.contains("folder must exist"), "{text}");
    let names: Vec<_> = fs::read_dir(site.folder.path())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("flexfeed.db"))
        .collect();
    assert_eq!(names.len(), 2, "nothing is left behind: {names:?}");
}
