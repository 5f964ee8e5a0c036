//! Keys that sign the updates of all channels.

/// Length of an endorsement: signer, subject, signature.
pub const ENDORSEMENT_LEN: usize = 128;

/// Key that signs updates, or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningKeyRow {
    /// Ed25519 public key.
    pub key: [u8; 32],
    /// Endorsements by which it and an earlier key vouch for each other.
    pub endorsements: Vec<[u8; ENDORSEMENT_LEN]>,
    /// Time of its making.
    pub created_ms: i64,
    /// Time since which updates are signed with it.
    pub begun_ms: Option<i64>,
}

/// Standing of a source's key among those of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStanding {
    /// Key that may sign: no later one has begun.
    Usable,
    /// Nothing was signed yet: any key may be the first.
    First,
    /// A later key has begun.
    Superseded {
        /// The later key.
        by: [u8; 32],
    },
    /// The database does not know it, and has another.
    Unknown {
        /// The key that signs updates now.
        current: [u8; 32],
    },
}

impl KeyStanding {
    /// Returns the standing of a key among these, which are in the order of their making.
    #[must_use]
    pub fn of(key: &[u8; 32], rows: &[SigningKeyRow]) -> Self {
        let current = rows.iter().rposition(|row| row.begun_ms.is_some());
        let own = rows.iter().position(|row| row.key == *key);
        match (own, current.map(|at| (at, rows[at].key))) {
            (None, None) => Self::First,
            (None, Some((_, current))) => Self::Unknown { current },
            (Some(own), Some((at, by))) if at > own => Self::Superseded { by },
            (Some(_), _) => Self::Usable,
        }
    }

    /// Whether a source with the key may publish.
    #[must_use]
    pub fn may_sign(self) -> bool {
        matches!(self, Self::Usable | Self::First)
    }
}
