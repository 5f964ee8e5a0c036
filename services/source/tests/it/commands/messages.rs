//! `publish`.

use kit::wait::until;

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
    let text = site.fails(
        2,
        &["publish", "alarms", path, "--url", "https://example.org"],
    );
    assert!(text.contains("a message has no --url"), "{text}");
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

/// In a log, entries are published.
pub fn entries(site: &Site) {
    let before = head(site);
    let file = site.file("entry.html");
    std::fs::write(&file, "<p>The river rises.</p>").unwrap();
    let path = file.to_str().unwrap();
    let html = ["--content-type", "text/html", "--title", "River"];
    let more = ["--id", "river-1", "--url", "https://example.org/river"];
    let publish = [&["publish", "news", path], &html[..], &more].concat();
    let sent = site.json(&publish);
    assert_eq!(keys(&sent), ["id", "repeated"]);
    assert_eq!(
        (&sent["id"], &sent["repeated"]),
        (&"river-1".into(), &false.into())
    );
    assert_eq!(
        site.json(&publish)["repeated"],
        true,
        "it is published once"
    );
    std::fs::write(&file, "A line\nand more").unwrap();
    let id = site.text(&["publish", "news", path]);
    assert!(id.starts_with("urn:uuid:"), "{id}");
    // The running source stores them as updates.
    until("two updates", || head(site) == before + 2);

    let text = site.fails(2, &["publish", "news", path, "--content-type", "image/png"]);
    assert!(text.contains("entries are text, HTML or JSON"), "{text}");
    let text = site.fails(2, &["publish", "news"]);
    assert!(text.contains("neither title nor content"), "{text}");
    std::fs::write(&file, vec![b'x'; (1 << 20) + 1]).unwrap();
    let text = site.fails(2, &["publish", "news", path]);
    assert!(text.contains("longer than 1048576 bytes"), "{text}");
}

/// Returns the last seq of the channel `news`.
fn head(site: &Site) -> u64 {
    let channels = site.json(&["channel", "list"]);
    let mut channels = channels["channels"].as_array().unwrap().iter();
    let news = channels.find(|channel| channel["name"] == "news").unwrap();
    news["head"].as_u64().unwrap()
}
