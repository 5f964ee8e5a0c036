//! The injected faults themselves: what others test with them depends on it.

use store::{Failure, Fault, FaultRule, StoreError};

use crate::site::{URL, draft, drafts, encode, etag, texts};

const APPEND: &str = "store updates";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_fails_at_any_statement_stores_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = store::open_file(&folder.path().join("flexfeed.db"))
        .await
        .unwrap();
    let faults = store.faults();
    store.channels().open("lore").await.unwrap();
    let drafts = drafts(0, 3);
    let validators = etag("one");
    let append = || {
        store
            .updates()
            .append("lore", URL, None, &drafts, Some(&validators), &encode)
    };
    let mut statement = 1;
    loop {
        let full = FaultRule::new(Fault::Fail(Failure::DiskFull));
        faults.inject(full.on(&[APPEND]).at_statement(statement));
        let before = faults.failures();
        let appended = append().await;
        faults.clear();
        if faults.failures() == before {
            assert_eq!(appended.unwrap().len(), 3);
            break;
        }
        assert!(appended.unwrap_err().is_full());
        assert_eq!(store.channels().get("lore").await.unwrap().head, 0);
        assert!(store.feeds().get("lore", URL).await.unwrap().is_none());
        statement += 1;
    }
    // The channel, the feed, its hashes, three updates with their hashes, the head, the validators.
    assert!(statement > 10, "{statement}");
    let stored = store
        .updates()
        .read("lore", 1, 10, usize::MAX)
        .await
        .unwrap();
    assert_eq!(texts(&stored), ["1:e0:1", "2:e1:1", "3:e2:1"]);
    assert_eq!(faults.open_sessions(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_reports_a_stored_transaction_as_failed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store::open_file(&folder.path().join("flexfeed.db"))
        .await
        .unwrap();
    let faults = store.faults();
    store.channels().open("lore").await.unwrap();
    let lost_reply = FaultRule::new(Fault::LostReply(Failure::Unreachable));
    faults.inject(lost_reply.on(&[APPEND]).every(2));
    let drafts = [draft("e0", 1)];
    let append = || {
        store
            .updates()
            .append("lore", URL, None, &drafts, None, &encode)
    };
    assert!(matches!(
        append().await,
        Err(StoreError::Unavailable { .. })
    ));
    assert_eq!(store.channels().get("lore").await.unwrap().head, 1);
    assert_eq!(append().await.unwrap(), [], "stored already");
    assert!(append().await.is_err(), "the first of every two");
    assert_eq!((faults.failures(), faults.sessions(APPEND)), (2, 3));
}
