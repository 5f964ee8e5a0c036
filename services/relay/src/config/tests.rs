//! Precedence, parsing, and messages.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use service::settings::{Environment, Form, Layer, Layers, Loaded, Problems};

use super::*;
use crate::cli::PROGRAM;

/// Acceptable values of every setting but the one that names the file: for its flag, its variable
/// and its key.
const EXAMPLES: &[(&str, [&str; 3])] = &[
    (
        "listen",
        ["127.0.0.1:2268", "[::1]:2268", "127.0.0.1:3000,[::1]:3000"],
    ),
    ("native_interface", ["eth0", "192.0.2.1", "2001:db8::1"]),
    ("udp_ports", ["4434", "5000,5001", "1234"]),
    ("capture", ["true", "false", "true"]),
    (
        "advertise",
        ["192.0.2.1", "2001:db8::1", "192.0.2.1,2001:db8::1"],
    ),
    ("max_gateways", ["1", "20", "300"]),
    ("max_groups_per_gateway", ["1", "20", "300"]),
    ("max_groups", ["1", "20", "300"]),
    ("requests_per_second_per_address", ["1", "20", "300"]),
    (
        "allow",
        ["192.0.2.0/24", "2001:db8::/32", "192.0.2.1,10.0.0.0/8"],
    ),
    (
        "deny",
        ["192.0.2.0/24", "2001:db8::/32", "192.0.2.1,10.0.0.0/8"],
    ),
    ("query_interval", ["5", "90s", "2m"]),
    (
        "gateway_address_in_query",
        ["off", "always", "until-unanswered"],
    ),
    ("mtu", ["1280", "1400", "9000"]),
    ("drain_time", ["1s", "5s", "10m"]),
    ("http", ["127.0.0.1:1", "[::1]:2", "off"]),
    ("log_format", ["text", "json", "text"]),
    ("log_level", ["a", "b", "c"]),
];

fn line(arguments: &[&str]) -> Layer {
    let all = std::iter::once(&"flexfeed-relay").chain(arguments);
    let given = PROGRAM.command().try_get_matches_from(all).unwrap();
    TABLE.line_layer(&given)
}

fn loaded(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Loaded<Settings>, Problems> {
    let environment = Environment::with(variables.to_vec());
    TABLE.load(line(arguments), &environment, check)
}

fn settings(arguments: &[&str]) -> Settings {
    loaded(arguments, &[]).unwrap().settings
}

#[test]
fn without_a_word_it_relays_a_sources_flow_beside_it() {
    let settings = settings(&[]);
    assert_eq!(settings.listen, ["[::]:2268".parse().unwrap()]);
    assert_eq!(settings.receive(), Receive::Ports(vec![4434]));
    assert_eq!(settings.relay().query_interval, Duration::from_secs(125));
    assert_eq!(
        settings.http.map(|http| http.addr.to_string()).as_deref(),
        Some("127.0.0.1:8091")
    );
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
        let path = folder.path().join("relay.toml");
        std::fs::write(&path, format!("{} = {toml}\n", setting.name)).unwrap();
        let path = path.to_str().unwrap();
        let variable = TABLE.variable(setting);
        let flag = format!("--{}={by_flag}", setting.arg.get_long().unwrap_or_default());
        let file = format!("--config={path}");
        let winner = |arguments: &[&str], variables: &[(&str, &str)]| {
            let loaded = loaded(arguments, variables).unwrap();
            let given = loaded.layers.given(&setting.name).unwrap();
            (given.origin.to_string(), given.texts.join(","))
        };
        let (origin, text) = winner(&[&flag, &file], &[(&variable, by_variable)]);
        let flag = format!("--{}", setting.arg.get_long().unwrap_or_default());
        assert_eq!((origin, text.as_str()), (flag, by_flag));
        let (origin, text) = winner(&[&file], &[(&variable, by_variable)]);
        assert_eq!((origin, text.as_str()), (variable, by_variable));
        let (origin, text) = winner(&[&file], &[]);
        assert_eq!(origin, format!("{path} line 1: {}", setting.name));
        assert_eq!(text, by_file);
    }
}

#[test]
fn lists_are_given_in_many_ways() {
    let ports = |arguments: &[&str]| match settings(arguments).receive() {
        Receive::Ports(ports) => ports,
        Receive::Capture => panic!(),
    };
    assert_eq!(ports(&["--udp-ports", "2,1"]), [1, 2]);
    assert_eq!(ports(&["--udp-ports", "1", "--udp-ports", "2,2"]), [1, 2]);
    let (layer, problems) = TABLE.text_layer(Path::new("x"), "udp_ports = [1, 2, \"3,4\"]");
    assert!(problems.is_empty(), "{problems:?}");
    let layers = Layers(vec![layer]);
    assert_eq!(
        layers.given("udp_ports").unwrap().texts,
        ["1", "2", "3", "4"]
    );
    let relay = settings(&["--allow", "10.0.0.0/8,2001:db8::/32", "--deny=10.1.2.3"]).relay();
    assert_eq!((relay.allow.len(), relay.deny.len()), (2, 1));
    assert_eq!(
        settings(&["--listen", "127.0.0.1:1", "--listen=:2"]).listen,
        ["127.0.0.1:1".parse().unwrap(), "[::]:2".parse().unwrap()]
    );
}

#[test]
fn problems_name_their_place() {
    for (arguments, text) in [
        (
            &["--udp-ports", "0"][..],
            "--udp-ports: \"0\" is no whole number from 1 to 65535",
        ),
        (
            &["--listen", "localhost"],
            "--listen: \"localhost\" is no address",
        ),
        (&["--allow", "x"], "--allow: \"x\" is no address or block"),
        (
            &["--query-interval", "0"],
            "--query-interval: \"0\" is not within 1s and 31744s",
        ),
        (&["--query-interval", "10h"], "is not within 1s and 31744s"),
        (
            &["--mtu", "100"],
            "--mtu: \"100\" is no whole number from 576",
        ),
        (&["--max-gateways", "0"], "is no whole number from 1 to"),
        (
            &["--capture", "--udp-ports", "1"],
            "has no effect together with capture",
        ),
        (
            &["--advertise", "192.0.2.1,192.0.2.2"],
            "two addresses of one family",
        ),
        (&["--advertise", "224.0.0.1"], "is no IP address of a host"),
        (&["--gateway-address-in-query", "x"], "is neither off nor"),
        (
            &["--native-interface", "a/b"],
            "is neither an interface's name",
        ),
    ] {
        let problems = loaded(arguments, &[]).unwrap_err().to_string();
        assert!(problems.contains(text), "{problems}");
    }
    let (_, problems) = TABLE.text_layer(Path::new("f.toml"), "mtu = true\nudp_prts = 1\n");
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "f.toml line 1: mtu: takes a text in quotation marks or a number, not a TOML boolean",
            "f.toml line 2: udp_prts: there is no such setting; is udp_ports meant?"
        ]
    );
}
