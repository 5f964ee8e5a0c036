//! The order of the places, for every setting that there is.
//!
//! From strong to weak: the flag, the variable, the file that the variable with `_FILE` names
//! (secrets only), the key of the configuration file, the default. Each test goes through the whole
//! table, so a new setting is tested as soon as it is there: it only has to say three values that
//! may be given.

use service::settings::check::{DEFAULT, Shown};
use service::settings::{Form, Setting};

use super::*;

/// Three values for a setting, none of them the default, as flags and variables have them.
fn values(setting: &Setting) -> [&'static str; 3] {
    match setting.name.as_str() {
        "feed" => [
            "https://a.example/",
            "https://b.example/",
            "https://c.example/",
        ],
        "poll_interval" => ["31", "500ms", "2m"],
        "min_poll_interval" => ["1", "2s", "3"],
        "max_poll_interval" => ["2h", "3h", "14400"],
        "contact" => [
            "https://a.example/",
            "https://b.example/",
            "mailto:c@c.example",
        ],
        "data" | "qlog" | "cert" | "key" | "signing_key" => ["/a", "/b", "/c"],
        "database_url" => ["sqlite:///a.db", "sqlite:///b.db", "sqlite:///c.db"],
        "listen" | "http" => ["127.0.0.1:1", "127.0.0.1:2", "[::1]:3"],
        "console" => ["127.0.0.1:9", "true", "[::1]:3"],
        "console_public_url" => [
            "https://a.example/",
            "https://b.example",
            "http://c.example:7",
        ],
        "console_trusted_proxy" => ["10.0.0.0/8", "::1,192.0.2.1", "fd00::/8"],
        "public_address" => ["a.example", "b.example:7", "192.0.2.1"],
        "channel" | "holder_name" => ["a", "b", "c"],
        "group" => ["232.0.1.1:1", "", "[ff3e::1]:1"],
        "channel_spec" => ["a,feed=http://a/", "b,feed=http://b/", "c,feed=http://c/"],
        "flow_source" => ["192.0.2.1", "192.0.2.2", "2001:db8::1"],
        "multicast_ttl" => ["0", "1", "255"],
        "amt_relay" => [
            "a.example",
            "b.example|c.example:7,d.example",
            "1.1.1.1=127.0.0.1:7",
        ],
        "retention" => ["1000", "2000", "3000"],
        "retention_age" => ["1d", "2d", "3w"],
        "rate" | "unicast_rate" => ["1M", "2M", "3000000"],
        "next_pin" => [
            "sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "sha256:BAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "sha256:CAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        ],
        "rate_policy" => ["fixed", "cubic-min", "fixed"],
        "min_rate" => ["100k", "200k", "300000"],
        "max_loss" => ["5", "20", "30"],
        "max_packet_size" => ["576", "1400", "8972"],
        "max_replicas" => ["0", "10", "3000"],
        "replication_threads" => ["1", "2", "3"],
        "shards" => ["9", "10", "11"],
        "ack_delay_ms" => ["11", "12", "13"],
        "fall_back_ms" => ["201", "202", "203"],
        "heartbeat_ms" => ["501", "502", "503"],
        "drain_time" => ["0", "1s", "1m"],
        "log_format" => ["json", "text", "json"],
        "log_level" => ["warn", "debug", "info,feed=debug"],
        _ if setting.form() == Form::Switch => ["true", "false", "true"],
        other => panic!("the setting {other} needs three values here"),
    }
}

/// Returns the flags that a setting needs.
fn company(setting: &Setting) -> &'static [&'static str] {
    match setting.name.as_str() {
        "cert" => &["--key=/k"],
        "key" => &["--cert=/c"],
        "console_public_url" | "console_trusted_proxy" => &["--console"],
        // What is only about a channel shows where there is one.
        "group" | "private" | "channel" => &["--feed=https://example.org/f"],
        _ => &[],
    }
}

/// All settings but the one that names the file, and tables of the file.
fn all() -> impl Iterator<Item = Setting> {
    let settings = TABLE.settings().into_iter();
    settings.filter(|setting| setting.in_variable() && setting.in_file())
}

/// Returns the default as shown, perhaps in words.
fn default(setting: &Setting) -> String {
    match setting.default() {
        text if text.is_empty() => setting.help().1,
        text => text,
    }
}

/// Whether a value is of a file's first line.
fn is_of_file(shown: &Shown) -> bool {
    let end = format!(" line 1: {}", shown.name);
    shown.origin.ends_with(&end)
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
        if [flag, variable, secret, key].iter().any(Option::is_some)
            || !setting.default().is_empty()
        {
            arguments.extend(company(setting).iter().map(|a| (*a).to_owned()));
        }
        arguments.extend(
            flag.map(|value| format!("--{}={value}", setting.arg.get_long().unwrap_or_default())),
        );
        let mut variables = Vec::new();
        let name = TABLE.variable(setting);
        variables.extend(variable.map(|value| (name.clone(), value.to_owned())));
        variables.extend(secret.map(|value| (format!("{name}_FILE"), self.file("secret", value))));
        if let Some(value) = key {
            let value = match setting.form() {
                Form::Switch => value.to_owned(),
                _ => format!("{value:?}"),
            };
            let content = format!("{} = {value}\n", setting.name);
            variables.push(("FLEXFEED_CONFIG".to_owned(), self.file("f.toml", &content)));
        }
        let variables: Vec<_> = variables
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        let matches = command().try_get_matches_from(arguments).unwrap();
        let resolved = resolve(&matches, &Environment::with(variables));
        let shown = resolved.shown.iter().find(|s| s.name == setting.name);
        let mut config = resolved.config.unwrap();
        config.warnings.clear();
        config.config = None;
        (shown.unwrap().clone(), format!("{config:#?}"))
    }
}

#[test]
fn flags_win_over_variables_over_the_file_over_defaults() {
    let site = Site {
        folder: tempfile::tempdir().unwrap(),
    };
    for setting in &all().collect::<Vec<_>>() {
        let [a, b, c] = values(setting);
        let name = &setting.name;
        assert_ne!(c, default(setting), "{name}");
        // The three come to something different, so that they tell where they are from.
        let alone = |text| site.resolve(setting, Some(text), None, None, None).1;
        assert_ne!(alone(a), alone(b), "{name}");
        assert_ne!(alone(b), alone(c), "{name}");

        let by_default = site.resolve(setting, None, None, None, None);
        let file = site.resolve(setting, None, None, None, Some(c));
        let variable = site.resolve(setting, None, Some(b), None, Some(c));
        let flag = site.resolve(setting, Some(a), Some(b), None, Some(c));
        let stars = |text: &'static str| if setting.is_secret() { "***" } else { text };
        assert_eq!(flag.0.value, stars(a), "--{name}");
        assert_eq!(
            flag.0.origin,
            format!("--{}", setting.arg.get_long().unwrap_or_default())
        );
        assert_eq!(variable.0.value, stars(b), "{name}");
        assert_eq!(variable.0.origin, TABLE.variable(setting));
        assert_eq!(file.0.value, stars(c), "{name}");
        assert!(is_of_file(&file.0), "{name}: {:?}", file.0.origin);
        assert_eq!(by_default.0.origin, DEFAULT, "{name}");
        assert_eq!(by_default.0.value, default(setting), "{name}");

        // It is not only shown so: the configuration is another one with each.
        let all = [&by_default.1, &file.1, &variable.1, &flag.1];
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
    for setting in &all().collect::<Vec<_>>() {
        let [a, ..] = values(setting);
        let (shown, _) = site.resolve(setting, None, None, None, Some(a));
        assert!(is_of_file(&shown), "{}", setting.name);
        // And a flag with the default's value hides it, for somebody has said so.
        let default = setting.default();
        if !default.is_empty() {
            let (shown, _) = site.resolve(setting, Some(&default), None, None, Some(a));
            assert_eq!(shown.value, default, "{}", setting.name);
        }
    }
}

#[test]
fn secrets_from_files_stand_where_their_variables_stand() {
    let site = Site {
        folder: tempfile::tempdir().unwrap(),
    };
    for setting in &all().filter(Setting::is_secret).collect::<Vec<_>>() {
        let [a, b, c] = values(setting);
        let (shown, _) = site.resolve(setting, None, None, Some(b), Some(c));
        let variable = format!("{}_FILE", TABLE.variable(setting));
        assert_eq!(shown.origin, variable);
        let (shown, _) = site.resolve(setting, Some(a), None, Some(b), Some(c));
        assert_eq!(
            shown.origin,
            format!("--{}", setting.arg.get_long().unwrap_or_default())
        );
    }
}

#[test]
fn an_empty_variable_is_none_except_where_empty_says_something() {
    let site = Site {
        folder: tempfile::tempdir().unwrap(),
    };
    for setting in &all().collect::<Vec<_>>() {
        let [a, ..] = values(setting);
        let (shown, _) = site.resolve(setting, None, Some(""), None, Some(a));
        assert_eq!(
            is_of_file(&shown),
            setting.name != TABLE.empty,
            "{}",
            setting.name
        );
    }
}

#[test]
fn every_setting_has_its_flag_and_they_are_documented() {
    let help = command().render_long_help().to_string();
    let document = include_str!("../../../../../docs/operations.md");
    for setting in all() {
        let (flag, variable) = (
            format!("--{}", setting.arg.get_long().unwrap_or_default()),
            TABLE.variable(&setting),
        );
        assert!(help.contains(&flag) && help.contains(&variable), "{flag}");
        // A default that follows from other settings is a part of the help.
        let default = match setting.help() {
            (_, words) if !words.is_empty() => words,
            _ if matches!(setting.form(), Form::Switch | Form::Optional) => "off".to_owned(),
            _ if setting.default().is_empty() => String::new(),
            _ => format!("`{}`", setting.default()),
        };
        let help = setting.help().0;
        let (name, help) = (&setting.name, help.replace('|', "\\|"));
        let row = format!("| `{flag}` | `{variable}` | `{name}` | {default} | {help} |");
        assert!(document.contains(&row), "docs/operations.md lacks: {row}");
    }
    let rows = document.lines().filter(|line| line.starts_with("| `--"));
    assert_eq!(
        rows.count(),
        all().count() + 1,
        "every row is a setting, and --config"
    );
}
