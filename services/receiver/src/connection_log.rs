//! Log lines of the transport's events, without floods of repetitions.

use std::path::{Path, PathBuf};

use flexicast::control::Refusal;
use flexicast_tokio::receiver::{DistrustedUpdate, Event, LegState};
use tracing::{debug, error, info, warn};

use crate::board::Board;
use service::peer_text::plain;

/// Log lines for connection events. Repetitions are suppressed, so that an outage of a day takes a
/// few lines.
#[derive(Debug)]
pub struct ConnectionLog {
    source: String,
    /// Data folder of a receiver that is not known to have been admitted.
    newcomer: Option<PathBuf>,
    /// Number of updates that arrived wrong by the flow.
    distrusted: u64,
    /// Last reason of a lost connection, and its occurrences since the last WELCOME.
    trouble: Option<(String, u64)>,
}

impl ConnectionLog {
    /// Returns the log of a receiver of `source` (`host:port`). `newcomer` is the data folder, if
    /// that source is not known to have admitted its receiver before.
    #[must_use]
    pub fn new(source: &str, newcomer: Option<&Path>) -> Self {
        Self {
            source: source.to_owned(),
            newcomer: newcomer.map(Path::to_owned),
            distrusted: 0,
            trouble: None,
        }
    }

    /// Logs mismatches at growing intervals: a forger may cause them all the time.
    fn log_distrust(&mut self, channel: &str, found: &DistrustedUpdate) {
        self.distrusted += 1;
        let (seq, count, reason) = (found.seq, self.distrusted, found.reason);
        let what = match found.handed {
            true => "bytes of a delivered update arrived again with another content",
            false => "an update arrived wrong by the flow; fetching it again by unicast",
        };
        if count.is_power_of_two() {
            warn!(
                channel = plain(channel),
                seq,
                ?reason,
                count,
                "{what}: does a member forge packets?"
            );
        } else {
            debug!(channel = plain(channel), seq, ?reason, count, "{what}");
        }
    }

    /// Logs an event. `board` is as it was before the event.
    pub fn log(&mut self, event: &Event, board: &Board) {
        match event {
            Event::Connected { addr } => {
                debug!(%addr, "source verified");
            }
            Event::Disconnected { reason, retry_in } => {
                let retry = retry_in.as_secs_f64();
                let reason = plain(reason);
                let times = self.again(&reason);
                // At growing intervals.
                if times == 1 {
                    warn!(
                        source = self.source,
                        reason, "not connected; retrying in {retry:.1} s"
                    );
                } else if times.is_power_of_two() {
                    warn!(
                        source = self.source,
                        reason, times, "still not connected; retrying in {retry:.1} s"
                    );
                } else {
                    debug!(source = self.source, reason, "not connected");
                }
            }
            // Reported at the end of the program.
            Event::Refused { fatal: true, .. } => {}
            Event::Refused { code, reason, .. } => {
                let text = self.refusal(*code, reason);
                if self.again(&text) == 1 {
                    warn!("{text}");
                }
            }
            Event::Welcome {
                channel: name,
                incarnation,
                head,
                first,
                resync,
            } => {
                self.trouble = None;
                self.newcomer = None;
                let channel = plain(name);
                info!(
                    source = self.source,
                    channel, head, first, "connected to the source"
                );
                if *resync {
                    let known = board.cursor(name).filter(|c| c.incarnation == *incarnation);
                    let what = match known {
                        Some(cursor) => format!(
                            "the source's last update is {head}, but this receiver is at {}: the \
                             source's store was restored from an older backup",
                            cursor.seq
                        ),
                        None => {
                            format!("the source's store was replaced (incarnation {incarnation})")
                        }
                    };
                    warn!(
                        channel,
                        first,
                        "numbering restarted: {what}; delivery starts over, into the same feed \
                         files"
                    );
                }
            }
            Event::AuthenticationFailed {
                channel,
                failure,
                retry_in,
            } => error!(
                channel = plain(channel),
                seq = failure.seq,
                reason = %failure.forgery,
                "the source failed to prove an update by the pinned key (key= in the link); nothing \
                 of the channel is taken, next attempt in {} s",
                retry_in.as_secs()
            ),
            Event::Gap { channel, from, to } => error!(
                channel = plain(channel),
                first = from,
                last = to,
                "updates are gone at the source: this receiver was away for longer than they are \
                 kept"
            ),
            Event::Message {
                channel,
                number,
                encoded,
                ..
            } => {
                let bytes = encoded.len();
                debug!(channel = plain(channel), number, bytes, "message received");
            }
            Event::Rung {
                channel,
                rung,
                cause,
                ..
            } => match board.rung(channel) {
                Some(before) if before != *rung => {
                    info!(
                        channel = plain(channel),
                        "moved from {before} to {rung}: {cause}"
                    );
                }
                _ => debug!(channel = plain(channel), "stays on {rung}: {cause}"),
            },
            Event::Update {
                channel, seq, via, ..
            } => {
                debug!(channel = plain(channel), seq, %via, "update received");
            }
            Event::Leg {
                channel,
                leg,
                state: LegState::Lost,
                ..
            } => warn!(channel = plain(channel), %leg, "leg lost; another one goes on"),
            Event::Leg {
                channel,
                leg,
                state,
                ..
            } => info!(channel = plain(channel), %leg, %state, "leg"),
            Event::OneLeg => warn!("the source is too old for two legs: each flow comes by one"),
            Event::Explained {
                channel,
                rung,
                on,
                cause,
                ..
            } => info!(
                channel = plain(channel),
                "{rung} failed: {cause}; still on {on}"
            ),
            Event::Relay {
                channel,
                number: 0,
                text,
                ..
            } => info!(channel = plain(channel), "{text}"),
            Event::Relay { channel, text, .. } => {
                info!(channel = plain(channel), "second leg: {text}");
            }
            Event::Distrusted { channel, found } => self.log_distrust(channel, found),
            // Part of the status, not of the log.
            _ => {}
        }
    }

    /// Returns the meaning of a refusal, with the remedy.
    #[must_use]
    pub fn refusal(&self, code: u64, reason: &str) -> String {
        let lost;
        let advice = match Refusal::from_number(code) {
            Some(Refusal::BadCredential) if reason.contains("receiver was revoked") => {
                "only the operator can admit it again (at the source: 'flexfeed-source receiver \
                 forget ID --yes' with the id in state/receiver-id), and then it needs a new link"
            }
            Some(Refusal::BadCredential) if reason.contains("too old") => {
                "use the version of the source"
            }
            Some(Refusal::BadCredential) => match &self.newcomer {
                Some(folder) => {
                    lost = lost_folder(folder);
                    lost.as_str()
                }
                None => {
                    "ask the source's operator for a new link. A link's token is needed only for \
                     the first admission: an admitted receiver needs no other one as long as it \
                     keeps state/receiver-id and state/credential of its data folder"
                }
            },
            Some(Refusal::UnknownChannel) => {
                "the link's ch= names a channel that this source does not have: ask the source's \
                 operator for a new link"
            }
            Some(Refusal::BadHello) => {
                "source and receiver speak different versions: use the same version of both"
            }
            Some(Refusal::Unavailable) => "retrying",
            Some(Refusal::TooMany) => "retrying later",
            Some(Refusal::IdInUse) => {
                "another receiver uses this data folder's id, and each needs a data folder of its \
                 own: stop the other one, or, if this folder is the copy, remove state/receiver-id \
                 and state/credential from it and start it with a link that has a token; retrying"
            }
            _ => "unknown kind of refusal: use the source's version",
        };
        format!(
            "the source at {} refused this receiver: {}; {advice}",
            self.source,
            plain(reason)
        )
    }

    /// Returns the number of consecutive occurrences of this problem.
    fn again(&mut self, reason: &str) -> u64 {
        let times = match &self.trouble {
            Some((known, times)) if known == reason => times + 1,
            _ => 1,
        };
        self.trouble = Some((reason.to_owned(), times));
        times
    }
}

/// Returns the remedy for a receiver with a used-up token and no credential.
fn lost_folder(folder: &Path) -> String {
    format!(
        "ask the source's operator for a new link. A receiver admitted before needs none, but its \
         data folder, whose credential replaces the link's token. The receiver of this one, {}, is \
         not known to have been admitted: if there is an older data folder, start with that (in a \
         container, with the same volume, such as docker run -v feeds:/data). A receiver that \
         starts with an empty folder each time needs a link that is not used up (at the source: \
         'flexfeed-source token create' without --limit)",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_data_folder_is_named_as_the_reason() {
        let used_up = "the enrolment link has been used by as many receivers as it was made for";
        let refusal = |newcomer| {
            let log = ConnectionLog::new("h:4433", newcomer);
            log.refusal(Refusal::BadCredential as u64, used_up)
        };
        let text = refusal(Some(Path::new("/srv/feeds")));
        for part in [
            used_up,
            "/srv/feeds, is not known",
            "-v feeds:/data",
            "without --limit",
            "ask the source's operator for a new link",
        ] {
            assert!(text.contains(part), "{text}");
        }
        // A receiver that has its folder needs no token.
        let text = refusal(None);
        assert!(text.contains("state/credential"), "{text}");
        assert!(!text.contains("-v feeds"), "{text}");
    }

    #[test]
    fn a_refusal_names_its_remedy() {
        let log = ConnectionLog::new("h:4433", None);
        let text = log.refusal(Refusal::BadCredential as u64, "not\u{7}valid");
        for part in ["h:4433", "not valid", "token", "operator", "new link"] {
            assert!(text.contains(part), "{text}");
        }
        let revoked = "this receiver was revoked by the source's operator";
        let text = log.refusal(Refusal::BadCredential as u64, revoked);
        assert!(text.contains("receiver forget ID"), "{text}");
        let text = log.refusal(Refusal::IdInUse as u64, "r1 is connected from 192.0.2.1:9");
        for part in ["192.0.2.1:9", "data folder of its own", "state/credential"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(log.refusal(2, "").contains("ch="));
        assert!(log.refusal(99, "").contains("version"));
    }

    #[test]
    fn repeated_problems_are_counted() {
        let mut log = ConnectionLog::new("h:4433", None);
        assert_eq!([log.again("a"), log.again("a"), log.again("b")], [1, 2, 1]);
    }
}
