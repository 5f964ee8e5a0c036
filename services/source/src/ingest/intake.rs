//! Storing of documents: changes are stored durably, and the publisher is woken.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use feed::detect::Draft;
use feed::{Entry, Kind, payload};
use jiff::Timestamp;
use signing::{Signer, Statement};
use store::{Hash, StoreError};
use tracing::{debug, error, info};

use super::changes::{Changes, prepare};
use super::document::{Document, DocumentSummary, size};
use super::{EndReason, History, Ingest};
use crate::clock::now_ms;

/// Largest number of changes per transaction, so that the first ones of a large document leave
/// before the last ones are on disk.
pub(super) const PART: usize = 64;

/// Approximate bytes per transaction, but at least one entry: updates are encoded while the
/// database keeps others from writing, renewals of leases among them.
pub(super) const PART_BYTES: usize = 1 << 20;

/// Changes in stored documents.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IntakeStats {
    /// New entries.
    pub(super) created: usize,
    /// Entries that were known with other content.
    pub(super) changed: usize,
    /// Whether a document shared no entry with the one before.
    pub(super) gap: bool,
}

impl Ingest {
    /// Stores the pending documents, oldest first. `None` if the store fails: then another attempt
    /// follows.
    pub(super) async fn store_pending(&mut self) -> Result<Option<IntakeStats>, EndReason> {
        let mut all = IntakeStats::default();
        while let Some(mut document) = self.pending.pop() {
            match self.store_document(&mut document).await {
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

    /// Handles an error of the store: either another source has the channel, or another attempt
    /// follows.
    pub(super) fn end_or_wait(&mut self, error: &StoreError) -> Result<(), EndReason> {
        if error.is_fenced() {
            info!(
                channel = self.settings.channel,
                feed = %self.settings.feed.url,
                "lease taken over by another source; ingest ends"
            );
            return Err(EndReason::Fenced);
        }
        self.store_failed(error);
        Ok(())
    }

    /// Stores the changes in a document. May be repeated after an error: stored changes are not
    /// stored twice.
    async fn store_document(&mut self, document: &mut Document) -> Result<IntakeStats, StoreError> {
        let changes = match document.changes.take() {
            Some(changes) => changes,
            None => self.examine(document).await?,
        };
        let (created, changed) = changes.count();
        let stored = self.store(document, &changes).await;
        document.changes = Some(changes);
        stored?;
        let gap = document.gap.take();
        let taken = IntakeStats {
            created,
            changed,
            gap: gap.is_some(),
        };
        if created + changed > 0 {
            info!(feed = %self.settings.feed.url, created, changed, "entries stored");
        }
        if let Some(gap) = gap {
            self.settle(gap).await;
        }
        Ok(taken)
    }

    /// Detects the changes in a document, together with a suspected gap in front of it.
    async fn examine(&mut self, document: &mut Document) -> Result<Changes, StoreError> {
        let known = self.known(&document.entries).await?;
        if !self.continues(document, &known) {
            self.fill_gap(document).await?;
        }
        let entries = mem::take(&mut document.entries);
        let changes = match self.detect_changes(entries, known).await {
            Some(changes) => changes,
            None => {
                document.again = true;
                Changes::default()
            }
        };
        let url = &self.settings.feed.url;
        self.problems
            .oversized(url, &self.metrics, &changes.oversized);
        if !document.seen.ids.is_empty() {
            if let Some(hole) = &mut self.gaps.open {
                hole.pass(&document.seen);
            }
            self.history = History::Seen(mem::take(&mut document.seen));
        }
        Ok(changes)
    }

    pub(super) async fn known(
        &self,
        entries: &[Entry],
    ) -> Result<HashMap<String, Hash>, StoreError> {
        let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        self.store.entries().hashes(channel, url, &ids).await
    }

    /// Whether a document shares an entry with the one before. If not, it may have come too late:
    /// entries that were in the feed in between are then missing. A changed entry does not count:
    /// feeds move those to the top.
    fn continues(&self, document: &Document, known: &HashMap<String, Hash>) -> bool {
        let unchanged = |entry: &Entry| known.get(&entry.id) == Some(&entry.content_hash());
        let mut entries = document.entries.iter();
        document.continues
            || document.entries.is_empty()
            || match &self.history {
                History::None => true,
                History::Stored(_) => entries.any(unchanged),
                // An entry that is too large to be sent is never known. If all are still present,
                // none was pushed out.
                History::Seen(DocumentSummary { ids, .. }) => {
                    entries.any(|entry| {
                        ids.contains(&entry.id)
                            && (unchanged(entry) || !known.contains_key(&entry.id))
                    }) || ids.is_subset(&document.seen.ids)
                }
            }
    }

    pub(super) async fn detect_changes(
        &mut self,
        entries: Vec<Entry>,
        known: HashMap<String, Hash>,
    ) -> Option<Changes> {
        let url = self.settings.feed.url.clone();
        let incarnation = self.settings.incarnation;
        let work = move || prepare(entries, &known, &url, incarnation);
        match tokio::task::spawn_blocking(work).await {
            Ok(changes) => {
                let url = &self.settings.feed.url;
                self.problems.broken(url, &self.metrics, &changes.broken);
                Some(changes)
            }
            Err(failure) => {
                error!(feed = %self.settings.feed.url, %failure, "change detection failed");
                None
            }
        }
    }

    /// Stores a document's remaining changes, and its validators with the last of them.
    async fn store(
        &mut self,
        document: &mut Document,
        changes: &Changes,
    ) -> Result<(), StoreError> {
        let validators = (!document.again).then_some(&document.validators);
        if changes.drafts.is_empty() {
            if validators.is_some_and(|validators| *validators != self.validators) {
                self.append(&changes.drafts, &[], validators).await?;
            }
        } else {
            let rows = rows(&changes.drafts);
            while document.stored < rows.len() {
                let end = part_end(&changes.drafts, document.stored);
                let part = rows.get(document.stored..end).unwrap_or_default();
                let last = if end == rows.len() { validators } else { None };
                self.append(&changes.drafts, part, last).await?;
                document.stored = end;
            }
        }
        match validators {
            Some(validators) => self.validators.clone_from(validators),
            None => self.client.forget_document(),
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

    /// Stores one part of the drafts, and wakes the publisher: also if this stored nothing, because
    /// an earlier attempt may have stored it and failed to report so.
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
                let now = Timestamp::now();
                self.sign(
                    seq,
                    payload::encode(entry, *kind, url, incarnation, seq, now),
                )
            }
            // The rows were numbered from the drafts.
            None => Vec::new(),
        };
        let store = self.store.clone();
        let fence = self.settings.fence;
        store
            .updates()
            .append(channel, url, fence, part, validators, &encode)
            .await?;
        self.wake.notify_one();
        Ok(())
    }

    /// Returns the signed update.
    fn sign(&self, seq: u64, content: Vec<u8>) -> Vec<u8> {
        let statement = Statement {
            channel: &self.settings.channel,
            incarnation: self.settings.incarnation,
            seq,
            deadline_ms: expiry_ms(&self.settings.deadline_ms),
        };
        sign(self.settings.signer.as_deref(), &statement, content)
    }

    /// Removes known entries that left the feed long ago, periodically.
    pub(super) async fn remove_old_entries(&mut self) {
        let History::Seen(DocumentSummary { ids, .. }) = &self.history else {
            return;
        };
        let bounds = &self.settings.bounds;
        if self.tidied.elapsed() < bounds.tidy
            || self.storing.is_failing()
            || self.gaps.open.is_some()
        {
            return;
        }
        self.tidied = Instant::now();
        let present: Vec<&str> = ids.iter().map(String::as_str).collect();
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        let forgotten = self
            .store
            .entries()
            .forget(channel, url, bounds.known, &present);
        match forgotten.await {
            Ok(0) => {}
            Ok(count) => debug!(feed = %url, count, "old known entries removed"),
            // They are removed the next time.
            Err(error) => debug!(feed = %url, %error, "old known entries not removed"),
        }
    }

    /// Logs that the store fails, once until it works again. Returns the wait before the next
    /// attempt.
    pub(super) fn store_failed(&mut self, failure: &StoreError) -> Duration {
        self.metrics.store_failures.inc();
        let pause = self.storing.failed();
        let text = failure.to_string();
        let pending = self.pending.entries();
        let mut is_new = false;
        self.status.send_if_modified(|status| {
            is_new = status.store_failure.is_none();
            let changed = status.store_failure.as_ref() != Some(&text) || status.pending != pending;
            status.store_failure = Some(text.clone());
            status.pending = pending;
            changed
        });
        if is_new {
            error!(
                feed = %self.settings.feed.url,
                error = text,
                retry_in = ?pause,
                "updates not stored; keeping them in memory and retrying"
            );
        } else {
            debug!(feed = %self.settings.feed.url, error = text, "updates still not stored");
        }
        pause
    }

    pub(super) fn store_works(&mut self) {
        let failures = self.storing.succeeded();
        if failures == 0 {
            return;
        }
        info!(feed = %self.settings.feed.url, failures, "storing updates works again");
        self.status.send_modify(|status| {
            status.store_failure = None;
            status.pending = 0;
        });
    }
}

/// Returns the Unix time in ms at which an update that is stored now expires; 0 for none.
pub(super) fn expiry_ms(lifetime_ms: &AtomicU64) -> u64 {
    match lifetime_ms.load(Ordering::Relaxed) {
        0 => 0,
        lifetime => now_ms().unsigned_abs().saturating_add(lifetime),
    }
}

/// Returns the signed update. One that cannot be signed stays as it is: receivers take it on their
/// unicast paths.
pub(super) fn sign(
    signer: Option<&Signer>,
    statement: &Statement<'_>,
    content: Vec<u8>,
) -> Vec<u8> {
    let Some(signer) = signer else {
        return content;
    };
    match signer.sign(statement, &rand::random(), &content) {
        Ok(signed) => signed,
        Err(problem) => {
            error!(seq = statement.seq, %problem, "update is not signed");
            content
        }
    }
}

/// Returns the end of the part that begins at `from`.
fn part_end(drafts: &[Draft], from: usize) -> usize {
    let mut bytes = 0_usize;
    let part = drafts.iter().skip(from).take(PART);
    let fits = part.enumerate().take_while(|(n, draft)| {
        bytes += size(&draft.entry);
        *n == 0 || bytes <= PART_BYTES
    });
    from + fits.count()
}

pub(super) fn rows(drafts: &[Draft]) -> Vec<store::Draft> {
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
