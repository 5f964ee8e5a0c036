//! Taking a document in: storing its news durably, then publishing them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use feed::detect::Draft;
use feed::{Entry, Kind, payload};
use jiff::Timestamp;
use store::{Hash, Retention, StoreError, StoredUpdate, Validators};
use tracing::{error, info, warn};

use super::prepare::{News, prepare};
use super::{FeedState, History, Ingest, Taken};

/// News are stored and published in parts of at most this many, so that the first ones of a large
/// document leave before the last ones are on disk.
const PART: usize = 64;

/// Updates and bytes of one read of the store.
const READ_UPDATES: usize = 256;
const READ_BYTES: usize = 4 << 20;

impl Ingest {
    /// Stores and publishes what is new in a document. Does not return before that is done: while
    /// the store fails, the document is kept and no other is fetched.
    pub(super) async fn take_in(&mut self, entries: Vec<Entry>, validators: Validators) -> Taken {
        let count = entries.len();
        let known = self.known(&entries).await;
        self.look_for_gap(&entries, &known);
        let news = self.news(entries, known).await;
        self.name_oversized(&news.oversized);
        let before = self.published;
        self.store(&news.drafts, &validators).await;
        self.validators = validators;
        let (created, changed) = news.count();
        if self.published > before {
            info!(
                "updates {} to {} are stored and published: {created} new entries, {changed} changed",
                before + 1,
                self.published
            );
        }
        Taken {
            state: FeedState::Ok,
            detail: format!("{count} entries, {created} of them new, {changed} changed"),
        }
    }

    async fn known(&mut self, entries: &[Entry]) -> HashMap<String, Hash> {
        let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        loop {
            let (channel, url) = (&self.settings.channel, &self.settings.url);
            match self.store.known(channel, url, &ids).await {
                Ok(known) => {
                    self.store_works();
                    return known;
                }
                Err(error) => self.store_failed(&error).await,
            }
        }
    }

    /// A document that shares no entry with the one before may have come too late: what was in
    /// the feed in between is then missing.
    fn look_for_gap(&mut self, entries: &[Entry], known: &HashMap<String, Hash>) {
        let ids: HashSet<String> = entries.iter().map(|entry| entry.id.clone()).collect();
        let shares = match &self.history {
            History::None => true,
            History::Stored => !known.is_empty(),
            History::Ids(before) => before.is_empty() || !before.is_disjoint(&ids),
        };
        if !shares && !ids.is_empty() {
            self.metrics.suspected_gaps.inc();
            warn!(
                "suspected gap: none of the {} entries of the feed at {} was in it before, so others \
                 may have come and gone unseen; a shorter --poll-interval makes that less likely",
                ids.len(),
                self.settings.url
            );
        }
        self.history = History::Ids(ids);
    }

    async fn news(&self, entries: Vec<Entry>, known: HashMap<String, Hash>) -> News {
        let url = self.settings.url.clone();
        let incarnation = self.settings.incarnation;
        let work = move || prepare(entries, &known, &url, incarnation);
        match tokio::task::spawn_blocking(work).await {
            Ok(news) => news,
            Err(failure) => {
                error!("the feed's news could not be worked out: {failure}");
                News::default()
            }
        }
    }

    /// Counts and logs entries that are too large, once per version.
    fn name_oversized(&mut self, drafts: &[Draft]) {
        for draft in drafts {
            let version = (draft.entry.id.clone(), draft.hash);
            if self.oversized.contains(&version) {
                continue;
            }
            self.metrics.oversized.inc();
            warn!(
                "the entry {:?} of the feed at {} is skipped: as an update it is larger than {} \
                 bytes, the most that can be sent",
                draft.entry.id,
                self.settings.url,
                flexicast::MAX_UPDATE
            );
        }
        self.oversized = drafts
            .iter()
            .map(|draft| (draft.entry.id.clone(), draft.hash))
            .collect();
    }

    /// Stores the drafts, the validators with the last of them, and publishes what was stored.
    async fn store(&mut self, drafts: &[Draft], validators: &Validators) {
        let rows: Vec<store::Draft> = drafts
            .iter()
            .enumerate()
            .map(|(index, draft)| store::Draft {
                entry_id: draft.entry.id.clone(),
                hash: draft.hash,
                kind: match draft.kind {
                    Kind::Created => store::Kind::Created,
                    Kind::Updated => store::Kind::Updated,
                },
                index,
            })
            .collect();
        let mut parts: Vec<&[store::Draft]> = rows.chunks(PART).collect();
        if parts.is_empty() && *validators != self.validators {
            parts.push(&[]);
        }
        let last = parts.len().saturating_sub(1);
        for (number, part) in parts.into_iter().enumerate() {
            let validators = (number == last).then_some(validators);
            let stored = self.append(part, validators, drafts).await;
            self.publish_from(stored).await;
        }
    }

    /// Stores one part, however long that takes.
    async fn append(
        &mut self,
        part: &[store::Draft],
        validators: Option<&Validators>,
        drafts: &[Draft],
    ) -> Vec<StoredUpdate> {
        let url = self.settings.url.clone();
        let incarnation = self.settings.incarnation;
        let encode = |seq: u64, row: &store::Draft| match drafts.get(row.index) {
            Some(Draft { kind, entry, .. }) => {
                payload::encode(entry, *kind, &url, incarnation, seq, Timestamp::now())
            }
            // The rows were numbered from the drafts.
            None => Vec::new(),
        };
        let store = Arc::clone(&self.store);
        let mut failed = false;
        loop {
            let stored = store
                .append(
                    &self.settings.channel,
                    &url,
                    None,
                    part,
                    validators,
                    &encode,
                )
                .await;
            match stored {
                Ok(stored) => {
                    if failed {
                        self.store_works();
                        // A failed attempt may have stored its part without being able to say so;
                        // this one then stored nothing, or only the rest.
                        self.publish_stored().await;
                        return Vec::new();
                    }
                    return stored;
                }
                Err(error) => {
                    failed = true;
                    self.store_failed(&error).await;
                }
            }
        }
    }

    /// Publishes what was just stored.
    async fn publish_from(&mut self, stored: Vec<StoredUpdate>) {
        match stored.first() {
            None => {}
            Some(first) if first.seq == self.published + 1 => self.publish(stored).await,
            // Something else stored updates in this channel: they come first.
            Some(_) => self.publish_stored().await,
        }
    }

    /// Publishes everything in the store that is not published yet.
    async fn publish_stored(&mut self) {
        loop {
            let updates = self
                .store
                .updates(
                    &self.settings.channel,
                    self.published + 1,
                    READ_UPDATES,
                    READ_BYTES,
                )
                .await;
            match updates {
                Ok(updates) if updates.is_empty() => {
                    self.store_works();
                    return;
                }
                Ok(updates) => self.publish(updates).await,
                Err(error) => self.store_failed(&error).await,
            }
        }
    }

    /// Publishes updates that are stored and follow the last published one. First the head mark:
    /// should the database be set back after this, the next start notices.
    async fn publish(&mut self, updates: Vec<StoredUpdate>) {
        let Some(last) = updates.last().map(|update| update.seq) else {
            return;
        };
        let mut failed = false;
        while let Err(error) = self.mark.raise(last).await {
            failed = true;
            self.store_failed(&error).await;
        }
        if failed {
            self.store_works();
        }
        for update in updates {
            // Before the transport waits for room: the store is ahead of it then, and shows it.
            self.status.send_modify(|status| status.head = update.seq);
            let encoded = Bytes::from(update.encoded);
            self.transport
                .publish(&self.settings.channel, update.seq, encoded)
                .await;
            self.published = update.seq;
            self.metrics.updates.inc();
        }
        self.forget_old().await;
    }

    /// Lets go of updates before those that are to be kept.
    async fn forget_old(&mut self) {
        let (keep, channel) = (self.settings.retention, &self.settings.channel);
        let first = self.published.saturating_sub(keep) + 1;
        if keep == 0 || first <= self.status.borrow().first {
            return;
        }
        // The transport asks for nothing before it from now on, so nobody misses what is deleted.
        self.transport.set_first(channel, first).await;
        let keep = Retention {
            count: Some(keep),
            age_ms: None,
        };
        match self.store.retain(channel, &keep).await {
            Ok(first) => self.status.send_modify(|status| status.first = first),
            // They take room, and are deleted with the next ones.
            Err(error) => {
                self.metrics.store_failures.inc();
                warn!("old updates of channel {channel} stay for now: {error}");
            }
        }
    }

    /// Says that the store fails, once until it works again, and waits before the next attempt.
    async fn store_failed(&mut self, failure: &StoreError) {
        self.metrics.store_failures.inc();
        self.storing.failed();
        let pause = self.storing.next(None);
        let text = failure.to_string();
        let news = self.status.send_if_modified(|status| {
            let news = status.store_failure.as_ref() != Some(&text);
            status.store_failure = Some(text.clone());
            news
        });
        if news {
            error!(
                "updates cannot be stored: {text}. Nothing is lost: they are kept, no more are \
                 fetched, and it is tried again, next in {:.1} s",
                pause.as_secs_f64()
            );
        }
        tokio::time::sleep(pause).await;
    }

    fn store_works(&mut self) {
        let failures = self.storing.succeeded();
        if failures == 0 {
            return;
        }
        info!("updates can be stored again, after {failures} failed attempts");
        self.status
            .send_modify(|status| status.store_failure = None);
    }
}
