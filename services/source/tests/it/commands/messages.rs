//! `publish`.

use crate::site::{Site, keys};

pub fn messages(site: &Site) {
    site.json(&["channel", "add", "alarms", "--deadline", "60s"]);
    let file = site.file("message.txt");
    std::fs::write(&file, "the river rises").unwrap();
    let path = file.to_str().unwrap();
    let sent = site.json(&[
        "publish",
        "alarms",
        path,
        "--id",
        "a1",
        "--subject",
        "river",
    ]);
    assert_eq!(keys(&sent), ["expires_ms", "id", "repeated"]);
    assert_eq!(sent["id"], "a1");
    assert_eq!(sent["repeated"], false);
    let again = site.json(&["publish", "alarms", path, "--id", "a1"]);
    assert_eq!(again["expires_ms"], sent["expires_ms"]);
    assert_eq!(again["repeated"], true, "it is sent once");
    assert_eq!(
        site.text(&["publish", "alarms", path, "--id", "a2"]),
        "a2\n"
    );
    // Standard input, which the tests leave empty; and an id of its own.
    assert_eq!(site.text(&["publish", "alarms"]).trim().len(), 36);

    let text = site.fails(1, &["publish", "alarmz", path]);
    assert!(text.contains("did you mean \"alarms\""), "{text}");
    let text = site.fails(1, &["publish", "news", path]);
    assert!(text.contains("set news --deadline"), "{text}");
    let text = site.fails(2, &["publish", "alarms", path, "--content-type", "text"]);
    assert!(text.contains("media type"), "{text}");
    let text = site.fails(2, &["publish", "alarms", path, "--id", ""]);
    assert!(text.contains("must not be empty"), "{text}");
    assert!(
        site.fails(1, &["publish", "alarms", "/no/file"])
            .contains("cannot read")
    );
    std::fs::write(&file, vec![0_u8; 65_537]).unwrap();
    let text = site.fails(2, &["publish", "alarms", path]);
    assert!(text.contains("longer than 65536 bytes"), "{text}");
}
