//! What came of a message, and why it came to nothing.

use crate::WireError;

/// What came of a gateway's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// There is an answer to send back, from the address that the message came to.
    Answer,
    /// It was taken.
    Taken,
    /// It was not.
    Dropped(Dropped),
}

/// Why a message of a gateway came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// It is no message of AMT.
    Malformed(WireError),
    /// It is one that only relays send.
    Unexpected,
    /// Its sender is not served.
    Denied,
    /// Its sender asks too often.
    TooOften,
    /// The response MAC is not the one that was sent there.
    Mac,
    /// There are as many tunnels as may be.
    Full,
    /// The relay is about to stop.
    Draining,
    /// The report in it is none, or of groups that are not forwarded.
    Report,
    /// Its sender wants too many groups.
    TooManyGroups,
    /// There is no tunnel to take down.
    NoTunnel,
    /// It was sent to an anycast address, and there is no other to tell.
    NoAddress,
}

impl Dropped {
    /// All of them as [`reason`](Self::reason) names them.
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

    /// A word for it.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Dropped::Malformed(_) => "malformed",
            Dropped::Unexpected => "unexpected",
            Dropped::Denied => "denied",
            Dropped::TooOften => "too-often",
            Dropped::Mac => "mac",
            Dropped::Full => "full",
            Dropped::Draining => "draining",
            Dropped::Report => "report",
            Dropped::TooManyGroups => "too-many-groups",
            Dropped::NoTunnel => "no-tunnel",
            Dropped::NoAddress => "no-address",
        }
    }
}
