//! Backups of who may use the console.

use std::time::Duration;

use store::{
    AuditFilter, Identity, NewApiToken, NewAudit, NewUser, NewWebSession, Role, UserChange,
    UserEdit, UserRow,
};

use crate::archive::restore;
use crate::site::{Site, on_both};

on_both! {
    accounts_come_back_and_signed_in_browsers_do_not,
}

async fn accounts_come_back_and_signed_in_browsers_do_not(site: Site) {
    let opened = site.open().await;
    let accounts = &opened;
    // So that numbers differ in the other database.
    for name in ["gone", "ann", "bob"] {
        let user = NewUser {
            name: name.to_owned(),
            password: Some(format!("$argon2id${name}")),
            role: if name == "bob" {
                Role::Viewer
            } else {
                Role::Operator
            },
            identity: (name == "bob").then(|| Identity {
                issuer: "https://id.example.org".to_owned(),
                subject: "7".to_owned(),
            }),
        };
        let added = accounts.users().add(&user).await.unwrap();
        assert!(matches!(added, UserChange::Done(_)), "{added:?}");
    }
    let users = accounts.users().list().await.unwrap();
    accounts.users().remove(users[0].id).await.unwrap();
    let bob = users[2].id;
    let out = UserEdit {
        disabled: Some(true),
        ..UserEdit::default()
    };
    for n in 1..=2 {
        let token = NewApiToken {
            hash: [n; 32],
            name: format!("program {n}"),
            user_id: users[1].id,
            scopes: vec!["read".to_owned()],
            expires_ms: (n == 2).then_some(i64::MAX),
        };
        accounts.api_tokens().add(&token).await.unwrap();
    }
    let first = accounts.api_tokens().list(None).await.unwrap()[0].id;
    accounts.api_tokens().revoke(first).await.unwrap();
    let browser = NewWebSession {
        hash: [7; 32],
        user_id: users[1].id,
        password: "$argon2id$ann".to_owned(),
        csrf: vec![1],
        ttl_ms: 1_000_000,
        address: String::new(),
        agent: String::new(),
    };
    accounts.users().edit(bob, &out).await.unwrap();
    assert!(accounts.web_sessions().add(&browser).await.unwrap());
    for n in 0..700 {
        let line = NewAudit {
            actor: "ann".to_owned(),
            action: "feed.add".to_owned(),
            target: n.to_string(),
            detail: "{}".to_owned(),
            ..NewAudit::default()
        };
        accounts.audit_log().record(&line).await.unwrap();
    }
    let file = site.path("backup");
    let contents = opened.backup(&file).await.unwrap().contents;
    assert_eq!(
        (contents.users, contents.api_tokens, contents.audit),
        (2, 2, 700)
    );
    for other in [Site::sqlite(), Site::postgres()] {
        assert_eq!(restore(&other, &file).await.unwrap().contents, contents);
        let restored = other.open().await;
        let before = accounts.users().list().await.unwrap();
        let after = restored.users().list().await.unwrap();
        for (before, after) in before.iter().zip(&after) {
            let same = UserRow {
                id: after.id,
                ..before.clone()
            };
            assert_eq!(*after, same);
            let hash = restored.users().get(&after.name).await.unwrap().unwrap().1;
            assert_eq!(
                hash,
                accounts.users().get(&before.name).await.unwrap().unwrap().1
            );
        }
        let tokens = restored.api_tokens().list(None).await.unwrap();
        let names: Vec<_> = tokens.iter().map(|token| token.name.as_str()).collect();
        assert_eq!(names, ["program 1", "program 2"]);
        assert_eq!(restored.api_tokens().touch(&[1; 32]).await.unwrap(), None);
        let good = restored
            .api_tokens()
            .touch(&[2; 32])
            .await
            .unwrap()
            .unwrap();
        assert_eq!((good.user.name.as_str(), good.scopes.len()), ("ann", 1));
        let lines = AuditFilter {
            limit: 1000,
            ..AuditFilter::default()
        };
        let (before, after) = (
            accounts.audit_log().list(&lines).await.unwrap(),
            restored.audit_log().list(&lines).await.unwrap(),
        );
        assert_eq!((before.len(), after.len()), (700, 700));
        for (before, after) in before.iter().zip(&after) {
            assert_eq!((before.at_ms, &before.done), (after.at_ms, &after.done));
        }
        let idle = Duration::from_secs(1000);
        assert_eq!(
            restored.web_sessions().touch(&[7; 32], idle).await.unwrap(),
            None
        );
        assert!(!restored.users().setup_open().await.unwrap());
        // The database holds users now; a restore would mix them.
        let error = restore(&other, &file).await.unwrap_err();
        assert!(error.to_string().contains("empty database"), "{error}");
    }
}
