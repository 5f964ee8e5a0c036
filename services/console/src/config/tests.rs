//! Precedence, parsing, and messages.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use service::settings::{Form, Layers, Loaded, Problem};

use super::*;
use crate::cli::PROGRAM;

/// Acceptable values of every setting but the one that names the file: for its flag, its variable
/// and its key.
const EXAMPLES: &[(&str, [&str; 3])] = &[
    (
        "database_url",
        ["sqlite://a.db", "sqlite://b.db", "postgres://h/d"],
    ),
    ("database_url_file", ["a", "b", "c"]),
    ("listen", ["127.0.0.1:1", "[::1]:2", ":3"]),
    (
        "public_url",
        [
            "https://a.example",
            "https://b.example",
            "http://c.example:8080",
        ],
    ),
    ("secure_cookies", ["auto", "on", "off"]),
    (
        "trusted_proxy",
        ["192.0.2.0/24", "2001:db8::/32", "192.0.2.1,10.0.0.0/8"],
    ),
    ("session_time", ["60", "90m", "1d"]),
    ("allow_private_feeds", ["true", "false", "true"]),
    (
        "contact",
        [
            "mailto:a@example.org",
            "https://b.example/",
            "https://c.example/about",
        ],
    ),
    ("log_format", ["text", "json", "text"]),
    ("log_level", ["a", "b", "c"]),
];

fn line(arguments: &[&str]) -> Layer {
    let all = std::iter::once(&"flexfeed-console").chain(arguments);
    let given = PROGRAM.command().try_get_matches_from(all).unwrap();
    TABLE.line_layer(&given)
}

fn loaded(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Loaded<Settings>, Problems> {
    let environment = Environment::with(variables.to_vec());
    TABLE.load(line(arguments), &environment, check)
}

/// With a database, which every console needs.
fn settings(arguments: &[&str]) -> Settings {
    let database = [("DATABASE_URL", "sqlite://x.db")];
    loaded(arguments, &database).unwrap().settings
}

/// The layers as they are, without a look at the values.
fn gathered(arguments: &[&str], variables: &[(&str, &str)]) -> (Layers, Vec<Problem>) {
    let environment = Environment::with(variables.to_vec());
    let given = TABLE.gather(line(arguments), &environment);
    (given.layers, given.problems)
}

#[test]
fn without_a_word_it_answers_this_machine_only() {
    let settings = settings(&[]);
    assert_eq!(settings.listen.to_string(), "127.0.0.1:9470");
    assert_eq!(settings.database_url, "sqlite://x.db");
    assert_eq!(settings.site.secure_cookies, SecureCookies::Auto);
    assert_eq!(settings.site.session_time, Duration::from_secs(12 * 3600));
    assert!(!settings.site.allow_private_feeds);
    let Problems(problems) = loaded(&[], &[]).unwrap_err();
    assert!(problems[0].contains("give --database-url"), "{problems:?}");
}

#[test]
fn a_database_is_named_once_and_not_shown() {
    let own = ("FLEXFEED_CONSOLE_DATABASE_URL", "postgres://u:secret@h/own");
    let general = ("DATABASE_URL", "postgres://u:secret@h/general");
    let loaded_of = |variables: &[(&str, &str)]| loaded(&[], variables);
    let url = |variables: &[(&str, &str)]| loaded_of(variables).unwrap().settings.database_url;
    assert_eq!(url(&[own, general]), own.1);
    assert_eq!(url(&[general]), general.1);
    let loaded = loaded_of(&[general]).unwrap();
    assert!(!TABLE.check_text(&loaded, "").contains("secret@"));
    assert!(
        !TABLE
            .check_json(&loaded, Default::default())
            .to_string()
            .contains("secret@")
    );
    assert!(!format!("{:?}", loaded.settings).contains("secret@"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("url");
    std::fs::write(&path, "postgres://u:secret@h/file\n").unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(
        url(&[("DATABASE_URL_FILE", path)]),
        "postgres://u:secret@h/file"
    );
    let both = loaded_of(&[general, ("DATABASE_URL_FILE", path)]).unwrap_err();
    assert!(both.to_string().contains("leave one of them out"), "{both}");
    let wrong = loaded_of(&[("DATABASE_URL", "mysql://u:secret@h/d")]).unwrap_err();
    assert!(wrong.to_string().starts_with("DATABASE_URL: "), "{wrong}");
    assert!(!wrong.to_string().contains("secret"), "{wrong}");
}

#[test]
fn values_are_understood_or_explained() {
    let settings = settings(&[
        "--listen=:80",
        "--public-url=https://console.example.org",
        "--trusted-proxy=10.0.0.0/8,2001:db8::1",
        "--session-time=2d",
        "--secure-cookies=on",
        "--allow-private-feeds",
    ]);
    assert_eq!(settings.listen.to_string(), "[::]:80");
    let nets: Vec<String> = settings
        .site
        .trusted_proxies
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(nets, ["10.0.0.0/8", "2001:db8::1/128"]);
    assert_eq!(settings.site.session_time, Duration::from_secs(2 * 86_400));
    assert!(settings.site.allow_private_feeds);
    for (wrong, says) in [
        ("--listen=x", "no address with a port"),
        ("--public-url=console.example.org", "no address of a site"),
        ("--public-url=https://a.example/console", "has a path"),
        ("--public-url=https://u:p@a.example", "no address of a site"),
        ("--trusted-proxy=x", "neither an address nor a prefix"),
        ("--session-time=1s", "not within 60s and 7d"),
        ("--session-time=99d", "not within 60s and 7d"),
        ("--secure-cookies=perhaps", "neither auto nor on nor off"),
        ("--contact=me", "has to be like"),
        ("--log-format=xml", "neither text nor json"),
    ] {
        let problems = loaded(&[wrong], &[("DATABASE_URL", "sqlite://x")]).unwrap_err();
        assert!(problems.to_string().contains(says), "{problems}");
    }
}

#[test]
fn warnings_are_reported() {
    let doubts = |arguments: &[&str]| {
        let database = [("DATABASE_URL", "sqlite://x.db")];
        loaded(arguments, &database).unwrap().warnings
    };
    assert_eq!(doubts(&[]), Vec::<String>::new());
    assert!(doubts(&["--listen=:80"])[0].contains("public_url is not set"));
    let off = doubts(&["--public-url=https://a.example", "--secure-cookies=off"]);
    assert!(off[0].contains("secure_cookies is off"), "{off:?}");
}

#[test]
fn for_every_setting_flags_win_over_variables_and_variables_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for setting in TABLE.settings().iter().filter(|setting| setting.in_file()) {
        let examples = EXAMPLES.iter().find(|(name, _)| *name == setting.name);
        let [by_flag, by_variable, by_file] = examples.expect(&setting.name).1;
        let toml = match setting.form() {
            Form::Switch => by_file.to_owned(),
            _ => format!("{by_file:?}"),
        };
        let path = folder.path().join("console.toml");
        std::fs::write(&path, format!("{} = {toml}\n", setting.name)).unwrap();
        let path = path.to_str().unwrap();
        let variable = TABLE.variable(setting);
        let flag = format!("--{}={by_flag}", setting.arg.get_long().unwrap_or_default());
        let file = format!("--config={path}");
        let winner = |arguments: &[&str], variables: &[(&str, &str)]| {
            // Not one of the two ways to name the database beside the other.
            let mut variables = variables.to_vec();
            if !setting.name.starts_with("database_url") {
                variables.push(("DATABASE_URL", "sqlite://x.db"));
            }
            let (layers, problems) = gathered(arguments, &variables);
            // There are no such files.
            assert!(problems.is_empty() || setting.name == "database_url_file");
            let given = layers.given(&setting.name).unwrap();
            (given.origin.to_string(), given.texts.join(","))
        };
        let (origin, text) = winner(&[&flag, &file], &[(&variable, by_variable)]);
        let flag = format!("--{}", setting.arg.get_long().unwrap_or_default());
        assert_eq!((origin, text.as_str()), (flag, by_flag));
        let (origin, text) = winner(&[&file], &[(&variable, by_variable)]);
        assert_eq!((origin, text.as_str()), (variable, by_variable));
        let (origin, text) = winner(&[&file], &[]);
        assert_eq!(origin, format!("{path} line 1: {}", setting.name));
        match setting.form() {
            // Relative to the file's folder.
            Form::Path => {
                let beside = folder.path().join(by_file);
                assert_eq!(text, beside.to_str().unwrap());
            }
            _ => assert_eq!(text, by_file),
        }
    }
}
