//! The audit log of the console.

use store::{AuditFilter, NewAudit};

use crate::site::{Site, on_both};

on_both! {
    the_audit_log_is_read_in_pages,
}

async fn the_audit_log_is_read_in_pages(site: Site) {
    let opened = site.open().await;
    let accounts = &opened;
    for n in 0..6 {
        let line = NewAudit {
            actor: if n % 2 == 0 { "ann" } else { "bob" }.to_owned(),
            via: "session".to_owned(),
            action: if n < 3 { "feed.add" } else { "feed.pause" }.to_owned(),
            target: n.to_string(),
            detail: r#"{"n":1}"#.to_owned(),
            outcome: "ok".to_owned(),
            address: "192.0.2.1".to_owned(),
        };
        assert!(accounts.audit_log().record(&line).await.unwrap() > 0);
    }
    let targets = async |filter: AuditFilter| {
        let rows = accounts.audit_log().list(&filter).await.unwrap();
        let targets: Vec<_> = rows.iter().map(|row| row.done.target.clone()).collect();
        (targets.join(" "), rows.last().map(|row| row.id))
    };
    let all = AuditFilter {
        limit: 4,
        ..AuditFilter::default()
    };
    let (first, before) = targets(all.clone()).await;
    assert_eq!(first, "5 4 3 2");
    assert_eq!(
        targets(AuditFilter {
            before,
            ..all.clone()
        })
        .await
        .0,
        "1 0"
    );
    let ann = AuditFilter {
        actor: Some("ann".to_owned()),
        ..all.clone()
    };
    assert_eq!(targets(ann.clone()).await.0, "4 2 0");
    let adds = |filter| AuditFilter {
        action: Some("feed.add".to_owned()),
        ..filter
    };
    assert_eq!(targets(adds(ann)).await.0, "2 0");
    assert_eq!(targets(adds(all)).await.0, "2 1 0");
    let long = NewAudit {
        actor: "x\0".repeat(5_000_000),
        target: "y".repeat(10_000_000),
        detail: "{".repeat(10_000_000),
        ..NewAudit::default()
    };
    accounts.audit_log().record(&long).await.unwrap();
    let last = AuditFilter {
        limit: 1,
        ..AuditFilter::default()
    };
    let row = accounts.audit_log().list(&last).await.unwrap().remove(0);
    assert_eq!(
        (row.done.target.len(), row.done.detail.as_str()),
        (2048, "{}")
    );
    assert!(row.done.actor.len() <= 255 && row.at_ms > 0);
}
