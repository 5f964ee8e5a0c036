//! Readiness of the source, with reasons.

use std::time::Duration;

use serde::Serialize;

use super::{ChannelView, FeedState, FeedView, Phase, Role, Snapshot};

/// A transport that has not answered for this long counts as stuck.
const STUCK: Duration = Duration::from_secs(10);

/// State of the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportState {
    /// Ended.
    Ended,
    /// Time since its last answer.
    Answered(Duration),
}

/// Whether the source is ready.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Whether receivers are served completely.
    pub ready: bool,
    /// Whether another source publishes and this one would take over.
    pub standby: bool,
    /// Reasons if it is not ready.
    pub reasons: Vec<String>,
    /// Notes for operators although the source is ready.
    pub notes: Vec<String>,
}

impl Readiness {
    /// Whether the source is ready, or a standby in good order.
    pub fn is_well(&self) -> bool {
        self.ready || self.standby
    }
}

/// Returns the readiness at one moment.
pub fn readiness(seen: &Snapshot, transport: TransportState) -> Readiness {
    let mut found = Readiness::default();
    let reasons = &mut found.reasons;
    match seen.phase {
        Phase::Starting => reasons.push("the source is starting".to_owned()),
        Phase::Running => {}
        Phase::Stopping => reasons.push("the source is stopping".to_owned()),
    }
    if !seen.database.up {
        let error = seen.database.error.as_deref().unwrap_or("no reason known");
        reasons.push(format!("the store cannot be read: {error}"));
    }
    match transport {
        TransportState::Ended => reasons.push("the transport is not running".to_owned()),
        TransportState::Answered(ago) if ago > STUCK => reasons.push(format!(
            "the transport has not answered for {} s",
            ago.as_secs()
        )),
        TransportState::Answered(_) => {}
    }
    let troubles = seen.channels.iter().flat_map(|channel| {
        // With one channel, its name says nothing.
        let which = match seen.channels.len() {
            1 => String::new(),
            _ => format!("channel {}: ", channel.name),
        };
        troubles(channel)
            .into_iter()
            .map(move |why| format!("{which}{why}"))
    });
    reasons.extend(troubles);
    if found.reasons.is_empty() {
        let elsewhere = |channel: &ChannelView| matches!(channel.role, Role::Standby { .. });
        match seen.channels.iter().find(|channel| elsewhere(channel)) {
            Some(channel) => {
                found.standby = true;
                found.reasons.push(stands_by(channel));
            }
            None => found.ready = true,
        }
    }
    if seen.channels.is_empty() {
        found.notes.push(
            "there is no channel yet: add one with `flexfeed-source channel add NAME`".to_owned(),
        );
    }
    // Relays without a check yet are neither good nor bad.
    for relay in seen.relays.iter().filter(|r| r.since_ms.is_some()) {
        if let Some(why) = &relay.error {
            let address = &relay.address;
            let note = format!("the AMT relay {address} is not announced to receivers: {why}");
            found.notes.push(note);
        }
    }
    for channel in seen.channels.iter().filter(|c| c.feeds.is_empty()) {
        found.notes.push(format!(
            "channel {0} has no feed: add one with `flexfeed-source feed add {0} URL`",
            channel.name
        ));
    }
    found
}

fn stands_by(channel: &ChannelView) -> String {
    match &channel.role {
        Role::Standby { holder: Some(name) } => format!(
            "standing by: the source {name:?} publishes the channel {}",
            channel.name
        ),
        _ => format!(
            "standing by: channel {} is about to be taken over",
            channel.name
        ),
    }
}

/// Returns the reasons why a channel is not served completely.
fn troubles(channel: &ChannelView) -> Vec<String> {
    let mut found = Vec::new();
    match &channel.role {
        Role::Starting => found.push("it is not published yet".to_owned()),
        Role::Lapsed { reason, .. } => found.push(format!(
            "its lease cannot be renewed, so nothing new is published: {reason}"
        )),
        Role::Failed { reason } => found.push(format!("it cannot be published: {reason}")),
        Role::Active { .. } => {
            if let Some(failure) = &channel.store_failure {
                found.push(format!("updates cannot be stored: {failure}"));
            } else {
                let pending = |feed: &&FeedView| {
                    let ingest = feed.ingest.as_ref();
                    ingest.is_none_or(|ingest| ingest.state == FeedState::Pending)
                };
                if let Some(feed) = channel.feeds.iter().find(pending) {
                    found.push(format!(
                        "the first poll of the feed {} is not done yet",
                        feed.url
                    ));
                }
            }
        }
        Role::Standby { .. } => {}
    }
    found
}
