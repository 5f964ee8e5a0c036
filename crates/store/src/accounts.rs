//! The interface to who may use the console.

use std::time::Duration;

use async_trait::async_trait;

use crate::StoreError;
use crate::model::{
    ApiTokenRow, AuditFilter, AuditRow, Hash, NewApiToken, NewAudit, NewUser, NewWebSession, Setup,
    UserChange, UserEdit, UserRow, WebSession,
};

/// People, their browsers and programs, and what they did. Secrets are here as hashes only. All times
/// are Unix milliseconds by the clock of the database.
#[async_trait]
pub trait Accounts: Send + Sync {
    /// Everybody, in the order in which they were added.
    ///
    /// # Errors
    /// The database fails.
    async fn users(&self) -> Result<Vec<UserRow>, StoreError>;

    /// Somebody by the name to sign in with, and the hash of their password, if they have one. Also
    /// those who are kept out.
    ///
    /// # Errors
    /// The database fails.
    async fn user(&self, name: &str) -> Result<Option<(UserRow, Option<String>)>, StoreError>;

    /// Lets somebody in: [`UserChange::Done`] or [`UserChange::Taken`].
    ///
    /// # Errors
    /// A text is empty or too long, there are 1,000 already, or the database fails.
    async fn add_user(&self, user: &NewUser) -> Result<UserChange, StoreError>;

    /// Changes what is known about somebody.
    ///
    /// # Errors
    /// A text is too long, or the database fails.
    async fn edit_user(&self, id: i64, edit: &UserEdit) -> Result<UserChange, StoreError>;

    /// Forgets somebody, with their browsers and API tokens. What they did stays in the audit log.
    ///
    /// # Errors
    /// The database fails.
    async fn remove_user(&self, id: i64) -> Result<UserChange, StoreError>;

    /// Makes a link by which the first operator can be made, instead of the one before. Returns
    /// whether there is nobody yet, so that it is good for something.
    ///
    /// # Errors
    /// The database fails.
    async fn begin_setup(&self, hash: &Hash) -> Result<bool, StoreError>;

    /// Whether there is nobody yet.
    ///
    /// # Errors
    /// The database fails.
    async fn setup_open(&self) -> Result<bool, StoreError>;

    /// Makes the first operator, whatever role is given, by the link with this hash. Of several who try
    /// at the same time, one succeeds.
    ///
    /// # Errors
    /// A text is empty or too long, or the database fails.
    async fn finish_setup(&self, hash: &Hash, user: &NewUser) -> Result<Setup, StoreError>;

    /// Signs a browser in, if its user is still let in by the password that was given. Returns whether
    /// that is so. Of each user's, the last 50 stay.
    ///
    /// # Errors
    /// A text is too long, or the database fails.
    async fn add_web_session(&self, session: &NewWebSession) -> Result<bool, StoreError>;

    /// The browser with this cookie, if it is signed in, was busy within the time `idle`, and its user
    /// is not kept out. That it was busy now is noted, at most once a minute.
    ///
    /// # Errors
    /// The database fails.
    async fn web_session(
        &self,
        hash: &Hash,
        idle: Duration,
    ) -> Result<Option<WebSession>, StoreError>;

    /// As [`Self::web_session`], and nothing is noted: for what browsers do without anybody.
    ///
    /// # Errors
    /// The database fails.
    async fn idle_web_session(
        &self,
        hash: &Hash,
        idle: Duration,
    ) -> Result<Option<WebSession>, StoreError>;

    /// Signs a browser out. Returns whether it was signed in.
    ///
    /// # Errors
    /// The database fails.
    async fn end_web_session(&self, hash: &Hash) -> Result<bool, StoreError>;

    /// Signs all browsers of a user out, but for that one. Returns how many.
    ///
    /// # Errors
    /// The database fails.
    async fn end_web_sessions(
        &self,
        user_id: i64,
        except: Option<&Hash>,
    ) -> Result<u64, StoreError>;

    /// Lets a program in.
    ///
    /// # Errors
    /// There is no such user, or they have 100 already that are good; or the database fails.
    async fn add_api_token(&self, token: &NewApiToken) -> Result<ApiTokenRow, StoreError>;

    /// The program with this token, if it is let in and its user is not kept out. That it was used now
    /// is noted, at most once a minute.
    ///
    /// # Errors
    /// The database fails.
    async fn api_token(&self, hash: &Hash) -> Result<Option<ApiTokenRow>, StoreError>;

    /// The programs of one user, or of all, in the order in which they were added: the last 10,000.
    ///
    /// # Errors
    /// The database fails.
    async fn api_tokens(&self, user_id: Option<i64>) -> Result<Vec<ApiTokenRow>, StoreError>;

    /// Lets a program in no more. Returns whether there is such a one.
    ///
    /// # Errors
    /// The database fails.
    async fn revoke_api_token(&self, id: i64) -> Result<bool, StoreError>;

    /// Notes what somebody did. Returns its number.
    ///
    /// # Errors
    /// The database fails.
    async fn record_audit(&self, audit: &NewAudit) -> Result<i64, StoreError>;

    /// Lines of the audit log, the newest first.
    ///
    /// # Errors
    /// The database fails.
    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditRow>, StoreError>;

    /// Forgets what is of no use any more: browsers whose time is over, API tokens a year after their
    /// end, lines of the audit log after 400 days. In parts, between which others can write.
    /// Returns how many rows went.
    ///
    /// # Errors
    /// The database fails; some of it may be done.
    async fn trim_accounts(&self) -> Result<u64, StoreError>;
}
