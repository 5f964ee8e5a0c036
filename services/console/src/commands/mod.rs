//! Commands next to `serve`: users, and the setup link for the first one.

mod password;

#[cfg(test)]
mod tests;

use console::api::users::check_name;
use console::auth::password as passwords;
use console::setup;
use serde_json::json;
use service::cli::Json;
use service::program::{Failure, LAST_WAIT, block_on};
use service::settings::{Environment, Layer};
use store::{NewAudit, NewUser, Store, UserChange, UserEdit, UserRow};
use tokio::runtime::Builder;

use crate::cli::{Command, User};
use crate::config::load_database;

/// Runs the command; returns its output.
///
/// # Errors
/// The command failed.
pub fn run(line: Layer, environment: &Environment, command: &Command) -> Result<String, Failure> {
    let settings = load_database(line, environment)?;
    // Before the database is opened: people take their time.
    let password = match command {
        Command::User(User::Add { name, password, .. } | User::Passwd { name, password }) => {
            let password = password::read(password).map_err(Failure::Other)?;
            if let Some(weak) = passwords::weakness(&password, name) {
                return Err(Failure::Usage(weak));
            }
            let hash = passwords::hash(&password);
            Some(hash.map_err(|problem| Failure::Other(problem.detail))?)
        }
        _ => None,
    };
    block_on(&mut Builder::new_current_thread(), LAST_WAIT, async {
        let store = store::open(&settings.database_url)
            .await
            .map_err(Failure::other)?;
        let base = setup::base(&settings.site, settings.listen);
        let done = carry_out(&store, command, password, &base).await;
        store.close().await;
        done
    })
}

async fn carry_out(
    store: &Store,
    command: &Command,
    password: Option<String>,
    base: &str,
) -> Result<String, Failure> {
    match command {
        Command::SetupLink => {
            let made = setup::new_link(store, base).await;
            let done = made.map_err(Failure::Other).and_then(|link| {
                link.ok_or_else(|| {
                    Failure::Other(
                        "there is a user already: add others with `flexfeed-console user add`, or \
                         change a password with `flexfeed-console user passwd`"
                            .to_owned(),
                    )
                })
            });
            note(store, "setup.link", "", json!({}), &done).await?;
            Ok(format!("Set up the first operator at\n\n  {}\n", done?))
        }
        Command::User(User::Add { name, role, .. }) => {
            let name = check_name(name).map_err(|problem| Failure::Usage(problem.detail))?;
            let user = NewUser {
                name: name.clone(),
                password,
                role: *role,
                identity: None,
            };
            let change = store.users().add(&user).await;
            let done = change.map_err(Failure::other);
            let done = done.and_then(|change| changed(change, &name));
            let detail = json!({"role": role.as_str()});
            note(store, "user.add", &name, detail, &done).await?;
            let user = done?;
            Ok(format!("Added {} as {}.\n", user.name, user.role))
        }
        Command::User(User::Passwd { name, .. }) => {
            let edit = UserEdit {
                password,
                ..UserEdit::default()
            };
            let done = edited(store, name, &edit).await;
            let detail = json!({"password": "changed"});
            note(store, "user.edit", name, detail, &done).await?;
            let user = done?;
            Ok(format!(
                "Changed the password of {}, and ended all sessions.\n",
                user.name
            ))
        }
        Command::User(user @ (User::Disable { name } | User::Enable { name })) => {
            let disabled = matches!(user, User::Disable { .. });
            let edit = UserEdit {
                disabled: Some(disabled),
                ..UserEdit::default()
            };
            let done = edited(store, name, &edit).await;
            let detail = json!({"disabled": disabled});
            note(store, "user.edit", name, detail, &done).await?;
            let what = if disabled { "Disabled" } else { "Enabled" };
            Ok(format!("{what} {}.\n", done?.name))
        }
        Command::User(User::List(Json { json })) => {
            let users = store.users().list().await.map_err(Failure::other)?;
            Ok(match json {
                true => as_json(&users),
                false => as_text(&users),
            })
        }
    }
}

async fn edited(store: &Store, name: &str, edit: &UserEdit) -> Result<UserRow, Failure> {
    let found = store.users().get(name).await;
    let Some((user, _)) = found.map_err(Failure::other)? else {
        return Err(unknown(name));
    };
    let change = store.users().edit(user.id, edit).await;
    changed(change.map_err(Failure::other)?, name)
}

fn unknown(name: &str) -> Failure {
    Failure::Other(format!(
        "no user is called {name:?}: `flexfeed-console user list` lists all users"
    ))
}

fn changed(change: UserChange, name: &str) -> Result<UserRow, Failure> {
    match change {
        UserChange::Done(user) => Ok(user),
        UserChange::Unknown => Err(unknown(name)),
        UserChange::Taken => Err(Failure::Other(format!(
            "a user called {name:?} exists already"
        ))),
        UserChange::LastOperator => Err(Failure::Other(
            "the last operator: add another operator first".to_owned(),
        )),
    }
}

/// Records the command and its outcome in the audit log.
async fn note<T>(
    store: &Store,
    action: &str,
    target: &str,
    detail: serde_json::Value,
    done: &Result<T, Failure>,
) -> Result<(), Failure> {
    let audit = NewAudit {
        actor: service::environment::user(),
        via: "command line".to_owned(),
        action: action.to_owned(),
        target: target.to_owned(),
        detail: detail.to_string(),
        outcome: match done {
            Ok(_) => "ok".to_owned(),
            Err(failure) => failure.to_string(),
        },
        address: String::new(),
    };
    match (store.audit_log().record(&audit).await, done) {
        (Err(error), Ok(_)) => Err(Failure::other(error)),
        // The reason for the failure is more useful than the failure to record it.
        _ => Ok(()),
    }
}

fn as_json(users: &[UserRow]) -> String {
    let users: Vec<_> = users
        .iter()
        .map(|user| {
            json!({
                "id": user.id,
                "name": user.name,
                "role": user.role.as_str(),
                "created_ms": user.created_ms,
                "disabled_ms": user.disabled_ms,
            })
        })
        .collect();
    format!("{:#}\n", json!({"users": users}))
}

fn as_text(users: &[UserRow]) -> String {
    if users.is_empty() {
        return "No users yet: `flexfeed-console setup-link` makes a link for the first.\n"
            .to_owned();
    }
    let mut text = String::new();
    for user in users {
        let out = match user.disabled_ms {
            Some(_) => "  disabled",
            None => "",
        };
        let name = service::peer_text::plain(&user.name);
        text.push_str(&format!("{:<8}  {name}{out}\n", user.role.as_str()));
    }
    text
}
