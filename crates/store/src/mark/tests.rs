//! Databases that are set back in every way that one can think of, and crashes that are none.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::{Draft, Kind, open_file};

/// A data folder, and one to keep backups in.
struct Place {
    folder: tempfile::TempDir,
    backups: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            backups: tempfile::tempdir().unwrap(),
        }
    }

    fn database(&self) -> PathBuf {
        self.folder.path().join("flexfeed.db")
    }

    fn mark(&self) -> PathBuf {
        self.folder.path().join("lore.head")
    }

    /// Copies the files of the data folder whose names begin so; the database must be closed.
    fn back_up(&self, beginning: &str) {
        copy(self.folder.path(), self.backups.path(), beginning);
    }

    fn restore(&self, beginning: &str) {
        for file in fs::read_dir(self.folder.path()).unwrap() {
            let file = file.unwrap();
            if file.file_name().to_string_lossy().starts_with(beginning) {
                fs::remove_file(file.path()).unwrap();
            }
        }
        copy(self.backups.path(), self.folder.path(), beginning);
    }

    async fn start(&self) -> Life {
        let store = open_file(&self.database()).await.unwrap();
        store.channels().open("lore").await.unwrap();
        let adopted = HeadMark::adopt(&self.mark(), &store, "lore", None)
            .await
            .unwrap();
        Life { store, adopted }
    }
}

fn copy(from: &Path, to: &Path, beginning: &str) {
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let name = file.file_name();
        if name.to_string_lossy().starts_with(beginning) {
            fs::copy(file.path(), to.join(name)).unwrap();
        }
    }
}

/// One run of a source.
struct Life {
    store: Store,
    adopted: Adoption,
}

impl Life {
    fn incarnation(&self) -> Uuid {
        self.adopted.channel.incarnation
    }

    /// Stores without publishing.
    async fn store(&self, count: usize) -> u64 {
        let drafts: Vec<_> = (0..count)
            .map(|_| Draft {
                entry_id: Uuid::new_v4().to_string(),
                hash: [1; 32],
                kind: Kind::Created,
                index: 0,
            })
            .collect();
        let stored = self
            .store
            .updates()
            .append("lore", "http://f/", None, &drafts, None, &|_, _| vec![1])
            .await
            .unwrap();
        stored.last().unwrap().seq
    }

    async fn publish(&self, count: usize) {
        let last = self.store(count).await;
        self.adopted.mark.raise(last).await.unwrap();
        assert_eq!(self.adopted.mark.seq(), last);
    }

    async fn end(self) {
        self.store.close().await;
    }
}

/// Longer than the steps in which a file system keeps times.
async fn pass_time() {
    tokio::time::sleep(Duration::from_millis(120)).await;
}

#[tokio::test]
async fn starts_and_crashes_change_nothing() {
    let place = Place::new();
    let life = place.start().await;
    let incarnation = life.incarnation();
    assert_eq!(life.adopted.renewal, None);
    life.publish(5).await;
    life.end().await;
    for _ in 0..3 {
        let life = place.start().await;
        assert_eq!(
            (life.adopted.renewal.as_ref(), life.incarnation()),
            (None, incarnation)
        );
        life.publish(3).await;
        // Stored, and then the process is killed before it can raise the mark.
        life.store(4).await;
        life.end().await;
    }
    let life = place.start().await;
    assert_eq!(life.incarnation(), incarnation);
    assert_eq!(life.adopted.channel.head, 26);
    assert_eq!(
        life.adopted.mark.seq(),
        26,
        "receivers may have all of it now"
    );
    // A raise that came late takes nothing back.
    life.adopted.mark.raise(3).await.unwrap();
    assert_eq!(life.adopted.mark.seq(), 26);
}

#[tokio::test]
async fn an_interrupted_new_channel_changes_nothing() {
    let place = Place::new();
    // Killed after the channel was made, before the mark was.
    let store = open_file(&place.database()).await.unwrap();
    store.channels().open("lore").await.unwrap();
    store.close().await;
    let life = place.start().await;
    assert_eq!(life.adopted.renewal, None);
}

#[tokio::test]
async fn a_restored_database_is_renewed_even_if_it_overtakes_the_mark_later() {
    let place = Place::new();
    let life = place.start().await;
    let first = life.incarnation();
    life.publish(5).await;
    life.end().await;
    place.back_up("flexfeed.db");
    let life = place.start().await;
    life.publish(3).await;
    life.end().await;

    place.restore("flexfeed.db");
    let life = place.start().await;
    let behind = Renewal::Behind {
        head: 5,
        published: 8,
    };
    assert_eq!(life.adopted.renewal, Some(behind));
    let second = life.incarnation();
    assert_ne!(second, first);
    // It overtakes a receiver that stands at 8 of the first incarnation.
    life.publish(10).await;
    life.end().await;
    let life = place.start().await;
    assert_eq!(
        (life.adopted.renewal.as_ref(), life.incarnation()),
        (None, second)
    );
    life.end().await;

    // The same backup once more: its incarnation is not the last one.
    place.restore("flexfeed.db");
    let life = place.start().await;
    assert_eq!(
        life.adopted.renewal,
        Some(Renewal::Other { published: second })
    );
    assert!(life.incarnation() != first && life.incarnation() != second);
}

#[tokio::test]
async fn one_update_back_is_enough() {
    let place = Place::new();
    let life = place.start().await;
    life.publish(5).await;
    life.end().await;
    place.back_up("flexfeed.db");
    let life = place.start().await;
    life.publish(1).await;
    life.end().await;
    place.restore("flexfeed.db");
    let life = place.start().await;
    assert!(matches!(life.adopted.renewal, Some(Renewal::Behind { .. })));
}

#[tokio::test]
async fn a_database_without_its_mark_is_renewed_also_when_it_has_overtaken() {
    let place = Place::new();
    let life = place.start().await;
    let first = life.incarnation();
    life.publish(5).await;
    life.end().await;
    place.back_up("flexfeed.db");

    // Elsewhere.
    let other = Place::new();
    copy(place.backups.path(), other.folder.path(), "flexfeed.db");
    let life = other.start().await;
    assert_eq!(life.adopted.renewal, Some(Renewal::Missing));
    let second = life.incarnation();
    assert_ne!(second, first);
    life.publish(100).await;
    life.end().await;

    // And back again, far ahead of the mark that is here.
    other.back_up("flexfeed.db");
    for file in ["flexfeed.db", "flexfeed.db-wal", "flexfeed.db-shm"] {
        let _ = fs::remove_file(place.folder.path().join(file));
    }
    copy(other.backups.path(), place.folder.path(), "flexfeed.db");
    let life = place.start().await;
    assert_eq!(
        life.adopted.renewal,
        Some(Renewal::Other { published: first })
    );
    assert!(life.incarnation() != first && life.incarnation() != second);
}

#[tokio::test]
async fn a_whole_folder_from_a_backup_is_renewed_although_it_agrees_with_itself() {
    let place = Place::new();
    let life = place.start().await;
    let first = life.incarnation();
    life.publish(5).await;
    life.end().await;
    if fs::metadata(place.mark()).unwrap().created().is_err() {
        return; // This file system does not know when a file was made.
    }
    place.back_up("");
    let life = place.start().await;
    life.publish(3).await;
    life.end().await;
    pass_time().await;
    place.restore("");
    let life = place.start().await;
    assert_eq!(life.adopted.renewal, Some(Renewal::Copied));
    let second = life.incarnation();
    assert_ne!(second, first);
    life.publish(9).await;
    life.end().await;
    // Copied over the files that are there, which keeps their time of making.
    pass_time().await;
    copy(place.backups.path(), place.folder.path(), "");
    for file in ["flexfeed.db-wal", "flexfeed.db-shm"] {
        let _ = fs::remove_file(place.folder.path().join(file));
    }
    let life = place.start().await;
    assert_eq!(life.adopted.renewal, Some(Renewal::Copied));
}

#[tokio::test]
async fn a_new_database_and_a_damaged_mark_give_a_new_incarnation() {
    let place = Place::new();
    let life = place.start().await;
    let first = life.incarnation();
    life.publish(5).await;
    life.end().await;
    for file in ["flexfeed.db", "flexfeed.db-wal", "flexfeed.db-shm"] {
        let _ = fs::remove_file(place.folder.path().join(file));
    }
    let life = place.start().await;
    assert_eq!(life.adopted.renewal, None, "it is new anyway");
    let second = life.incarnation();
    assert_ne!(second, first);
    life.publish(2).await;
    life.end().await;

    fs::write(place.mark(), "something else").unwrap();
    let life = place.start().await;
    assert!(matches!(
        life.adopted.renewal,
        Some(Renewal::Damaged { .. })
    ));
    assert_ne!(life.incarnation(), second);
    let said = life.adopted.renewal.as_ref().unwrap().to_string();
    assert!(said.contains("damaged"), "{said}");
}

#[tokio::test]
async fn a_mark_that_cannot_be_used_is_an_error_and_no_renewal() {
    let place = Place::new();
    let life = place.start().await;
    let first = life.incarnation();
    life.publish(5).await;
    life.end().await;
    fs::remove_file(place.mark()).unwrap();
    fs::create_dir(place.mark()).unwrap();
    let store = open_file(&place.database()).await.unwrap();
    let error = HeadMark::adopt(&place.mark(), &store, "lore", None)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Mark { .. }), "{error}");
    assert!(error.to_string().contains("lore.head"), "{error}");
    assert_eq!(
        store.channels().open("lore").await.unwrap().incarnation,
        first
    );
}

#[tokio::test]
async fn a_standby_takes_over_without_a_renewal_unless_the_database_was_set_back() {
    let (first, second) = (Place::new(), Place::new());
    let life = first.start().await;
    life.publish(5).await;
    let incarnation = life.incarnation();
    let store = open_file(&first.database()).await.unwrap();
    // Its own mark is missing, which alone would be a reason to renew.
    let followed = HeadMark::follow(&second.mark(), &store, "lore")
        .await
        .unwrap();
    assert_eq!(followed.renewal, None);
    assert_eq!(followed.channel.incarnation, incarnation);
    assert_eq!(followed.mark.seq(), 5);
    life.publish(3).await;
    followed.mark.raise(8).await.unwrap();
    life.end().await;
    first.back_up("flexfeed.db");

    let taken = HeadMark::adopt(&second.mark(), &store, "lore", None)
        .await
        .unwrap();
    assert_eq!(taken.renewal, None);
    assert_eq!(taken.channel.incarnation, incarnation);
    let life = Life {
        store,
        adopted: taken,
    };
    life.publish(2).await;
    life.end().await;

    first.restore("flexfeed.db");
    let store = open_file(&first.database()).await.unwrap();
    let taken = HeadMark::adopt(&second.mark(), &store, "lore", None)
        .await
        .unwrap();
    let behind = Renewal::Behind {
        head: 8,
        published: 10,
    };
    assert_eq!(taken.renewal, Some(behind));
    store.close().await;
}

#[tokio::test]
async fn a_standby_does_not_follow_a_database_that_was_set_back() {
    let (first, second) = (Place::new(), Place::new());
    let follow = async |store: &Store| {
        let followed = HeadMark::follow(&second.mark(), store, "lore").await;
        followed.unwrap().mark.seq()
    };
    let life = first.start().await;
    life.publish(5).await;
    assert_eq!(follow(&life.store).await, 5);
    life.end().await;
    first.back_up("flexfeed.db");
    let life = first.start().await;
    life.publish(3).await;
    assert_eq!(follow(&life.store).await, 8);
    life.end().await;

    // A copy that was behind takes its place, and who stands by looks before it takes over.
    first.restore("flexfeed.db");
    let store = open_file(&first.database()).await.unwrap();
    assert_eq!(follow(&store).await, 8, "a mark is not lowered");
    let taken = HeadMark::adopt(&second.mark(), &store, "lore", None).await;
    let taken = taken.unwrap();
    let behind = Renewal::Behind {
        head: 5,
        published: 8,
    };
    assert_eq!(taken.renewal, Some(behind));
    let renewed = taken.channel.incarnation;
    assert_eq!(follow(&store).await, 5);
    store.close().await;

    // The same copy again: its incarnation was published once, and not last.
    first.restore("flexfeed.db");
    let store = open_file(&first.database()).await.unwrap();
    follow(&store).await;
    let taken = HeadMark::adopt(&second.mark(), &store, "lore", None).await;
    let other = Renewal::Other { published: renewed };
    assert_eq!(taken.unwrap().renewal, Some(other));
    store.close().await;
}

/// Another source takes the channel between the look at it and its renewal.
#[tokio::test]
async fn a_holder_that_lost_the_lease_renews_nothing() {
    let place = Place::new();
    let life = place.start().await;
    life.publish(5).await;
    let holder = |name: &str| crate::Holder {
        id: Uuid::new_v4(),
        name: name.into(),
    };
    let take = async |name: &str| {
        let holder = holder(name);
        let asked = life.store.leases().take("lore", &holder, Duration::ZERO);
        match asked.await.unwrap() {
            crate::LeaseOutcome::Held(lease) => lease.fence,
            other => panic!("{other:?}"),
        }
    };
    let old = take("a").await;
    let new = take("b").await;
    // Without a mark, it would be renewed.
    let elsewhere = Place::new();
    let mark = elsewhere.mark();
    let refused = HeadMark::adopt(&mark, &life.store, "lore", Some(old)).await;
    assert!(refused.unwrap_err().is_fenced());
    let present = life.store.channels().get("lore").await.unwrap();
    assert_eq!(present.incarnation, life.incarnation());
    let renewed = HeadMark::adopt(&mark, &life.store, "lore", Some(new)).await;
    assert_eq!(renewed.unwrap().renewal, Some(Renewal::Missing));
}

#[tokio::test]
async fn a_channel_that_was_removed_does_not_come_back() {
    let place = Place::new();
    let life = place.start().await;
    life.publish(5).await;
    assert!(life.store.channels().remove("lore").await.unwrap());
    let version = life.store.version().await.unwrap();
    for _ in 0..2 {
        let followed = HeadMark::follow(&place.mark(), &life.store, "lore").await;
        let error = followed.unwrap_err();
        assert!(
            matches!(error, StoreError::UnknownChannel { .. }),
            "{error}"
        );
        let adopted = HeadMark::adopt(&place.mark(), &life.store, "lore", None).await;
        assert!(adopted.is_err());
    }
    assert!(life.store.channels().list().await.unwrap().is_empty());
    assert_eq!(life.store.version().await.unwrap(), version);
}
