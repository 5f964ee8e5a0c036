//! The commands beside `run`, on both databases, while a source runs and while none does.

mod archive;
mod audit;
mod channels;
mod feeds;
mod messages;
mod tokens;

use kit::postgres::Postgres;
use serde_json::json;

use super::running::Feed;
use super::site::{Site, keys, names};

#[test]
fn on_sqlite() {
    let site = Site::new(None);
    everything(&site);
    archive::moved(&site, &Site::new(None));
}

#[test]
fn on_postgresql() {
    let server = Postgres::start().unwrap();
    let made = |name: &str| Site::new(Some(server.create(name).unwrap()));
    let site = made("commands");
    everything(&site);
    // From one kind of database to the other and back.
    let embedded = Site::new(None);
    archive::moved(&site, &embedded);
    archive::moved(&embedded, &made("back"));
}

fn everything(site: &Site) {
    let feed = Feed::with(1);
    let running = site.source(&feed);
    tokens::tokens(site);
    channels::channels(site);
    messages::messages(site);
    messages::entries(site);
    feeds::feeds(site, &feed);
    feeds::lists_of_feeds(site);
    nothing_is_there_yet(site);
    let (status, log, _) = running.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    // And without a source.
    assert!(names(&site.json(&["channel", "list"])["channels"]).contains(&"news"));
    site.json(&["token", "create", "--label", "later"]);
    tokens::links_in_files(site);
    audit::changes_are_audited(site);
}

fn nothing_is_there_yet(site: &Site) {
    assert_eq!(site.json(&["receiver", "list"]), json!({"receivers": []}));
    assert!(site.text(&["receiver", "list"]).contains("No receiver"));
    assert_eq!(site.json(&["gap", "list"]), json!({"gaps": []}));
    assert!(
        site.fails(1, &["receiver", "revoke", "unknown"])
            .contains("receiver list")
    );
    site.fails(1, &["receiver", "forget", "unknown", "--yes"]);
}

#[test]
fn a_database_that_is_not_there_is_not_made() {
    let site = Site::new(None);
    let said = site.fails(1, &["token", "list"]);
    assert!(
        said.contains("--data") && said.contains("--database-url"),
        "{said}"
    );
    assert!(!site.data().exists());
    site.fails(2, &["token", "list", "--rate", "5M"]);
}

#[test]
fn settings_are_checked_and_shown() {
    let site = Site::new(None);
    let file = site.file("source.toml");
    std::fs::write(&file, "rate = \"5M\"\n[[channel]]\nname = \"a\"\n").unwrap();
    let path = file.to_str().unwrap();
    let shown = site.json(&["config", "show", "--config", path]);
    assert_eq!(shown["ok"], true);
    assert_eq!(
        keys(&shown),
        ["channels", "file", "mistakes", "ok", "settings", "warnings"]
    );
    assert_eq!(shown["channels"][0]["rate_bps"], 5_000_000);
    let text = site.text(&["config", "check", "--config", path]);
    assert!(
        text.contains("line 1: rate") && text.contains("Channel a"),
        "{text}"
    );
    std::fs::write(&file, "\nrat = \"5M\"\n").unwrap();
    let output = site.run(&["config", "check", "--config", path]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("line 2: rat: ") && said.contains("is rate meant?"),
        "{said}"
    );
    assert!(!site.data().exists(), "nothing is made");
}
