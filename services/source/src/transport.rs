//! The line between this service and the transport: what the transport asks of the store, and what
//! the rest of the service asks of the transport.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::source::{
    Admission, Backlog, BoxError, Credential, Denied, SourceHandle, SourceStatus,
};
use store::{HeadMark, Store};
use tracing::error;

use crate::data::enrolment::token_hash;

/// What the service needs of the running transport; the tests put a recorder in its place.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends a stored update to all receivers of its channel. Seqs are dense. Waits for room.
    async fn publish(&self, channel: &str, seq: u64, encoded: Bytes);
    /// Updates of a channel before `first` are no longer kept.
    async fn set_first(&self, channel: &str, first: u64);
    /// What the transport sees; `None` once it has stopped.
    async fn status(&self) -> Option<SourceStatus>;
}

#[async_trait]
impl Transport for SourceHandle {
    async fn publish(&self, channel: &str, seq: u64, encoded: Bytes) {
        SourceHandle::publish(self, channel, seq, encoded).await;
    }

    async fn set_first(&self, channel: &str, first: u64) {
        SourceHandle::set_first(self, channel, first).await;
    }

    async fn status(&self) -> Option<SourceStatus> {
        SourceHandle::status(self).await
    }
}

/// The transport's view of the store: the channels' updates, and who may have them.
///
/// It shows nothing beyond a channel's head mark, for what is stored and not marked yet might be
/// given another number after a backup is restored.
pub struct StoreBacklog {
    store: Arc<dyn Store>,
    marks: HashMap<String, HeadMark>,
}

impl StoreBacklog {
    /// For these channels of the store.
    pub fn new(store: Arc<dyn Store>, marks: HashMap<String, HeadMark>) -> Self {
        Self { store, marks }
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
        let Some(mark) = self.marks.get(channel) else {
            return Err(format!("there is no channel {channel:?}").into());
        };
        let published = mark.seq();
        let updates = self.store.updates(channel, from, limit, max_bytes).await?;
        Ok(updates
            .into_iter()
            .filter(|update| update.seq <= published)
            .map(|update| (update.seq, Bytes::from(update.encoded)))
            .collect())
    }

    // Only hashes are compared, so the time that it takes tells nothing about a token.
    async fn authorise(&self, request: &Admission) -> Result<(), Denied> {
        let token: &[u8] = match &request.credential {
            Credential::None => &[],
            Credential::Token(token) | Credential::Enrol { token, .. } => token,
        };
        match self.store.token_valid(&token_hash(token)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Denied::Token(
                "the enrolment token is not valid here".into(),
            )),
            Err(failure) => {
                // The receiver needs no details of our disk.
                error!("cannot check the enrolment token of a receiver: {failure}");
                Err(Denied::Unavailable(
                    "the source cannot check enrolment tokens at the moment; it will be tried again"
                        .into(),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::data::enrolment::Token;
    use store::{Draft, Kind, NewToken};
    use uuid::Uuid;

    #[tokio::test]
    async fn the_store_answers_for_the_transport() {
        let folder = tempfile::tempdir().unwrap();
        let store = store::open_file(&folder.path().join("flexfeed.db"))
            .await
            .unwrap();
        let mark = folder.path().join("lore.head");
        let adopted = HeadMark::adopt(&mark, &*store, "lore").await.unwrap();
        let mark = adopted.mark;
        let drafts: Vec<Draft> = (0..5u8)
            .map(|n| Draft {
                entry_id: format!("entry {n}"),
                hash: [n; 32],
                kind: Kind::Created,
                index: 0,
            })
            .collect();
        store
            .append("lore", "http://f/", None, &drafts, None, &|seq, _| {
                vec![seq as u8; 10]
            })
            .await
            .unwrap();
        let token = Token::make().unwrap();
        let new = NewToken {
            hash: token.hash(),
            label: "test".to_owned(),
            limit: None,
            expires_ms: None,
            public: false,
            channels: Vec::new(),
        };
        store.add_token(&new).await.unwrap();
        let marks = HashMap::from([("lore".to_owned(), mark.clone())]);
        let backlog = StoreBacklog::new(Arc::clone(&store), marks);

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

        let link = token.link("host:1", &[7; 32], &["lore"]);
        let presented = link
            .strip_prefix("flexfeed://")
            .and_then(|rest| rest.split_once('@'))
            .map(|(token, _)| token.as_bytes().to_vec())
            .unwrap();
        let authorise = async |token: &[u8]| {
            let request = Admission {
                credential: Credential::Enrol {
                    token: token.to_vec(),
                    secret: [7; 32],
                    instance: [8; 8],
                },
                receiver: Uuid::nil(),
                name: "r1".to_owned(),
                software: "test".to_owned(),
                channels: vec!["lore".to_owned()],
                from: ([127, 0, 0, 1], 4000).into(),
            };
            backlog.authorise(&request).await
        };
        assert_eq!(authorise(&presented).await, Ok(()));
        for wrong in [&b""[..], b"wrong", &presented[..presented.len() - 1]] {
            match authorise(wrong).await {
                Err(Denied::Token(text)) => assert!(text.contains("not valid here"), "{text}"),
                other => panic!("{other:?}"),
            }
        }
        store.close().await;
        match authorise(&presented).await {
            Err(Denied::Unavailable(text)) => assert!(!text.contains("flexfeed.db"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}
