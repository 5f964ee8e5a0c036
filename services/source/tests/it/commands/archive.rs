//! `backup` and `restore`.

use serde_json::Value;

use crate::site::{Site, keys};

/// Everything goes from one site to another, and a source runs there.
pub fn moved(from: &Site, to: &Site) {
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
            "signing_eras",
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
