//! `token`: links, limits, lists.

use serde_json::{Value, json};

use crate::site::{Site, keys};

pub fn tokens(site: &Site) {
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
    let key = site.json(&["key", "show"])["key"]
        .as_str()
        .unwrap()
        .to_owned();
    let end = format!("&pin={pin}&key={key}&ch=lore");
    assert!(link.ends_with(&end), "{link}");
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

/// A token is made once: what else its link says changes with the source.
pub fn links_in_files(site: &Site) {
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
