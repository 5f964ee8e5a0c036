#![allow(clippy::unwrap_used, clippy::expect_used)]

mod documents;

use service::link::Pin;

use super::*;
use crate::config::Config;

fn invoke(arguments: &[&str]) -> Result<Invocation, String> {
    let all = ["flexfeed-source"].iter().chain(arguments);
    let matches = arguments::command()
        .try_get_matches_from(all)
        .map_err(|error| error.to_string())?;
    Invocation::read(&matches, &Environment::default()).map_err(|mistakes| mistakes.join("\n"))
}

fn run(arguments: &[&str]) -> Config {
    match invoke(arguments).unwrap() {
        Invocation::Run(config) => *config,
        other => panic!("{other:?}"),
    }
}

fn command(arguments: &[&str]) -> Command {
    match invoke(arguments).unwrap() {
        Invocation::Command(command) => *command,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_definition_is_consistent() {
    arguments::command().debug_assert();
    let help = arguments::command().render_help().to_string();
    assert!(help.starts_with("Reads feeds and pushes"), "{help}");
}

#[test]
fn no_channel_is_added_in_the_place_of_a_receivers_own_file() {
    let error = invoke(&["channel", "add", "status"]).unwrap_err();
    assert!(error.contains("status.json"), "{error}");
}

#[test]
fn without_a_command_it_is_a_source() {
    assert_eq!(run(&[]).channels, []);
    assert_eq!(run(&["run"]).channels, []);
    assert_eq!(run(&["--rate", "5M"]).flows.rate_bps, 5_000_000);
    assert_eq!(run(&["run", "--rate", "5M"]).flows.rate_bps, 5_000_000);
    assert_eq!(run(&["--rate", "5M", "run"]).flows.rate_bps, 5_000_000);
    assert_eq!(
        run(&["--rate", "5M", "run", "--rate", "7M"]).flows.rate_bps,
        7_000_000
    );
    assert!(invoke(&["walk"]).is_err());
    assert!(invoke(&["run", "walk"]).is_err());
    assert!(invoke(&["token"]).is_err(), "what about tokens?");
}

#[test]
fn health_asks_where_the_settings_say() {
    let asked = |arguments: &[&str]| match invoke(arguments).unwrap() {
        Invocation::Health { http, question } => (http, question.ready),
        other => panic!("{other:?}"),
    };
    let (http, ready) = asked(&["health"]);
    assert_eq!(
        (http.unwrap().to_string(), ready),
        ("127.0.0.1:8090".to_owned(), false)
    );
    let (http, ready) = asked(&["health", "--ready", "--http", "[::]:1"]);
    assert_eq!(
        (http.unwrap().to_string(), ready),
        ("[::]:1".to_owned(), true)
    );
    let (http, _) = asked(&["health", "--http", ":1"]);
    assert_eq!(http.unwrap().to_string(), "[::]:1");
    // As a template writes it that puts brackets around every address.
    let (http, _) = asked(&["health", "--http", "[192.0.2.1]:1"]);
    assert_eq!(http.unwrap().to_string(), "192.0.2.1:1");
    // Wrong settings are an answer: containers know no code but 0 and 1.
    let (http, _) = asked(&["health", "--http", "x"]);
    assert!(http.unwrap_err().contains("--http"));
    assert!(invoke(&["health", "--rate", "5M"]).is_err());
}

#[test]
fn commands_have_the_settings_that_they_need() {
    let data = |arguments: &[&str]| command(arguments).resolved.config.unwrap().data;
    assert_eq!(
        data(&["token", "list", "--data", "/x"]).to_str(),
        Some("/x")
    );
    assert_eq!(
        data(&["--data", "/x", "token", "list"]).to_str(),
        Some("/x")
    );
    assert!(command(&["token", "list", "--json"]).json);
    assert!(!command(&["token", "list"]).json);
    let made = command(&[
        "token",
        "create",
        "--public-address",
        "a.example",
        "--channel",
        "a",
    ]);
    assert!(made.resolved.config.unwrap().public_address.is_some());
    // A value that looks like a setting does not become one.
    let added = command(&[
        "channel",
        "add",
        "a",
        "--private",
        "--rate",
        "5M",
        "--keep",
        "7",
    ]);
    let config = added.resolved.config.unwrap();
    assert_eq!(
        (config.flows.rate_bps, config.channels.len()),
        (10_000_000, 0)
    );
    assert!(invoke(&["token", "list", "--rate", "5M"]).is_err());
    for wrong in [
        &["token", "create", "--limit", "0"][..],
        &["token", "create", "--limit", "1", "--public"],
        &["token", "create", "--expires", "soon"],
        &["token", "revoke", "one"],
        &["channel", "add", "../x"],
        &["channel", "add", "x", "--keep", "some"],
        &[
            "feed",
            "add",
            "x",
            "http://h/",
            "--interval",
            "5",
            "--min-interval",
            "5",
        ],
        &["gap", "list", "--last", "0"],
    ] {
        invoke(wrong).expect_err(&format!("{wrong:?}"));
    }
}

#[test]
fn wrong_settings_end_all_commands_but_those_about_settings() {
    let wrong = |arguments: &[&str]| invoke(&[&["--rate", "fast"], arguments].concat());
    assert!(wrong(&["token", "list"]).unwrap_err().contains("--rate"));
    assert!(wrong(&[]).unwrap_err().contains("--rate"));
    for what in ["check", "show"] {
        let Ok(Invocation::Command(command)) = wrong(&["config", what]) else {
            panic!("{what}");
        };
        let (answer, ended) = settings::answer(&command.action, &command.resolved);
        let ended = ended.unwrap_err();
        assert_eq!(ended.code(), 2);
        assert!(ended.to_string().contains("--rate: "), "{ended}");
        assert_eq!(answer.json["ok"], false);
        assert_eq!(answer.json["mistakes"].as_array().map(Vec::len), Some(1));
    }
}

#[test]
fn settings_are_shown_with_where_they_are_from_and_without_secrets() {
    let shown = command(&[
        "config",
        "show",
        "--feed",
        "https://u:hidden@h.example/f",
        "--poll-interval",
        "30",
        "--private",
    ]);
    let (answer, ended) = settings::answer(&shown.action, &shown.resolved);
    ended.unwrap();
    assert!(!answer.text.contains("hidden") && !answer.json.to_string().contains("hidden"));
    assert!(
        answer.text.contains("https://h.example/f every 30s"),
        "{}",
        answer.text
    );
    assert!(
        answer.text.lines().all(|line| line.chars().count() <= 120),
        "{}",
        answer.text
    );
    let settings = answer.json["settings"].as_array().unwrap();
    let of = |key: &str| settings.iter().find(|s| s["key"] == key).unwrap().clone();
    assert_eq!(of("feed")["value"], "***");
    assert_eq!(of("feed")["from"], "--feed");
    assert_eq!(of("rate")["from"], "default");
    assert_eq!(of("qlog")["value"], Value::Null);
    assert_eq!(answer.json["channels"][0]["private"], true);
    let check = command(&["config", "check"]);
    let (answer, _) = settings::answer(&check.action, &check.resolved);
    assert!(
        answer.text.contains("Every setting has its default"),
        "{}",
        answer.text
    );
}

#[test]
fn folders_of_lists_become_names_of_channels() {
    for (folder, name) in [
        ("lore", "lore"),
        ("Linux Kernel", "linux-kernel"),
        (" News & more! ", "news-more"),
        ("a/b", "a-b"),
        ("..", ""),
        ("日本", ""),
    ] {
        match outlines::channel_name(folder) {
            Ok(found) => assert_eq!(found, name, "{folder}"),
            Err(_) => assert_eq!(name, "", "{folder}"),
        }
    }
}

#[test]
fn links_have_both_pins_and_all_channels() {
    let pins = [[1; 32], [2; 32]];
    let channels = ["a".to_owned(), "b".to_owned()];
    let key = signing::VerifyingKey([3; 32]);
    let made = crate::data::enrolment::link("T", "h.example:1", &pins, Some(key), &channels);
    let (one, two) = (Pin(pins[0]).to_string(), Pin(pins[1]).to_string());
    assert_eq!(
        made,
        format!("flexfeed://T@h.example:1?pin={one}&pin={two}&key={key}&ch=a&ch=b")
    );
}

#[test]
fn texts_from_outside_do_nothing_to_the_terminal() {
    assert_eq!(
        text::plain("a\x1b[2Jb\u{202e}c\nd"),
        "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d"
    );
    assert_eq!(text::cut("abcdef", 4), "abc…");
    assert_eq!(text::cut("abcd", 4), "abcd");
    assert_eq!(text::wrap("aa bb cc", 5), ["aa bb", "cc"]);
}
