//! Notifications of writes by other connections, also those of other processes.
//!
//! PostgreSQL notifies a connection of its own, which is made again when it breaks. SQLite is asked
//! twice a second whether there was a commit, and twenty times a second while messages are waited
//! for: that reads one number from memory that processes share.

use std::convert::Infallible;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqliteConnection};
use tokio::time::{sleep, timeout};

use crate::watch::{Notifier, Topic};

/// Between two looks at SQLite, and while messages are waited for.
const LOOK: Duration = Duration::from_millis(500);
const URGENT_LOOK: Duration = Duration::from_millis(50);

/// A connection that was silent for so long is tried out.
const SILENCE: Duration = Duration::from_secs(15);

/// Time limit for an answer of PostgreSQL.
const ANSWER: Duration = Duration::from_secs(5);

/// Between two attempts to listen.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Rings at every change in a SQLite database, and never returns.
pub(super) async fn listen_to_sqlite(options: SqliteConnectOptions, notifier: Notifier) {
    loop {
        if let Ok(mut connection) = options.connect().await {
            let Err(_) = poll_commits(&mut connection, &notifier).await;
            // Not the place to report it: readers and writers meet the same error.
        }
        sleep(LONGEST_PAUSE).await;
    }
}

async fn poll_commits(
    connection: &mut SqliteConnection,
    notifier: &Notifier,
) -> Result<Infallible, sqlx::Error> {
    let mut version = None;
    let mut seen: Option<(i64, i64, i64, i64)> = None;
    loop {
        let now: i64 = sqlx::query_scalar("PRAGMA data_version")
            .fetch_one(&mut *connection)
            .await?;
        if version != Some(now) {
            version = Some(now);
            let present: (i64, i64, i64, i64) = sqlx::query_as(
                "SELECT (SELECT number FROM change_number), (SELECT COALESCE(MAX(id), 0) FROM \
                 commands), (SELECT COALESCE(MAX(id), 0) FROM messages), (SELECT \
                 COALESCE(MAX(id), 0) FROM publications)",
            )
            .fetch_one(&mut *connection)
            .await?;
            // The first look may come after the change that a caller waits for.
            let news = [
                (Topic::Changes, seen.map(|seen| seen.0), present.0),
                (Topic::Commands, seen.map(|seen| seen.1), present.1),
                (Topic::Messages, seen.map(|seen| seen.2), present.2),
                (Topic::Publications, seen.map(|seen| seen.3), present.3),
            ];
            for (topic, before, now) in news {
                if before != Some(now) {
                    notifier.ring(topic);
                }
            }
            seen = Some(present);
        }
        sleep(match notifier.is_urgent() {
            true => URGENT_LOOK,
            false => LOOK,
        })
        .await;
    }
}

/// Rings whenever PostgreSQL notifies, and never returns.
pub(super) async fn listen_to_postgres(options: PgConnectOptions, notifier: Notifier) {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Ok(mut listener) = connect(&options).await {
            pause = FIRST_PAUSE;
            // For changes made before it listened.
            for topic in Topic::ALL {
                notifier.ring(topic);
            }
            let Err(_) = hear(&mut listener, &notifier).await;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn connect(options: &PgConnectOptions) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(ANSWER)
        .connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    let listening = listener.listen_all(Topic::ALL.map(Topic::channel));
    in_time(timeout(ANSWER, listening).await)?;
    Ok(listener)
}

/// Ends when the connection does.
async fn hear(listener: &mut PgListener, notifier: &Notifier) -> Result<Infallible, sqlx::Error> {
    loop {
        match timeout(SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(heard))) => {
                for topic in Topic::ALL {
                    if topic.channel() == heard.channel() {
                        notifier.ring(topic);
                    }
                }
            }
            Ok(Ok(None)) => return Err(sqlx::Error::PoolClosed),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                // A server that vanished does not say so.
                let asked = sqlx::query("SELECT 1").execute(&mut *listener);
                in_time(timeout(ANSWER, asked).await)?;
            }
        }
    }
}

fn in_time<T>(
    answer: Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed>,
) -> Result<T, sqlx::Error> {
    answer.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}
