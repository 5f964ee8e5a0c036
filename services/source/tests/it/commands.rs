//! The commands beside `run`, on both databases, while a source runs and while none does.

use std::path::Path;

use kit::postgres::Postgres;
use serde_json::{Value, json};

use super::running::Feed;
use super::site::{PERSON, Site, keys, names};

#[test]
fn on_sqlite() {
    let site = Site::new(None);
    everything(&site);
    moved(&site, &Site::new(None));
}

#[test]
fn on_postgresql() {
    let server = Postgres::start().unwrap();
    let made = |name: &str| Site::new(Some(server.create(name).unwrap()));
    let site = made("commands");
    everything(&site);
    // From one kind of database to the other and back.
    let embedded = Site::new(None);
    moved(&site, &embedded);
    moved(&embedded, &made("back"));
}

fn everything(site: &Site) {
    let feed = Feed::with(1);
    let running = site.source(&feed);
    tokens(site);
    channels(site);
    feeds(site, &feed);
    lists_of_feeds(site);
    nothing_is_there_yet(site);
    let (status, log, _) = running.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    // And without a source.
    assert!(names(&site.json(&["channel", "list"])["channels"]).contains(&"news"));
    site.json(&["token", "create", "--label", "later"]);
    links_in_files(site);
    changes_are_audited(site);
}

/// A token is made once: what else its link says changes with the source.
fn links_in_files(site: &Site) {
    let file = site.file("kept-link");
    let create = |more: &[&str]| {
        let keep = ["token", "create", "--link-file", file.to_str().unwrap()];
        site.json(&[&keep, more].concat())
    };
    let count = || {
        let list = site.json(&["token", "list"]);
        list["tokens"].as_array().unwrap().len()
    };
    let token = |made: &Value| {
        let link = made["link"].as_str().unwrap();
        link.split(['/', '@']).nth(2).unwrap().to_owned()
    };
    let made = create(&[]);
    assert!(made["token"]["id"].is_i64());
    let before = count();
    site.json(&["channel", "add", "kept", "--groups", ""]);
    let pin = "sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let changed = create(&["--next-pin", pin]);
    assert!(changed["token"].is_null(), "{changed}");
    assert_eq!(token(&changed), token(&made));
    let link = changed["link"].as_str().unwrap();
    assert!(link.contains(pin) && link.contains("ch=kept"), "{link}");
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), link);
    assert_eq!(count(), before, "the same token");
    // One that admits to other channels is another one.
    let other = create(&["--channel", "lore"]);
    assert_eq!(other["token"]["channels"], json!(["lore"]));
    let all = create(&[]);
    assert_eq!(all["token"]["channels"], json!([]));
    assert_eq!(count(), before + 2);
    site.json(&["channel", "remove", "kept", "--yes"]);
}

fn changes_are_audited(site: &Site) {
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
    let why = site.fails(1, &["receiver", "revoke", "nobody"]);
    let list = site.file("noted.opml");
    let outline = "<opml><body><outline xmlUrl='https://example.org/other'/></body></opml>";
    std::fs::write(&list, outline).unwrap();
    let list = list.to_str().unwrap();
    site.json(&["feed", "import", list, "--into", "noted", "--dry-run"]);
    site.json(&["feed", "import", list, "--into", "noted"]);
    site.json(&["channel", "set", "noted", "--rate", "5M"]);
    site.json(&["channel", "list"]);
    site.json(&["channel", "remove", "noted", "--yes"]);
    let lines = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let opened = site.open().await;
        let filter = store::AuditFilter {
            limit: 9,
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
            ("receiver.remove", "nobody"),
            ("feed.import", list),
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
    let edit = &lines[1].done.detail;
    assert!(edit.contains("\"rate_bps\":5000000"), "{edit}");
}

fn tokens(site: &Site) {
    let saved = std::fs::read_to_string(site.data().join("enrolment-link")).unwrap();
    let made = site.json(&[
        "token",
        "create",
        "--label",
        "Anna & Bo",
        "--limit",
        "2",
        "--expires",
        "7d",
    ]);
    let link = made["link"].as_str().unwrap();
    let after = |link: &str| link.split_once('@').unwrap().1.trim().to_owned();
    assert_eq!(
        after(link),
        after(&saved),
        "the same address, pin and channels"
    );
    assert_eq!(made["run"], format!("flexfeed-receiver '{link}'"));
    let token = &made["token"];
    assert_eq!(
        keys(token),
        [
            "channels",
            "created_ms",
            "expires_ms",
            "id",
            "label",
            "limit",
            "public",
            "revoked_ms",
            "state",
            "uses"
        ]
    );
    assert_eq!((&token["limit"], &token["uses"]), (&json!(2), &json!(0)));
    assert_eq!(token["state"], "valid");
    let week = token["expires_ms"].as_i64().unwrap() - token["created_ms"].as_i64().unwrap();
    assert!((week - 7 * 86_400_000).abs() < 60_000, "{week}");

    let pin = "sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let made = site.json(&[
        "token",
        "create",
        "--public",
        "--channel",
        "lore",
        "--next-pin",
        pin,
        "--public-address",
        "feeds.example.org",
    ]);
    let link = made["link"].as_str().unwrap();
    assert!(
        link.contains("@feeds.example.org:4433?pin=sha256:"),
        "{link}"
    );
    assert!(link.ends_with(&format!("&pin={pin}&ch=lore")), "{link}");
    assert_eq!(
        (&made["token"]["public"], &made["token"]["channels"]),
        (&json!(true), &json!(["lore"]))
    );
    let text = site.text(&["token", "create", "--limit", "1"]);
    assert!(
        text.contains("admits one receiver") && text.contains("flexfeed-receiver '"),
        "{text}"
    );

    let id = made["token"]["id"].to_string();
    let revoked = site.json(&["token", "revoke", &id]);
    assert_eq!(revoked["token"]["state"], "revoked");
    assert!(revoked["token"]["revoked_ms"].is_i64());
    let list = site.json(&["token", "list"]);
    let states = list["tokens"].as_array().unwrap();
    let states: Vec<_> = states
        .iter()
        .map(|t| t["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["valid", "valid", "revoked", "valid"]);
    let text = site.text(&["token", "list"]);
    assert!(
        text.contains("Anna & Bo") && text.contains("0 of 2"),
        "{text}"
    );
    let secret = link.split(['/', '@']).nth(2).unwrap();
    assert!(!text.contains(secret) && !list.to_string().contains(secret));

    assert!(
        site.fails(1, &["token", "revoke", "999"])
            .contains("token list")
    );
    assert!(
        site.fails(1, &["token", "create", "--channel", "nowhere"])
            .contains("lore")
    );
    site.fails(2, &["token", "create", "--expires", "2001-01-01"]);
    site.fails(2, &["token", "create", "--limit", "0"]);
}

fn channels(site: &Site) {
    let made = site.json(&[
        "channel",
        "add",
        "news",
        "--rate",
        "2M",
        "--keep",
        "7,30d",
        "--private",
    ]);
    let news = &made["channel"];
    assert_eq!(
        keys(news),
        [
            "active",
            "created_ms",
            "feeds",
            "first",
            "groups",
            "head",
            "incarnation",
            "keep",
            "lease",
            "name",
            "origin",
            "private",
            "rate_bps"
        ]
    );
    assert_eq!(news["origin"], "managed");
    assert_eq!(
        news["keep"],
        json!({"count": 7, "age_ms": 30 * 86_400_000_i64})
    );
    assert_eq!(
        (&news["rate_bps"], &news["private"]),
        (&json!(2_000_000), &json!(true))
    );
    assert_eq!(news["groups"], "232.70.70.1:4434", "the first one is free");
    let more = site.json(&["channel", "add", "more"]);
    assert_eq!(more["channel"]["groups"], "232.70.70.2:4434");
    let text = site.fails(
        1,
        &["channel", "add", "less", "--groups", "232.70.70.2:4434"],
    );
    assert!(text.contains("\"more\""), "{text}");
    assert!(
        site.fails(1, &["channel", "add", "news"])
            .contains("channel set news")
    );

    let set = site.json(&["channel", "set", "news", "--private=false", "--groups", ""]);
    assert_eq!(
        (&set["channel"]["private"], &set["channel"]["groups"]),
        (&json!(false), &json!(""))
    );
    assert_eq!(set["channel"]["rate_bps"], 2_000_000, "the rest stays");
    let all = site.json(&["channel", "set", "more", "--keep", "all"]);
    assert_eq!(
        all["channel"]["keep"],
        json!({"count": null, "age_ms": null})
    );
    let default = site.json(&["channel", "set", "more", "--keep", "default"]);
    assert_eq!(default["channel"]["keep"], Value::Null);
    let text = site.fails(1, &["channel", "set", "newz", "--private"]);
    assert!(text.contains("did you mean \"news\""), "{text}");

    let text = site.text(&["channel", "list"]);
    assert!(text.contains("NAME") && text.contains("7,30d"), "{text}");
    // No terminal to ask at.
    assert!(
        site.fails(2, &["channel", "remove", "more"])
            .contains("--yes")
    );
    assert!(names(&site.json(&["channel", "list"])["channels"]).contains(&"more"));
    let removed = site.json(&["channel", "remove", "more", "--yes"]);
    assert_eq!(removed, json!({"removed": "more", "updates": 0}));
    assert!(!names(&site.json(&["channel", "list"])["channels"]).contains(&"more"));
    site.fails(1, &["channel", "remove", "more", "--yes"]);
}

fn feeds(site: &Site, feed: &Feed) {
    let secret = feed.url.replace("http://", "http://u:hidden@");
    let url = feed.url.as_str();
    assert!(
        site.fails(2, &["feed", "add", "news", url])
            .contains("--local")
    );
    let made = site.json(&[
        "feed",
        "add",
        "news",
        &secret,
        "--local",
        "--title",
        "A feed",
        "--min-interval",
        "30s",
    ]);
    let row = &made["feed"];
    assert_eq!(
        keys(row),
        [
            "active",
            "channel",
            "gone_ms",
            "interval_ms",
            "last_poll",
            "local",
            "max_interval_ms",
            "min_interval_ms",
            "moved_to",
            "origin",
            "paused",
            "title",
            "url"
        ]
    );
    assert_eq!(
        (&row["url"], &row["title"]),
        (&json!(url), &json!("A feed"))
    );
    assert_eq!(
        (&row["min_interval_ms"], &row["max_interval_ms"]),
        (&json!(30_000), &Value::Null)
    );
    assert!(!made.to_string().contains("hidden"));
    // Once more is a change.
    let again = site.json(&["feed", "add", "news", url, "--local", "--interval", "1m"]);
    assert_eq!(again["feed"]["max_interval_ms"], 60_000);
    assert_eq!(again["feed"]["title"], "A feed");
    let text = site.text(&["feed", "list"]);
    assert!(text.contains(url) && !text.contains("hidden"), "{text}");
    let list = site.json(&["feed", "list", "news"]);
    assert_eq!(list["feeds"].as_array().unwrap().len(), 1);
    site.fails(1, &["feed", "list", "nowhere"]);
    site.fails(1, &["feed", "add", "nowhere", "https://example.org/f"]);
    site.fails(2, &["feed", "add", "news", "ftp://example.org/f"]);
    site.fails(
        2,
        &[
            "feed",
            "add",
            "news",
            "http://h/",
            "--min-interval",
            "5",
            "--max-interval",
            "1",
        ],
    );

    // A channel that the source was started with takes more feeds, too; its own stay.
    let more = format!("{url}/more");
    site.json(&["feed", "add", "lore", &more, "--local"]);
    let both = site.json(&["feed", "list", "lore"]);
    let origins = both["feeds"].as_array().unwrap().iter();
    let mut origins: Vec<_> = origins
        .map(|feed| feed["origin"].as_str().unwrap())
        .collect();
    origins.sort_unstable();
    assert_eq!(origins, ["flags", "managed"]);
    assert!(
        site.fails(1, &["feed", "remove", "lore", url])
            .contains("configuration file")
    );
    assert!(
        site.fails(1, &["channel", "remove", "lore", "--yes"])
            .contains("configuration file")
    );
    site.json(&["feed", "remove", "lore", &more]);

    let seen = site.json(&["feed", "check", url, "--local"]);
    assert_eq!((&seen["title"], &seen["entries"]), (&json!("x"), &json!(1)));
    assert_eq!(seen["first_titles"], json!(["1"]));
    assert!(
        site.text(&["feed", "check", url, "--local"])
            .contains("a feed with 1 entry in")
    );
    assert!(site.fails(2, &["feed", "check", url]).contains("--local"));
    site.fails(1, &["feed", "check", "http://127.0.0.1:1/", "--local"]);

    let removed = site.json(&["feed", "remove", "news", &secret]);
    assert_eq!(removed, json!({"removed": {"channel": "news", "url": url}}));
    assert_eq!(site.json(&["feed", "list", "news"]), json!({"feeds": []}));
    assert_eq!(
        site.json(&["feed", "list", "news", "--all"])["feeds"][0]["active"],
        false
    );
    site.fails(1, &["feed", "remove", "news", url]);
}

fn lists_of_feeds(site: &Site) {
    let list = site.file("list.opml");
    let write = |path: &Path, content: &str| std::fs::write(path, content).unwrap();
    write(
        &list,
        r#"<opml version="2.0"><head/><body>
          <outline text="Kernel Lists">
            <outline type="rss" text="All" xmlUrl="https://lists.example/all.atom"/>
            <outline type="rss" text="Inside" xmlUrl="http://127.0.0.1/inside.atom"/>
          </outline>
          <outline type="rss" text="Alone" xmlUrl="https://alone.example/f"/>
        </body></opml>"#,
    );
    let path = list.to_str().unwrap();
    let dry = site.json(&["feed", "import", path, "--dry-run"]);
    assert_eq!(dry["new_channels"], json!(["kernel-lists"]));
    assert!(!names(&site.json(&["channel", "list"])["channels"]).contains(&"kernel-lists"));
    let done = site.json(&["feed", "import", path]);
    let all = json!({"channel": "kernel-lists", "url": "https://lists.example/all.atom"});
    assert_eq!(done["added"], json!([all]));
    let refused = done["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 2, "{done}");
    assert!(
        refused[1]["why"].as_str().unwrap().contains("--into"),
        "{done}"
    );
    let again = site.json(&["feed", "import", path, "--into", "news", "--local"]);
    assert_eq!(again["added"].as_array().unwrap().len(), 3);
    let again = site.json(&["feed", "import", path, "--into", "news", "--local"]);
    assert_eq!(
        (&again["added"], &again["present"]),
        (&json!([]), &json!(3))
    );
    write(&list, "<html>no list</html>");
    site.fails(1, &["feed", "import", path]);
    site.fails(1, &["feed", "import", "/nowhere.opml"]);

    let exported = site.text(&["feed", "export", "news"]);
    assert!(
        exported.contains("https://alone.example/f") && exported.contains("<opml"),
        "{exported}"
    );
    assert!(!exported.contains("all.atom\" text=\"kernel-lists\""));
    let other = site.file("again.opml");
    write(&other, &exported);
    let back = site.json(&[
        "feed",
        "import",
        other.to_str().unwrap(),
        "--local",
        "--dry-run",
    ]);
    assert_eq!(
        back["present"], 3,
        "what was exported is what is there: {back}"
    );
}

/// Everything goes from one site to another, and a source runs there.
fn moved(from: &Site, to: &Site) {
    let file = from.file("saved.backup");
    let path = file.to_str().unwrap();
    let saved = from.json(&["backup", path]);
    assert_eq!(
        keys(&saved),
        [
            "api_tokens",
            "audit",
            "bytes",
            "channels",
            "entries",
            "feeds",
            "file",
            "gaps",
            "receivers",
            "tokens",
            "updates",
            "users"
        ]
    );
    assert_eq!(saved["bytes"], std::fs::metadata(&file).unwrap().len());
    assert!(
        from.text(&["backup", path]).contains("no key"),
        "once more over the old one"
    );
    std::fs::write(from.file("other"), "no backup").unwrap();
    from.fails(1, &["backup", from.file("other").to_str().unwrap()]);
    to.fails(1, &["restore", from.file("other").to_str().unwrap()]);
    to.fails(1, &["restore", "/nowhere"]);
    let restored = to.json(&["restore", path]);
    for what in [
        "channels",
        "feeds",
        "entries",
        "updates",
        "tokens",
        "receivers",
    ] {
        assert_eq!(saved[what], restored[what], "{what}");
    }
    assert!(restored["made_ms"].is_i64());
    assert!(
        to.fails(1, &["restore", path]).contains("empty"),
        "only into an empty one"
    );
    let without = |list: &Value, odd: &[&str]| {
        let mut list = list.clone();
        for one in list.as_array_mut().unwrap() {
            odd.iter()
                .for_each(|key| drop(one.as_object_mut().unwrap().remove(*key)));
        }
        list
    };
    let of = |site: &Site, what: &str, list: &str, odd: &[&str]| {
        without(&site.json(&[what, "list"])[list], odd)
    };
    assert_eq!(of(from, "feed", "feeds", &[]), of(to, "feed", "feeds", &[]));
    assert_eq!(
        of(from, "token", "tokens", &[]),
        of(to, "token", "tokens", &[])
    );
    let odd = &["incarnation", "lease"];
    let (before, after) = (
        of(from, "channel", "channels", odd),
        of(to, "channel", "channels", odd),
    );
    assert_eq!(before, after);
    let incarnations = |site: &Site| {
        let list = site.json(&["channel", "list"]);
        let list = list["channels"].as_array().unwrap().iter();
        list.map(|one| one["incarnation"].to_string())
            .collect::<Vec<_>>()
    };
    for incarnation in incarnations(from) {
        assert!(
            !incarnations(to).contains(&incarnation),
            "receivers have to start over"
        );
    }
}

fn nothing_is_there_yet(site: &Site) {
    assert_eq!(site.json(&["receiver", "list"]), json!({"receivers": []}));
    assert!(site.text(&["receiver", "list"]).contains("No receiver"));
    assert_eq!(site.json(&["gap", "list"]), json!({"gaps": []}));
    assert!(
        site.fails(1, &["receiver", "revoke", "nobody"])
            .contains("receiver list")
    );
    site.fails(1, &["receiver", "forget", "nobody", "--yes"]);
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
        text.contains("line 1, rate") && text.contains("Channel a"),
        "{text}"
    );
    std::fs::write(&file, "\nrat = \"5M\"\n").unwrap();
    let output = site.run(&["config", "check", "--config", path]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("line 2, rat: ") && said.contains("did you mean rate?"),
        "{said}"
    );
    assert!(!site.data().exists(), "nothing is made");
}
