//! Questions to the database with a time limit.

use std::time::Duration;

use store::StoreError;
use tokio::time::timeout;

/// Longest wait for an answer, where nothing else is said.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the database's answer, if it comes in time.
///
/// # Errors
/// The database fails or does not answer.
pub async fn answer<T>(
    question: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    answer_within(PATIENCE, question).await
}

/// Returns the database's answer, if it comes within `limit`.
///
/// # Errors
/// The database fails or does not answer.
pub async fn answer_within<T>(
    limit: Duration,
    question: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout(limit, question).await.unwrap_or_else(|_| {
        Err(StoreError::Unavailable {
            url: "the database".to_owned(),
            detail: format!("it has not answered for {} s", limit.as_secs()),
        })
    })
}
