//! Keys that sign a channel's updates: stated by the source, and pinned (protocol.md sections 4.12
//! and 4.13).

use signing::{Endorsement, Forgery};

use super::{AuthenticationFailure, Receiver, ReceiverEvent};
use crate::WireError;
use crate::control::Lineage;
use crate::merge::Signatures;

/// Times that a source says which keys vouch for each other, on a connection.
const MAX_KEYS_FRAMES: u32 = 64;

/// Times that a source says the keys of a channel, on a connection.
const MAX_LINEAGES: u32 = 64;

impl Receiver {
    /// Handles a source that signs nothing, although keys are pinned.
    pub(super) fn fail_unsigned(&mut self) {
        let served = self.channels.iter().filter(|c| c.number.is_some());
        let failures = served.map(|channel| ReceiverEvent::AuthenticationFailed {
            channel: channel.name.clone(),
            failure: AuthenticationFailure {
                seq: channel.merge.next(),
                forgery: Forgery::Unsigned,
            },
        });
        self.events.extend(failures);
    }

    pub(super) fn on_keys(&mut self, endorsements: &[Endorsement]) -> Result<(), WireError> {
        if !self.welcomed {
            return Err(WireError::invalid("KEYS", "before WELCOME"));
        }
        self.keys_frames += 1;
        if self.keys_frames > MAX_KEYS_FRAMES {
            return Err(WireError::invalid("KEYS", "more than 64 on a connection"));
        }
        let pinned = &self.config.pinned_keys;
        if pinned.is_empty() {
            return Ok(());
        }
        let trusted = signing::trusted_keys(pinned, endorsements);
        for channel in &mut self.channels {
            channel.merge.trust_only(trusted.clone());
        }
        self.trusted = Some(trusted);
        Ok(())
    }

    pub(super) fn on_lineage(&mut self, lineage: Lineage) -> Result<(), WireError> {
        let number = Some(lineage.channel);
        let Some(channel) = self.channels.iter_mut().find(|c| c.number == number) else {
            return Err(WireError::invalid(
                "LINEAGE",
                "a channel that WELCOME did not name",
            ));
        };
        channel.lineages += 1;
        if channel.lineages > MAX_LINEAGES {
            return Err(WireError::invalid(
                "LINEAGE",
                "more than 64 of a channel on a connection",
            ));
        }
        self.events.push_back(ReceiverEvent::Lineage {
            channel: channel.name.clone(),
            lineage: lineage.eras.clone(),
        });
        let pinned = &self.config.pinned_keys;
        let required = !pinned.is_empty();
        if self.config.verify_updates || required {
            let mut signatures = Signatures {
                channel: channel.name.clone(),
                lineage: lineage.eras,
                required,
            };
            if required {
                signatures.trust_only(self.trusted.as_ref().unwrap_or(pinned).clone());
            }
            channel.merge.set_signatures(Some(signatures));
        }
        Ok(())
    }
}
