//! Tokens and receivers: who is admitted, and what that costs.
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use store::{Applicant, NewToken, Store, Verdict};
use uuid::Uuid;

use crate::site::{Site, on_both, token};

on_both! {
    a_token_enrols_once_and_the_credential_admits_from_then_on,
    a_token_ends_by_use_by_time_and_by_revocation,
    a_token_admits_to_its_channels_only,
    a_revoked_receiver_stays_out_and_a_forgotten_one_enrols_again,
    many_at_once_never_spend_more_than_there_is,
    a_receivers_self_description_is_kept,
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// Receiver number `id`, with its token and its credential; 0 is no token.
fn applicant(id: u128, token: u8, credential: u8) -> Applicant<'static> {
    Applicant {
        token: (token > 0).then_some([token; 32]),
        receiver: Uuid::from_u128(id),
        credential: [credential; 32],
        name: "cellar",
        software: "flexfeed 0.1",
        address: "192.0.2.1:4433",
        channels: &[],
    }
}

const ENROLLED: Verdict = Verdict::Admitted { enrolled: true };
const ADMITTED: Verdict = Verdict::Admitted { enrolled: false };

async fn uses(store: &Store) -> Vec<u32> {
    let tokens = store.tokens().list().await.unwrap();
    tokens.iter().map(|token| token.uses).collect()
}

async fn a_token_enrols_once_and_the_credential_admits_from_then_on(site: Site) {
    let store = site.open().await;
    store.tokens().add(&token(1, "one")).await.unwrap();
    let admit = async |applicant| store.receivers().admit(&applicant).await.unwrap();
    assert_eq!(admit(applicant(7, 0, 5)).await, Verdict::UnknownToken);
    assert_eq!(admit(applicant(7, 9, 5)).await, Verdict::UnknownToken);
    assert_eq!(admit(applicant(7, 1, 5)).await, ENROLLED);
    // A receiver that crashed before the answer asks again, at no cost.
    assert_eq!(admit(applicant(7, 1, 5)).await, ADMITTED);
    assert_eq!(admit(applicant(7, 0, 5)).await, ADMITTED);
    // The token may be gone or wrong by now.
    assert_eq!(admit(applicant(7, 9, 5)).await, ADMITTED);
    assert_eq!(admit(applicant(7, 1, 6)).await, Verdict::InUse);
    assert_eq!(admit(applicant(7, 0, 6)).await, Verdict::InUse);
    assert_eq!(uses(&store).await, [1]);
    assert_eq!(store.receivers().list().await.unwrap().len(), 1);
}

async fn a_token_ends_by_use_by_time_and_by_revocation(site: Site) {
    let store = site.open().await;
    let admit = async |applicant| store.receivers().admit(&applicant).await.unwrap();
    let limited = NewToken {
        limit: Some(2),
        ..token(1, "two uses")
    };
    let row = store.tokens().add(&limited).await.unwrap();
    assert_eq!((row.limit, row.uses), (Some(2), 0));
    assert_eq!(admit(applicant(1, 1, 1)).await, ENROLLED);
    assert_eq!(admit(applicant(2, 1, 2)).await, ENROLLED);
    assert_eq!(admit(applicant(3, 1, 3)).await, Verdict::Spent);
    assert_eq!(admit(applicant(2, 1, 2)).await, ADMITTED);

    let expired = NewToken {
        expires_ms: Some(now_ms() - 1000),
        ..token(2, "old")
    };
    let future = NewToken {
        expires_ms: Some(now_ms() + 3_600_000),
        ..token(3, "young")
    };
    store.tokens().add(&expired).await.unwrap();
    let young = store.tokens().add(&future).await.unwrap();
    assert_eq!(young.expires_ms, future.expires_ms);
    assert_eq!(admit(applicant(3, 2, 3)).await, Verdict::Expired);
    assert_eq!(store.tokens().valid(&[2; 32]).await.unwrap(), None);
    assert_eq!(admit(applicant(3, 3, 3)).await, ENROLLED);

    assert!(store.tokens().revoke(young.id).await.unwrap());
    assert!(!store.tokens().revoke(9999).await.unwrap());
    assert_eq!(admit(applicant(4, 3, 4)).await, Verdict::TokenRevoked);
    assert_eq!(admit(applicant(3, 3, 3)).await, ADMITTED, "its own way in");
    let tokens = store.tokens().list().await.unwrap();
    let first = tokens[2].revoked_ms.unwrap();
    store.tokens().revoke(young.id).await.unwrap();
    let again = store.tokens().list().await.unwrap()[2].revoked_ms;
    assert_eq!(again, Some(first), "since the first time");
    // Adding it again does not bring it back.
    store.tokens().add(&future).await.unwrap();
    assert_eq!(admit(applicant(4, 3, 4)).await, Verdict::TokenRevoked);

    let public = NewToken {
        public: true,
        limit: Some(1),
        ..token(4, "everybody's")
    };
    let public = store.tokens().add(&public).await.unwrap();
    assert_eq!(public.limit, None, "a public token has no limit");
    for id in 10..15 {
        assert_eq!(admit(applicant(id, 4, 1)).await, ENROLLED);
    }
    assert_eq!(uses(&store).await, [2, 0, 1, 5]);
}

async fn a_token_admits_to_its_channels_only(site: Site) {
    let store = site.open().await;
    let (lore, both) = (["lore".to_owned()], ["lore".to_owned(), "news".to_owned()]);
    let limited = NewToken {
        channels: lore.to_vec(),
        ..token(1, "lore only")
    };
    store.tokens().add(&limited).await.unwrap();
    store.tokens().add(&token(2, "everything")).await.unwrap();
    let asks = |id, token, channels| Applicant {
        channels,
        ..applicant(id, token, 1)
    };
    let admit = async |applicant| store.receivers().admit(&applicant).await.unwrap();
    let refused = Verdict::Channel("news".to_owned());
    assert_eq!(admit(asks(1, 1, &both)).await, refused);
    assert_eq!(uses(&store).await, [0, 0], "a refusal costs nothing");
    assert_eq!(admit(asks(1, 1, &lore)).await, ENROLLED);
    assert_eq!(admit(asks(1, 0, &lore)).await, ADMITTED);
    // Also later, with its credential alone.
    assert_eq!(admit(asks(1, 0, &both)).await, refused);
    assert_eq!(admit(asks(1, 1, &both)).await, refused);
    // Another token may let it further in.
    assert_eq!(admit(asks(1, 2, &both)).await, ENROLLED);
    assert_eq!(admit(asks(1, 0, &both)).await, ADMITTED);
    assert_eq!(uses(&store).await, [1, 1]);
    let tokens = store.tokens().list().await.unwrap();
    let receivers = store.receivers().list().await.unwrap();
    assert_eq!(receivers[0].token_id, Some(tokens[1].id));
    assert_eq!(receivers[0].channels, both);
}

async fn a_revoked_receiver_stays_out_and_a_forgotten_one_enrols_again(site: Site) {
    let store = site.open().await;
    store.tokens().add(&token(1, "one")).await.unwrap();
    let admit = async |applicant| store.receivers().admit(&applicant).await.unwrap();
    assert_eq!(admit(applicant(1, 1, 1)).await, ENROLLED);
    let id = Uuid::from_u128(1);
    let version = store.version().await.unwrap();
    assert!(store.receivers().revoked().await.unwrap().is_empty());
    assert!(store.receivers().revoke(id).await.unwrap());
    assert!(!store.receivers().revoke(Uuid::from_u128(9)).await.unwrap());
    assert!(store.version().await.unwrap() > version);
    assert_eq!(store.receivers().revoked().await.unwrap(), [id]);
    assert_eq!(admit(applicant(1, 1, 1)).await, Verdict::Revoked);
    assert_eq!(admit(applicant(1, 1, 2)).await, Verdict::Revoked);
    assert!(
        store.receivers().list().await.unwrap()[0]
            .revoked_ms
            .is_some()
    );

    assert!(store.receivers().forget(id).await.unwrap());
    assert!(!store.receivers().forget(id).await.unwrap());
    assert!(store.receivers().list().await.unwrap().is_empty());
    assert_eq!(admit(applicant(1, 0, 2)).await, Verdict::UnknownToken);
    assert_eq!(admit(applicant(1, 1, 2)).await, ENROLLED);
    assert_eq!(admit(applicant(1, 1, 1)).await, Verdict::InUse);
}

async fn many_at_once_never_spend_more_than_there_is(site: Site) {
    let store = site.open().await;
    let second = site.open().await;
    let limited = NewToken {
        limit: Some(5),
        ..token(1, "five uses")
    };
    store.tokens().add(&limited).await.unwrap();
    // Eight receivers; each asks three times at once, and one of them is an impostor.
    let asking: Vec<_> = (0..24_u8)
        .map(|n| {
            let store = if n % 2 == 0 { &store } else { &second }.clone();
            let credential = if n == 16 { 200 } else { 1 };
            let applicant = applicant(u128::from(n % 8), 1, credential);
            tokio::spawn(async move { store.receivers().admit(&applicant).await.unwrap() })
        })
        .collect();
    let mut enrolled = 0;
    for asked in asking {
        let verdict = asked.await.unwrap();
        enrolled += usize::from(verdict == ENROLLED);
        assert!(
            matches!(
                verdict,
                Verdict::Admitted { .. } | Verdict::Spent | Verdict::InUse
            ),
            "{verdict:?}"
        );
    }
    assert_eq!(enrolled, 5);
    assert_eq!(uses(&store).await, [5]);
    assert_eq!(store.receivers().list().await.unwrap().len(), 5);
}

async fn a_receivers_self_description_is_kept(site: Site) {
    let store = site.open().await;
    store.tokens().add(&token(1, "one")).await.unwrap();
    let before = now_ms();
    store.receivers().admit(&applicant(1, 1, 1)).await.unwrap();
    let first = store.receivers().list().await.unwrap().remove(0);
    assert_eq!(
        (first.name.as_str(), first.id),
        ("cellar", Uuid::from_u128(1))
    );
    assert_eq!(first.address, "192.0.2.1:4433");
    assert_eq!(first.software, "flexfeed 0.1");
    assert_eq!(first.seen_ms, first.enrolled_ms);
    assert!((before - 1000..now_ms() + 1000).contains(&first.seen_ms));
    tokio::time::sleep(Duration::from_millis(20)).await;
    // Nothing new: nothing is written.
    store.receivers().admit(&applicant(1, 0, 1)).await.unwrap();
    assert_eq!(store.receivers().list().await.unwrap().remove(0), first);
    let long = "ü".repeat(500);
    let moved = Applicant {
        name: &long,
        software: "\0",
        address: "[2001:db8::1]:4433",
        ..applicant(1, 0, 1)
    };
    store.receivers().admit(&moved).await.unwrap();
    let row = store.receivers().list().await.unwrap().remove(0);
    assert_eq!(row.name, "ü".repeat(127), "a long text is cut");
    assert_eq!(row.address, "[2001:db8::1]:4433");
    assert!(row.seen_ms > first.seen_ms);
    assert_eq!(row.enrolled_ms, first.enrolled_ms);
}
