//! Users of the console and the audit log, on the way into an archive and out of it. Browsers
//! that are signed in are left out: they sign in again.

use super::backup::{Failure, Output, ROWS};
use super::format::Record;
use super::restore::Restore;
use crate::StoreError;
use crate::database::{Session, sql, values};

pub(super) async fn save(session: &mut Session, output: &mut Output) -> Result<(), Failure> {
    users(session, output).await?;
    api_tokens(session, output).await?;
    audit(session, output).await
}

async fn users(session: &mut Session, output: &mut Output) -> Result<(), Failure> {
    let rows = session
        .rows(
            sql!(
                "SELECT id, name, password, role, created_at, disabled_at, issuer, subject
                 FROM users ORDER BY id"
            ),
            values![],
        )
        .await?;
    for row in &rows {
        let record = Record::User {
            key: session.get(row, 0)?,
            name: session.get(row, 1)?,
            password: session.get(row, 2)?,
            role: session.get(row, 3)?,
            created: session.get(row, 4)?,
            disabled: session.get(row, 5)?,
            issuer: session.get(row, 6)?,
            subject: session.get(row, 7)?,
        };
        output.put(&record, &[]).await?;
        output.contents.users += 1;
    }
    Ok(())
}

async fn api_tokens(session: &mut Session, output: &mut Output) -> Result<(), Failure> {
    let mut after = 0_i64;
    loop {
        let rows = session
            .rows(
                sql!(
                    "SELECT id, user_id, name, scopes, created_at, expires_at, seen_at, revoked_at, hash
                     FROM api_tokens WHERE id > $1 ORDER BY id LIMIT $2"
                ),
                values![after, ROWS],
            )
            .await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = session.get(last, 0)?;
        for row in &rows {
            let hash: Vec<u8> = session.get(row, 8)?;
            let record = Record::ApiToken {
                user: session.get(row, 1)?,
                name: session.get(row, 2)?,
                scopes: session.get(row, 3)?,
                created: session.get(row, 4)?,
                expires: session.get(row, 5)?,
                seen: session.get(row, 6)?,
                revoked: session.get(row, 7)?,
            };
            output.put(&record, &hash).await?;
            output.contents.api_tokens += 1;
        }
    }
}

async fn audit(session: &mut Session, output: &mut Output) -> Result<(), Failure> {
    let mut after = 0_i64;
    loop {
        let rows = session
            .rows(
                sql!(
                    "SELECT id, at, actor, via, action, target, detail, outcome, address
                     FROM audit WHERE id > $1 ORDER BY id LIMIT $2"
                ),
                values![after, ROWS],
            )
            .await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = session.get(last, 0)?;
        for row in &rows {
            let record = Record::Audit {
                at: session.get(row, 1)?,
                actor: session.get(row, 2)?,
                via: session.get(row, 3)?,
                action: session.get(row, 4)?,
                target: session.get(row, 5)?,
                detail: session.get(row, 6)?,
                outcome: session.get(row, 7)?,
                address: session.get(row, 8)?,
            };
            output.put(&record, &[]).await?;
            output.contents.audit += 1;
        }
    }
}

impl Restore<'_> {
    pub(super) async fn account(&mut self, record: Record, hash: &[u8]) -> Result<(), StoreError> {
        match record {
            Record::User {
                key,
                name,
                password,
                role,
                created,
                disabled,
                issuer,
                subject,
            } => {
                let id = self
                    .session
                    .scalar(
                        sql!(
                            "INSERT INTO users (name, password, role, created_at, disabled_at, issuer,
                                 subject)
                             VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id"
                        ),
                        values![&name, &password, &role, created, disabled, &issuer, &subject],
                    )
                    .await?;
                self.users.insert(key, id);
                self.progress.done.users += 1;
            }
            Record::ApiToken {
                user,
                name,
                scopes,
                created,
                expires,
                seen,
                revoked,
            } => {
                let user = self.new_key(&self.users, user)?;
                self.session
                    .execute(
                        sql!(
                            "INSERT INTO api_tokens (hash, name, user_id, scopes, created_at, expires_at,
                                 seen_at, revoked_at)
                             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
                        ),
                        values![hash, &name, user, &scopes, created, expires, seen, revoked],
                    )
                    .await?;
                self.progress.done.api_tokens += 1;
            }
            Record::Audit {
                at,
                actor,
                via,
                action,
                target,
                detail,
                outcome,
                address,
            } => {
                self.session
                    .execute(
                        sql!(
                            "INSERT INTO audit (at, actor, via, action, target, detail, outcome, address)
                             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
                        ),
                        values![
                            at, &actor, &via, &action, &target, &detail, &outcome, &address,
                        ],
                    )
                    .await?;
                self.progress.done.audit += 1;
            }
            _ => return Err(self.damaged("a record is in the wrong place")),
        }
        Ok(())
    }
}
