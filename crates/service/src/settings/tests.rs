//! Precedence, parsing, and messages. The programs' own tests go through all of their settings.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use clap::{Args, Command};

use super::*;
use crate::values::{one_of, whole};

#[derive(Debug, Clone, PartialEq, Args)]
struct Hook {
    #[arg(long)]
    url: String,
    #[arg(long, hide_env_values = true)]
    secret: Option<String>,
    #[arg(long)]
    secret_file: Option<PathBuf>,
    #[arg(long, value_delimiter = ',')]
    channels: Vec<String>,
}

#[derive(Debug, Args)]
struct Settings {
    #[arg(long)]
    config: Option<PathBuf>,
    #[arg(value_name = "LINK", hide_env_values = true)]
    link: Option<String>,
    #[arg(long, default_value = "./x", env = "DATA")]
    data: PathBuf,
    #[arg(long, visible_alias = "ports", value_delimiter = ',', value_parser = whole::<u16>(1..=9))]
    udp_ports: Vec<u16>,
    #[arg(long)]
    capture: bool,
    #[arg(long, value_delimiter = ' ', value_parser = table::<Hook>)]
    hook: Vec<Hook>,
    #[arg(long, hide = true)]
    secret: Option<String>,
}

const TABLE: Table = Table::of::<Settings>("FLEXFEED_", &[("hook", Keys::of::<Hook>(&[]))]);

fn line(words: &[&str]) -> Layer {
    let command = Command::new("x").args(TABLE.options(|_| true));
    let matches = command.try_get_matches_from(std::iter::once(&"x").chain(words));
    TABLE.line_layer(&matches.unwrap())
}

fn gathered(words: &[&str], variables: &[(&str, &str)]) -> Layers {
    let environment = Environment::with(variables.to_vec());
    let given = TABLE.gather(line(words), &environment);
    assert_eq!(given.problems, Vec::<Problem>::new());
    given.layers
}

/// Returns layers without a warning.
fn given(layers: Layers, problems: Vec<Problem>) -> Check {
    Check {
        layers,
        warnings: Vec::new(),
        problems,
    }
}

/// Returns the typed settings of layers, or their problems.
fn resolved(table: &Table, layers: Layers) -> Result<Settings, Vec<String>> {
    let loaded = table.resolve::<Settings>(given(layers, Vec::new()), |_, _| ());
    loaded
        .map(|loaded| loaded.settings)
        .map_err(|problems| problems.0)
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

fn said(layers: &Layers, name: &str) -> Option<(String, Vec<String>)> {
    let given = layers.given(name)?;
    Some((given.origin.to_string(), given.texts.clone()))
}

#[test]
fn the_strongest_place_wins_and_an_empty_variable_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    std::fs::write(&file, "data = \"d\"\nudp-ports = [1, \"2\"]\n").unwrap();
    let file = file.to_str().unwrap();
    let data = |words: &[&str], variables: &[(&str, &str)]| {
        let variables = [variables, &[("FLEXFEED_CONFIG", file)]].concat();
        said(&gathered(words, &variables), "data").unwrap()
    };
    let own = ("FLEXFEED_DATA", "own");
    let general = ("DATA", "general");
    let of = |origin: &str, text: &str| (origin.to_owned(), vec![text.to_owned()]);
    assert_eq!(
        data(&["--data", "flag"], &[own, general]),
        of("--data", "flag")
    );
    assert_eq!(data(&[], &[own, general]), of("FLEXFEED_DATA", "own"));
    for blank in ["", " "] {
        assert_eq!(
            data(&[], &[("FLEXFEED_DATA", blank), general]),
            of("DATA", "general")
        );
    }
    // A path counts from the file's folder.
    let beside = folder.path().join("d");
    let in_file = of(&format!("{file} line 1: data"), beside.to_str().unwrap());
    assert_eq!(data(&[], &[("FLEXFEED_DATA", " ")]), in_file);
    let layers = gathered(&["--config", file], &[]);
    let ports = said(&layers, "udp_ports").unwrap();
    assert_eq!(
        ports,
        (
            format!("{file} line 2: udp-ports"),
            vec!["1".into(), "2".into()]
        )
    );
    assert_eq!(resolved(&TABLE, layers).unwrap().udp_ports, [1, 2]);
}

#[test]
fn booleans_are_trimmed_and_quoted_where_they_are_wrong() {
    let capture = |text| resolved(&TABLE, gathered(&[], &[("FLEXFEED_CAPTURE", text)]));
    assert!(capture("True\r").unwrap().capture);
    let wrong = capture("maybe").unwrap_err().join("\n");
    assert!(
        wrong.contains("\"maybe\" is neither true nor false"),
        "{wrong}"
    );
}

#[test]
fn flags_arguments_and_variables_are_understood() {
    let words = [
        "--ports=1,2",
        "--udp-ports",
        "3",
        "--capture",
        "--hook=a b",
        "--hook=c",
        "l",
    ];
    let layers = gathered(&words, &[]);
    let texts = |name| said(&layers, name).unwrap().1;
    assert_eq!(texts("udp_ports"), ["1", "2", "3"]);
    assert_eq!(texts("capture"), ["true"]);
    let hooks = |layers: Layers| {
        let hooks = resolved(&TABLE, layers).unwrap().hook.into_iter();
        hooks.map(|hook| hook.url).collect::<Vec<_>>()
    };
    assert_eq!(
        said(&layers, "link"),
        Some(("LINK".into(), vec!["l".into()]))
    );
    assert_eq!(hooks(layers), ["a", "b", "c"]);
    let layers = gathered(&["--capture=no"], &[("FLEXFEED_HOOK", " a  b ")]);
    assert_eq!(hooks(layers.clone()), ["a", "b"]);
    assert!(!resolved(&TABLE, layers).unwrap().capture);
    // A secret has no flag, which would be visible in the list of processes.
    let command = Command::new("x").args(TABLE.options(|_| true));
    assert!(command.try_get_matches_from(["x", "--secret=x"]).is_err());
    let some = |name: &str| ["data", "secret"].contains(&name);
    assert_eq!(TABLE.options(some).count(), 1);
}

#[test]
fn problems_name_their_place() {
    let text = "\
udp_prts = 1
capture = \"yes\"
config = \"x\"
data = true
[[hook]]
url = \"u\"
secret_file = \"s\"
channels = true
[[hook]]
ulr = \"u\"
";
    let (_, problems) = TABLE.text_layer(Path::new("/no/f.toml"), text);
    let Problems(problems) = Problems::from(problems);
    assert_eq!(
        problems,
        [
            "/no/f.toml line 1: udp_prts: there is no such setting; is udp_ports meant?",
            "/no/f.toml line 2: capture: takes true or false, not a TOML string",
            "/no/f.toml line 3: config: a file cannot name another one",
            "/no/f.toml line 4: data: takes a text in quotation marks or a number, not a TOML \
             boolean",
            "/no/f.toml line 7: secret_file: cannot read the secret in /no/s: No such file or \
             directory (os error 2)",
            "/no/f.toml line 8: channels: takes a list of texts or numbers, or one of them, not a \
             TOML boolean",
            "/no/f.toml line 9: hook: has no url",
            "/no/f.toml line 10: ulr: there is no such setting; is url meant?",
        ]
    );
    let (_, problems) = TABLE.text_layer(Path::new("f"), "hook = \"u\"");
    let problems = texts(&problems);
    assert!(problems[0].contains("begins with [[hook]]"), "{problems:?}");
    let (_, problems) = TABLE.text_layer(Path::new("f"), "\na = \n");
    let problems = texts(&problems);
    assert!(problems[0].starts_with("f line 2: "), "{problems:?}");
    let (_, problems) = TABLE.file_layer(Path::new("/does/not/exist"));
    let problems = texts(&problems);
    assert!(problems[0].contains("cannot read the settings in /does/not/exist"));

    let layers = gathered(&["--udp-ports=x,1"], &[]);
    let problems = resolved(&TABLE, layers).unwrap_err();
    assert_eq!(
        problems,
        ["--udp-ports: \"x\" is no whole number from 1 to 9"]
    );
    // What is valid alone is checked together, too.
    let environment = Environment::with([("FLEXFEED_UDP_PORTS", "x")]);
    let loaded = TABLE.load::<Settings>(line(&["--data=d"]), &environment, |settings, check| {
        assert!(settings.udp_ports.is_empty());
        check.wrong_setting("data", "is odd");
    });
    let Problems(problems) = loaded.unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(problems[1], "--data: is odd");
}

#[test]
fn tables_have_their_own_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.toml");
    std::fs::write(folder.path().join("s"), " hidden\n").unwrap();
    let toml = "[[hook]]\nurl = \"u\"\nsecret_file = \"s\"\nchannels = [\"a\", \"b\"]\n";
    std::fs::write(&path, toml).unwrap();
    let path = path.to_str().unwrap();
    let hook = resolved(&TABLE, gathered(&["--config", path], &[]))
        .unwrap()
        .hook;
    assert_eq!(hook[0].secret.as_deref(), Some("hidden"));
    assert_eq!(hook[0].channels, ["a", "b"]);
    std::fs::write(path, toml.replace("url", "secret")).unwrap();
    let given = TABLE.gather(line(&["--config", path]), &Environment::default());
    let problems = texts(&given.problems);
    assert!(
        problems[0].contains("leave one of them out"),
        "{problems:?}"
    );
    assert!(
        problems[1].contains("line 1: hook: has no url"),
        "{problems:?}"
    );
}

/// A replacement would name another folder.
#[test]
fn a_variable_that_is_no_text_is_refused() {
    let data = OsString::from_vec(b"/data/\xe4".to_vec());
    let environment = Environment::with([("FLEXFEED_DATA", data)]);
    let (layer, problems) = TABLE.variables_layer(&environment);
    assert!(layer.0.is_empty());
    assert_eq!(
        texts(&problems),
        ["FLEXFEED_DATA: is not UTF-8 text, as every setting has to be"]
    );
}

#[test]
fn variables_that_are_no_settings_are_found() {
    let names = [
        "PATH",
        "FLEXFEED_DATA",
        "FLEXFEED_FAULTS",
        "FLEXFEED_RELAY_UDP_PORTS",
        "FLEXFEED_LINKS",
        "FLEXFEED_",
        "XFLEXFEED_A",
    ];
    let environment = Environment::with(names.map(|name| (name, "x")));
    let warnings = TABLE.warnings(&environment);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("FLEXFEED_ is no setting"));
    assert!(warnings[1].contains("FLEXFEED_LINKS (is FLEXFEED_LINK meant?)"));
}

#[test]
fn a_check_shows_every_setting_and_no_secret() {
    let layers = gathered(&["--udp-ports=1", "--udp-ports=2", "s3cret"], &[]);
    let loaded = Loaded {
        settings: (),
        warnings: vec!["w".to_owned()],
        layers,
    };
    let text = TABLE.check_text(&loaded, "\nmore\n");
    for part in [
        "  udp_ports  1,2   (--udp-ports)\n",
        "  link       (secret)   (LINK)\n",
        "  data       ./x   (default)\n",
        "  secret     -   (default)\n",
        "\nmore\n\nWarning: w\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let json = TABLE.check_json(&loaded, serde_json::json!({"more": 1}));
    assert_eq!(
        json["settings"].as_array().unwrap().len(),
        TABLE.settings().len()
    );
    assert_eq!((&json["ok"], &json["more"]), (&true.into(), &1.into()));
    assert!(!format!("{text}{json}{loaded:?}").contains("s3cret"));
}

#[test]
fn loading_reports_warnings_and_shows_every_setting() {
    let environment = Environment::with([("FLEXFEED_LINKS", "x"), ("FLEXFEED_CAPTURE", "true")]);
    let loaded = TABLE
        .load::<Settings>(line(&[]), &environment, |_, _| ())
        .unwrap();
    let [warning] = loaded.warnings.as_slice() else {
        panic!("{:?}", loaded.warnings);
    };
    assert!(warning.contains("FLEXFEED_LINKS"), "{warning}");
    let text = TABLE.check_text(&loaded, "");
    let json = TABLE.check_json(&loaded, Default::default()).to_string();
    for setting in TABLE.settings() {
        assert!(text.contains(&setting.name), "{text}");
        assert!(json.contains(&format!("\"{}\"", setting.name)), "{json}");
    }
}

#[derive(Debug, Clone, Args)]
struct Feed {
    #[arg(long)]
    url: String,
}

#[derive(Debug, Clone, Args)]
struct Channel {
    #[arg(long)]
    name: String,
    #[arg(long)]
    private: bool,
    #[arg(long, value_parser = table::<Feed>)]
    feed: Vec<Feed>,
}

#[derive(Debug, Args)]
struct ChannelsSettings {
    #[arg(long)]
    config: Option<PathBuf>,
    #[arg(long, default_value = "7", value_parser = whole::<u32>(0..=99))]
    rate: u32,
    #[arg(long, value_name = "LIST")]
    group: Option<String>,
    #[arg(long, conflicts_with = "group")]
    no_group: Option<String>,
    #[arg(long, hide_env_values = true, env = "URL")]
    url: Option<String>,
    #[arg(long, num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = one_of(&[("1", 1_u32), ("off", 0), ("true", 2)]))]
    web: Option<u32>,
    #[arg(long)]
    channel: Option<String>,
    #[arg(long, hide = true, value_name = "channel", value_parser = table::<Channel>)]
    channels: Vec<Channel>,
}

const CHANNELS: Table = Table {
    empty: "group",
    ..Table::of::<ChannelsSettings>("FLEXFEED_", &[("channels", CHANNEL)])
};

const CHANNEL: Keys = Keys::of::<Channel>(&[("feed", Keys::of::<Feed>(&[]))]);

fn channels(layers: Layers, problems: Vec<Problem>) -> Result<ChannelsSettings, Vec<String>> {
    let loaded = CHANNELS.resolve::<ChannelsSettings>(given(layers, problems), |_, _| ());
    loaded
        .map(|loaded| loaded.settings)
        .map_err(|problems| problems.0)
}

#[test]
fn every_value_has_to_be_valid() {
    let variables = Environment::with([("FLEXFEED_RATE", "x"), ("FLEXFEED_GROUP", "")]);
    let (variables, problems) = CHANNELS.variables_layer(&variables);
    assert_eq!(problems, []);
    let (file, problems) = CHANNELS.text_layer(Path::new("f"), "group = [1, 2.5]\nrate = \"\"");
    assert_eq!(problems, []);
    let layers = Layers(vec![variables, file]);
    // An empty variable is a value of this setting.
    assert_eq!(said(&layers, "group").unwrap().0, "FLEXFEED_GROUP");
    let problems = channels(layers.clone(), Vec::new()).unwrap_err();
    let expected = [
        "f line 2: rate: \"\" is no whole number from 0 to 99",
        "FLEXFEED_RATE: \"x\" is no whole number from 0 to 99",
    ];
    assert_eq!(problems, expected);
    let (_, problems) = CHANNELS.text_layer(Path::new("f"), "channel = 1\n[[channel]]\n");
    assert_eq!(problems.len(), 1, "{problems:?}");
    let (_, problems) = CHANNELS.text_layer(Path::new("f"), "no-group = 1\nno_group = 2\n");
    assert!(
        texts(&problems)[0].contains("is given twice"),
        "{problems:?}"
    );
}

#[test]
fn of_two_that_exclude_each_other_the_stronger_place_counts() {
    let layer = |text: &str| CHANNELS.text_layer(Path::new("f"), text).0;
    let groups = |layers: Vec<Layer>| {
        let settings = channels(Layers(layers), Vec::new())?;
        Ok::<_, Vec<String>>((settings.group, settings.no_group))
    };
    let (a, b) = (|| layer("group = \"a\""), || layer("no_group = \"b\""));
    assert_eq!(groups(vec![a(), b()]), Ok((Some("a".to_owned()), None)));
    assert_eq!(groups(vec![b(), a()]), Ok((None, Some("b".to_owned()))));
    let both = groups(vec![layer("group = 1\nno_group = 2")]).unwrap_err();
    assert_eq!(
        both,
        [
            "f line 2: no_group: has no effect together with f line 1: group; leave one of them \
             out"
        ]
    );
}

#[test]
fn secrets_come_from_files_and_are_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let read = |variables: &[(&str, &str)]| {
        let environment = Environment::with(variables.to_vec());
        let given = CHANNELS.gather(Layer::default(), &environment);
        (given.layers, texts(&given.problems))
    };
    let path = file("secret", "hidden\r\n");
    for name in ["FLEXFEED_URL_FILE", "URL_FILE"] {
        let (layers, problems) = read(&[(name, &path), ("FLEXFEED_RATE_FILE", &path)]);
        assert_eq!(problems, Vec::<String>::new());
        let expected = (name.to_owned(), vec!["hidden".to_owned()]);
        assert_eq!(said(&layers, "url"), Some(expected));
        assert!(layers.given("rate").is_none(), "no secret");
        let shown = CHANNELS.shown(&layers);
        assert!(!format!("{shown:?}").contains("hidden"), "{shown:?}");
        assert!(!shown.iter().any(|shown| shown.name == "channels"));
    }
    for (path, what) in [
        (file("empty", " \n"), "is empty"),
        (file("long", &"x".repeat(70_000)), "is longer than"),
        ("/does/not/exist".to_owned(), "cannot read the secret in"),
    ] {
        let (_, problems) = read(&[("URL_FILE", &path)]);
        assert!(problems[0].starts_with("URL_FILE: "), "{problems:?}");
        assert!(problems[0].contains(what), "{problems:?}");
    }
    let (_, problems) = read(&[("URL_FILE", &path), ("URL", "x")]);
    assert!(
        problems[0].contains("both URL and URL_FILE are given"),
        "{problems:?}"
    );
}

#[test]
fn a_key_has_tables_besides_a_text_and_tables_have_tables() {
    let text = "\
web = true
[[channel]]
name = \"a\"
private = 1
[[channel.feed]]
url = \"u\"
[[channel.feed]]
urk = 1
";
    let (layer, problems) = CHANNELS.text_layer(Path::new("f"), text);
    assert!(!layer.0.contains_key("channel"));
    let problems = channels(Layers(vec![layer]), problems).unwrap_err();
    assert_eq!(
        problems,
        [
            "f line 4: private: takes true or false, not a TOML integer",
            "f line 7: feed: has no url",
            "f line 8: urk: there is no such setting; is url meant?",
        ]
    );
    let text = text
        .replace("private = 1", "private = true")
        .replace("urk", "url");
    let (layer, _) = CHANNELS.text_layer(Path::new("f"), &text);
    let settings = channels(Layers(vec![layer]), Vec::new()).unwrap();
    let urls: Vec<_> = settings.channels[0]
        .feed
        .iter()
        .map(|feed| feed.url.as_str())
        .collect();
    assert_eq!(urls, ["u", "1"]);
    assert!(settings.channels[0].private && settings.web == Some(2));
    let (layer, _) = CHANNELS.text_layer(Path::new("f"), "channel = \"a\"");
    assert_eq!(layer.text("channel").map(|(_, text)| text), Some("a"));

    let line = |words: &[&str]| {
        let options = || Command::new("x").args(CHANNELS.options(|_| true));
        let command = options().subcommand(options().name("y"));
        let matches = command.try_get_matches_from(std::iter::once(&"x").chain(words));
        CHANNELS.line_layer(&matches.unwrap())
    };
    // A command's own flags override those before it.
    let layer = line(&["--web", "--rate=1", "y", "--rate=2"]);
    assert_eq!(layer.text("web").map(|(_, text)| text), Some("1"));
    assert_eq!(layer.text("rate").map(|(_, text)| text), Some("2"));
    let layer = line(&["--web", "off"]);
    assert_eq!(layer.text("web").map(|(_, text)| text), Some("off"));
}
