//! `feed`: addresses, intervals, OPML lists.

use std::path::Path;

use serde_json::{Value, json};

use crate::running::Feed;
use crate::site::{Site, keys, names};

pub fn feeds(site: &Site, feed: &Feed) {
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

pub fn lists_of_feeds(site: &Site) {
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
