//! Updates of the open signing era that a source of an older version stored, and did not sign:
//! while it had the channel, it knew nothing of the era.

use anyhow::{Context as _, Result};
use signing::{Era, Signer, Statement};
use store::{Store, StoredUpdate};
use tracing::info;

/// Updates that are looked at together on the way back from the head.
const LOOK: u64 = 16;
/// Updates that are signed in one transaction, and their bytes.
const PART: usize = 256;
const PART_BYTES: usize = 8 << 20;

/// Signs the updates at the head of a channel that are not signed, back to the first one of the era
/// that is: receivers that pin the key would take nothing more of the channel. The oldest come
/// first, so that what is interrupted is continued at the next start.
///
/// # Errors
/// The database fails, another source has the channel, or an update cannot be signed.
pub(super) async fn sign(
    store: &Store,
    (channel, fence): (&str, Option<u64>),
    head: u64,
    era: &Era,
    signer: &Signer,
) -> Result<()> {
    let mut next = first_unsigned(store, channel, head, era).await?;
    if next > head {
        return Ok(());
    }
    let count = head - next + 1;
    info!(
        channel,
        updates = count,
        "signing what an older source stored"
    );
    while next <= head {
        let limit = PART.min(usize::try_from(head - next)?.saturating_add(1));
        let part = store.updates().read(channel, next, limit, PART_BYTES);
        let part = part.await?;
        let Some(last) = part.last().map(|update| update.seq) else {
            break;
        };
        let signed: Vec<_> = part
            .iter()
            .filter(|update| !is_signed(update))
            .map(|update| signed(update, channel, era, signer))
            .collect::<Result<_>>()?;
        store.updates().replace(channel, fence, &signed).await?;
        next = last + 1;
    }
    Ok(())
}

fn is_signed(update: &StoredUpdate) -> bool {
    signing::header_len(&update.encoded).is_some()
}

/// Returns the seq behind the last signed update of the era.
async fn first_unsigned(store: &Store, channel: &str, head: u64, era: &Era) -> Result<u64> {
    let mut first = head.saturating_add(1);
    // The newest one tells, nearly always.
    let mut look = 1;
    while first > era.first {
        let from = first.saturating_sub(look).max(era.first);
        let limit = usize::try_from(first - from)?;
        let part = store.updates().read(channel, from, limit, usize::MAX);
        let part = part.await?;
        let unsigned = part.iter().rev().take_while(|update| !is_signed(update));
        let unsigned = unsigned.last().map(|update| update.seq);
        match unsigned {
            Some(seq) => first = seq,
            None => break,
        }
        if first > from {
            break;
        }
        look = LOOK;
    }
    Ok(first)
}

fn signed(
    update: &StoredUpdate,
    channel: &str,
    era: &Era,
    signer: &Signer,
) -> Result<StoredUpdate> {
    let statement = Statement {
        channel,
        incarnation: era.incarnation,
        seq: update.seq,
        deadline_ms: 0,
    };
    let encoded = signer
        .sign(&statement, &rand::random(), &update.encoded)
        .with_context(|| format!("update {} of channel {channel:?}", update.seq))?;
    Ok(StoredUpdate {
        seq: update.seq,
        encoded,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use signing::VerifyingKey;
    use store::{Draft, Kind};

    use super::*;

    /// As after an interruption behind update 20.
    #[tokio::test]
    async fn what_was_interrupted_is_continued_and_nothing_is_signed_twice() {
        let folder = tempfile::tempdir().unwrap();
        let store = store::open_file(&folder.path().join("db")).await.unwrap();
        let incarnation = store.channels().open("lore").await.unwrap().incarnation;
        let drafts: Vec<_> = (0..40)
            .map(|index| Draft {
                entry_id: index.to_string(),
                hash: [1; 32],
                kind: Kind::Created,
                index,
            })
            .collect();
        let (updates, url) = (store.updates(), "http://127.0.0.1/f");
        let encode = |seq: u64, _: &Draft| vec![0, seq as u8];
        let appended = updates.append("lore", url, None, &drafts, None, &encode);
        appended.await.unwrap();
        let signer = Signer::from_seed(&[1; 32]).unwrap();
        let era = Era {
            first: 3,
            last: None,
            incarnation,
            key: VerifyingKey(signer.key().0),
        };
        let sign_to = async |head| {
            let signed = sign(&store, ("lore", None), head, &era, &signer);
            signed.await.unwrap();
            let read = updates.read("lore", 1, 100, usize::MAX);
            read.await.unwrap()
        };
        let half = sign_to(20).await;
        let signed = |all: &[StoredUpdate]| -> Vec<u64> {
            let signed = all.iter().filter(|update| is_signed(update));
            signed.map(|update| update.seq).collect()
        };
        assert_eq!(signed(&half), (3..=20).collect::<Vec<_>>());
        let whole = sign_to(40).await;
        assert_eq!(signed(&whole), (3..=40).collect::<Vec<_>>());
        assert_eq!(whole[..20], half[..20]);
        assert_eq!(sign_to(40).await, whole);
        let lineage = signing::Lineage::new(vec![era]).unwrap();
        for update in &whole[2..] {
            assert_eq!(lineage.verify("lore", update.seq, &update.encoded), Ok(()));
        }
    }
}
