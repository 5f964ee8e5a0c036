//! The transport's view of the store: updates of the channels published here, and admission of
//! receivers.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::source::{Admission, AdmissionError, Backlog, BoxError, Credential};
use store::{Applicant, HeadMark, Store, Verdict};
use tokio::sync::Semaphore;
use tracing::{error, info};
use uuid::Uuid;

use crate::data::enrolment::token_hash;
use crate::metrics::Admissions;
use crate::publish::LeaseGuard;

/// Admission requests judged in parallel. Anyone may ask, and the database has leases to renew and
/// updates to store meanwhile.
const JUDGED_AT_ONCE: usize = 8;

/// Admission requests that wait for their turn; further ones are to be tried again later, which
/// receivers do for minutes.
const WAITING: usize = 1024;

/// The channels that this process publishes at the moment, by name.
#[derive(Clone, Default)]
pub struct OpenChannels {
    channels: Arc<RwLock<HashMap<String, Published>>>,
}

#[derive(Clone)]
struct Published {
    incarnation: Uuid,
    mark: HeadMark,
    lease: LeaseGuard,
}

impl OpenChannels {
    /// Serves a channel from now on, up to its head checkpoint.
    pub fn open(&self, name: &str, incarnation: Uuid, mark: HeadMark, lease: LeaseGuard) {
        let mut channels = self
            .channels
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let published = Published {
            incarnation,
            mark,
            lease,
        };
        channels.insert(name.to_owned(), published);
    }

    /// Stops serving a channel of another source.
    pub fn shut(&self, name: &str) {
        let mut channels = self
            .channels
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        channels.remove(name);
    }

    fn get(&self, name: &str) -> Option<Published> {
        let channels = self.channels.read().unwrap_or_else(PoisonError::into_inner);
        channels.get(name).cloned()
    }
}

/// The transport's view of the store: the channels' updates, and admission.
///
/// Nothing beyond a channel's head checkpoint is shown: an update that is stored and not yet
/// covered by it might be given another number after a backup is restored.
pub struct StoreBacklog {
    store: Store,
    open: OpenChannels,
    admissions: Admissions,
    /// Permits to be judged.
    turns: Semaphore,
    /// Permits to wait for one of those.
    queue: Semaphore,
}

impl StoreBacklog {
    /// Returns the view of these channels of the store.
    pub fn new(store: Store, open: OpenChannels) -> Self {
        Self {
            store,
            open,
            admissions: Admissions::default(),
            turns: Semaphore::new(JUDGED_AT_ONCE),
            queue: Semaphore::new(WAITING),
        }
    }

    /// Counts admissions by these metrics.
    pub fn counting(self, admissions: Admissions) -> Self {
        Self { admissions, ..self }
    }

    /// Returns a channel among these whose lease has lapsed: another source may publish it already.
    fn lapsed<'a>(&self, channels: &'a [String]) -> Option<&'a str> {
        let lapsed = |name: &&String| self.open.get(name).is_some_and(|c| !c.lease.holds());
        channels.iter().find(lapsed).map(String::as_str)
    }
}

#[async_trait]
impl Backlog for StoreBacklog {
    async fn updates(
        &self,
        channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<(u64, Bytes)>, BoxError> {
        let Some(open) = self.open.get(channel) else {
            return Err(format!("the channel {channel:?} is not published here").into());
        };
        let published = open.mark.seq();
        let updates = self
            .store
            .updates()
            .backlog(channel, open.incarnation, from, limit, max_bytes)
            .await?;
        Ok(updates
            .into_iter()
            .filter(|update| update.seq <= published)
            .map(|update| (update.seq, Bytes::from(update.encoded)))
            .collect())
    }

    // Only hashes are compared, so timing reveals nothing about a token.
    async fn authorise(&self, request: &Admission) -> Result<(), AdmissionError> {
        let (token, secret) = match &request.credential {
            Credential::Enrol { token, secret, .. } => (token, secret),
            Credential::Token(_) => {
                self.admissions.without_credential();
                return Err(AdmissionError::Token(
                    "this receiver is too old: it shows its enrolment token instead of a \
                     credential of its own; upgrade it to the version of this source"
                        .into(),
                ));
            }
            Credential::None => {
                self.admissions.without_credential();
                return Err(AdmissionError::Token(
                    "this source admits only receivers that have enrolled: give the receiver an \
                     enrolment link"
                        .into(),
                ));
            }
        };
        let Ok(place) = self.queue.try_acquire() else {
            self.admissions.too_many();
            return Err(AdmissionError::Unavailable(
                "too many receivers ask this source to be let in at the moment; it will be tried \
                 again"
                    .into(),
            ));
        };
        // Never closed.
        let _turn = self.turns.acquire().await;
        drop(place);
        if let Some(channel) = self.lapsed(&request.channels) {
            self.admissions.unavailable();
            return Err(AdmissionError::Unavailable(format!(
                "this source cannot say at the moment whether it publishes \"{channel}\" or \
                 another one does; it will be tried again"
            )));
        }
        let applicant = Applicant {
            token: (!token.is_empty()).then(|| token_hash(token)),
            receiver: request.receiver,
            credential: token_hash(secret),
            name: &request.name,
            software: &request.software,
            address: &request.from.to_string(),
            channels: &request.channels,
        };
        match self.store.receivers().admit(&applicant).await {
            Ok(verdict) => {
                self.admissions.judged(&verdict);
                judged(verdict, request, applicant.token.is_some())
            }
            Err(failure) => {
                self.admissions.unavailable();
                // The receiver needs no details of our disk.
                let from = request.from;
                error!(%from, error = %failure, "credential check failed");
                Err(AdmissionError::Unavailable(
                    "the source cannot check credentials at the moment; it will be tried again"
                        .into(),
                ))
            }
        }
    }
}

/// Returns a verdict for the receiver, with the remedy.
fn judged(verdict: Verdict, request: &Admission, shows_token: bool) -> Result<(), AdmissionError> {
    let denied = |text: &str| Err(AdmissionError::Token(text.to_owned()));
    match verdict {
        Verdict::Admitted { enrolled } => {
            if enrolled {
                info!(
                    receiver = request.name,
                    id = %request.receiver,
                    from = %request.from,
                    "enrolled"
                );
            }
            Ok(())
        }
        Verdict::UnknownToken if shows_token => denied(
            "the enrolment token is not valid here: ask the source's operator for a new link",
        ),
        Verdict::UnknownToken => denied(
            "this receiver is not enrolled here and shows no token: give it an enrolment link of \
             this source",
        ),
        Verdict::Expired => {
            denied("the enrolment link has expired: ask the source's operator for a new one")
        }
        Verdict::Spent => denied(
            "the enrolment link has been used by as many receivers as it was made for: ask the \
             source's operator for another one (one that was let in before and has lost its data \
             folder counts as another receiver)",
        ),
        Verdict::TokenRevoked => {
            denied("the enrolment link was revoked: ask the source's operator for a new one")
        }
        Verdict::Channel(channel) => Err(AdmissionError::Token(format!(
            "the enrolment link that this receiver came with is not for the channel \"{channel}\""
        ))),
        #[cfg(feature = "fault-injection")]
        Verdict::Revoked if crate::faults::Fault::RevocationOff.is_injected() => Ok(()),
        Verdict::Revoked => denied("this receiver was revoked by the source's operator"),
        Verdict::InUse => Err(AdmissionError::InUse(
            "another receiver is enrolled with this id: give each receiver a data folder of its \
             own; if this one has lost its credential, have the source's operator forget it \
             (flexfeed-source receiver forget ID)"
                .into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::data::enrolment::Token;
    use crate::publish::{Acquisition, LeaseTerms};
    use std::path::Path;
    use std::time::Duration;
    use store::{Draft, Holder, Kind, NewToken};

    async fn store(folder: &Path) -> Store {
        store::open_file(&folder.join("flexfeed.db")).await.unwrap()
    }

    async fn lease(store: &Store, terms: LeaseTerms) -> LeaseGuard {
        let holder = Holder {
            id: Uuid::new_v4(),
            name: "test".into(),
        };
        match LeaseGuard::take(store, "lore", &holder, terms)
            .await
            .unwrap()
        {
            Acquisition::Held(lease) => lease,
            Acquisition::Other { name } => panic!("held by {name}"),
        }
    }

    fn new_token(token: &Token) -> NewToken {
        NewToken {
            hash: token.hash(),
            label: "test".into(),
            limit: None,
            expires_ms: None,
            public: false,
            channels: Vec::new(),
        }
    }

    /// Returns the bytes of a token as in a link.
    fn presented(token: &Token) -> Vec<u8> {
        let link = token.link("host:1", &[[7; 32]], None, &["lore"]);
        let rest = link.strip_prefix("flexfeed://").unwrap();
        rest.split_once('@').unwrap().0.as_bytes().to_vec()
    }

    fn admission(token: &[u8], receiver: Uuid, secret: [u8; 32]) -> Admission {
        Admission {
            credential: Credential::Enrol {
                token: token.to_vec(),
                secret,
                instance: [1; 8],
            },
            receiver,
            name: "r1".into(),
            software: "test 1".into(),
            channels: vec!["lore".into()],
            from: "127.0.0.1:1".parse().unwrap(),
        }
    }

    /// For a lease without renewal, on a machine that stalls now and then.
    fn long() -> LeaseTerms {
        LeaseTerms {
            ttl: Duration::from_secs(300),
            ..LeaseTerms::default()
        }
    }

    #[tokio::test]
    async fn updates_are_shown_up_to_the_mark_and_of_published_channels_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path()).await;
        store.channels().open("lore").await.unwrap();
        let mark = folder.path().join("lore.head");
        let adopted = HeadMark::adopt(&mark, &store, "lore", None).await.unwrap();
        let (mark, incarnation) = (adopted.mark, adopted.channel.incarnation);
        let drafts: Vec<Draft> = (0..5u8)
            .map(|n| Draft {
                entry_id: format!("entry {n}"),
                hash: [n; 32],
                kind: Kind::Created,
                index: 0,
            })
            .collect();
        let encode = |seq: u64, _: &Draft| vec![seq as u8; 10];
        store
            .updates()
            .append("lore", "http://f/", None, &drafts, None, &encode)
            .await
            .unwrap();
        let open = OpenChannels::default();
        let backlog = StoreBacklog::new(store.clone(), open.clone());
        assert!(backlog.updates("lore", 1, 9, 999).await.is_err());
        let lease = lease(&store, long()).await;
        open.open("lore", incarnation, mark.clone(), lease);

        // Stored and not marked yet: not to be seen.
        assert_eq!(backlog.updates("lore", 1, 9, 999).await.unwrap(), []);
        mark.raise(3).await.unwrap();
        assert_eq!(backlog.updates("lore", 2, 9, 999).await.unwrap().len(), 2);
        mark.raise(5).await.unwrap();
        assert!(backlog.updates("other", 1, 9, 999).await.is_err());
        let updates = backlog.updates("lore", 2, 3, 1000).await.unwrap();
        let expected: Vec<_> = (2..=4)
            .map(|n| (n, Bytes::from(vec![n as u8; 10])))
            .collect();
        assert_eq!(updates, expected);
        assert_eq!(backlog.updates("lore", 1, 100, 25).await.unwrap().len(), 2);
        assert_eq!(backlog.updates("lore", 6, 100, 1000).await.unwrap(), []);
        // A database that was set back and renewed by another source holds nothing of it.
        store.channels().renew("lore", None).await.unwrap();
        let refused = backlog.updates("lore", 2, 3, 1000).await.unwrap_err();
        assert!(refused.to_string().contains("restored"), "{refused}");
        open.shut("lore");
        assert!(backlog.updates("lore", 1, 9, 999).await.is_err());
    }

    #[tokio::test]
    async fn admission_and_reasons_for_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path()).await;
        store.channels().open("lore").await.unwrap();
        let tokens = [Token::make().unwrap(), Token::make().unwrap()];
        let mut rows = Vec::new();
        for (token, limit) in tokens.iter().zip([None, Some(1)]) {
            let token = NewToken {
                limit,
                ..new_token(token)
            };
            rows.push(store.tokens().add(&token).await.unwrap());
        }
        let [good, single] = tokens.map(|token| presented(&token));
        let backlog = StoreBacklog::new(store.clone(), OpenChannels::default());
        let ask = async |token: &[u8], receiver: Uuid, secret: [u8; 32]| {
            backlog.authorise(&admission(token, receiver, secret)).await
        };
        let refused = |answer: Result<(), AdmissionError>, words: &str| match answer {
            Err(AdmissionError::Token(text)) => assert!(text.contains(words), "{words} in {text}"),
            other => panic!("{words}: {other:?}"),
        };
        let ids: Vec<Uuid> = (0..4).map(|_| Uuid::new_v4()).collect();

        for wrong in [b"wrong", &good[..good.len() - 1]] {
            refused(ask(wrong, ids[0], [1; 32]).await, "not valid here");
        }
        refused(ask(b"", ids[0], [1; 32]).await, "enrolment link");
        assert_eq!(ask(&good, ids[0], [1; 32]).await, Ok(()));
        // From now on its credential says it all.
        assert_eq!(ask(b"", ids[0], [1; 32]).await, Ok(()));
        match ask(&good, ids[0], [2; 32]).await {
            Err(AdmissionError::InUse(text)) => assert!(text.contains("data folder"), "{text}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(ask(&single, ids[1], [1; 32]).await, Ok(()));
        refused(ask(&single, ids[2], [1; 32]).await, "as many receivers");
        assert!(store.tokens().revoke(rows[0].id).await.unwrap());
        refused(ask(&good, ids[2], [1; 32]).await, "link was revoked");
        assert!(store.receivers().revoke(ids[0]).await.unwrap());
        refused(ask(b"", ids[0], [1; 32]).await, "receiver was revoked");

        let old = Admission {
            credential: Credential::Token(good.clone()),
            ..admission(b"", ids[3], [1; 32])
        };
        refused(backlog.authorise(&old).await, "too old");
        let none = Admission {
            credential: Credential::None,
            ..old
        };
        refused(backlog.authorise(&none).await, "enrolment link");
        store.close().await;
        match ask(b"", ids[1], [1; 32]).await {
            Err(AdmissionError::Unavailable(text)) => {
                assert!(!text.contains("flexfeed.db"), "{text}")
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn no_receiver_is_admitted_while_the_lease_is_in_doubt() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path()).await;
        store.channels().open("lore").await.unwrap();
        let mark = folder.path().join("lore.head");
        let adopted = HeadMark::adopt(&mark, &store, "lore", None).await.unwrap();
        let (mark, incarnation) = (adopted.mark, adopted.channel.incarnation);
        let token = Token::make().unwrap();
        store.tokens().add(&new_token(&token)).await.unwrap();
        let open = OpenChannels::default();
        let backlog = StoreBacklog::new(store.clone(), open.clone());
        let over = LeaseTerms {
            ttl: Duration::ZERO,
            ..LeaseTerms::default()
        };
        open.open("lore", incarnation, mark.clone(), lease(&store, over).await);
        let request = admission(&presented(&token), Uuid::new_v4(), [1; 32]);
        match backlog.authorise(&request).await {
            Err(AdmissionError::Unavailable(text)) => assert!(text.contains("\"lore\""), "{text}"),
            other => panic!("{other:?}"),
        }
        open.open("lore", incarnation, mark, lease(&store, long()).await);
        assert_eq!(backlog.authorise(&request).await, Ok(()));
    }

    #[tokio::test]
    async fn admission_requests_wait_for_their_turn() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path()).await;
        let backlog = StoreBacklog::new(store.clone(), OpenChannels::default());
        let request = admission(b"wrong", Uuid::new_v4(), [1; 32]);
        let all = u32::try_from(JUDGED_AT_ONCE).unwrap();
        let turns = backlog.turns.acquire_many(all).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(500), backlog.authorise(&request));
        assert!(early.await.is_err(), "it was judged out of turn");
        // Beyond the bound, requests do not even wait.
        let places = backlog.queue.acquire_many(WAITING as u32).await.unwrap();
        match backlog.authorise(&request).await {
            Err(AdmissionError::Unavailable(text)) => assert!(text.contains("too many"), "{text}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(backlog.admissions.counted("too-many"), 1);
        drop((turns, places));
        assert!(matches!(
            backlog.authorise(&request).await,
            Err(AdmissionError::Token(_))
        ));
    }
}
