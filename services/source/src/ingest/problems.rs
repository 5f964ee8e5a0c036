//! Problems of a feed, logged once for as long as they stay the same.

use std::collections::HashSet;
use std::time::Duration;

use feed::detect::Draft;
use tracing::{error, warn};

use crate::metrics::ChannelMetrics;
use crate::status::FeedState;

/// Largest number of unreadable entries that are named in the log at a time.
const NAMED: usize = 5;

/// Problems that were logged already.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// Failure of the last poll.
    failure: Option<(FeedState, String)>,
    /// Unreadable entries of the last document.
    unreadable: Vec<String>,
    /// Ids and hashes of entries in the last document that are too large.
    oversized: HashSet<(String, [u8; 32])>,
    /// Ids of recent entries that trigger a bug of this program.
    broken: HashSet<String>,
}

impl Problems {
    /// Logs a failed poll. `is_final` says that a feed that is gone is not polled any more.
    pub(super) fn poll_failed(
        &mut self,
        state: FeedState,
        detail: &str,
        pause: Duration,
        is_final: bool,
    ) {
        let failure = (state, detail.to_owned());
        if self.failure.as_ref() == Some(&failure) {
            return;
        }
        if state == FeedState::Gone && is_final {
            warn!(
                detail,
                "feed gone; no further polls until it is added again"
            );
        } else {
            warn!(detail, retry_in = ?pause, "poll failed");
        }
        self.failure = Some(failure);
    }

    /// Records a successful poll. Returns whether the one before failed.
    pub(super) fn poll_succeeded(&mut self) -> bool {
        self.failure.take().is_some()
    }

    /// Logs skipped entries of a document.
    pub(super) fn unreadable(&mut self, url: &str, skipped: &[String]) {
        if skipped == self.unreadable {
            return;
        }
        for line in skipped.iter().take(NAMED) {
            warn!(feed = %url, reason = line, "entry skipped: unreadable");
        }
        if let Some(more) = skipped.len().checked_sub(NAMED).filter(|&more| more > 0) {
            warn!(feed = %url, more, "further entries skipped");
        }
        self.unreadable = skipped.to_vec();
    }

    /// Counts and logs entries that are skipped because of a bug of this program.
    pub(super) fn broken(&mut self, url: &str, metrics: &ChannelMetrics, ids: &[String]) {
        for id in ids.iter().filter(|id| !self.broken.contains(*id)) {
            metrics.breakdowns.inc();
            error!(
                feed = %url,
                entry = ?id,
                "entry skipped: bug of this program, see the lines before"
            );
        }
        self.broken = ids.iter().cloned().collect();
    }

    /// Counts and logs entries that are too large, once per version.
    pub(super) fn oversized(&mut self, url: &str, metrics: &ChannelMetrics, drafts: &[Draft]) {
        let version = |draft: &Draft| (draft.entry.id.clone(), draft.hash);
        let is_new = |draft: &&Draft| !self.oversized.contains(&version(draft));
        for draft in drafts.iter().filter(is_new) {
            metrics.oversized.inc();
            warn!(
                feed = %url,
                entry = ?draft.entry.id,
                max_bytes = flexicast::MAX_UPDATE,
                "entry skipped: update too large"
            );
        }
        self.oversized = drafts.iter().map(version).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use feed::{Entry, Kind};

    fn draft(id: &str, hash: u8) -> Draft {
        Draft {
            kind: Kind::Created,
            hash: [hash; 32],
            entry: Entry {
                id: id.to_owned(),
                ..Entry::default()
            },
        }
    }

    #[test]
    fn entries_are_counted_once_while_they_stay_the_same() {
        let metrics = Metrics::default().channel("lore");
        let mut problems = Problems::default();
        for (drafts, count) in [
            (&[draft("a", 1), draft("b", 1)][..], 2),
            (&[draft("a", 1)], 2),
            (&[draft("a", 2), draft("b", 1)], 4),
            (&[], 4),
            (&[draft("a", 2)], 5),
        ] {
            problems.oversized("http://f/", &metrics, drafts);
            assert_eq!(metrics.oversized.get(), count);
        }
        for (ids, count) in [(&["a", "b"][..], 2), (&["b"], 2), (&[], 2), (&["b"], 3)] {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            problems.broken("http://f/", &metrics, &ids);
            assert_eq!(metrics.breakdowns.get(), count);
        }
    }

    #[test]
    fn a_recovery_is_one_only_after_a_failure() {
        let mut problems = Problems::default();
        assert!(!problems.poll_succeeded());
        problems.poll_failed(FeedState::Error, "down", Duration::ZERO, true);
        assert!(problems.poll_succeeded());
        assert!(!problems.poll_succeeded());
    }
}
