//! The order of the places, for every setting that there is.
//!
//! From strong to weak: the flag, the variable, the file that the variable with `_FILE` names
//! (secrets only), the key of the configuration file, the default. Each test goes through the whole
//! table, so a new setting is tested as soon as it is there: it only has to say three values that
//! may be given.

use super::*;
use crate::config::settings::{ALL, Form, Setting, Settings};

/// Three values for a setting, none of them the default, as flags and variables have them.
fn values(setting: &Setting) -> [&'static str; 3] {
    match setting.name {
        "feed" => [
            "https://a.example/",
            "https://b.example/",
            "https://c.example/",
        ],
        "poll-interval" => ["31", "500ms", "2m"],
        "min-poll-interval" => ["1", "2s", "3"],
        "max-poll-interval" => ["2h", "3h", "14400"],
        "contact" => [
            "https://a.example/",
            "https://b.example/",
            "mailto:c@c.example",
        ],
        "data" | "qlog" | "cert" | "key" => ["/a", "/b", "/c"],
        "database-url" => ["sqlite:///a.db", "sqlite:///b.db", "sqlite:///c.db"],
        "listen" | "http" => ["127.0.0.1:1", "127.0.0.1:2", "[::1]:3"],
        "console" => ["127.0.0.1:9", "true", "[::1]:3"],
        "console-public-url" => [
            "https://a.example/",
            "https://b.example",
            "http://c.example:7",
        ],
        "console-trusted-proxy" => ["10.0.0.0/8", "::1,192.0.2.1", "fd00::/8"],
        "public-address" => ["a.example", "b.example:7", "192.0.2.1"],
        "channel" | "holder-name" => ["a", "b", "c"],
        "group" => ["232.0.1.1:1", "", "[ff3e::1]:1"],
        "channel-spec" => ["a,feed=http://a/", "b,feed=http://b/", "c,feed=http://c/"],
        "flow-source" => ["192.0.2.1", "192.0.2.2", "2001:db8::1"],
        "multicast-ttl" => ["0", "1", "255"],
        "amt-relay" => [
            "a.example",
            "b.example|c.example:7,d.example",
            "1.1.1.1=127.0.0.1:7",
        ],
        "retention" => ["1000", "2000", "3000"],
        "retention-age" => ["1d", "2d", "3w"],
        "rate" | "unicast-rate" => ["1M", "2M", "3000000"],
        "next-pin" => [
            "sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "sha256:BAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "sha256:CAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        ],
        "ack-delay-ms" => ["11", "12", "13"],
        "fall-back-ms" => ["201", "202", "203"],
        "heartbeat-ms" => ["501", "502", "503"],
        "drain-time" => ["0", "1s", "1m"],
        "log-format" => ["json", "text", "json"],
        "log-level" => ["warn", "debug", "info,feed=debug"],
        _ if setting.form == Form::Switch => ["true", "false", "true"],
        other => panic!("the setting {other} needs three values here"),
    }
}

/// Returns the flags that a setting needs.
fn company(setting: &Setting) -> &'static [&'static str] {
    match setting.name {
        "cert" => &["--key=/k"],
        "key" => &["--cert=/c"],
        "console-public-url" | "console-trusted-proxy" => &["--console"],
        // What is only about a channel shows where there is one.
        "group" | "private" | "channel" => &["--feed=https://example.org/f"],
        _ => &[],
    }
}

/// The setting as text, as the default or the values have it, comes to this.
fn read_alone(setting: &Setting, text: &str) -> Settings {
    let mut settings = Settings::default();
    if !text.is_empty() || setting.empty {
        (setting.take)(&mut settings, text).unwrap();
    }
    settings
}

struct Site {
    folder: tempfile::TempDir,
}

impl Site {
    fn file(&self, name: &str, content: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Returns the setting as shown, and the configuration, with these values in these places.
    fn resolve(
        &self,
        setting: &Setting,
        flag: Option<&str>,
        variable: Option<&str>,
        secret: Option<&str>,
        key: Option<&str>,
    ) -> (Shown, String) {
        let mut arguments = vec!["flexfeed-source".to_owned()];
        if [flag, variable, secret, key].iter().any(Option::is_some) || !setting.default.is_empty()
        {
            arguments.extend(company(setting).iter().map(|a| (*a).to_owned()));
        }
        arguments.extend(flag.map(|value| format!("--{}={value}", setting.name)));
        let mut variables = Vec::new();
        let name = setting.variable();
        variables.extend(variable.map(|value| (name.clone(), value.to_owned())));
        variables.extend(secret.map(|value| (format!("{name}_FILE"), self.file("secret", value))));
        if let Some(value) = key {
            let value = match setting.form {
                Form::Switch => value.to_owned(),
                _ => format!("{value:?}"),
            };
            let content = format!("{} = {value}\n", setting.key());
            variables.push(("FLEXFEED_CONFIG".to_owned(), self.file("f.toml", &content)));
        }
        let variables: Vec<_> = variables
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        let matches = command().try_get_matches_from(arguments).unwrap();
        let resolved = resolve(&matches, &Environment::with(&variables));
        let shown = resolved.shown.iter().find(|s| s.key == setting.key());
        let mut config = resolved.config.unwrap();
        config.warnings.clear();
        (shown.unwrap().clone(), format!("{config:#?}"))
    }
}

#[test]
fn flags_win_over_variables_over_the_file_over_defaults() {
    let site = Site {
        folder: tempfile::tempdir().unwrap(),
    };
    for setting in ALL {
        let [a, b, c] = values(setting);
        let name = setting.name;
        assert_ne!(c, setting.default, "{name}");
        // The three come to something different, so that they tell where they are from.
        assert_ne!(read_alone(setting, a), read_alone(setting, b), "{name}");
        assert_ne!(read_alone(setting, b), read_alone(setting, c), "{name}");

        let default = site.resolve(setting, None, None, None, None);
        let file = site.resolve(setting, None, None, None, Some(c));
        let variable = site.resolve(setting, None, Some(b), None, Some(c));
        let flag = site.resolve(setting, Some(a), Some(b), None, Some(c));
        let stars = |text: &'static str| if setting.secret { "***" } else { text };
        assert_eq!(flag.0.value, stars(a), "--{name}");
        assert_eq!(flag.0.place, Place::Flag(name));
        assert_eq!(variable.0.value, stars(b), "{name}");
        assert_eq!(variable.0.place, Place::Variable(setting.variable()));
        assert_eq!(file.0.value, stars(c), "{name}");
        assert!(
            matches!(&file.0.place, Place::File { line: 1, key, .. } if *key == setting.key()),
            "{name}: {}",
            file.0.place
        );
        assert_eq!(default.0.place, Place::Default, "{name}");
        assert_eq!(default.0.value, setting.default, "{name}");

        // It is not only shown so: the configuration is another one with each.
        let all = [&default.1, &file.1, &variable.1, &flag.1];
        for (weaker, stronger) in all.iter().zip(&all[1..]) {
            assert_ne!(weaker, stronger, "{name}");
        }
    }
}

#[test]
fn a_default_never_overrides_the_file() {
    let site = Site {
        folder: tempfile::tempdir().unwrap(),
    };
    for setting in ALL {
        let [a, ..] = values(setting);
        let (shown, _) = site.resolve(setting, None, None, None, Some(a));
        assert!(
            matches!(shown.place, Place::File { .. }),
            "{}",
            setting.name
        );
        // And a flag with the default's value hides it, for somebody has said so.
        if !setting.default.is_empty() {
            let (shown, _) = site.resolve(setting, Some(setting.default), None, None, Some(a));
            assert_eq!(shown.value, setting.default, "{}", setting.name);
        }
    }
}

#[test]
fn secrets_from_files_stand_where_their_variables_stand() {
    let site = Site {
        folder: tempfile::tempdir().unwrap(),
    };
    for setting in ALL.iter().filter(|setting| setting.secret) {
        let [a, b, c] = values(setting);
        let (shown, _) = site.resolve(setting, None, None, Some(b), Some(c));
        let variable = format!("{}_FILE", setting.variable());
        assert_eq!(shown.place, Place::Variable(variable));
        let (shown, _) = site.resolve(setting, Some(a), None, Some(b), Some(c));
        assert_eq!(shown.place, Place::Flag(setting.name));
    }
}

#[test]
fn an_empty_variable_is_none_except_where_empty_says_something() {
    let site = Site {
        folder: tempfile::tempdir().unwrap(),
    };
    for setting in ALL {
        let [a, ..] = values(setting);
        let (shown, _) = site.resolve(setting, None, Some(""), None, Some(a));
        let is_file = matches!(shown.place, Place::File { .. });
        assert_eq!(is_file, !setting.empty, "{}", setting.name);
    }
}

#[test]
fn every_setting_has_its_flag_and_they_are_documented() {
    let help = command().render_long_help().to_string();
    let document = include_str!("../../../../../docs/operations.md");
    for setting in ALL {
        let (flag, variable) = (format!("--{}", setting.name), setting.variable());
        assert!(help.contains(&flag) && help.contains(&variable), "{flag}");
        let row = format!("| `{flag}` | `{variable}` | `{}` |", setting.key());
        assert!(document.contains(&row), "docs/operations.md lacks: {row}");
    }
    let rows = document.lines().filter(|line| line.starts_with("| `--"));
    assert_eq!(
        rows.count(),
        ALL.len() + 1,
        "every row is a setting, and --config"
    );
}
