//! Signing keys: which one signs now, which came before, and what a source with another may do.

use store::{KeyStanding, SigningKeyRow, Store, StoreError};

use crate::archive::restore;
use crate::site::{Site, URL, drafts, encode, keep, on_both};

on_both! {
    the_first_key_is_whichever_begins,
    a_source_with_another_key_signs_nothing,
    a_replaced_key_signs_nothing_any_more,
    a_key_that_was_replaced_before_it_began_is_passed_over,
    one_of_two_first_keys_wins,
    a_key_is_pinned_where_it_answers_for_all_that_is_kept,
    keys_and_endorsements_survive_a_backup_and_any_key_may_go_on,
}

const OLD: [u8; 32] = [1; 32];
const NEW: [u8; 32] = [2; 32];

async fn begin(store: &Store, key: [u8; 32]) -> Result<(), StoreError> {
    let begun = store.signing_eras().begin("lore", None, &key).await;
    begun.map(|_| ())
}

async fn list(store: &Store) -> Vec<SigningKeyRow> {
    store.signing_keys().list().await.unwrap()
}

fn standing(refused: Result<(), StoreError>) -> KeyStanding {
    match refused {
        Err(StoreError::SigningKey { standing, .. }) => standing,
        other => panic!("{other:?}"),
    }
}

async fn the_first_key_is_whichever_begins(site: Site) {
    let store = site.lore().await;
    assert_eq!(
        KeyStanding::of(&OLD, &list(&store).await),
        KeyStanding::First
    );
    begin(&store, OLD).await.unwrap();
    begin(&store, OLD).await.unwrap();
    let rows = list(&store).await;
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].key, rows[0].endorsements.len()), (OLD, 0));
    assert!(rows[0].begun_ms.unwrap() >= rows[0].created_ms);
    assert_eq!(KeyStanding::of(&OLD, &rows), KeyStanding::Usable);
}

async fn a_source_with_another_key_signs_nothing(site: Site) {
    let store = site.lore().await;
    begin(&store, OLD).await.unwrap();
    let eras = store.signing_eras().list("lore").await.unwrap();
    let refused = begin(&store, NEW).await;
    let text = refused.as_ref().unwrap_err().to_string();
    assert!(text.contains("signing.key"), "{text}");
    assert_eq!(standing(refused), KeyStanding::Unknown { current: OLD });
    assert_eq!(store.signing_eras().list("lore").await.unwrap(), eras);
    assert_eq!(list(&store).await.len(), 1);
}

async fn a_replaced_key_signs_nothing_any_more(site: Site) {
    let store = site.lore().await;
    begin(&store, OLD).await.unwrap();
    let endorsements = [[7; 128], [8; 128]];
    let keys = store.signing_keys();
    keys.add(&NEW, &endorsements).await.unwrap();
    assert!(keys.add(&NEW, &[]).await.is_err(), "there is one already");
    // Until the new one begins, the old one goes on.
    begin(&store, OLD).await.unwrap();
    begin(&store, NEW).await.unwrap();
    let rows = list(&store).await;
    assert_eq!(
        (rows[1].key, &rows[1].endorsements[..]),
        (NEW, &endorsements[..])
    );
    assert_eq!(
        standing(begin(&store, OLD).await),
        KeyStanding::Superseded { by: NEW }
    );
    begin(&store, NEW).await.unwrap();
}

async fn a_key_that_was_replaced_before_it_began_is_passed_over(site: Site) {
    let store = site.lore().await;
    begin(&store, OLD).await.unwrap();
    for key in [NEW, [3; 32]] {
        store.signing_keys().add(&key, &[]).await.unwrap();
    }
    begin(&store, [3; 32]).await.unwrap();
    assert_eq!(
        standing(begin(&store, NEW).await),
        KeyStanding::Superseded { by: [3; 32] }
    );
}

async fn one_of_two_first_keys_wins(site: Site) {
    let store = site.lore().await;
    let other = site.open().await;
    let both = tokio::join!(begin(&store, OLD), begin(&other, NEW));
    assert!(both.0.is_ok() != both.1.is_ok(), "{both:?}");
    assert_eq!(list(&store).await.len(), 1);
}

async fn keys_and_endorsements_survive_a_backup_and_any_key_may_go_on(site: Site) {
    let store = site.lore().await;
    begin(&store, OLD).await.unwrap();
    store.signing_keys().add(&NEW, &[[9; 128]]).await.unwrap();
    begin(&store, NEW).await.unwrap();
    let file = site.path("backup");
    store.backup(&file).await.unwrap();
    let other = Site::sqlite();
    restore(&other, &file).await.unwrap();
    let restored = other.open().await;
    let rows = list(&restored).await;
    let kept: Vec<_> = rows
        .iter()
        .map(|row| (row.key, row.endorsements.clone(), row.begun_ms))
        .collect();
    assert_eq!(kept, [(OLD, vec![], None), (NEW, vec![[9; 128]], None)]);
    begin(&restored, [5; 32]).await.unwrap();
    assert_eq!(list(&restored).await.len(), 3);
    assert_eq!(
        standing(begin(&restored, OLD).await),
        KeyStanding::Superseded { by: [5; 32] }
    );
}

async fn a_key_is_pinned_where_it_answers_for_all_that_is_kept(site: Site) {
    let store = site.lore().await;
    let pinnable = async || store.signing_keys().pinnable(&["lore"]).await.unwrap();
    let grow = async |from: usize, to: usize| {
        let drafts = drafts(from, to);
        let stored = store
            .updates()
            .append("lore", URL, None, &drafts, None, &encode);
        stored.await.unwrap();
    };
    assert_eq!(pinnable().await, None, "no key signs");
    grow(0, 2).await;
    begin(&store, OLD).await.unwrap();
    grow(2, 4).await;
    assert_eq!(pinnable().await, None, "two updates are not signed");
    store.updates().retain("lore", &keep(2), 4).await.unwrap();
    assert_eq!(pinnable().await, Some(OLD));
    // Another key without a word for the first one, and then with one of a key between them.
    store.signing_keys().add(&NEW, &[]).await.unwrap();
    begin(&store, NEW).await.unwrap();
    grow(4, 5).await;
    assert_eq!(pinnable().await, None);
    let endorsement = |signer: [u8; 32], subject: [u8; 32]| {
        let mut endorsement = [0; 128];
        endorsement[..32].copy_from_slice(&signer);
        endorsement[32..64].copy_from_slice(&subject);
        endorsement
    };
    let keys = store.signing_keys();
    keys.endorse(&NEW, &[endorsement([3; 32], OLD)])
        .await
        .unwrap();
    assert_eq!(pinnable().await, None);
    keys.endorse(&NEW, &[endorsement(NEW, [3; 32])])
        .await
        .unwrap();
    assert_eq!(pinnable().await, Some(NEW));
    assert_eq!(keys.known().await.unwrap(), [OLD, NEW]);
    assert_eq!(list(&store).await[1].endorsements.len(), 2);
}
