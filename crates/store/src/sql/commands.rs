//! Commands to the source: queued, taken by one, finished.

use serde_json::json;

use super::accounts::audit_log::add_line;
use super::records::change::{current_fences, notify};
use super::records::history::rows;
use super::records::read::receiver_id;
use super::records::rows::kept;
use super::{check_length, to_i64};
use crate::database::{Row, Session, sql, values};
use crate::model::{Command, CommandState, Fence, NewAudit, NewCommand};
use crate::watch::Topic;
use crate::{Commands, StoreError};

/// The most that wait or are being carried out.
const MAX_OPEN: u64 = 1000;

/// The most that are taken at once.
const MAX_TAKEN: usize = 100;

/// Longest texts kept, in bytes.
const MAX_KIND: usize = 64;
const MAX_NAME: usize = 255;
const MAX_URL: usize = 2048;
const MAX_ARGUMENT: usize = 4096;
const MAX_RESULT: usize = 1024;

/// Everything about commands, in the order that [`read_command`] has; what follows is added to it.
/// A command that no source took within a minute, or that was not finished ten minutes after, has
/// expired, even if its row does not say so yet.
macro_rules! select_commands {
    ($($then:tt)+) => {
        sql!(
            "SELECT id, kind, receiver, channel, url, argument, asked_by, asked_at, taken_at,
                 done_at, CASE WHEN state = 'queued' AND asked_at < " NOW " - 60000 THEN 'expired'
                     WHEN state = 'taken' AND taken_at < " NOW " - 600000 THEN 'expired'
                     ELSE state END, result, " NOW "
             FROM commands " $($then)+
        )
    };
}

fn read_command(session: &Session, row: &Row) -> Result<Command, StoreError> {
    let receiver: Option<String> = session.get(row, 2)?;
    let state: String = session.get(row, 10)?;
    Ok(Command {
        id: session.get(row, 0)?,
        asked: NewCommand {
            kind: session.get(row, 1)?,
            receiver: match receiver {
                Some(_) => Some(receiver_id(session, row, 2)?),
                None => None,
            },
            channel: session.get(row, 3)?,
            url: session.get(row, 4)?,
            argument: session.get(row, 5)?,
            asked_by: session.get(row, 6)?,
        },
        asked_ms: session.get(row, 7)?,
        taken_ms: session.get(row, 8)?,
        done_ms: session.get(row, 9)?,
        state: CommandState::from_word(&state)
            .ok_or_else(|| session.damaged(format!("the state of a command is {state:?}")))?,
        result: session.get(row, 11)?,
    })
}

/// Ended commands, in the column order of [`note_end`].
macro_rules! ended {
    ($($update:tt)+) => {
        sql!($($update)+ " RETURNING id, kind, receiver, channel, url, asked_by, taken_at")
    };
}

/// Writes into the audit log what became of a command; `outcome` is made of whether a source had
/// taken it. The request has a line of its own, with the same number.
async fn note_end(
    session: &mut Session,
    row: &Row,
    result: Option<&str>,
    outcome: impl Fn(bool) -> String,
) -> Result<(), StoreError> {
    let receiver: Option<String> = session.get(row, 2)?;
    let taken: Option<i64> = session.get(row, 6)?;
    let asked = NewCommand {
        kind: session.get(row, 1)?,
        receiver: match receiver {
            Some(_) => Some(receiver_id(session, row, 2)?),
            None => None,
        },
        channel: session.get(row, 3)?,
        url: session.get(row, 4)?,
        asked_by: session.get(row, 5)?,
        argument: None,
    };
    let id: i64 = session.get(row, 0)?;
    let mut detail = json!({"command_id": id});
    if let Some(result) = result {
        detail["result"] = json!(result);
    }
    let line = NewAudit {
        action: asked.action(),
        target: asked.target(),
        actor: asked.asked_by,
        via: "source".to_owned(),
        detail: detail.to_string(),
        outcome: outcome(taken.is_some()),
        address: String::new(),
    };
    add_line(session, &line).await.map(|_| ())
}

/// Writes down which commands have expired. Returns how many.
pub(super) async fn expire(session: &mut Session) -> Result<u64, StoreError> {
    let ended = session
        .rows(
            ended!(
                "UPDATE commands SET state = 'expired', done_at = " NOW " WHERE id IN (
                     SELECT id FROM commands
                     WHERE (state = 'queued' AND asked_at < " NOW " - 60000)
                         OR (state = 'taken' AND taken_at < " NOW " - 600000)
                     ORDER BY id" LOCK SKIP ")"
            ),
            values![],
        )
        .await?;
    for row in &ended {
        note_end(session, row, None, |is_taken| match is_taken {
            true => "the source that took it did not say what became of it".to_owned(),
            false => "no source took it within a minute".to_owned(),
        })
        .await?;
    }
    Ok(ended.len() as u64)
}

impl Commands<'_> {
    /// Queues a command for the source. Returns its number. If no source takes it within a minute,
    /// it expires.
    ///
    /// # Errors
    /// [`StoreError::TooMany`] if 1,000 wait already, a text is too long, or the database fails.
    pub async fn ask(self, command: &NewCommand) -> Result<i64, StoreError> {
        let texts = [
            ("the channel of a command", &command.channel, MAX_NAME),
            ("the URL of a command", &command.url, MAX_URL),
        ];
        for (what, text, limit) in texts {
            check_length(what, text.as_deref().unwrap_or_default(), limit)?;
        }
        let mut session = self
            .store
            .database
            .write("ask something of the source")
            .await?;
        expire(&mut session).await?;
        let open: i64 = session
            .scalar(
                sql!("SELECT COUNT(*) FROM commands WHERE state IN ('queued', 'taken')"),
                values![],
            )
            .await?;
        if session.unsigned(open)? >= MAX_OPEN {
            session.commit().await?;
            return Err(StoreError::TooMany {
                what: "commands that wait for the source",
                limit: MAX_OPEN,
            });
        }
        let receiver = command.receiver.map(|receiver| receiver.to_string());
        let argument = command.argument.as_ref();
        let id = session
            .scalar(
                sql!(
                    "INSERT INTO commands (kind, receiver, channel, url, argument, asked_by,
                         asked_at, state)
                     VALUES ($1, $2, $3, $4, $5, $6, " NOW ", 'queued') RETURNING id"
                ),
                values![
                    &kept(&command.kind, MAX_KIND),
                    &receiver,
                    &command.channel,
                    &command.url,
                    &argument.map(|argument| kept(argument, MAX_ARGUMENT)),
                    &kept(&command.asked_by, MAX_NAME),
                ],
            )
            .await?;
        notify(&mut session, Topic::Commands).await?;
        session.commit().await?;
        self.store.news.notifier.ring(Topic::Commands);
        Ok(id)
    }

    /// Takes commands for execution, the oldest first: those of the channels of the current fences
    /// in `held`, and, if there is one, those of no channel. Each is given to one caller only.
    ///
    /// # Errors
    /// The database fails.
    pub async fn take(self, held: &[Fence], limit: usize) -> Result<Vec<Command>, StoreError> {
        // A reader looks first, for most of the time there is nothing to take.
        let mut session = self.store.database.read("look for commands").await?;
        let waiting: i64 = session
            .scalar(
                sql!("SELECT COUNT(*) FROM commands WHERE state = 'queued'"),
                values![],
            )
            .await?;
        drop(session);
        if waiting == 0 || held.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = self.store.database.write("take commands").await?;
        let current = current_fences(&mut session, held).await?;
        let channels: Vec<&str> = held
            .iter()
            .map(|fence| (fence.channel.as_str(), fence.fence))
            .filter(|(channel, fence)| current.iter().any(|(c, f)| c == channel && f == fence))
            .map(|(channel, _)| channel)
            .collect();
        if channels.is_empty() {
            session.rollback().await?;
            return Ok(Vec::new());
        }
        expire(&mut session).await?;
        let found = session
            .rows(
                select_commands!(
                    "WHERE state = 'queued' AND (channel IS NULL OR channel" AMONG_1 ")
                     ORDER BY id LIMIT $2" LOCK SKIP
                ),
                values![channels.as_slice(), to_i64(limit.min(MAX_TAKEN) as u64)],
            )
            .await?;
        let mut commands = Vec::new();
        for row in &found {
            let mut command = read_command(&session, row)?;
            let now = session.get(row, 12)?;
            session
                .execute(
                    sql!("UPDATE commands SET state = 'taken', taken_at = $2 WHERE id = $1"),
                    values![command.id, now],
                )
                .await?;
            command.state = CommandState::Taken;
            command.taken_ms = Some(now);
            commands.push(command);
        }
        session.commit().await?;
        Ok(commands)
    }

    /// Stores the outcome of a taken command: its result, or the reason for its failure; cut to
    /// 1,024 bytes. Returns whether the command still waited for one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn finish(self, id: i64, outcome: Result<&str, &str>) -> Result<bool, StoreError> {
        let (state, result) = match outcome {
            Ok(result) => (CommandState::Done, result),
            Err(reason) => (CommandState::Failed, reason),
        };
        let result = kept(result, MAX_RESULT);
        let mut session = self.store.database.write("finish a command").await?;
        let found = session
            .row(
                ended!(
                    "UPDATE commands SET state = $2, result = $3, done_at = " NOW "
                     WHERE id = $1 AND state = 'taken'"
                ),
                values![id, state.as_str(), &result],
            )
            .await?;
        if let Some(row) = &found {
            let (said, how) = match outcome {
                Ok(_) => (Some(&*result), "ok"),
                Err(_) => (None, &*result),
            };
            note_end(&mut session, row, said, |_| how.to_owned()).await?;
        }
        notify(&mut session, Topic::Changes).await?;
        session.commit().await?;
        self.store.news.notifier.ring(Topic::Changes);
        Ok(found.is_some())
    }

    /// Marks overdue commands as expired, in the audit log, too, while no source does. Returns how
    /// many.
    ///
    /// # Errors
    /// The database fails.
    pub async fn expire(self) -> Result<u64, StoreError> {
        // A reader looks first, for most of the time there is nothing open.
        let mut session = self.store.database.read("look for commands").await?;
        let open: i64 = session
            .scalar(
                sql!("SELECT COUNT(*) FROM commands WHERE state IN ('queued', 'taken')"),
                values![],
            )
            .await?;
        drop(session);
        if open == 0 {
            return Ok(0);
        }
        let mut session = self.store.database.write("let commands expire").await?;
        let count = expire(&mut session).await?;
        session.commit().await?;
        Ok(count)
    }

    /// Returns a command with its state.
    ///
    /// # Errors
    /// The database fails.
    pub async fn get(self, id: i64) -> Result<Option<Command>, StoreError> {
        let sql = select_commands!("WHERE id = $1");
        self.store
            .find("look up a command", sql, values![id], read_command)
            .await
    }

    /// Returns commands with an id below `before`, the newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(self, before: Option<i64>, limit: usize) -> Result<Vec<Command>, StoreError> {
        let sql = select_commands!("WHERE id < $1 ORDER BY id DESC LIMIT $2");
        let values = values![before.unwrap_or(i64::MAX), rows(limit)];
        self.store
            .list("list commands", sql, values, read_command)
            .await
    }
}
