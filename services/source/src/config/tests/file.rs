//! Configuration files.

use std::path::Path;

use store::AuthenticationType;

use super::*;

fn from(content: &str, arguments: &[&str]) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("source.toml");
    std::fs::write(&path, content).unwrap();
    let path = path.to_str().unwrap();
    let result = config(&[&["--config", path], arguments].concat());
    result.map_err(|text| text.replace(&format!("{}/", folder.path().display()), ""))
}

#[test]
fn channels_and_feeds() {
    let config = from(
        r#"
        rate = "5M"
        min-poll-interval = 10
        allow_private_feed = false
        data = "state"

        [[channel]]
        name = "lore"
        groups = ["232.9.9.9:4434", "[ff3e::9]:4434"]
        private = true
        packet_authentication = "tags"
        fec = "proactive:2/20,reed-solomon"
        deadline = "500ms"
        keep = "100000,30d"
        [[channel.feed]]
        url = "https://u:hidden@lore.example/all/new.atom#x"
        interval = "30s"
        [[channel.feed]]
        url = "http://127.0.0.1/f"
        local = true
        min_interval = 1
        max-interval = "1m"

        [[channel]]
        name = "news"
        rate = "1M"
        keep = 7

        [[channel]]
        name = "quiet"
        groups = ""
        "#,
        &[],
    )
    .unwrap();
    let [lore, news, quiet] = config.channels.as_slice() else {
        panic!("{config:?}");
    };
    assert_eq!(lore.groups.to_string(), "232.9.9.9:4434,[ff3e::9]:4434");
    assert_eq!((lore.private, lore.rate_bps), (true, 5_000_000));
    let deadlines = [lore, news].map(|channel| channel.deadline.millis());
    assert_eq!(deadlines, [Some(500), None]);
    let packets = [lore, news].map(|channel| channel.packet_authentication);
    assert_eq!(
        packets,
        [AuthenticationType::Tags, AuthenticationType::None]
    );
    let fec = [lore, news].map(|channel| channel.fec.as_str());
    assert_eq!(fec, ["proactive:2/20,reed-solomon", "adaptive"]);
    let month = Duration::from_secs(30 * 86_400);
    assert_eq!(
        lore.keep,
        Keep {
            count: Some(100_000),
            age: Some(month)
        }
    );
    let [first, second] = lore.feeds.as_slice() else {
        panic!("{lore:?}");
    };
    assert_eq!(first.address.shown, "https://lore.example/all/new.atom");
    assert!(first.address.secret.contains("hidden"));
    assert_eq!(
        first.polls.bounds(),
        Ok((Some(Duration::from_secs(30)), Some(Duration::from_secs(30))))
    );
    assert!(second.polls.local && !first.polls.local);
    let bounds = second.polls.bounds().unwrap();
    assert_eq!(bounds.1, Some(Duration::from_secs(60)));
    assert_eq!(news.groups.to_string(), "232.70.70.2:4434");
    assert_eq!((news.rate_bps, news.keep.count), (1_000_000, Some(7)));
    assert_eq!(news.feeds, []);
    assert!(quiet.groups.all().is_empty());
    assert_eq!(quiet.keep, Keep::default());
    assert_eq!(config.feeds.poll().min, Duration::from_secs(10));
    // Paths count from the file's folder.
    assert!(
        config.data.is_absolute() && config.data.ends_with("state"),
        "{:?}",
        config.data
    );
    assert!(!format!("{config:?}").contains("hidden"));
    // Everybody may read the file, and there is a password in it.
    assert!(
        config.warnings.iter().any(|w| w.contains("chmod 600")),
        "{:?}",
        config.warnings
    );
}

#[test]
fn flags_and_the_file_give_channels_together() {
    let file = "[[channel]]\nname = \"news\"\n";
    let config = from(
        file,
        &["--feed", FEED, "--channel-spec", "net,feed=http://n/"],
    )
    .unwrap();
    let names: Vec<_> = config.channels.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["lore", "net", "news"]);
    assert_eq!(config.channels[2].groups.to_string(), "232.70.70.3:4434");
    let text = from(file, &["--channel", "news"]).unwrap_err();
    assert!(text.contains("two channels \"news\""), "{text}");
    // The simple form: the first channel's name and feed.
    let config = from("channel = \"a\"\nfeed = \"http://a/\"\n", &[]).unwrap();
    assert_eq!(config.channels[0].name, "a");
}

#[test]
fn every_mistake_is_named_with_its_line_and_key() {
    let text = from(
        r#"rate = "fast"
retension = 5
asm = "yes"
group = ["232.1.1.1:1", 5.5, true]
poll_interval = 1979-05-27
data = 7
[[channel]]
name = "a b"
[[channel]]
name = "a"
fead = 1
groups = "10.0.0.1:1"
[[channel.feed]]
url = "ftp://u:hidden@h/"
[[channel.feed]]
urk = "http://h/"
local = 1
[[channel.feed]]
url = "http://h/"
interval = 5
max_interval = 7
[[channel]]
keep = "0"
[server]
port = 1
"#,
        &["--heartbeat-ms", "1"],
    )
    .unwrap_err();
    for expected in [
        "source.toml line 1: rate: write a rate",
        "source.toml line 2: retension: there is no such setting; is retention meant?",
        "source.toml line 3: asm: takes true or false",
        "source.toml line 4: group: takes a list",
        "source.toml line 5: poll_interval: takes a text in quotation marks or a number, not a",
        "source.toml line 8: name: ",
        "source.toml line 11: fead: there is no such setting; is feed meant?",
        "source.toml line 12: groups: ",
        "source.toml line 14: url: ",
        "source.toml line 15: feed: has no url",
        "source.toml line 16: urk: there is no such setting; is url meant?",
        "source.toml line 17: local: takes true or false",
        "source.toml line 20: interval: has no effect together with source.toml line 21: max_int",
        "source.toml line 22: channel: has no name",
        "source.toml line 23: keep: ",
        "source.toml line 24: server: there is no such setting",
        "--heartbeat-ms: \"1\" is no whole number from 50 to 60000",
    ] {
        assert!(text.contains(expected), "{expected}\nis not in\n{text}");
    }
    assert!(!text.contains("hidden"), "{text}");
    let line = |text: &str| text.split(" line ").nth(1)?.split(':').next()?.parse().ok();
    let lines: Vec<u32> = text.lines().filter_map(line).collect();
    assert!(lines.len() > 10 && lines.is_sorted(), "{text}");
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    let text = from("rate = \"5M\"\n\nlisten = = 5\n", &[]).unwrap_err();
    assert!(text.starts_with("source.toml line 3: "), "{text}");
    let text = from("rate = 1\nrate = 2\n", &[]).unwrap_err();
    assert!(text.contains("source.toml line 2"), "{text}");
    let text = from("rate = \"1M\"\n[[channel]]\nname='a'\n[channel]\n", &[]).unwrap_err();
    assert!(text.contains("source.toml line 4"), "{text}");
    let text = config(&["--config", "/nowhere/at/all.toml"]).unwrap_err();
    assert!(
        text.contains("cannot read the settings in /nowhere/at/all.toml"),
        "{text}"
    );
    let folder = tempfile::tempdir().unwrap();
    let text = config(&["--config", folder.path().to_str().unwrap()]).unwrap_err();
    assert!(text.contains("cannot read the settings in"), "{text}");
}

#[test]
fn a_mistake_counts_even_where_something_stronger_is_given() {
    let text = from("rate = \"fast\"\n", &["--rate", "5M"]).unwrap_err();
    assert!(text.contains("line 1: rate"), "{text}");
}

#[test]
fn the_flag_wins_over_the_variable_for_the_file_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path: &Path = &folder.path().join(name);
        std::fs::write(path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (a, b) = (
        file("a.toml", "rate = \"1M\""),
        file("b.toml", "rate = \"2M\""),
    );
    let variables = [("FLEXFEED_CONFIG", a.as_str())];
    assert_eq!(read(&[], &variables).unwrap().flows.rate_bps, 1_000_000);
    assert_eq!(
        read(&["--config", &b], &variables).unwrap().flows.rate_bps,
        2_000_000
    );
    assert_eq!(
        read(&["run", "--config", &b], &variables)
            .unwrap()
            .flows
            .rate_bps,
        2_000_000
    );
}
