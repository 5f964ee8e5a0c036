//! Users of the console.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{NewUser as Row, Role, UserChange, UserEdit, UserRow};
use utoipa::ToSchema;

use super::extract::{Json as Body, Path, Query};
use super::list::ListQuery;
use super::problem::Problem;
use crate::auth::caller::{Caller, Via};
use crate::auth::password;
use crate::auth::rights::Scope;
use crate::site::Site;

/// The longest name, in characters.
const MAX_NAME: usize = 100;

/// Role of a user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RoleName {
    /// May read.
    #[default]
    Viewer,
    /// May read and act.
    Operator,
}

impl From<Role> for RoleName {
    fn from(role: Role) -> Self {
        match role {
            Role::Viewer => Self::Viewer,
            Role::Operator => Self::Operator,
        }
    }
}

impl From<RoleName> for Role {
    fn from(role: RoleName) -> Self {
        match role {
            RoleName::Viewer => Self::Viewer,
            RoleName::Operator => Self::Operator,
        }
    }
}

/// A user of the console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct User {
    /// Their number.
    pub id: i64,
    /// The name to sign in with.
    pub name: String,
    /// Role.
    pub role: RoleName,
    /// Time of adding; Unix milliseconds.
    pub created_ms: i64,
    /// Time of disabling; Unix milliseconds; null if not disabled.
    pub disabled_ms: Option<i64>,
    /// Whether this is the caller.
    pub is_self: bool,
}

impl User {
    fn of(row: UserRow, caller: &Caller) -> Self {
        Self {
            is_self: row.id == caller.user.id,
            id: row.id,
            name: row.name,
            role: row.role.into(),
            created_ms: row.created_ms,
            disabled_ms: row.disabled_ms,
        }
    }
}

/// All users of the console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Users {
    /// In the order in which they were added.
    pub items: Vec<User>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// Checks a user name.
///
/// # Errors
/// The name is invalid.
pub fn check_name(name: &str) -> Result<String, Problem> {
    let name = name.trim();
    let bad =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if name.is_empty() || name.chars().count() > MAX_NAME || name.len() > 255 || name.contains(bad)
    {
        let what = format!("a name has 1 to {MAX_NAME} characters that can be seen");
        return Err(Problem::invalid("name", what));
    }
    Ok(name.to_owned())
}

/// People
#[utoipa::path(get, path = "/api/v1/users", tag = "people", operation_id = "users",
    params(ListQuery), responses((status = 200, body = Users)))]
pub async fn users(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<Users>, Problem> {
    caller.may(Scope::Admin)?;
    let rows = site.store.users().list().await?;
    let all = rows.into_iter().map(|row| User::of(row, &caller));
    let (items, next_cursor) = query.part(all.collect(), |user| user.id)?;
    Ok(Json(Users { items, next_cursor }))
}

/// A new user.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewUser {
    /// The name to sign in with.
    #[schema(required = true, min_length = 1, max_length = 100)]
    pub name: String,
    /// The password.
    #[schema(required = true, format = Password, min_length = 10)]
    pub password: String,
    /// Role.
    pub role: RoleName,
}

/// Adds a user
#[utoipa::path(post, path = "/api/v1/users", tag = "people", operation_id = "add_user",
    request_body = NewUser, responses((status = 201, body = User)))]
pub async fn add_user(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Body(new): Body<NewUser>,
) -> Result<(StatusCode, Json<User>), Problem> {
    may_manage_users(&site, &caller, "user.add", &new.name).await?;
    let (name, role) = (new.name.clone(), new.role);
    let done = add(&site, new).await;
    // Later audit entries use their number.
    let id = done.as_ref().ok().map(|row| row.id);
    let detail = json!({"role": role, "user_id": id});
    caller.note(&site, "user.add", name, detail, &done).await;
    done.map(|row| (StatusCode::CREATED, Json(User::of(row, &caller))))
}

/// Checks that the caller may decide how users sign in. A program that may do so needs all rights
/// that it could get by signing in as them.
async fn may_manage_users(
    site: &Site,
    caller: &Caller,
    action: &str,
    target: &str,
) -> Result<(), Problem> {
    caller.may_do(site, Scope::Admin, action, target).await?;
    caller.may_do(site, Scope::Operate, action, target).await
}

async fn add(site: &Site, new: NewUser) -> Result<UserRow, Problem> {
    let name = check_name(&new.name)?;
    if let Some(weak) = password::weakness(&new.password, &name) {
        return Err(Problem::invalid("password", weak));
    }
    let stored = site.passwords.hash(new.password).await?;
    let row = Row {
        name: name.clone(),
        password: Some(stored),
        role: new.role.into(),
        identity: None,
    };
    changed(site.store.users().add(&row).await?, &name)
}

fn changed(change: UserChange, who: &str) -> Result<UserRow, Problem> {
    match change {
        UserChange::Done(row) => Ok(row),
        UserChange::Unknown => Err(Problem::not_found(format!("there is no user {who}"))),
        UserChange::Taken => {
            let what = format!("there is a user {who:?} already");
            Err(Problem::conflict(what).of_field("name"))
        }
        UserChange::LastOperator => Err(Problem::conflict(
            "this is the last operator: make another user an operator first",
        )),
    }
}

/// Changes of a user; members left out stay unchanged.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UserPatch {
    /// A new password. Their browsers are signed out.
    #[schema(format = Password, min_length = 10)]
    pub password: Option<String>,
    /// Role.
    pub role: Option<RoleName>,
    /// Whether they are disabled. Their browsers are signed out.
    pub disabled: Option<bool>,
}

/// Changes a user
#[utoipa::path(patch, path = "/api/v1/users/{id}", tag = "people", operation_id = "edit_user",
    request_body = UserPatch,
    params(("id" = i64, Path, description = "Number of the user")),
    responses((status = 200, body = User)))]
pub async fn edit_user(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<i64>,
    Body(patch): Body<UserPatch>,
) -> Result<Json<User>, Problem> {
    may_manage_users(&site, &caller, "user.edit", &id.to_string()).await?;
    let mut detail = json!({
        "role": patch.role,
        "disabled": patch.disabled,
        "password": patch.password.as_ref().map(|_| "changed"),
    });
    let done = edit(&site, id, patch).await;
    detail["name"] = json!(done.as_ref().ok().map(|row| &row.name));
    caller
        .note(&site, "user.edit", id.to_string(), detail, &done)
        .await;
    site.rights_revoked();
    done.map(|row| Json(User::of(row, &caller)))
}

async fn edit(site: &Site, id: i64, patch: UserPatch) -> Result<UserRow, Problem> {
    let name = name_of(site, id).await?;
    let password = match patch.password {
        None => None,
        Some(given) => match password::weakness(&given, &name) {
            Some(weak) => return Err(Problem::invalid("password", weak)),
            None => Some(site.passwords.hash(given).await?),
        },
    };
    let edit = UserEdit {
        password,
        role: patch.role.map(Role::from),
        disabled: patch.disabled,
    };
    changed(site.store.users().edit(id, &edit).await?, &id.to_string())
}

async fn name_of(site: &Site, id: i64) -> Result<String, Problem> {
    let users = site.store.users().list().await?;
    let found = users.into_iter().find(|user| user.id == id);
    found
        .map(|user| user.name)
        .ok_or_else(|| Problem::not_found(format!("there is no user {id}")))
}

/// Removes a user
///
/// With their sessions and API tokens. Their lines in the audit log stay.
#[utoipa::path(delete, path = "/api/v1/users/{id}", tag = "people", operation_id = "remove_user",
    params(("id" = i64, Path, description = "Number of the user")),
    responses((status = 204, description = "Removed")))]
pub async fn remove_user(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, Problem> {
    caller
        .may_do(&site, Scope::Admin, "user.remove", &id.to_string())
        .await?;
    let done = async {
        let name = name_of(&site, id).await?;
        let change = site.store.users().remove(id).await?;
        changed(change, &id.to_string()).map(|_| name)
    };
    let done = done.await;
    let detail = json!({"name": done.as_ref().ok()});
    caller
        .note(&site, "user.remove", id.to_string(), detail, &done)
        .await;
    site.rights_revoked();
    done.map(|_| StatusCode::NO_CONTENT)
}

/// A change of the caller's own password.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewPassword {
    /// The current password.
    #[schema(required = true, format = Password)]
    pub current: String,
    /// The new password.
    #[schema(required = true, format = Password, min_length = 10)]
    pub password: String,
}

/// Changes the caller's password
///
/// All browsers are signed out, this one included.
#[utoipa::path(post, path = "/api/v1/session/password", tag = "session",
    operation_id = "change_password", request_body = NewPassword,
    responses((status = 204, description = "Changed")))]
pub async fn change_password(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Body(given): Body<NewPassword>,
) -> Result<StatusCode, Problem> {
    if let Via::Token { .. } = caller.via {
        let problem = Problem::forbidden("a program cannot change a password");
        return Err(caller.refused(&site, "session.password", "", problem).await);
    }
    // A guess at the current password counts as a sign-in: a stolen session brings no more guesses.
    let (now, address) = (std::time::Instant::now(), caller.client.group());
    let tried = site.limits.sign_in(&caller.user.name, address, now);
    tried.map_err(|wait| {
        let after = crate::auth::limit::seconds(wait);
        Problem::too_many("too many attempts; wait, and then try again", after)
    })?;
    let done = renew(&site, &caller, given).await;
    caller
        .note(&site, "session.password", "", json!({}), &done)
        .await;
    site.rights_revoked();
    done.map(|()| StatusCode::NO_CONTENT)
}

async fn renew(site: &Site, caller: &Caller, given: NewPassword) -> Result<(), Problem> {
    let stored = site.store.users().get(&caller.user.name).await?;
    let stored = stored.and_then(|(_, stored)| stored);
    if !site.passwords.is(given.current, stored).await? {
        return Err(Problem::invalid("current", "is not the present password"));
    }
    site.limits
        .signed_in(&caller.user.name, caller.client.group());
    if let Some(weak) = password::weakness(&given.password, &caller.user.name) {
        return Err(Problem::invalid("password", weak));
    }
    let edit = UserEdit {
        password: Some(site.passwords.hash(given.password).await?),
        ..UserEdit::default()
    };
    let change = site.store.users().edit(caller.user.id, &edit).await?;
    changed(change, &caller.user.name).map(|_| ())
}
