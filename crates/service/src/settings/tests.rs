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
    Key {
        name: "url",
        form: KeyForm::Text,
        default: "",
        help: "",
    },
    Key {
        name: "secret_file",
        form: KeyForm::Path,
        default: "",
        help: "",
    },
    Key {
        name: "channels",
        form: KeyForm::Texts,
        default: "",
        help: "",
    },
];

const TABLE: Table = Table {
    prefix: "FLEXFEED_",
    other_variables: &["FLEXFEED_FAULTS"],
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
    assert_eq!(problems, Vec::<String>::new());
    layers
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
    let mut taker = Taker::new(&layers, Vec::new());
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
    let mut taker = Taker::new(&layers, Vec::new());
    assert!(!taker.is_on("capture"));
    // What everybody would see who lists processes has no flag.
    let command = Command::new("x").args(TABLE.options());
    assert!(command.try_get_matches_from(["x", "--secret=x"]).is_err());
    assert_eq!(TABLE.options_of(&["data", "secret"]).count(), 1);
    TABLE.config_command("run").debug_assert();
}

#[test]
fn what_is_wrong_is_named_with_where_it_stands() {
    let text = "\
udp_prts = 1
capture = \"yes\"
config = \"x\"
data = 5
[[hook]]
url = \"u\"
secret_file = \"s\"
channels = \"c\"
[[hook]]
ulr = \"u\"
";
    let (layer, problems) = TABLE.text_layer(Path::new("/etc/f.toml"), text);
    assert_eq!(
        problems,
        [
            "/etc/f.toml line 2: capture: takes true or false, not a TOML string",
            "/etc/f.toml line 3: config: a file cannot name another one",
            "/etc/f.toml line 4: data: takes a text in quotation marks, not a TOML integer",
            "/etc/f.toml line 8: channels: takes a list of texts in quotation marks, not a TOML \
             string",
            "/etc/f.toml line 10: ulr: there is no such setting; is url meant?",
            "/etc/f.toml line 1: udp_prts: there is no such setting; is udp_ports meant?",
        ]
    );
    let Some(Value::Sections(hooks)) = layer.0.get("hook").map(|given| &given.value) else {
        panic!("{layer:?}");
    };
    let (_, file) = &hooks[0].keys["secret_file"];
    assert_eq!((hooks.len(), file), (2, &vec!["/etc/s".to_owned()]));
    assert_eq!(hooks[1].origin.to_string(), "/etc/f.toml line 9: hook");
    let (_, problems) = TABLE.text_layer(Path::new("f"), "hook = \"u\"");
    assert!(problems[0].contains("begins with [[hook]]"), "{problems:?}");
    let (_, problems) = TABLE.text_layer(Path::new("f"), "\na = \n");
    assert!(problems[0].starts_with("f line 2: "), "{problems:?}");
    let (_, problems) = TABLE.file_layer(Path::new("/does/not/exist"));
    assert!(problems[0].contains("cannot read the settings in /does/not/exist"));

    let layers = gathered(&["--udp-ports=x"], &[]);
    let mut taker = Taker::new(&layers, Vec::new());
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
        problems,
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
