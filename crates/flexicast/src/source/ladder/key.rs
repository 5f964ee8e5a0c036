//! Keys of a flow at one receiver (protocol.md section 5.3).

/// Keys of the flow at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source) enum KeyState {
    /// No key was sent.
    None,
    /// The receiver of a private channel waits for the next key epoch.
    Awaited,
    /// Keys were sent: the newest epoch among them, and the newest that the receiver confirmed, 0
    /// for none.
    Sent { sequence: u64, confirmed: u64 },
}

impl KeyState {
    /// Whether the receiver can read packets of some epoch.
    pub(in crate::source) fn is_sent(self) -> bool {
        matches!(self, KeyState::Sent { .. })
    }

    /// Whether the key of epoch `sequence` is the newest that was sent.
    pub(in crate::source) fn is_newest(self, sequence: u64) -> bool {
        matches!(self, KeyState::Sent { sequence: newest, .. } if newest == sequence)
    }

    /// Returns the newest confirmed epoch; 0 for none.
    pub(in crate::source) fn confirmed(self) -> u64 {
        match self {
            KeyState::Sent { confirmed, .. } => confirmed,
            KeyState::None | KeyState::Awaited => 0,
        }
    }

    /// Notes that the key of epoch `sequence` was sent.
    pub(in crate::source) fn send(&mut self, sequence: u64) {
        let confirmed = self.confirmed();
        *self = KeyState::Sent {
            sequence,
            confirmed,
        };
    }

    /// Notes that the receiver holds the key of epoch `claimed`, and returns the epoch that counts:
    /// only a key that was sent can be held.
    pub(in crate::source) fn confirm(&mut self, claimed: u64) -> u64 {
        let KeyState::Sent {
            sequence,
            confirmed,
        } = self
        else {
            return 0;
        };
        let counts = claimed.min(*sequence);
        *confirmed = counts.max(*confirmed);
        counts
    }

    /// Ends the announcements of keys to the receiver; returns whether it was sent any.
    pub(in crate::source) fn revoke(&mut self) -> bool {
        std::mem::replace(self, KeyState::None).is_sent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_confirms_no_key_that_it_was_not_sent() {
        let mut key = KeyState::None;
        assert_eq!(key.confirm(7), 0);
        key.send(2);
        assert_eq!((key.confirm(7), key.confirmed()), (2, 2));
        assert_eq!((key.confirm(1), key.confirmed()), (1, 2));
        key.send(3);
        assert_eq!(key.confirmed(), 2);
        assert!(key.revoke() && !key.revoke());
    }
}
