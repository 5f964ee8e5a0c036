//! `channel`: groups, retention, removal.

use serde_json::{Value, json};

use crate::site::{Site, keys, names};

pub fn channels(site: &Site) {
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
            "deadline_ms",
            "fec",
            "feeds",
            "first",
            "groups",
            "head",
            "incarnation",
            "keep",
            "lease",
            "name",
            "origin",
            "packet_authentication",
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

    assert_eq!(news["fec"], "adaptive", "the default");
    let set = ["channel", "set", "news", "--fec", "proactive:2/20,rlc"];
    assert_eq!(site.json(&set)["channel"]["fec"], "proactive:2/20");
    let text = site.fails(2, &["channel", "set", "news", "--fec", "proactive:21/20"]);
    let allowed = "is none of off, adaptive, tail, reactive and proactive:SYMBOLS/PACKETS";
    assert!(text.contains(allowed), "{text}");
    let set = site.json(&["channel", "set", "news", "--private=false", "--groups", ""]);
    assert_eq!(set["channel"]["fec"], "proactive:2/20", "the rest stays");
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
