//! Ids and credentials of the receivers, from one seed.

use ring::digest::{Context, SHA256};
use uuid::Uuid;

/// Identity of one receiver.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its id.
    pub id: Uuid,
    /// Secret by which the source recognises it.
    pub credential: [u8; 32],
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Returns the identity of receiver `index` of the swarm with this seed.
    #[must_use]
    pub fn new(seed: u64, index: u32) -> Self {
        let [mut id, credential] = ["id", "credential"].map(|name| {
            let mut context = Context::new(&SHA256);
            context.update(b"flexfeed-swarm ");
            context.update(name.as_bytes());
            context.update(&seed.to_be_bytes());
            context.update(&index.to_be_bytes());
            let mut digest = [0; 32];
            digest.copy_from_slice(context.finish().as_ref());
            digest
        });
        let mut first = [0; 16];
        first.copy_from_slice(&id[..16]);
        id.fill(0);
        Identity {
            id: uuid::Builder::from_random_bytes(first).into_uuid(),
            credential,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn identities_are_distinct_and_repeated_by_the_seed() {
        let all = |seed| (0..500).map(move |index| Identity::new(seed, index));
        let ids: BTreeSet<Uuid> = all(1).chain(all(2)).map(|one| one.id).collect();
        let credentials: BTreeSet<_> = all(1).chain(all(2)).map(|one| one.credential).collect();
        assert_eq!((ids.len(), credentials.len()), (1000, 1000));
        assert!(all(1).eq(all(1)));
        assert!(!format!("{:?}", Identity::new(1, 1)).contains("credential"));
    }
}
