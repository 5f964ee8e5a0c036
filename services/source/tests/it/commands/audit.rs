//! Entries of commands in the audit log.

use crate::site::{PERSON, Site};

pub fn changes_are_audited(site: &Site) {
    site.json(&["channel", "add", "noted", "--groups", ""]);
    let secret = "https://ann:secret@example.org/feed";
    site.json(&["feed", "add", "noted", secret]);
    site.json(&["feed", "remove", "noted", secret]);
    let file = site.file("noted-link");
    let keep = ["token", "create", "--link-file", file.to_str().unwrap()];
    let made = site.json(&keep);
    assert!(site.json(&keep)["token"].is_null(), "there is one already");
    let token = made["token"]["id"].to_string();
    site.json(&["token", "revoke", &token]);
    let why = site.fails(1, &["receiver", "revoke", "unknown"]);
    let list = site.file("noted.opml");
    let outline = "<opml><body><outline xmlUrl='https://example.org/other'/></body></opml>";
    std::fs::write(&list, outline).unwrap();
    let list = list.to_str().unwrap();
    site.json(&["feed", "import", list, "--into", "noted", "--dry-run"]);
    site.json(&["feed", "import", list, "--into", "noted"]);
    site.json(&["channel", "set", "noted", "--rate", "5M"]);
    site.json(&["channel", "set", "noted", "--deadline", "none"]);
    site.json(&["channel", "list"]);
    site.json(&["channel", "remove", "noted", "--yes"]);
    let lines = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let opened = site.open().await;
        let filter = store::AuditFilter {
            limit: 10,
            ..store::AuditFilter::default()
        };
        let lines = opened.audit_log().list(&filter).await.unwrap();
        opened.close().await;
        lines
    });
    let seen: Vec<_> = lines
        .iter()
        .rev()
        .map(|line| (line.done.action.as_str(), line.done.target.as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            ("channel.create", "noted"),
            ("feed.add", "https://example.org/feed"),
            ("feed.remove", "https://example.org/feed"),
            ("enrolment.create", token.as_str()),
            ("enrolment.revoke", token.as_str()),
            ("receiver.remove", "unknown"),
            ("feed.import", list),
            ("channel.edit", "noted"),
            ("channel.edit", "noted"),
            ("channel.remove", "noted"),
        ]
    );
    for line in &lines {
        let done = &line.done;
        assert_eq!(
            (done.actor.as_str(), done.via.as_str()),
            (PERSON, "command line")
        );
        assert!(!done.detail.contains("secret"), "{done:?}");
        match done.action.as_str() {
            "receiver.remove" => assert!(why.contains(&done.outcome), "{done:?}: {why}"),
            _ => assert_eq!(done.outcome, "ok"),
        }
    }
    let [log, rate] = [1, 2].map(|at| &lines[at].done.detail);
    assert!(rate.contains("\"rate_bps\":5000000"), "{rate}");
    assert!(rate.contains("\"deadline_ms\":null"), "{rate}");
    assert!(log.contains("\"deadline_ms\":\"none\""), "{log}");
}
