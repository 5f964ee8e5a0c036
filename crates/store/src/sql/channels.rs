//! Channels as a whole: made, renewed, changed, removed.

use uuid::Uuid;

use super::{PART, check_fence, check_length, close_era, cut, grow_version, to_i64};
use crate::database::{Row, Session, sql, values};
use crate::model::{
    AuthenticationType, Channel, ChannelRow, ChannelSettings, ChooseSettings, LeaseRow, Origin,
    Retention,
};
use crate::{Channels, StoreError};

/// Longest name of a channel, in bytes.
const MAX_CHANNEL_NAME: usize = 255;

/// Longest text kept of a holder's name and of groups, in bytes.
const MAX_GROUPS: usize = 4096;

/// Everything about channels, in the order that [`read_row`] has; a WHERE follows. (Each subquery
/// is answered by the index.)
macro_rules! select_channels {
    ($where:literal) => {
        sql!(
            "SELECT c.name, c.incarnation, c.head,
                 (SELECT MIN(u.seq) FROM updates u WHERE u.channel_id = c.id),
                 (SELECT MAX(u.seq) FROM updates u WHERE u.channel_id = c.id),
                 c.groups, c.rate_bps, c.private, c.keep_count, c.keep_age, c.origin, c.active,
                 c.created_at, c.holder_name, c.lease_until - " NOW ", c.lease_ttl, c.fence,
                 c.holder, c.packet_authentication, c.fec, c.deadline_ms
             FROM channels c " $where
        )
    };
}

fn read_row(session: &Session, row: &Row) -> Result<ChannelRow, StoreError> {
    let name: String = session.get(row, 0)?;
    let incarnation: String = session.get(row, 1)?;
    let incarnation = parse_incarnation(session, &name, &incarnation)?;
    let head = session.count(row, 2)?;
    let first: Option<i64> = session.get(row, 3)?;
    let last: Option<i64> = session.get(row, 4)?;
    if let Some(last) = last.filter(|&last| last > to_i64(head)) {
        return Err(session.damaged(format!(
            "channel {name:?} holds update {last} but counts up to {head} only"
        )));
    }
    let first = match first {
        Some(first) => session.unsigned(first)?,
        None => head.saturating_add(1),
    };
    let origin: String = session.get(row, 10)?;
    let origin = Origin::from_word(&origin)
        .ok_or_else(|| session.damaged(format!("the origin of channel {name:?} is {origin:?}")))?;
    let authentication: String = session.get(row, 18)?;
    let packet_authentication =
        AuthenticationType::from_word(&authentication).ok_or_else(|| {
            session.damaged(format!(
                "the packet authentication of channel {name:?} is {authentication:?}"
            ))
        })?;
    let fec: String = session.get(row, 19)?;
    let fec = fec.parse().map_err(|_| {
        session.damaged(format!("the erasure coding of channel {name:?} is {fec:?}"))
    })?;
    let holder: Option<String> = session.get(row, 13)?;
    let left: Option<i64> = session.get(row, 14)?;
    let ttl: Option<i64> = session.get(row, 15)?;
    let fence = session.count(row, 16)?;
    let lease = match (holder, left, ttl) {
        (Some(name), Some(for_ms), Some(ttl)) if for_ms > 0 && for_ms <= ttl => Some(LeaseRow {
            name,
            for_ms,
            fence,
        }),
        _ => None,
    };
    let last_holder: Option<String> = session.get(row, 17)?;
    let last_holder = last_holder.map(|id| id.parse()).transpose();
    let last_holder = last_holder.map_err(|error| {
        session.damaged(format!(
            "the holder of channel {name:?} has no number: {error}"
        ))
    })?;
    Ok(ChannelRow {
        channel: Channel {
            name,
            incarnation,
            head,
            first,
            is_new: false,
        },
        settings: ChannelSettings {
            groups: session.get(row, 5)?,
            rate_bps: session.maybe_count(row, 6)?,
            private: session.get(row, 7)?,
            packet_authentication,
            fec,
            deadline_ms: session.maybe_count(row, 20)?,
            keep: Retention {
                count: session.maybe_count(row, 8)?,
                age_ms: session.get(row, 9)?,
            },
            origin,
        },
        active: session.get(row, 11)?,
        created_ms: session.get(row, 12)?,
        lease,
        last_holder,
    })
}

/// Parses the incarnation of the channel `name`.
pub(super) fn parse_incarnation(
    session: &Session,
    name: &str,
    incarnation: &str,
) -> Result<Uuid, StoreError> {
    incarnation
        .parse()
        .map_err(|error| session.damaged(format!("the incarnation of channel {name:?}: {error}")))
}

async fn read_channel(session: &mut Session, name: &str) -> Result<ChannelRow, StoreError> {
    let sql = select_channels!("WHERE c.name = $1");
    let row = session.find(sql, values![name], read_row).await?;
    row.ok_or_else(|| session.unknown_channel(name))
}

/// Whether the channel had to be made. Its leases are numbered from the present time on: should the
/// database be made again while a source still believes that it has the lease, the numbers differ.
async fn ensure_channel(session: &mut Session, name: &str) -> Result<bool, StoreError> {
    let made = session
        .execute(
            sql!(
                "INSERT INTO channels (name, incarnation, head, created_at, fence)
                 VALUES ($1, $2, 0, " NOW ", " NOW ") ON CONFLICT (name) DO NOTHING"
            ),
            values![name, &Uuid::new_v4().to_string()],
        )
        .await?;
    Ok(made > 0)
}

fn check_name(name: &str) -> Result<(), StoreError> {
    if name.is_empty() || name.len() > MAX_CHANNEL_NAME || name.contains('\0') {
        return Err(StoreError::ChannelName {
            name: cut(name, MAX_CHANNEL_NAME).to_owned(),
        });
    }
    Ok(())
}

fn check_settings(settings: &ChannelSettings) -> Result<(), StoreError> {
    let groups = settings.groups.as_deref().unwrap_or_default();
    check_length("the list of groups", groups, MAX_GROUPS)
}

/// Sets everything that is set about a channel, and makes it active.
async fn write_settings(
    session: &mut Session,
    name: &str,
    settings: &ChannelSettings,
) -> Result<(), StoreError> {
    session
        .execute(
            sql!(
                "UPDATE channels SET groups = $2, rate_bps = $3, private = $4, keep_count = $5,
                     keep_age = $6, origin = $7, packet_authentication = $8, fec = $9,
                     deadline_ms = $10, active = TRUE
                 WHERE name = $1"
            ),
            values![
                name,
                &settings.groups,
                settings.rate_bps.map(to_i64),
                settings.private,
                settings.keep.count.map(to_i64),
                settings.keep.age_ms,
                settings.origin.as_str(),
                settings.packet_authentication.as_str(),
                settings.fec.as_str(),
                settings.deadline_ms.map(to_i64),
            ],
        )
        .await
        .map(|_| ())
}

impl Channels<'_> {
    /// Returns the channel of that name, and makes it with a fresh incarnation if there is none.
    ///
    /// # Errors
    /// The name is empty or longer than 255 bytes, or the database fails.
    pub async fn open(self, name: &str) -> Result<Channel, StoreError> {
        check_name(name)?;
        let mut session = self.store.database.write("open a channel").await?;
        let is_new = ensure_channel(&mut session, name).await?;
        let row = read_channel(&mut session, name).await?;
        if is_new {
            grow_version(&mut session).await?;
        }
        session.commit().await?;
        Ok(Channel {
            is_new,
            ..row.channel
        })
    }

    /// Returns the channel of that name.
    ///
    /// # Errors
    /// [`StoreError::UnknownChannel`] if there is none, or the database fails.
    pub async fn get(self, name: &str) -> Result<Channel, StoreError> {
        let mut session = self.store.database.read("look up a channel").await?;
        let row = read_channel(&mut session, name).await?;
        Ok(row.channel)
    }

    /// Gives a channel a new incarnation, whatever it holds: its receivers start over. For a
    /// database that was set back, see [`HeadMark`](crate::HeadMark). Its open signing era is
    /// closed at its head, or deleted if it has no update.
    ///
    /// With a `fence`, the call is refused unless that is the channel's current one.
    ///
    /// # Errors
    /// The channel does not exist, the fence is an old one, or the database fails.
    pub async fn renew(self, name: &str, fence: Option<u64>) -> Result<Channel, StoreError> {
        let mut session = self.store.database.write("renew a channel").await?;
        let row = session
            .row(
                sql!("SELECT id, fence FROM channels WHERE name = $1" LOCK),
                values![name],
            )
            .await?
            .ok_or_else(|| session.unknown_channel(name))?;
        check_fence(&session, name, fence, session.count(&row, 1)?)?;
        let id = session.get(&row, 0)?;
        close_era(&mut session, id).await?;
        session
            .execute(
                sql!("UPDATE channels SET incarnation = $1 WHERE name = $2"),
                values![&Uuid::new_v4().to_string(), name],
            )
            .await?;
        let row = read_channel(&mut session, name).await?;
        session.commit().await?;
        Ok(row.channel)
    }

    /// Returns all channels, by name.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(self) -> Result<Vec<ChannelRow>, StoreError> {
        let sql = select_channels!("");
        let mut channels = self
            .store
            .list("list channels", sql, values![], read_row)
            .await?;
        channels.sort_by(|a, b| a.channel.name.cmp(&b.channel.name));
        Ok(channels)
    }

    /// Makes a channel, unless there is an active one of that name: `None`. An inactive one is made
    /// active again, with other settings. `choose` returns the settings, given all other channels,
    /// active or not; concurrent calls cannot make a channel in between. If it returns `None`,
    /// nothing is made, and so does this.
    ///
    /// # Errors
    /// The name is empty or longer than 255 bytes, the groups are too long, or the database fails.
    pub async fn add(
        self,
        name: &str,
        choose: &ChooseSettings<'_>,
    ) -> Result<Option<ChannelRow>, StoreError> {
        // Takes the channel's row first and then the version, as all calls that set up channels
        // do: so no two wait for each other, and the second one sees the result of the first.
        check_name(name)?;
        let mut session = self.store.database.write("make a channel").await?;
        let is_new = ensure_channel(&mut session, name).await?;
        session
            .row(
                sql!("SELECT fence FROM channels WHERE name = $1" LOCK),
                values![name],
            )
            .await?;
        grow_version(&mut session).await?;
        let mut others = Vec::new();
        for row in session
            .list(select_channels!(""), values![], read_row)
            .await?
        {
            if row.channel.name != name {
                others.push(row);
            } else if row.active && !is_new {
                session.rollback().await?;
                return Ok(None);
            }
        }
        let Some(settings) = choose(&others) else {
            session.rollback().await?;
            return Ok(None);
        };
        check_settings(&settings)?;
        write_settings(&mut session, name, &settings).await?;
        let mut row = read_channel(&mut session, name).await?;
        row.channel.is_new = is_new;
        session.commit().await?;
        Ok(Some(row))
    }

    /// Sets all settings of a channel, makes it if there is none, and makes it active.
    ///
    /// # Errors
    /// The name is empty or longer than 255 bytes, or the database fails.
    pub async fn put(
        self,
        name: &str,
        settings: &ChannelSettings,
    ) -> Result<ChannelRow, StoreError> {
        check_name(name)?;
        check_settings(settings)?;
        let mut session = self.store.database.write("set up a channel").await?;
        let is_new = ensure_channel(&mut session, name).await?;
        let before = read_channel(&mut session, name).await?;
        if !is_new && before.active && before.settings == *settings {
            session.rollback().await?;
            return Ok(before);
        }
        write_settings(&mut session, name, settings).await?;
        let mut row = read_channel(&mut session, name).await?;
        row.channel.is_new = is_new;
        grow_version(&mut session).await?;
        session.commit().await?;
        Ok(row)
    }

    /// Sets whether a channel is to be published. Returns whether there is such a channel.
    ///
    /// # Errors
    /// The database fails.
    pub async fn set_active(self, name: &str, active: bool) -> Result<bool, StoreError> {
        let mut session = self.store.database.write("switch a channel").await?;
        let found = session
            .execute(
                sql!("UPDATE channels SET active = $2 WHERE name = $1"),
                values![name, active],
            )
            .await?;
        grow_version(&mut session).await?;
        session.commit().await?;
        Ok(found > 0)
    }

    /// Removes a channel with its feeds and updates. Returns whether there was such a channel.
    ///
    /// # Errors
    /// The database fails.
    pub async fn remove(self, name: &str) -> Result<bool, StoreError> {
        // Updates first and records last, in parts, between which others can write.
        if !self.set_active(name, false).await? {
            return Ok(false);
        }
        loop {
            let mut session = self.store.database.write("remove a channel").await?;
            let deleted = session
                .execute(
                    sql!(
                        "DELETE FROM updates WHERE
                             channel_id = (SELECT id FROM channels WHERE name = $1)
                             AND seq < $2 + (SELECT MIN(u.seq) FROM updates u
                                 JOIN channels c ON c.id = u.channel_id WHERE c.name = $1)"
                    ),
                    values![name, PART],
                )
                .await?;
            if deleted == 0 {
                session
                    .execute(sql!("DELETE FROM channels WHERE name = $1"), values![name])
                    .await?;
                grow_version(&mut session).await?;
                session.commit().await?;
                return self
                    .store
                    .records()
                    .forget_channel(name)
                    .await
                    .map(|()| true);
            }
            session.commit().await?;
        }
    }
}
