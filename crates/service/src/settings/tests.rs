//! Precedence, parsing, and messages. The programs' own tests go through all of their settings.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use clap::Command;

use super::table::hidden;
use super::*;
use crate::setting;

const HOOK_KEYS: &[Key] = &[
    Key::new("url", Form::Text, "", ""),
    Key::new("secret_file", Form::Path, "", ""),
    Key::new("channels", Form::List, "", ""),
];

const TABLE: Table = Table {
    prefix: "FLEXFEED_",
    other_variables: &["FLEXFEED_FAULTS"],
    strict: false,
    settings: &[
        setting!("config", "", "").path().not_in_file(),
        setting!("link", "LINK", "").argument().shown(hidden),
        setting!("data", "", "")
            .path()
            .default("./x")
            .general_variable("DATA"),
        setting!("udp_ports", "", "").list().alias("ports"),
        setting!("capture", "", "").switch(),
        setting!("hook", "", "").sections(HOOK_KEYS).words(),
        setting!("secret", "", "").not_as_flag(),
    ],
};

fn line(words: &[&str]) -> Layer {
    let command = Command::new("x").args(TABLE.options());
    let matches = command.try_get_matches_from(std::iter::once(&"x").chain(words));
    TABLE.line_layer(&matches.unwrap())
}

fn gathered(words: &[&str], variables: &[(&str, &str)]) -> Layers {
    let (layers, problems) = TABLE.gather(line(words), &Environment::with(variables.to_vec()));
    assert_eq!(problems, Vec::<Problem>::new());
    layers
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

fn said(layers: &Layers, name: &str) -> Option<(String, Vec<String>)> {
    let given = layers.given(name)?;
    Some((given.origin.to_string(), given.texts().to_vec()))
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
    assert_eq!(
        data(&[], &[("FLEXFEED_DATA", ""), general]),
        of("DATA", "general")
    );
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
    let mut taker = Taker::new(&TABLE, &layers, Vec::new());
    let ports = taker.list("udp_ports", |text| {
        text.parse::<u16>().map_err(|e| e.to_string())
    });
    assert_eq!(taker.finish(ports), Ok(Some(vec![1, 2])));
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
    assert_eq!(texts("udp_ports"), ["1,2", "3"]);
    assert_eq!(texts("capture"), ["true"]);
    assert_eq!(texts("hook"), ["a b", "c"]);
    assert_eq!(
        said(&layers, "link"),
        Some(("LINK".into(), vec!["l".into()]))
    );
    let layers = gathered(&["--capture=no"], &[("FLEXFEED_HOOK", " a  b ")]);
    assert_eq!(said(&layers, "hook").unwrap().1, ["a", "b"]);
    let mut taker = Taker::new(&TABLE, &layers, Vec::new());
    assert!(!taker.is_on("capture"));
    // A secret has no flag, which would be visible in the list of processes.
    let command = Command::new("x").args(TABLE.options());
    assert!(command.try_get_matches_from(["x", "--secret=x"]).is_err());
    assert_eq!(TABLE.options_of(&["data", "secret"]).count(), 1);
    TABLE.config_command("run").debug_assert();
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
    let (layer, problems) = TABLE.text_layer(Path::new("/etc/f.toml"), text);
    let layers = Layers(vec![layer.clone()]);
    let Problems(problems) = Taker::new(&TABLE, &layers, problems)
        .finish(())
        .unwrap_err();
    assert_eq!(
        problems,
        [
            "/etc/f.toml line 1: udp_prts: there is no such setting; is udp_ports meant?",
            "/etc/f.toml line 2: capture: takes true or false, not a TOML string",
            "/etc/f.toml line 3: config: a file cannot name another one",
            "/etc/f.toml line 4: data: takes a text in quotation marks or a number, not a TOML \
             boolean",
            "/etc/f.toml line 8: channels: takes a list of texts or numbers, or one of them, not a \
             TOML boolean",
            "/etc/f.toml line 10: ulr: there is no such setting; is url meant?",
        ]
    );
    let Some(Value::Sections(hooks)) = layer.0.get("hook").map(|given| &given.value) else {
        panic!("{layer:?}");
    };
    let (_, file) = hooks[0].text("secret_file").unwrap();
    assert_eq!((hooks.len(), file.as_str()), (2, "/etc/s"));
    assert_eq!(hooks[1].origin.to_string(), "/etc/f.toml line 9: hook");
    let (_, problems) = TABLE.text_layer(Path::new("f"), "hook = \"u\"");
    let problems = texts(&problems);
    assert!(problems[0].contains("begins with [[hook]]"), "{problems:?}");
    let (_, problems) = TABLE.text_layer(Path::new("f"), "\na = \n");
    let problems = texts(&problems);
    assert!(problems[0].starts_with("f line 2: "), "{problems:?}");
    let (_, problems) = TABLE.file_layer(Path::new("/does/not/exist"));
    let problems = texts(&problems);
    assert!(problems[0].contains("cannot read the settings in /does/not/exist"));

    let layers = gathered(&["--udp-ports=x"], &[]);
    let mut taker = Taker::new(&TABLE, &layers, Vec::new());
    let wrong = |_: &str| Err::<u16, _>("is no port".to_owned());
    assert_eq!(taker.list("udp_ports", wrong), None);
    let Problems(problems) = taker.finish(()).unwrap_err();
    assert_eq!(problems, ["--udp-ports: \"x\" is no port"]);
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
    assert_eq!(
        TABLE.unknown_variables(&environment),
        ["FLEXFEED_", "FLEXFEED_LINKS (is FLEXFEED_LINK meant?)"]
    );
    assert!(TABLE.warnings(&environment)[0].contains("FLEXFEED_ is no setting"));
}

#[test]
fn a_check_shows_every_setting_and_no_secret() {
    let layers = gathered(&["--udp-ports=1", "--udp-ports=2", "s3cret"], &[]);
    let shown = TABLE.shown(&layers);
    let text = check::text(&shown, "\nmore\n", &["w".to_owned()]);
    for part in [
        "  udp_ports  1,2   (--udp-ports)\n",
        "  link       (secret)   (LINK)\n",
        "  data       ./x   (default)\n",
        "  secret     -   (default)\n",
        "\nmore\n\nWarning: w\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let json = check::as_json(&shown, &[]);
    assert_eq!(
        json["settings"].as_array().unwrap().len(),
        TABLE.settings.len()
    );
    assert!(!format!("{text}{json}{layers:?}").contains("s3cret"));
}

#[test]
fn loading_reports_warnings_and_shows_every_setting() {
    let environment = Environment::with([("FLEXFEED_LINKS", "x"), ("FLEXFEED_CAPTURE", "true")]);
    let loaded = TABLE.load(line(&[]), &environment, |_| ()).unwrap();
    let [warning] = loaded.warnings.as_slice() else {
        panic!("{:?}", loaded.warnings);
    };
    assert!(warning.contains("FLEXFEED_LINKS"), "{warning}");
    let text = TABLE.check_text(&loaded);
    let json = TABLE.check_json(&loaded).to_string();
    for setting in TABLE.settings {
        assert!(text.contains(setting.name), "{text}");
        assert!(json.contains(&format!("\"{}\"", setting.name)), "{json}");
    }
}

const FEED_KEYS: &[Key] = &[Key::new("url", Form::Text, "", "")];

const CHANNEL_KEYS: &[Key] = &[
    Key::new("name", Form::Text, "", ""),
    Key::new("private", Form::Switch, "", ""),
    Key::new("feed", Form::Sections(FEED_KEYS), "", ""),
];

const STRICT: Table = Table {
    strict: true,
    settings: &[
        Setting::CONFIG,
        setting!("rate", "", "").default("7"),
        setting!("group", "", "").list().or_empty(),
        setting!("url", "", "").secret().general_variable("URL"),
        setting!("web", "", "").optional("1"),
        setting!("channel", "", ""),
        setting!("channels", "", "").tables("channel", CHANNEL_KEYS),
    ],
    ..TABLE
};

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "is no number".to_owned())
}

#[test]
fn a_strict_table_wants_every_value_valid() {
    let variables = Environment::with([("FLEXFEED_RATE", "x"), ("FLEXFEED_GROUP", "")]);
    let (variables, problems) = STRICT.variables_layer(&variables);
    assert_eq!(problems, []);
    let (file, problems) = STRICT.text_layer(Path::new("f"), "group = [1, 2.5]\nrate = \"\"");
    assert_eq!(problems, []);
    let layers = Layers(vec![variables, file]);
    // An empty variable is a value of this setting.
    assert_eq!(said(&layers, "group").unwrap().0, "FLEXFEED_GROUP");
    assert_eq!((layers.stronger("group"), layers.stronger("web")), (0, 2));
    let mut taker = Taker::new(&STRICT, &layers, Vec::new());
    // The default, for neither of the others is valid.
    assert_eq!(taker.or_default("rate", quoting(number)), Some(7));
    let Problems(problems) = taker.finish(()).unwrap_err();
    let expected = [
        "f line 2: rate: \"\" is no number",
        "FLEXFEED_RATE: \"x\" is no number",
    ];
    assert_eq!(problems, expected);
    let (_, problems) = STRICT.text_layer(Path::new("f"), "channel = 1\n[[channel]]\n");
    assert_eq!(problems.len(), 1, "{problems:?}");
    // Other tables take the strongest value without a look at the rest.
    let mut taker = Taker::new(&TABLE, &layers, Vec::new());
    assert_eq!(taker.value("rate", number), None);
    let Problems(problems) = taker.finish(()).unwrap_err();
    assert_eq!(problems, expected[1..]);
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
        let (layer, problems) = STRICT.variables_layer(&Environment::with(variables.to_vec()));
        (Layers(vec![layer]), texts(&problems))
    };
    let path = file("secret", "hidden\r\n");
    for name in ["FLEXFEED_URL_FILE", "URL_FILE"] {
        let (layers, problems) = read(&[(name, &path), ("FLEXFEED_RATE_FILE", &path)]);
        assert_eq!(problems, Vec::<String>::new());
        let expected = (name.to_owned(), vec!["hidden".to_owned()]);
        assert_eq!(said(&layers, "url"), Some(expected));
        assert!(layers.given("rate").is_none(), "no secret");
        let shown = STRICT.shown(&layers);
        assert!(!format!("{shown:?}").contains("hidden"), "{shown:?}");
        assert!(!shown.iter().any(|shown| shown.name == "channels"));
    }
    for (path, what) in [
        (file("empty", " \n"), "is empty"),
        (file("long", &"x".repeat(70_000)), "is longer than"),
        ("/does/not/exist".to_owned(), "cannot be read"),
    ] {
        let (_, problems) = read(&[("URL_FILE", &path)]);
        assert!(problems[0].starts_with("URL_FILE: "), "{problems:?}");
        assert!(problems[0].contains(what), "{problems:?}");
    }
    let (_, problems) = read(&[("URL_FILE", &path), ("URL", "x")]);
    assert!(
        problems[0].contains("URL_FILE is set as well"),
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
    let (layer, problems) = STRICT.text_layer(Path::new("f"), text);
    assert_eq!(
        texts(&problems),
        [
            "f line 8: urk: there is no such setting; is url meant?",
            "f line 4: private: takes true or false, not a TOML integer",
        ]
    );
    assert!(!layer.0.contains_key("channel"));
    let channels = layer.0["channels"].sections();
    let feeds = channels[0].sections("feed");
    let layers = Layers(vec![layer.clone()]);
    let mut taker = Taker::new(&STRICT, &layers, Vec::new());
    assert_eq!(
        taker.key(&feeds[0], "url", |t| Ok(t.to_owned())),
        Some("u".into())
    );
    taker.require(&feeds[1], "url");
    let Problems(problems) = taker.finish(()).unwrap_err();
    assert_eq!(problems, ["f line 7: feed: has no url"]);
    let (layer, _) = STRICT.text_layer(Path::new("f"), "channel = \"a\"");
    assert_eq!(layer.text("channel").map(|(_, text)| text), Some("a"));

    let line = |words: &[&str]| {
        let options = || Command::new("x").args(STRICT.options());
        let command = options().subcommand(options().name("y"));
        let matches = command.try_get_matches_from(std::iter::once(&"x").chain(words));
        STRICT.line_layer(&matches.unwrap())
    };
    // A command's own flags override those before it.
    let layer = line(&["--web", "--rate=1", "y", "--rate=2"]);
    assert_eq!(layer.text("web").map(|(_, text)| text), Some("1"));
    assert_eq!(layer.text("rate").map(|(_, text)| text), Some("2"));
    let layer = line(&["--web", "off"]);
    assert_eq!(layer.text("web").map(|(_, text)| text), Some("off"));
}
