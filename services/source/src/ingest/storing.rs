//! Taking documents in: what is new in them is stored durably, and the publisher is woken.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use feed::detect::Draft;
use feed::{Entry, Kind, payload};
use jiff::Timestamp;
use store::{Hash, StoreError};
use tracing::{debug, error, info, warn};

use super::document::{Before, Document, size};
use super::prepare::{News, prepare};
use super::{Ended, History, Ingest};

/// News are stored in parts of at most this many, so that the first ones of a large document leave
/// before the last ones are on disk.
pub(super) const PART: usize = 64;

/// And of about this many bytes, but of one at least: updates are encoded while the database keeps
/// others from writing, renewals of leases among them.
const PART_BYTES: usize = 1 << 20;

/// What documents brought.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Taken {
    /// New entries.
    pub(super) created: usize,
    /// Entries that were known with other content.
    pub(super) changed: usize,
    /// One shared no entry with the one before.
    pub(super) gap: bool,
}

impl Ingest {
    /// Stores what is pending, the oldest document first. `None` if the store fails: then it is
    /// tried again later.
    pub(super) async fn store_pending(&mut self) -> Result<Option<Taken>, Ended> {
        let mut all = Taken::default();
        while let Some(mut document) = self.pending.pop() {
            match self.take_in(&mut document).await {
                Ok(taken) => {
                    self.pending.stored();
                    all.created += taken.created;
                    all.changed += taken.changed;
                    all.gap |= taken.gap;
                }
                Err(error) => {
                    self.pending.put_back(document);
                    self.end_or_wait(&error)?;
                    return Ok(None);
                }
            }
        }
        self.store_works();
        Ok(Some(all))
    }

    /// What an error of the store means: somebody else has the channel, or it is tried again.
    pub(super) fn end_or_wait(&mut self, error: &StoreError) -> Result<(), Ended> {
        if error.is_fenced() {
            info!(
                "channel {:?} is published by somebody else now: the feed at {} is left to them",
                self.settings.channel, self.settings.feed.url
            );
            return Err(Ended::Fenced);
        }
        self.store_failed(error);
        Ok(())
    }

    /// Stores what is new in a document. After an error it can be done again: what is stored
    /// already is not stored twice.
    async fn take_in(&mut self, document: &mut Document) -> Result<Taken, StoreError> {
        let news = match document.news.take() {
            Some(news) => news,
            None => self.examine(document).await?,
        };
        let (created, changed) = news.count();
        let stored = self.store(document, &news).await;
        document.news = Some(news);
        stored?;
        let gap = document.gap.take();
        let taken = Taken {
            created,
            changed,
            gap: gap.is_some(),
        };
        if created + changed > 0 {
            info!(
                "{created} new entries and {changed} changed ones of the feed at {} are stored",
                self.settings.feed.url
            );
        }
        if let Some(gap) = gap {
            self.settle(gap).await;
        }
        Ok(taken)
    }

    /// Works out what is new in a document, together with what it lets suspect to be missing.
    async fn examine(&mut self, document: &mut Document) -> Result<News, StoreError> {
        let known = self.known(&document.entries).await?;
        if !self.continues(document, &known) {
            self.look_into(document).await?;
        }
        let entries = mem::take(&mut document.entries);
        let news = match self.news(entries, known).await {
            Some(news) => news,
            None => {
                document.again = true;
                News::default()
            }
        };
        self.name_oversized(&news.oversized);
        if !document.seen.ids.is_empty() {
            if let Some(hole) = &mut self.hole {
                hole.pass(&document.seen);
            }
            self.history = History::Seen(mem::take(&mut document.seen));
        }
        Ok(news)
    }

    pub(super) async fn known(
        &self,
        entries: &[Entry],
    ) -> Result<HashMap<String, Hash>, StoreError> {
        let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        self.store.known(channel, url, &ids).await
    }

    /// Whether a document shares an entry with the one before. If not, it may have come too late:
    /// what was in the feed in between is then missing. An entry that has changed does not count:
    /// feeds move those to the top.
    fn continues(&self, document: &Document, known: &HashMap<String, Hash>) -> bool {
        let unchanged = |entry: &Entry| known.get(&entry.id) == Some(&entry.content_hash());
        let mut entries = document.entries.iter();
        document.continues
            || document.entries.is_empty()
            || match &self.history {
                History::None => true,
                History::Stored(_) => entries.any(unchanged),
                // One that is too large to be sent is never known. Where all are there still, none
                // was pushed out.
                History::Seen(Before { ids, .. }) => {
                    entries.any(|entry| {
                        ids.contains(&entry.id)
                            && (unchanged(entry) || !known.contains_key(&entry.id))
                    }) || ids.is_subset(&document.seen.ids)
                }
            }
    }

    pub(super) async fn news(
        &mut self,
        entries: Vec<Entry>,
        known: HashMap<String, Hash>,
    ) -> Option<News> {
        let url = self.settings.feed.url.clone();
        let incarnation = self.settings.incarnation;
        let work = move || prepare(entries, &known, &url, incarnation);
        match tokio::task::spawn_blocking(work).await {
            Ok(news) => {
                self.name_broken(&news.broken);
                Some(news)
            }
            Err(failure) => {
                error!("the feed's news could not be worked out: {failure}");
                None
            }
        }
    }

    /// Counts and logs entries that are passed over because of a mistake of this program.
    fn name_broken(&mut self, ids: &[String]) {
        for id in ids.iter().filter(|id| !self.broken.contains(*id)) {
            self.metrics.breakdowns.inc();
            error!(
                "the entry {id:?} of the feed at {} is passed over: a mistake of this program, of which \
                 the lines before this one say more",
                self.settings.feed.url
            );
        }
        self.broken = ids.iter().cloned().collect();
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
                self.settings.feed.url,
                flexicast::MAX_UPDATE
            );
        }
        self.oversized = drafts
            .iter()
            .map(|draft| (draft.entry.id.clone(), draft.hash))
            .collect();
    }

    /// Stores a document's news from where that got to, and its validators with the last of them.
    async fn store(&mut self, document: &mut Document, news: &News) -> Result<(), StoreError> {
        let validators = (!document.again).then_some(&document.validators);
        if news.drafts.is_empty() {
            if validators.is_some_and(|validators| *validators != self.validators) {
                self.append(&news.drafts, &[], validators).await?;
            }
        } else {
            let rows = rows(&news.drafts);
            while document.stored < rows.len() {
                let end = part_end(&news.drafts, document.stored);
                let part = rows.get(document.stored..end).unwrap_or_default();
                let last = if end == rows.len() { validators } else { None };
                self.append(&news.drafts, part, last).await?;
                document.stored = end;
            }
        }
        match validators {
            Some(validators) => self.validators.clone_from(validators),
            None => self.asked = feed::fetch::Validators::default(),
        }
        Ok(())
    }

    /// Stores entries that belong to no document of the feed.
    pub(super) async fn store_found(&mut self, drafts: &[Draft]) -> Result<(), StoreError> {
        let (rows, mut stored) = (rows(drafts), 0);
        while stored < rows.len() {
            let end = part_end(drafts, stored);
            let part = rows.get(stored..end).unwrap_or_default();
            self.append(drafts, part, None).await?;
            stored = end;
        }
        Ok(())
    }

    /// Stores one part of the drafts, and wakes the publisher: also if this stored nothing, for an
    /// earlier attempt may have stored it without being able to say so.
    async fn append(
        &self,
        drafts: &[Draft],
        part: &[store::Draft],
        validators: Option<&store::Validators>,
    ) -> Result<(), StoreError> {
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        let incarnation = self.settings.incarnation;
        let encode = |seq: u64, row: &store::Draft| match drafts.get(row.index) {
            Some(Draft { kind, entry, .. }) => {
                payload::encode(entry, *kind, url, incarnation, seq, Timestamp::now())
            }
            // The rows were numbered from the drafts.
            None => Vec::new(),
        };
        let store = Arc::clone(&self.store);
        let fence = self.settings.fence;
        store
            .append(channel, url, fence, part, validators, &encode)
            .await?;
        self.wake.notify_one();
        Ok(())
    }

    /// Forgets entries that left the feed long ago, now and then.
    pub(super) async fn tidy(&mut self) {
        let History::Seen(Before { ids, .. }) = &self.history else {
            return;
        };
        let bounds = &self.settings.bounds;
        if self.tidied.elapsed() < bounds.tidy || self.storing.fails() || self.hole.is_some() {
            return;
        }
        self.tidied = Instant::now();
        let present: Vec<&str> = ids.iter().map(String::as_str).collect();
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        let forgotten = self
            .store
            .forget_entries(channel, url, bounds.known, &present);
        match forgotten.await {
            Ok(0) => {}
            Ok(count) => debug!("{count} old entries of the feed at {url} need not be known"),
            // They take room, and go the next time.
            Err(error) => debug!("old entries of the feed at {url} stay known for now: {error}"),
        }
    }

    /// Says that the store fails, once until it works again. Returns the wait before the next
    /// attempt.
    pub(super) fn store_failed(&mut self, failure: &StoreError) -> Duration {
        self.metrics.store_failures.inc();
        self.storing.failed();
        let pause = self.storing.next();
        self.retry_at = Instant::now() + pause;
        let text = failure.to_string();
        let pending = self.pending.entries();
        let mut news = false;
        self.status.send_if_modified(|status| {
            news = status.store_failure.is_none();
            let changed = status.store_failure.as_ref() != Some(&text) || status.pending != pending;
            status.store_failure = Some(text.clone());
            status.pending = pending;
            changed
        });
        if news {
            error!(
                "updates of the feed at {} cannot be stored: {text}. Nothing is lost: they are kept, \
                 and it is tried again, next in {:.1} s",
                self.settings.feed.url,
                pause.as_secs_f64()
            );
        } else {
            debug!("updates still cannot be stored: {text}");
        }
        pause
    }

    pub(super) fn store_works(&mut self) {
        let failures = self.storing.succeeded();
        if failures == 0 {
            return;
        }
        info!(
            "updates of the feed at {} can be stored again, after {failures} failed attempts",
            self.settings.feed.url
        );
        self.status.send_modify(|status| {
            status.store_failure = None;
            status.pending = 0;
        });
    }
}

/// The end of the part that begins at `from`.
fn part_end(drafts: &[Draft], from: usize) -> usize {
    let mut bytes = 0_usize;
    let part = drafts.iter().skip(from).take(PART);
    let fits = part.enumerate().take_while(|(n, draft)| {
        bytes += size(&draft.entry);
        *n == 0 || bytes <= PART_BYTES
    });
    from + fits.count()
}

fn rows(drafts: &[Draft]) -> Vec<store::Draft> {
    let rows = drafts.iter().enumerate();
    rows.map(|(index, draft)| store::Draft {
        entry_id: draft.entry.id.clone(),
        hash: draft.hash,
        kind: match draft.kind {
            Kind::Created => store::Kind::Created,
            Kind::Updated => store::Kind::Updated,
        },
        index,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_bounded_by_number_and_by_bytes() {
        let drafts = |bytes: &[usize]| -> Vec<Draft> {
            let draft = |bytes: &usize| Draft {
                kind: Kind::Created,
                hash: [0; 32],
                entry: Entry {
                    xml: "x".repeat(*bytes),
                    ..Entry::default()
                },
            };
            bytes.iter().map(draft).collect()
        };
        let parts = |bytes: &[usize]| {
            let drafts = drafts(bytes);
            let (mut ends, mut from) = (Vec::new(), 0);
            while from < drafts.len() {
                from = part_end(&drafts, from);
                ends.push(from);
            }
            ends
        };
        assert_eq!(parts(&[10; 130]), [64, 128, 130]);
        let third = PART_BYTES / 3;
        assert_eq!(parts(&[third, third, third, 1]), [2, 4]);
        let large = 4 * PART_BYTES;
        assert_eq!(parts(&[1, large, large, 1, 1]), [1, 2, 3, 5]);
        assert!(parts(&[]).is_empty());
    }
}
