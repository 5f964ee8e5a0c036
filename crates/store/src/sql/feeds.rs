//! Feeds: their settings, and the outcome of their polls.

use super::{MAX_KEY, channel_id, check_length, cut, feed_row, grow_version};
use crate::database::{Operation, Row, Session, Sql, sql, values};
use crate::model::{FeedEdit, FeedRow, FeedSettings, Origin, PollRecord, Validators};
use crate::{Feeds, StoreError};

/// Longest text kept of a poll's state, and of other texts, in bytes: a server's words may be in
/// them.
const MAX_STATE: usize = 64;
pub(super) const MAX_TEXT: usize = 1024;

/// Longest address, with its credentials, in bytes.
const MAX_ADDRESS: usize = 8192;

/// Everything about feeds, in the order that [`read_row`] has; a WHERE follows.
macro_rules! select_feeds {
    ($where:literal) => {
        sql!(
            "SELECT c.name, f.url, f.address, f.local, f.min_interval, f.max_interval, f.title,
                 f.origin, f.active, f.etag, f.last_modified, f.moved_to, f.gone_at, f.last_poll,
                 f.state, f.detail, f.poll_interval, f.paused, f.next_poll
             FROM feeds f JOIN channels c ON c.id = f.channel_id " $where
        )
    };
}

fn read_row(session: &Session, row: &Row) -> Result<FeedRow, StoreError> {
    let url: String = session.get(row, 1)?;
    let address: Option<String> = session.get(row, 2)?;
    let origin: String = session.get(row, 7)?;
    let origin = Origin::from_word(&origin)
        .ok_or_else(|| session.damaged(format!("the origin of feed {url:?} is {origin:?}")))?;
    let moved_to: Option<String> = session.get(row, 11)?;
    let gone_ms: Option<i64> = session.get(row, 12)?;
    let polled: Option<i64> = session.get(row, 13)?;
    let state: Option<String> = session.get(row, 14)?;
    let detail: Option<String> = session.get(row, 15)?;
    let interval_ms: Option<i64> = session.get(row, 16)?;
    let next_ms: Option<i64> = session.get(row, 18)?;
    Ok(FeedRow {
        channel: session.get(row, 0)?,
        settings: FeedSettings {
            address: address.unwrap_or_else(|| url.clone()),
            url,
            local: session.get(row, 3)?,
            min_interval_ms: session.get(row, 4)?,
            max_interval_ms: session.get(row, 5)?,
            title: session.get(row, 6)?,
            origin,
        },
        active: session.get(row, 8)?,
        validators: Validators {
            etag: session.get(row, 9)?,
            last_modified: session.get(row, 10)?,
        },
        last_poll: polled.map(|at_ms| PollRecord {
            at_ms,
            state: state.unwrap_or_default(),
            detail: detail.unwrap_or_default(),
            interval_ms,
            next_ms,
            moved_to: moved_to.clone(),
            gone: gone_ms.is_some(),
        }),
        moved_to,
        gone_ms,
        interval_ms,
        paused: session.get(row, 17)?,
    })
}

async fn find(
    session: &mut Session,
    channel: &str,
    url: &str,
) -> Result<Option<FeedRow>, StoreError> {
    let sql = select_feeds!("WHERE c.name = $1 AND f.url = $2");
    session.find(sql, values![channel, url], read_row).await
}

fn check_lengths(settings: &FeedSettings) -> Result<(), StoreError> {
    check_length("the URL of a feed", &settings.url, MAX_KEY)?;
    check_length("the address of a feed", &settings.address, MAX_ADDRESS)
}

impl Feeds<'_> {
    /// Returns the feeds of one channel, or of all, also those that are no longer polled.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn list(self, channel: Option<&str>) -> Result<Vec<FeedRow>, StoreError> {
        let mut session = self.store.database.read("list feeds").await?;
        let mut feeds = match channel {
            Some(channel) => {
                channel_id(&mut session, channel).await?;
                let sql = select_feeds!("WHERE c.name = $1");
                session.list(sql, values![channel], read_row).await?
            }
            None => session.list(select_feeds!(""), values![], read_row).await?,
        };
        feeds.sort_by(|a, b| (&a.channel, &a.settings.url).cmp(&(&b.channel, &b.settings.url)));
        Ok(feeds)
    }

    /// Returns one feed of a channel; `None` if it was neither set up nor polled.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn get(self, channel: &str, url: &str) -> Result<Option<FeedRow>, StoreError> {
        let mut session = self.store.database.read("read a feed").await?;
        match find(&mut session, channel, url).await? {
            Some(feed) => Ok(Some(feed)),
            None => channel_id(&mut session, channel).await.map(|_| None),
        }
    }

    /// Returns the validators for the next conditional request of a feed; empty if it was never
    /// polled.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn validators(self, channel: &str, url: &str) -> Result<Validators, StoreError> {
        let feed = self.get(channel, url).await?;
        Ok(feed.map(|feed| feed.validators).unwrap_or_default())
    }

    /// Sets all settings of a feed, makes it if there is none, and makes it active, even if it was
    /// gone. Its known entries stay.
    ///
    /// # Errors
    /// The channel does not exist, a text is too long, or the database fails.
    pub async fn put(self, channel: &str, settings: &FeedSettings) -> Result<FeedRow, StoreError> {
        check_lengths(settings)?;
        let mut session = self.store.database.write("set up a feed").await?;
        let channel_id = channel_id(&mut session, channel).await?;
        if let Some(before) = find(&mut session, channel, &settings.url).await?
            && before.active
            && before.gone_ms.is_none()
            && before.settings == *settings
        {
            session.rollback().await?;
            return Ok(before);
        }
        let id = feed_row(&mut session, channel_id, &settings.url, true).await?;
        let title = settings.title.as_deref().map(|title| cut(title, MAX_TEXT));
        session
            .execute(
                // A feed that was removed meanwhile is a new one, which is not paused.
                sql!(
                    "UPDATE feeds SET address = $2, local = $3, min_interval = $4,
                         max_interval = $5, title = $6, origin = $7, active = TRUE, gone_at = NULL,
                         paused = (paused AND active)
                     WHERE id = $1"
                ),
                values![
                    id,
                    &settings.address,
                    settings.local,
                    settings.min_interval_ms,
                    settings.max_interval_ms,
                    title,
                    settings.origin.as_str(),
                ],
            )
            .await?;
        let feed = find(&mut session, channel, &settings.url).await?;
        let feed = feed.ok_or_else(|| session.failed(sqlx::Error::RowNotFound))?;
        grow_version(&mut session).await?;
        session.commit().await?;
        Ok(feed)
    }

    /// Adds a feed, unless it is there already: `None`. Of several callers that add the same feed
    /// at once, one succeeds. A removed feed is added again with these settings; its known entries
    /// stay.
    ///
    /// # Errors
    /// The channel does not exist, a text is too long, or the database fails.
    pub async fn add(
        self,
        channel: &str,
        settings: &FeedSettings,
    ) -> Result<Option<FeedRow>, StoreError> {
        // One statement decides whether it is there: a look before it could be overtaken.
        check_lengths(settings)?;
        let mut session = self.store.database.write("add a feed").await?;
        let channel_id = channel_id(&mut session, channel).await?;
        let title = settings.title.as_deref().map(|title| cut(title, MAX_TEXT));
        let added = session
            .row(
                sql!(
                    "INSERT INTO feeds (channel_id, url, address, local, min_interval, max_interval,
                         title, origin)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
                     ON CONFLICT (channel_id, url) DO UPDATE SET address = excluded.address,
                         local = excluded.local, min_interval = excluded.min_interval,
                         max_interval = excluded.max_interval, title = excluded.title,
                         origin = excluded.origin, active = TRUE, gone_at = NULL, paused = FALSE
                     WHERE NOT feeds.active RETURNING id"
                ),
                values![
                    channel_id,
                    &settings.url,
                    &settings.address,
                    settings.local,
                    settings.min_interval_ms,
                    settings.max_interval_ms,
                    title,
                    settings.origin.as_str(),
                ],
            )
            .await?;
        if added.is_none() {
            session.rollback().await?;
            return Ok(None);
        }
        let feed = find(&mut session, channel, &settings.url).await?;
        grow_version(&mut session).await?;
        session.commit().await?;
        Ok(feed)
    }

    /// Changes these settings of an active [managed](crate::Origin::Managed) feed, and leaves the
    /// rest to concurrent changes. Returns the feed as it is then; `None` if there is no such feed.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn edit(
        self,
        channel: &str,
        url: &str,
        edit: &FeedEdit,
    ) -> Result<Option<FeedRow>, StoreError> {
        let mut session = self.store.database.write("change a feed").await?;
        let id = channel_id(&mut session, channel).await?;
        let title = edit.title.as_deref().map(|title| cut(title, MAX_TEXT));
        let found = session
            .execute(
                sql!(
                    "UPDATE feeds SET title = NULLIF(COALESCE($3, title), ''),
                         min_interval = COALESCE($4, min_interval),
                         max_interval = COALESCE($5, max_interval)
                     WHERE channel_id = $1 AND url = $2 AND active AND origin = 'managed'"
                ),
                values![id, url, title, edit.min_interval_ms, edit.max_interval_ms],
            )
            .await?;
        if found == 0 {
            session.rollback().await?;
            return Ok(None);
        }
        let feed = find(&mut session, channel, url).await?;
        grow_version(&mut session).await?;
        session.commit().await?;
        Ok(feed)
    }

    /// Sets whether a feed is to be polled. An inactive feed counts as removed; its row stays,
    /// because its updates keep their numbers. Returns whether there is such a feed.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn set_active(
        self,
        channel: &str,
        url: &str,
        active: bool,
    ) -> Result<bool, StoreError> {
        let sql = sql!("UPDATE feeds SET active = $3 WHERE channel_id = $1 AND url = $2");
        self.switch("switch a feed", sql, channel, url, active)
            .await
    }

    /// Sets whether the polls of a feed are paused. Returns whether there is such a feed that was
    /// not removed.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn set_paused(
        self,
        channel: &str,
        url: &str,
        paused: bool,
    ) -> Result<bool, StoreError> {
        let sql =
            sql!("UPDATE feeds SET paused = $3 WHERE channel_id = $1 AND url = $2 AND active");
        self.switch("pause a feed", sql, channel, url, paused).await
    }

    async fn switch(
        self,
        operation: Operation,
        sql: Sql,
        channel: &str,
        url: &str,
        on: bool,
    ) -> Result<bool, StoreError> {
        let mut session = self.store.database.write(operation).await?;
        let id = channel_id(&mut session, channel).await?;
        let found = session.execute(sql, values![id, url, on]).await?;
        grow_version(&mut session).await?;
        session.commit().await?;
        Ok(found > 0)
    }

    /// Records the outcome of a poll. Leaves the validators as they are: they advance only together
    /// with entries, in [`Updates::append`](crate::Updates::append).
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn record_poll(
        self,
        channel: &str,
        url: &str,
        poll: &PollRecord,
    ) -> Result<(), StoreError> {
        let mut session = self.store.database.write("record a poll").await?;
        let channel_id = channel_id(&mut session, channel).await?;
        let id = feed_row(&mut session, channel_id, url, true).await?;
        let moved_to = poll.moved_to.as_deref().map(|url| cut(url, MAX_ADDRESS));
        session
            .execute(
                sql!(
                    "UPDATE feeds SET last_poll = $2, state = $3, detail = $4, poll_interval = $5,
                         moved_to = COALESCE($6, moved_to),
                         gone_at = CASE WHEN $7 THEN COALESCE(gone_at, $2) END, next_poll = $8
                     WHERE id = $1"
                ),
                values![
                    id,
                    poll.at_ms,
                    cut(&poll.state, MAX_STATE),
                    cut(&poll.detail, MAX_TEXT),
                    poll.interval_ms,
                    moved_to,
                    poll.gone,
                    poll.next_ms,
                ],
            )
            .await?;
        session.commit().await
    }
}
