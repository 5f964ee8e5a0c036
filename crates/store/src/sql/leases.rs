//! Leases. Times are the database's, so that two sources need no common clock.

use std::time::Duration;

use super::cut;
use crate::database::{sql, values};
use crate::model::{Holder, Lease, LeaseOutcome};
use crate::{Leases, StoreError};

/// Longest text kept of a holder's name, in bytes.
const MAX_NAME: usize = 255;

impl Leases<'_> {
    /// Requests the right to publish a channel for the time `ttl`. The lease is granted if it is
    /// free, has expired, or belongs to `holder` already. Expiry goes by the clock of the database.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn take(
        self,
        channel: &str,
        holder: &Holder,
        ttl: Duration,
    ) -> Result<LeaseOutcome, StoreError> {
        let mut session = self.store.database.write("take a lease").await?;
        let row = session
            .row(
                sql!(
                    "SELECT fence, holder, holder_name, lease_until - " NOW ", lease_ttl
                     FROM channels WHERE name = $1" LOCK
                ),
                values![channel],
            )
            .await?
            .ok_or_else(|| session.unknown_channel(channel))?;
        let fence = session.count(&row, 0)?;
        let present: Option<String> = session.get(&row, 1)?;
        let name: Option<String> = session.get(&row, 2)?;
        let left: Option<i64> = session.get(&row, 3)?;
        let given: Option<i64> = session.get(&row, 4)?;
        let left = left.filter(|&left| left > 0 && given.is_none_or(|given| left <= given));
        let id = holder.id.to_string();
        let is_own = present.as_deref() == Some(id.as_str());
        let fence = match left {
            Some(for_ms) if !is_own => {
                session.rollback().await?;
                return Ok(LeaseOutcome::Other {
                    name: name.unwrap_or_default(),
                    for_ms,
                });
            }
            Some(_) => fence,
            None => fence.saturating_add(1),
        };
        session
            .execute(
                sql!(
                    "UPDATE channels SET fence = $2, holder = $3, holder_name = $4, lease_ttl = $5,
                         lease_until = " NOW " + $5
                     WHERE name = $1"
                ),
                values![
                    channel,
                    super::to_i64(fence),
                    &id,
                    cut(&holder.name, MAX_NAME),
                    milliseconds(ttl),
                ],
            )
            .await?;
        session.commit().await?;
        Ok(LeaseOutcome::Held(Lease {
            channel: channel.to_owned(),
            fence,
        }))
    }

    /// Extends a lease to the time `ttl` from now. Returns whether it still belongs to the holder:
    /// it does until another holder takes it, even if it had expired.
    ///
    /// # Errors
    /// The database fails. The lease may have been renewed all the same.
    pub async fn renew(
        self,
        lease: &Lease,
        holder: &Holder,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let sql = sql!(
            "UPDATE channels SET lease_ttl = $4, lease_until = " NOW " + $4
             WHERE name = $1 AND fence = $2 AND holder = $3 AND lease_until IS NOT NULL"
        );
        let (fence, holder) = (super::to_i64(lease.fence), holder.id.to_string());
        let values = values![&lease.channel, fence, &holder, milliseconds(ttl)];
        let renewed = self.store.execute("renew a lease", sql, values).await?;
        Ok(renewed > 0)
    }

    /// Releases a lease, so that the next holder need not wait until it expires. A lease that
    /// another holder has taken stays.
    ///
    /// # Errors
    /// The database fails.
    pub async fn release(self, lease: &Lease) -> Result<(), StoreError> {
        // The last holder stays on record.
        let sql = sql!(
            "UPDATE channels SET lease_until = NULL, lease_ttl = NULL
             WHERE name = $1 AND fence = $2"
        );
        let values = values![&lease.channel, super::to_i64(lease.fence)];
        self.store
            .execute("release a lease", sql, values)
            .await
            .map(|_| ())
    }
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis())
        .unwrap_or(i64::MAX)
        .min(i64::MAX / 4)
}
