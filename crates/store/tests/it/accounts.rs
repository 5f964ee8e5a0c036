//! Users of the console, their browsers and API tokens.

use std::time::Duration;

use store::{
    AuditFilter, Identity, NewApiToken, NewAudit, NewUser, NewWebSession, Role, Setup, Store,
    StoreError, UserChange, UserEdit, UserRow,
};

use crate::migrations::Raw;
use crate::site::{Site, on_both};

on_both! {
    the_setup_link_adds_the_first_operator,
    of_many_concurrent_setups_one_succeeds,
    people_are_added_changed_and_removed,
    the_last_enabled_operator_stays,
    browsers_sign_in_and_out,
    browsers_are_signed_out_with_their_user,
    programs_have_tokens_that_end,
    expired_accounts_are_deleted,
}

const IDLE: Duration = Duration::from_secs(3600);

fn user(name: &str, role: Role) -> NewUser {
    NewUser {
        name: name.to_owned(),
        password: Some(format!("$argon2id${name}")),
        role,
        identity: None,
    }
}

async fn add(opened: &Store, name: &str, role: Role) -> UserRow {
    match opened.users().add(&user(name, role)).await.unwrap() {
        UserChange::Done(user) => user,
        other => panic!("{other:?}"),
    }
}

fn browser(hash: u8, user: &UserRow) -> NewWebSession {
    NewWebSession {
        hash: [hash; 32],
        user_id: user.id,
        password: format!("$argon2id${}", user.name),
        csrf: vec![hash; 16],
        ttl_ms: 3_600_000,
        address: "192.0.2.1".to_owned(),
        agent: "Browser\0".repeat(100),
    }
}

fn program(hash: u8, user_id: i64) -> NewApiToken {
    NewApiToken {
        hash: [hash; 32],
        name: format!("backup {hash}"),
        user_id,
        scopes: vec!["read".to_owned(), "feeds".to_owned()],
        expires_ms: None,
    }
}

async fn the_setup_link_adds_the_first_operator(site: Site) {
    let opened = site.open().await;
    let accounts = &opened;
    assert!(accounts.users().setup_open().await.unwrap());
    let ann = user("ann", Role::Viewer);
    let nothing = accounts.users().finish_setup(&[1; 32], &ann).await.unwrap();
    assert_eq!(nothing, Setup::WrongLink);
    assert!(accounts.users().begin_setup(&[1; 32]).await.unwrap());
    // The program was started again: only its last link is good.
    assert!(accounts.users().begin_setup(&[2; 32]).await.unwrap());
    let old = accounts.users().finish_setup(&[1; 32], &ann).await.unwrap();
    assert_eq!(old, Setup::WrongLink);
    let empty = accounts
        .users()
        .finish_setup(&[2; 32], &user(" ", Role::Viewer))
        .await;
    assert!(matches!(empty, Err(StoreError::Empty { .. })), "{empty:?}");
    let Setup::Done(first) = accounts.users().finish_setup(&[2; 32], &ann).await.unwrap() else {
        panic!("it is the link")
    };
    assert_eq!((first.name.as_str(), first.role), ("ann", Role::Operator));
    assert!(!accounts.users().setup_open().await.unwrap());
    assert!(!accounts.users().begin_setup(&[3; 32]).await.unwrap());
    let again = accounts
        .users()
        .finish_setup(&[2; 32], &user("eve", Role::Viewer))
        .await;
    assert_eq!(again.unwrap(), Setup::Closed);
    let (row, password) = accounts.users().get("ann").await.unwrap().unwrap();
    assert_eq!((row, password.as_deref()), (first, Some("$argon2id$ann")));
    assert_eq!(accounts.users().list().await.unwrap().len(), 1);
}

async fn of_many_concurrent_setups_one_succeeds(site: Site) {
    let opened = site.open().await;
    opened.users().begin_setup(&[1; 32]).await.unwrap();
    let mut tries = Vec::new();
    for n in 0..6 {
        let accounts = site.open().await;
        tries.push(tokio::spawn(async move {
            let user = user(&format!("user {n}"), Role::Operator);
            accounts
                .users()
                .finish_setup(&[1; 32], &user)
                .await
                .unwrap()
        }));
    }
    let mut done = 0;
    for one in tries {
        match one.await.unwrap() {
            Setup::Done(_) => done += 1,
            other => assert_eq!(other, Setup::Closed),
        }
    }
    assert_eq!((done, opened.users().list().await.unwrap().len()), (1, 1));
}

async fn people_are_added_changed_and_removed(site: Site) {
    let opened = site.open().await;
    let accounts = &opened;
    let ann = add(&opened, " ann ", Role::Operator).await;
    assert_eq!((ann.name.as_str(), ann.disabled_ms), ("ann", None));
    let bob = add(&opened, "bob", Role::Viewer).await;
    let again = accounts.users().add(&user("bob", Role::Viewer)).await;
    assert_eq!(again.unwrap(), UserChange::Taken);
    let elsewhere = NewUser {
        password: None,
        identity: Some(Identity {
            issuer: "https://id.example.org".to_owned(),
            subject: "7".to_owned(),
        }),
        ..user("cleo", Role::Viewer)
    };
    let UserChange::Done(cleo) = accounts.users().add(&elsewhere).await.unwrap() else {
        panic!("the name is free")
    };
    assert_eq!(cleo.identity, elsewhere.identity);
    assert_eq!(accounts.users().get("cleo").await.unwrap().unwrap().1, None);
    let same = NewUser {
        name: "dora".to_owned(),
        ..elsewhere
    };
    assert_eq!(
        accounts.users().add(&same).await.unwrap(),
        UserChange::Taken
    );
    let long = accounts
        .users()
        .add(&user(&"x".repeat(256), Role::Viewer))
        .await;
    assert!(matches!(long, Err(StoreError::TooLong { .. })), "{long:?}");
    let edit = UserEdit {
        password: Some("$argon2id$new".to_owned()),
        role: Some(Role::Operator),
        disabled: None,
    };
    let UserChange::Done(changed) = accounts.users().edit(bob.id, &edit).await.unwrap() else {
        panic!("bob is there")
    };
    assert_eq!(changed.role, Role::Operator);
    let (_, password) = accounts.users().get("bob").await.unwrap().unwrap();
    assert_eq!(password.as_deref(), Some("$argon2id$new"));
    let out = UserEdit {
        disabled: Some(true),
        ..UserEdit::default()
    };
    let UserChange::Done(out) = accounts.users().edit(bob.id, &out).await.unwrap() else {
        panic!("bob is there")
    };
    assert!(out.disabled_ms.is_some() && out.role == Role::Operator);
    let (_, password) = accounts.users().get("bob").await.unwrap().unwrap();
    assert_eq!(password.as_deref(), Some("$argon2id$new"));
    let gone = accounts.users().remove(bob.id).await.unwrap();
    assert_eq!(gone, UserChange::Done(out));
    assert_eq!(accounts.users().get("bob").await.unwrap(), None);
    let unknown = accounts.users().remove(bob.id).await.unwrap();
    assert_eq!(unknown, UserChange::Unknown);
    let unknown = accounts.users().edit(bob.id, &edit).await.unwrap();
    assert_eq!(unknown, UserChange::Unknown);
    // Numbers are not given twice: the audit log may have them.
    assert!(add(&opened, "bob", Role::Viewer).await.id > cleo.id);
}

async fn the_last_enabled_operator_stays(site: Site) {
    let opened = site.open().await;
    let accounts = &opened;
    let ann = add(&opened, "ann", Role::Operator).await;
    let bob = add(&opened, "bob", Role::Operator).await;
    add(&opened, "viewer", Role::Viewer).await;
    let disable = UserEdit {
        disabled: Some(true),
        ..UserEdit::default()
    };
    let demote = UserEdit {
        role: Some(Role::Viewer),
        ..UserEdit::default()
    };
    // Both at once: one of them stays.
    let (first, second) = tokio::join!(
        accounts.users().edit(ann.id, &disable),
        accounts.users().edit(bob.id, &demote)
    );
    let refused = [first.unwrap(), second.unwrap()]
        .into_iter()
        .filter(|change| *change == UserChange::LastOperator)
        .count();
    assert_eq!(refused, 1);
    for user in accounts.users().list().await.unwrap() {
        if user.role == Role::Operator && user.disabled_ms.is_none() {
            let last = [
                accounts.users().remove(user.id).await.unwrap(),
                accounts.users().edit(user.id, &disable).await.unwrap(),
                accounts.users().edit(user.id, &demote).await.unwrap(),
            ];
            assert!(
                last.iter()
                    .all(|change| *change == UserChange::LastOperator)
            );
        }
    }
}

async fn browsers_sign_in_and_out(site: Site) {
    let opened = site.open().await;
    let accounts = &opened;
    let ann = add(&opened, "ann", Role::Operator).await;
    assert!(
        accounts
            .web_sessions()
            .add(&browser(1, &ann))
            .await
            .unwrap()
    );
    let found = accounts
        .web_sessions()
        .touch(&[1; 32], IDLE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((&found.user, &found.csrf), (&ann, &vec![1; 16]));
    assert!(found.agent.len() <= 255 && found.agent.starts_with("Browser\u{fffd}B"));
    // The database reads its clock for each of the two.
    let ttl_ms = found.expires_ms - found.created_ms;
    assert!((3_600_000..3_601_000).contains(&ttl_ms), "{ttl_ms}");
    assert_eq!(
        accounts.web_sessions().touch(&[2; 32], IDLE).await.unwrap(),
        None
    );
    let mut raw = Raw::to(&site.url).await;
    // The session was idle for two minutes: the next activity is noted once.
    raw.run("UPDATE web_sessions SET seen_at = seen_at - 120000")
        .await;
    // Requests that browsers make by themselves are not.
    for _ in 0..2 {
        let idle = accounts.web_sessions().get(&[1; 32], IDLE).await.unwrap();
        assert_eq!(idle.unwrap().seen_ms, found.seen_ms - 120_000);
    }
    let busy = accounts
        .web_sessions()
        .touch(&[1; 32], IDLE)
        .await
        .unwrap()
        .unwrap();
    let later = accounts
        .web_sessions()
        .touch(&[1; 32], IDLE)
        .await
        .unwrap()
        .unwrap();
    assert!(later.seen_ms >= busy.seen_ms + 120_000);
    raw.run("UPDATE web_sessions SET seen_at = seen_at - 3600001")
        .await;
    assert_eq!(
        accounts.web_sessions().touch(&[1; 32], IDLE).await.unwrap(),
        None
    );
    let over = accounts.web_sessions().get(&[1; 32], IDLE).await.unwrap();
    assert_eq!(over, None);
    raw.run("UPDATE web_sessions SET seen_at = seen_at + 3600001")
        .await;
    assert!(
        accounts
            .web_sessions()
            .touch(&[1; 32], IDLE)
            .await
            .unwrap()
            .is_some()
    );
    raw.run("UPDATE web_sessions SET expires_at = seen_at - 1")
        .await;
    assert_eq!(
        accounts.web_sessions().touch(&[1; 32], IDLE).await.unwrap(),
        None
    );
    assert!(
        accounts
            .web_sessions()
            .add(&browser(3, &ann))
            .await
            .unwrap()
    );
    assert!(accounts.web_sessions().end(&[3; 32]).await.unwrap());
    assert!(!accounts.web_sessions().end(&[3; 32]).await.unwrap());
    assert_eq!(
        accounts.web_sessions().touch(&[3; 32], IDLE).await.unwrap(),
        None
    );
    let unknown = UserRow {
        id: 999,
        ..ann.clone()
    };
    let unknown = accounts.web_sessions().add(&browser(4, &unknown)).await;
    assert!(!unknown.unwrap());
    // The last 50 stay.
    for n in 10..=69 {
        assert!(
            accounts
                .web_sessions()
                .add(&browser(n, &ann))
                .await
                .unwrap()
        );
        raw.run("UPDATE web_sessions SET seen_at = seen_at - 5")
            .await;
    }
    assert_eq!(raw.count("SELECT COUNT(*) FROM web_sessions").await, 50);
    assert_eq!(
        accounts
            .web_sessions()
            .touch(&[19; 32], IDLE)
            .await
            .unwrap(),
        None
    );
    assert!(
        accounts
            .web_sessions()
            .touch(&[20; 32], IDLE)
            .await
            .unwrap()
            .is_some()
    );
    let rest = accounts
        .web_sessions()
        .end_all(ann.id, Some(&[69; 32]))
        .await;
    assert_eq!(rest.unwrap(), 49);
    assert!(
        accounts
            .web_sessions()
            .touch(&[69; 32], IDLE)
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(
        accounts.web_sessions().end_all(ann.id, None).await.unwrap(),
        1
    );
    raw.close().await;
}

async fn browsers_are_signed_out_with_their_user(site: Site) {
    let opened = site.open().await;
    let accounts = &opened;
    add(&opened, "ann", Role::Operator).await;
    let bob = add(&opened, "bob", Role::Operator).await;
    let edits = [
        UserEdit {
            password: Some("$argon2id$new".to_owned()),
            ..UserEdit::default()
        },
        UserEdit {
            disabled: Some(true),
            ..UserEdit::default()
        },
    ];
    accounts
        .api_tokens()
        .add(&program(9, bob.id))
        .await
        .unwrap();
    for (n, edit) in (1..).zip(&edits) {
        let before = [browser(1, &bob).password, "$argon2id$new".to_owned()];
        let given = |password: &str| NewWebSession {
            password: password.to_owned(),
            ..browser(n, &bob)
        };
        let present = &before[usize::from(n) - 1];
        assert!(accounts.web_sessions().add(&given(present)).await.unwrap());
        assert!(
            accounts
                .web_sessions()
                .touch(&[n; 32], IDLE)
                .await
                .unwrap()
                .is_some()
        );
        accounts.users().edit(bob.id, edit).await.unwrap();
        assert_eq!(
            accounts.web_sessions().touch(&[n; 32], IDLE).await.unwrap(),
            None
        );
        // A user read meanwhile is stale.
        assert!(!accounts.web_sessions().add(&given(present)).await.unwrap());
        assert_eq!(
            accounts.web_sessions().touch(&[n; 32], IDLE).await.unwrap(),
            None
        );
    }
    // Kept out, even if the cookie's row still existed, and so are their programs.
    let mut raw = Raw::to(&site.url).await;
    raw.run("UPDATE users SET disabled_at = NULL WHERE name = 'bob'")
        .await;
    let again = NewWebSession {
        password: "$argon2id$new".to_owned(),
        ..browser(5, &bob)
    };
    assert!(accounts.web_sessions().add(&again).await.unwrap());
    raw.run("UPDATE users SET disabled_at = 1 WHERE name = 'bob'")
        .await;
    raw.close().await;
    assert_eq!(
        accounts.web_sessions().touch(&[5; 32], IDLE).await.unwrap(),
        None
    );
    assert_eq!(accounts.api_tokens().touch(&[9; 32]).await.unwrap(), None);
    let back = UserEdit {
        disabled: Some(false),
        role: Some(Role::Viewer),
        ..UserEdit::default()
    };
    accounts.users().edit(bob.id, &back).await.unwrap();
    let found = accounts
        .web_sessions()
        .touch(&[5; 32], IDLE)
        .await
        .unwrap()
        .unwrap();
    // Their rights are the present ones.
    assert_eq!(found.user.role, Role::Viewer);
    assert!(
        accounts
            .api_tokens()
            .touch(&[9; 32])
            .await
            .unwrap()
            .is_some()
    );
    accounts.users().remove(bob.id).await.unwrap();
    assert_eq!(
        accounts.web_sessions().touch(&[5; 32], IDLE).await.unwrap(),
        None
    );
    assert_eq!(accounts.api_tokens().touch(&[9; 32]).await.unwrap(), None);
    assert!(accounts.api_tokens().list(None).await.unwrap().is_empty());
}

async fn programs_have_tokens_that_end(site: Site) {
    let opened = site.open().await;
    let accounts = &opened;
    let ann = add(&opened, "ann", Role::Operator).await;
    let bob = add(&opened, "bob", Role::Viewer).await;
    let made = accounts
        .api_tokens()
        .add(&program(1, ann.id))
        .await
        .unwrap();
    assert_eq!(
        (made.scopes.join(" "), made.seen_ms),
        ("read feeds".to_owned(), None)
    );
    let used = accounts
        .api_tokens()
        .touch(&[1; 32])
        .await
        .unwrap()
        .unwrap();
    assert_eq!((used.id, &used.user), (made.id, &ann));
    let seen = accounts.api_tokens().list(Some(ann.id)).await.unwrap();
    assert!(seen[0].seen_ms.is_some());
    let over = NewApiToken {
        expires_ms: Some(1000),
        ..program(2, ann.id)
    };
    accounts.api_tokens().add(&over).await.unwrap();
    assert_eq!(accounts.api_tokens().touch(&[2; 32]).await.unwrap(), None);
    let later = NewApiToken {
        expires_ms: Some(i64::MAX),
        ..program(3, bob.id)
    };
    accounts.api_tokens().add(&later).await.unwrap();
    assert!(
        accounts
            .api_tokens()
            .touch(&[3; 32])
            .await
            .unwrap()
            .is_some()
    );
    assert!(accounts.api_tokens().revoke(made.id).await.unwrap());
    assert!(accounts.api_tokens().revoke(made.id).await.unwrap());
    assert!(!accounts.api_tokens().revoke(999).await.unwrap());
    assert_eq!(accounts.api_tokens().touch(&[1; 32]).await.unwrap(), None);
    let names: Vec<_> = accounts.api_tokens().list(None).await.unwrap();
    let names: Vec<_> = names.iter().map(|token| token.name.as_str()).collect();
    assert_eq!(names, ["backup 1", "backup 2", "backup 3"]);
    assert_eq!(
        accounts
            .api_tokens()
            .list(Some(bob.id))
            .await
            .unwrap()
            .len(),
        1
    );
    for n in 10..=109 {
        accounts
            .api_tokens()
            .add(&program(n, ann.id))
            .await
            .unwrap();
    }
    let more = accounts.api_tokens().add(&program(200, ann.id)).await;
    assert!(matches!(more, Err(StoreError::TooMany { .. })), "{more:?}");
    assert!(
        accounts
            .api_tokens()
            .add(&program(200, bob.id))
            .await
            .is_ok()
    );
    let unknown = accounts.api_tokens().add(&program(201, 999)).await;
    assert!(matches!(unknown, Err(StoreError::UnknownUser { .. })));
}

async fn expired_accounts_are_deleted(site: Site) {
    let opened = site.open().await;
    let accounts = &opened;
    let ann = add(&opened, "ann", Role::Operator).await;
    for n in 1..=2 {
        assert!(
            accounts
                .web_sessions()
                .add(&browser(n, &ann))
                .await
                .unwrap()
        );
        accounts
            .api_tokens()
            .add(&program(n, ann.id))
            .await
            .unwrap();
        accounts
            .audit_log()
            .record(&NewAudit::default())
            .await
            .unwrap();
    }
    assert_eq!(accounts.trim_accounts().await.unwrap(), 0);
    let first = accounts.api_tokens().list(None).await.unwrap()[0].id;
    accounts.api_tokens().revoke(first).await.unwrap();
    assert_eq!(accounts.trim_accounts().await.unwrap(), 0);
    let mut raw = Raw::to(&site.url).await;
    raw.run(
        "UPDATE web_sessions SET expires_at = 5 WHERE seen_at = (SELECT MIN(seen_at) FROM
             web_sessions)
             AND expires_at = (SELECT MIN(expires_at) FROM web_sessions);
         UPDATE api_tokens SET revoked_at = 5 WHERE revoked_at IS NOT NULL;
         UPDATE audit SET at = at - 34560000001 WHERE id = (SELECT MIN(id) FROM audit)",
    )
    .await;
    let gone = raw
        .count("SELECT COUNT(*) FROM web_sessions WHERE expires_at = 5")
        .await;
    let went = accounts.trim_accounts().await.unwrap();
    assert_eq!(went, u64::try_from(gone).unwrap() + 2);
    assert_eq!(accounts.api_tokens().list(None).await.unwrap().len(), 1);
    let lines = AuditFilter {
        limit: 9,
        ..AuditFilter::default()
    };
    assert_eq!(accounts.audit_log().list(&lines).await.unwrap().len(), 1);
    raw.close().await;
}
