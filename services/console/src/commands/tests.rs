#![allow(clippy::unwrap_used)]
use store::{AuditFilter, Role};

use super::*;
use crate::cli::Password;

/// Returns the audited outcomes, newest first.
async fn outcomes(store: &Store) -> Vec<(String, String)> {
    let filter = AuditFilter {
        limit: 100,
        ..AuditFilter::default()
    };
    let lines = store.audit_log().list(&filter).await.unwrap();
    let outcome = |line: store::AuditRow| (line.done.action, line.done.outcome);
    lines.into_iter().map(outcome).collect()
}

#[tokio::test]
async fn failures_are_not_audited_as_successes() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/console.db", folder.path().display());
    let store = &store::open(&url).await.unwrap();
    let add = Command::User(User::Add {
        name: "ann".to_owned(),
        role: Role::Operator,
        password: Password { file: None },
    });
    let hash = || Some("a hash".to_owned());
    let setup = async || carry_out(store, &Command::SetupLink, None, "http://h/").await;
    let link = setup().await.unwrap();
    assert!(link.contains("http://h/setup#"), "{link}");
    let done = carry_out(store, &add, hash(), "http://h/").await;
    done.unwrap();
    let Failure::Other(late) = setup().await.unwrap_err() else {
        panic!("not a failed operation");
    };
    let taken = carry_out(store, &add, hash(), "http://h/").await;
    let Failure::Other(taken) = taken.unwrap_err() else {
        panic!("not a failed operation");
    };
    let disable = Command::User(User::Disable {
        name: "ann".to_owned(),
    });
    let last = carry_out(store, &disable, None, "http://h/").await;
    let Failure::Other(last) = last.unwrap_err() else {
        panic!("not a failed operation");
    };
    let line = |action: &str, outcome: &str| (action.to_owned(), outcome.to_owned());
    assert_eq!(
        outcomes(store).await,
        [
            line("user.edit", &last),
            line("user.add", &taken),
            line("setup.link", &late),
            line("user.add", "ok"),
            line("setup.link", "ok"),
        ]
    );
}
