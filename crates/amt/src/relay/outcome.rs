//! Results of handling a message.

use crate::WireError;

/// Result of handling a gateway's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Accepted, with an answer to send from the address that the message came to.
    Answer,
    /// Accepted, without an answer.
    Accepted,
    /// Ignored.
    Dropped(DropReason),
}

/// Reason for ignoring a gateway's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// Not an AMT message.
    Malformed(WireError),
    /// A message type that only relays send.
    Unexpected,
    /// The sender is not served.
    Denied,
    /// The sender exceeds its rate limit.
    TooOften,
    /// The response MAC is wrong.
    Mac,
    /// The limit of tunnels is reached.
    Full,
    /// The relay is draining.
    Draining,
    /// The inner report is damaged, or of groups that are not forwarded.
    Report,
    /// A limit of memberships is reached.
    TooManyGroups,
    /// There is no tunnel to tear down.
    NoTunnel,
    /// A Discovery to an anycast address, and no address to advertise is configured.
    NoAddress,
}

impl DropReason {
    /// Names returned by [`reason`](Self::reason).
    pub const REASONS: [&str; 11] = [
        "malformed",
        "unexpected",
        "denied",
        "too-often",
        "mac",
        "full",
        "draining",
        "report",
        "too-many-groups",
        "no-tunnel",
        "no-address",
    ];

    /// Returns a short name for counters.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            DropReason::Malformed(_) => "malformed",
            DropReason::Unexpected => "unexpected",
            DropReason::Denied => "denied",
            DropReason::TooOften => "too-often",
            DropReason::Mac => "mac",
            DropReason::Full => "full",
            DropReason::Draining => "draining",
            DropReason::Report => "report",
            DropReason::TooManyGroups => "too-many-groups",
            DropReason::NoTunnel => "no-tunnel",
            DropReason::NoAddress => "no-address",
        }
    }
}
