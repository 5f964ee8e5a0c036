//! People who are let in.

use crate::database::{Row, Session, sql, values};
use crate::model::{Hash, Identity, NewUser, Role, Setup, UserChange, UserEdit, UserRow};
use crate::sql::{Read, check_length};
use crate::{StoreError, Users};

/// The most people.
const MAX_USERS: u64 = 1000;

/// Longest texts, in bytes.
const MAX_NAME: usize = 255;
const MAX_PASSWORD: usize = 1024;
const MAX_ISSUER: usize = 1024;

/// Everything about users, in the order that [`read_user`] has, and the password's hash; what
/// follows is added to it.
macro_rules! select_users {
    ($($then:tt)+) => {
        sql!(
            "SELECT u.id, u.name, u.role, u.created_at, u.disabled_at, u.issuer, u.subject,
                 u.password
             FROM users u " $($then)+
        )
    };
}

/// Reads a user, whose columns begin at `first`.
pub(super) fn read_user(session: &Session, row: &Row, first: usize) -> Result<UserRow, StoreError> {
    let role: String = session.get(row, first + 2)?;
    let issuer: Option<String> = session.get(row, first + 5)?;
    let subject: Option<String> = session.get(row, first + 6)?;
    Ok(UserRow {
        id: session.get(row, first)?,
        name: session.get(row, first + 1)?,
        role: Role::from_word(&role)
            .ok_or_else(|| session.damaged(format!("the role of a user is {role:?}")))?,
        created_ms: session.get(row, first + 3)?,
        disabled_ms: session.get(row, first + 4)?,
        identity: issuer
            .zip(subject)
            .map(|(issuer, subject)| Identity { issuer, subject }),
    })
}

fn check_user(user: &NewUser) -> Result<(), StoreError> {
    if user.name.trim().is_empty() {
        return Err(StoreError::Empty {
            what: "the name of a user",
        });
    }
    check_length("the name of a user", &user.name, MAX_NAME)?;
    if let Some(password) = &user.password {
        check_length("the hash of a password", password, MAX_PASSWORD)?;
    }
    if let Some(Identity { issuer, subject }) = &user.identity {
        check_length("the issuer of a user", issuer, MAX_ISSUER)?;
        check_length("the subject of a user", subject, MAX_NAME)?;
    }
    Ok(())
}

/// Serialises changes to the users, which are rare.
async fn lock(session: &mut Session) -> Result<(), StoreError> {
    if session.is_postgres() {
        session
            .execute(
                sql!("LOCK TABLE users IN SHARE ROW EXCLUSIVE MODE"),
                values![],
            )
            .await?;
    }
    Ok(())
}

/// Reads a user, and the password's hash.
fn read_password(session: &Session, row: &Row) -> Result<(UserRow, Option<String>), StoreError> {
    Ok((read_user(session, row, 0)?, session.get(row, 7)?))
}

async fn find(
    session: &mut Session,
    id: i64,
) -> Result<Option<(UserRow, Option<String>)>, StoreError> {
    let sql = select_users!("WHERE u.id = $1");
    session.find(sql, values![id], read_password).await
}

async fn count(session: &mut Session) -> Result<u64, StoreError> {
    let count = session
        .scalar(sql!("SELECT COUNT(*) FROM users"), values![])
        .await?;
    session.unsigned(count)
}

/// Returns whether this user is the last enabled operator.
async fn is_last_operator(session: &mut Session, user: &UserRow) -> Result<bool, StoreError> {
    if user.role != Role::Operator || user.disabled_ms.is_some() {
        return Ok(false);
    }
    let others: i64 = session
        .scalar(
            sql!(
                "SELECT COUNT(*) FROM users
                 WHERE role = 'operator' AND disabled_at IS NULL AND id <> $1"
            ),
            values![user.id],
        )
        .await?;
    Ok(others == 0)
}

/// Inserts a user, unless the name or the identity is taken.
async fn insert(session: &mut Session, user: &NewUser) -> Result<Option<UserRow>, StoreError> {
    let (issuer, subject) = user
        .identity
        .as_ref()
        .map(|identity| (identity.issuer.as_str(), identity.subject.as_str()))
        .unzip();
    let row = session
        .row(
            sql!(
                "INSERT INTO users (name, password, role, created_at, issuer, subject)
                 VALUES ($1, $2, $3, " NOW ", $4, $5) ON CONFLICT DO NOTHING RETURNING id"
            ),
            values![
                user.name.trim(),
                &user.password,
                user.role.as_str(),
                issuer,
                subject,
            ],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let id = session.get(&row, 0)?;
    Ok(find(session, id).await?.map(|(user, _)| user))
}

async fn sign_out(session: &mut Session, user_id: i64) -> Result<(), StoreError> {
    session
        .execute(
            sql!("DELETE FROM web_sessions WHERE user_id = $1"),
            values![user_id],
        )
        .await
        .map(|_| ())
}

impl Users<'_> {
    /// Returns all users, in the order in which they were added.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(self) -> Result<Vec<UserRow>, StoreError> {
        let read: Read<UserRow> = |session, row| read_user(session, row, 0);
        self.store
            .list(
                "list users",
                select_users!("ORDER BY u.id"),
                values![],
                read,
            )
            .await
    }

    /// Returns a user by sign-in name, also a disabled one, and the hash of the password, if there
    /// is one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn get(self, name: &str) -> Result<Option<(UserRow, Option<String>)>, StoreError> {
        let sql = select_users!("WHERE u.name = $1");
        let values = values![name.trim()];
        self.store
            .find("look up a user", sql, values, read_password)
            .await
    }

    /// Adds a user: [`UserChange::Done`] or [`UserChange::Taken`].
    ///
    /// # Errors
    /// A text is empty or too long, there are 1,000 already, or the database fails.
    pub async fn add(self, user: &NewUser) -> Result<UserChange, StoreError> {
        check_user(user)?;
        let mut session = self.store.database.write("add a user").await?;
        lock(&mut session).await?;
        if count(&mut session).await? >= MAX_USERS {
            session.rollback().await?;
            return Err(StoreError::TooMany {
                what: "users",
                limit: MAX_USERS,
            });
        }
        match insert(&mut session, user).await? {
            Some(user) => {
                session.commit().await?;
                Ok(UserChange::Done(user))
            }
            None => {
                session.rollback().await?;
                Ok(UserChange::Taken)
            }
        }
    }

    /// Changes a user.
    ///
    /// # Errors
    /// A text is too long, or the database fails.
    pub async fn edit(self, id: i64, edit: &UserEdit) -> Result<UserChange, StoreError> {
        if let Some(password) = &edit.password {
            check_length("the hash of a password", password, MAX_PASSWORD)?;
        }
        let mut session = self.store.database.write("change a user").await?;
        lock(&mut session).await?;
        let Some((before, password)) = find(&mut session, id).await? else {
            session.rollback().await?;
            return Ok(UserChange::Unknown);
        };
        let role = edit.role.unwrap_or(before.role);
        let disabled = edit.disabled.unwrap_or(before.disabled_ms.is_some());
        if (role != Role::Operator || disabled) && is_last_operator(&mut session, &before).await? {
            session.rollback().await?;
            return Ok(UserChange::LastOperator);
        }
        session
            .execute(
                sql!(
                    "UPDATE users SET password = $2, role = $3,
                         disabled_at = CASE WHEN $4 THEN COALESCE(disabled_at, " NOW ") END
                     WHERE id = $1"
                ),
                values![
                    id,
                    &edit.password.clone().or(password),
                    role.as_str(),
                    disabled,
                ],
            )
            .await?;
        if disabled || edit.password.is_some() {
            sign_out(&mut session, id).await?;
        }
        let after = find(&mut session, id).await?;
        let (after, _) = after.ok_or_else(|| session.failed(sqlx::Error::RowNotFound))?;
        session.commit().await?;
        Ok(UserChange::Done(after))
    }

    /// Removes a user with its browsers and API tokens. Its lines in the audit log stay.
    ///
    /// # Errors
    /// The database fails.
    pub async fn remove(self, id: i64) -> Result<UserChange, StoreError> {
        let mut session = self.store.database.write("remove a user").await?;
        lock(&mut session).await?;
        let Some((user, _)) = find(&mut session, id).await? else {
            session.rollback().await?;
            return Ok(UserChange::Unknown);
        };
        if is_last_operator(&mut session, &user).await? {
            session.rollback().await?;
            return Ok(UserChange::LastOperator);
        }
        session
            .execute(sql!("DELETE FROM users WHERE id = $1"), values![id])
            .await?;
        session.commit().await?;
        Ok(UserChange::Done(user))
    }

    /// Makes a link by which the first operator can be added, and replaces the previous one.
    /// Returns whether there is no user yet, so that the link is valid.
    ///
    /// # Errors
    /// The database fails.
    pub async fn begin_setup(self, hash: &Hash) -> Result<bool, StoreError> {
        let mut session = self.store.database.write("make a setup link").await?;
        lock(&mut session).await?;
        if count(&mut session).await? > 0 {
            session.rollback().await?;
            return Ok(false);
        }
        session
            .execute(
                sql!(
                    "INSERT INTO setup (id, hash, created_at) VALUES (1, $1, " NOW ")
                     ON CONFLICT (id) DO UPDATE SET hash = excluded.hash,
                         created_at = excluded.created_at, used_at = NULL"
                ),
                values![hash],
            )
            .await?;
        session.commit().await?;
        Ok(true)
    }

    /// Returns whether there is no user yet.
    ///
    /// # Errors
    /// The database fails.
    pub async fn setup_open(self) -> Result<bool, StoreError> {
        let mut session = self
            .store
            .database
            .read("look whether there are users")
            .await?;
        Ok(count(&mut session).await? == 0)
    }

    /// Adds the first operator, whatever role is given, by the link with this hash. Of several
    /// concurrent calls, one succeeds.
    ///
    /// # Errors
    /// A text is empty or too long, or the database fails.
    pub async fn finish_setup(self, hash: &Hash, user: &NewUser) -> Result<Setup, StoreError> {
        check_user(user)?;
        let mut session = self.store.database.write("set the console up").await?;
        lock(&mut session).await?;
        if count(&mut session).await? > 0 {
            session.rollback().await?;
            return Ok(Setup::Closed);
        }
        let used = session
            .execute(
                sql!("UPDATE setup SET used_at = " NOW " WHERE hash = $1 AND used_at IS NULL"),
                values![hash],
            )
            .await?;
        if used == 0 {
            session.rollback().await?;
            return Ok(Setup::WrongLink);
        }
        let first = NewUser {
            role: Role::Operator,
            ..user.clone()
        };
        let user = insert(&mut session, &first).await?;
        let user = user.ok_or_else(|| session.failed(sqlx::Error::RowNotFound))?;
        session.commit().await?;
        Ok(Setup::Done(user))
    }
}
