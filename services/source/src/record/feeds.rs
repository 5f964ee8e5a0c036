//! Feed records: polls by the hour, and each change of a feed's state.

use std::collections::BTreeMap;

use store::{FeedEvent, FeedHour};

use super::outbox::Outbox;
use crate::ingest::PollReport;
use crate::status::FeedState;

const HOUR_MS: i64 = 3_600_000;

/// Last recorded states of feeds.
#[derive(Debug, Default)]
pub struct Feeds {
    states: BTreeMap<(String, String), String>,
}

/// Returns the word for a state in the history: without and with new entries are the same.
fn word(state: FeedState) -> &'static str {
    match state {
        FeedState::NotModified => FeedState::Ok.word(),
        other => other.word(),
    }
}

impl Feeds {
    /// Loads the last records, oldest first.
    pub fn know(&mut self, events: Vec<FeedEvent>) {
        for event in events {
            self.states.insert((event.channel, event.url), event.state);
        }
    }

    /// Records a poll.
    pub fn polled(&mut self, poll: PollReport, outbox: &Outbox) {
        let state = poll.state;
        let is = |one: FeedState| u64::from(state == one);
        outbox.feed_hour(FeedHour {
            channel: poll.channel.clone(),
            url: poll.url.clone(),
            hour_ms: poll.at_ms - poll.at_ms.rem_euclid(HOUR_MS),
            polls: 1,
            ok: is(FeedState::Ok),
            not_modified: is(FeedState::NotModified),
            failed: u64::from(!state.is_good() && state != FeedState::Challenged),
            challenged: is(FeedState::Challenged),
            entries: poll.entries,
        });
        let state = word(state);
        let key = (poll.channel.clone(), poll.url.clone());
        let known = self.states.insert(key, state.to_owned());
        // A feed without history that works is no event.
        if known.as_deref().unwrap_or(FeedState::Ok.word()) != state {
            outbox.feed_event(FeedEvent {
                id: 0,
                channel: poll.channel,
                url: poll.url,
                at_ms: poll.at_ms,
                state: state.to_owned(),
                detail: poll.detail,
                excerpt: poll.excerpt,
                change: 0,
            });
        }
    }
}
