//! Who may use the console.

mod api_token;
pub(in crate::sql) mod audit;
mod user;
mod web_session;

use std::time::Duration;

use async_trait::async_trait;

use super::SqlStore;
use crate::model::{
    ApiTokenRow, AuditFilter, AuditRow, Hash, NewApiToken, NewAudit, NewUser, NewWebSession, Setup,
    UserChange, UserEdit, UserRow, WebSession,
};
use crate::{Accounts, StoreError};

#[async_trait]
impl Accounts for SqlStore {
    async fn users(&self) -> Result<Vec<UserRow>, StoreError> {
        self.list_users().await
    }

    async fn user(&self, name: &str) -> Result<Option<(UserRow, Option<String>)>, StoreError> {
        self.find_user(name).await
    }

    async fn add_user(&self, user: &NewUser) -> Result<UserChange, StoreError> {
        self.insert_user(user).await
    }

    async fn edit_user(&self, id: i64, edit: &UserEdit) -> Result<UserChange, StoreError> {
        self.change_user(id, edit).await
    }

    async fn remove_user(&self, id: i64) -> Result<UserChange, StoreError> {
        self.delete_user(id).await
    }

    async fn begin_setup(&self, hash: &Hash) -> Result<bool, StoreError> {
        self.put_setup(hash).await
    }

    async fn setup_open(&self) -> Result<bool, StoreError> {
        self.has_no_users().await
    }

    async fn finish_setup(&self, hash: &Hash, user: &NewUser) -> Result<Setup, StoreError> {
        self.use_setup(hash, user).await
    }

    async fn add_web_session(&self, session: &NewWebSession) -> Result<bool, StoreError> {
        self.insert_web_session(session).await
    }

    async fn web_session(
        &self,
        hash: &Hash,
        idle: Duration,
    ) -> Result<Option<WebSession>, StoreError> {
        self.find_busy_web_session(hash, idle).await
    }

    async fn idle_web_session(
        &self,
        hash: &Hash,
        idle: Duration,
    ) -> Result<Option<WebSession>, StoreError> {
        let found = self.find_web_session(hash, idle).await?;
        Ok(found.map(|(browser, _)| browser))
    }

    async fn end_web_session(&self, hash: &Hash) -> Result<bool, StoreError> {
        self.delete_web_session(hash).await
    }

    async fn end_web_sessions(
        &self,
        user_id: i64,
        except: Option<&Hash>,
    ) -> Result<u64, StoreError> {
        self.delete_web_sessions(user_id, except).await
    }

    async fn add_api_token(&self, token: &NewApiToken) -> Result<ApiTokenRow, StoreError> {
        self.insert_api_token(token).await
    }

    async fn api_token(&self, hash: &Hash) -> Result<Option<ApiTokenRow>, StoreError> {
        self.find_api_token(hash).await
    }

    async fn api_tokens(&self, user_id: Option<i64>) -> Result<Vec<ApiTokenRow>, StoreError> {
        self.list_api_tokens(user_id).await
    }

    async fn revoke_api_token(&self, id: i64) -> Result<bool, StoreError> {
        self.end_api_token(id).await
    }

    async fn record_audit(&self, audit: &NewAudit) -> Result<i64, StoreError> {
        self.insert_audit(audit).await
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditRow>, StoreError> {
        self.list_audit(filter).await
    }

    async fn trim_accounts(&self) -> Result<u64, StoreError> {
        self.delete_old_accounts().await
    }
}
