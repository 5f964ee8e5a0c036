//! Commands beside `serve`: people, and the link for the first one.

mod password;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use console::api::users::check_name;
use console::auth::password as passwords;
use console::setup;
use serde_json::json;
use service::settings::{Environment, Layer};
use store::{NewAudit, NewUser, Role, Store, StoreError, UserChange, UserEdit, UserRow};

use crate::config::load_database;

/// A user command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A new link for the first operator.
    SetupLink,
    /// To let somebody in.
    AddUser {
        /// The name to sign in with.
        name: String,
        /// Role.
        role: Role,
        /// Origin of the password.
        password: Password,
    },
    /// To give somebody a new password.
    SetPassword {
        /// Name.
        name: String,
        /// Origin of the password.
        password: Password,
    },
    /// To show everybody.
    ListUsers {
        /// As JSON.
        json: bool,
    },
    /// To keep somebody out, or let them in again.
    SetDisabled {
        /// Name.
        name: String,
        /// Whether they are kept out.
        disabled: bool,
    },
}

/// Origin of a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Password {
    /// The terminal, or standard input where that is none.
    Asked,
    /// The first line of a file.
    File(PathBuf),
}

/// Reason for a failure, in words for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Invalid request.
    Usage(String),
    /// Failed operation.
    Other(String),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Other(error.to_string())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(text) | Self::Other(text) => f.write_str(text),
        }
    }
}

/// Runs the command; returns its output.
///
/// # Errors
/// The command failed.
pub fn run(line: Layer, environment: &Environment, command: &Command) -> Result<String, Failure> {
    let (url, settings, listen) = load_database(line, environment)
        .map_err(|problems| Failure::Usage(problems.to_string()))?;
    // Before the database is held: people take their time.
    let password = match command {
        Command::AddUser { name, password, .. } | Command::SetPassword { name, password } => {
            let password = password::read(password).map_err(Failure::Other)?;
            if let Some(weak) = passwords::weakness(&password, name) {
                return Err(Failure::Usage(weak));
            }
            let hash = passwords::hash(&password);
            Some(hash.map_err(|problem| Failure::Other(problem.detail))?)
        }
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Other(format!("cannot begin: {error}")))?;
    runtime.block_on(async {
        let store = store::open(&url.0).await?;
        let base = setup::base(&settings, listen);
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
                        "somebody is set up already: add people with `flexfeed-console user add`, \
                         or give somebody a new password with `flexfeed-console user passwd`"
                            .to_owned(),
                    )
                })
            });
            note(store, "setup.link", "", json!({}), &done).await?;
            Ok(format!("Make the first operator at\n\n  {}\n", done?))
        }
        Command::AddUser { name, role, .. } => {
            let name = check_name(name).map_err(|problem| Failure::Usage(problem.detail))?;
            let user = NewUser {
                name: name.clone(),
                password,
                role: *role,
                identity: None,
            };
            let change = store.users().add(&user).await;
            let done = change.map_err(Failure::from);
            let done = done.and_then(|change| changed(change, &name));
            let detail = json!({"role": role.as_str()});
            note(store, "user.add", &name, detail, &done).await?;
            let user = done?;
            Ok(format!("{} may sign in, as {}.\n", user.name, user.role))
        }
        Command::SetPassword { name, .. } => {
            let edit = UserEdit {
                password,
                ..UserEdit::default()
            };
            let done = edited(store, name, &edit).await;
            let detail = json!({"password": "changed"});
            note(store, "user.edit", name, detail, &done).await?;
            let user = done?;
            Ok(format!(
                "{} has a new password, and has to sign in again everywhere.\n",
                user.name
            ))
        }
        Command::SetDisabled { name, disabled } => {
            let edit = UserEdit {
                disabled: Some(*disabled),
                ..UserEdit::default()
            };
            let done = edited(store, name, &edit).await;
            let detail = json!({"disabled": disabled});
            note(store, "user.edit", name, detail, &done).await?;
            let user = done?;
            Ok(match disabled {
                true => format!("{} is kept out.\n", user.name),
                false => format!("{} may sign in again.\n", user.name),
            })
        }
        Command::ListUsers { json } => {
            let users = store.users().list().await?;
            Ok(match json {
                true => as_json(&users),
                false => as_text(&users),
            })
        }
    }
}

async fn edited(store: &Store, name: &str, edit: &UserEdit) -> Result<UserRow, Failure> {
    let found = store.users().get(name).await?;
    let Some((user, _)) = found else {
        return Err(unknown(name));
    };
    changed(store.users().edit(user.id, edit).await?, name)
}

fn unknown(name: &str) -> Failure {
    Failure::Other(format!(
        "there is nobody called {name:?}: `flexfeed-console user list` shows everybody"
    ))
}

fn changed(change: UserChange, name: &str) -> Result<UserRow, Failure> {
    match change {
        UserChange::Done(user) => Ok(user),
        UserChange::Unknown => Err(unknown(name)),
        UserChange::Taken => Err(Failure::Other(format!(
            "there is somebody called {name:?} already"
        ))),
        UserChange::LastOperator => Err(Failure::Other(
            "nobody would be left who may act: make somebody else an operator first".to_owned(),
        )),
    }
}

/// Notes it in the audit log, and what came of it.
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
        (Err(error), Ok(_)) => Err(error.into()),
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
        return "There is nobody yet: `flexfeed-console setup-link` makes a link for the first.\n"
            .to_owned();
    }
    let mut text = String::new();
    for user in users {
        let out = match user.disabled_ms {
            Some(_) => "  kept out",
            None => "",
        };
        let name = service::peer_text::plain(&user.name);
        text.push_str(&format!("{:<8}  {name}{out}\n", user.role.as_str()));
    }
    text
}
