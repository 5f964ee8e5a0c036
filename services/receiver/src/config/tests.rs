#![allow(clippy::unwrap_used, clippy::expect_used)]
use std::collections::BTreeMap;
use std::fs;

use service::logging::LogFormat;
use service::settings::{Form, Setting};

use super::*;
use crate::cli::PROGRAM;

mod documentation;
mod examples;

use examples::EXAMPLES;

const LINK: &str =
    "flexfeed://s3cret@h?pin=sha256:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8&ch=lore&ch=net";

/// Settings of a command line, an environment and a file.
struct Given {
    line: Vec<String>,
    environment: BTreeMap<String, String>,
    file: String,
    folder: tempfile::TempDir,
}

impl Given {
    fn nothing() -> Given {
        Given {
            line: vec!["flexfeed-receiver".into()],
            environment: BTreeMap::new(),
            file: String::new(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn file(text: &str) -> Given {
        Given {
            file: text.into(),
            ..Given::nothing()
        }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("receiver.toml")
    }

    fn load(&self) -> Result<Loaded, Problems> {
        fs::write(self.path(), &self.file).unwrap();
        let given = PROGRAM.command().try_get_matches_from(&self.line).unwrap();
        let line = TABLE.line_layer(&given);
        let mut environment = self.environment.clone();
        let path = self.path().display().to_string();
        environment.insert("FLEXFEED_CONFIG".into(), path);
        TABLE.load(line, &Environment::with(environment), complete)
    }

    fn settings(&self) -> Settings {
        self.load().unwrap().settings
    }

    fn problem(&self) -> String {
        self.load().unwrap_err().to_string()
    }

    /// An example of a setting as it is written: where it is a file, there is one.
    fn example(&self, setting: &Setting, number: usize) -> String {
        let examples = EXAMPLES.iter().find(|(name, _)| *name == setting.name);
        let text = examples.expect(&setting.name).1[number];
        match text.strip_prefix('@') {
            Some(content) => {
                let path = self.folder.path().join(format!("{}{number}", setting.name));
                fs::write(&path, content).unwrap();
                path.display().to_string()
            }
            None => text.to_owned(),
        }
    }

    fn on_line(&mut self, setting: &Setting, text: &str) {
        let flag = setting.arg.get_long().unwrap_or_default();
        match setting.form() {
            _ if setting.arg.is_positional() => self.line.push(text.into()),
            Form::Switch => self.line.push(format!("--{flag}={text}")),
            _ => self.line.extend([format!("--{flag}"), text.into()]),
        }
    }

    fn in_file(&mut self, setting: &Setting, text: &str) {
        let name = setting.name.as_str();
        let line = match (setting.form(), name) {
            (Form::Switch, _) => format!("{name} = {text}\n"),
            (_, "webhook") => format!("[[webhook]]\nurl = \"{text}\"\n"),
            (_, "exec") => format!("[[exec]]\ncommand = \"{text}\"\n"),
            _ => format!("{name} = \"{text}\"\n"),
        };
        self.file.push_str(&line);
    }
}

/// Returns the answers of `config check`.
fn checked(loaded: &Loaded) -> (String, serde_json::Value) {
    let (text, json) = check::hooks(loaded);
    let text = TABLE.check_text(loaded, &text);
    (text, TABLE.check_json(loaded, json))
}

/// Returns the effect of a setting, in a form that can be compared.
fn outcome(given: &Given, setting: &Setting) -> String {
    let mut settings = given.load().unwrap().settings;
    settings.config = None;
    match setting.name.as_str() {
        "link" | "link_file" => settings.link.to_secret_text(),
        "webhook_secret" | "webhook_secret_file" => {
            let secret = settings.outputs.webhook[0].secret.clone();
            String::from_utf8(secret.map_or(Vec::new(), |s| s.as_bytes().to_vec())).unwrap()
        }
        "ca_file" => match &settings.verify {
            Verify::CaFile(path) => fs::read_to_string(path).unwrap(),
            other => panic!("{other:?}"),
        },
        _ => format!("{settings:?}"),
    }
}

/// A setting, and what has to be there for it to have an effect.
fn with(setting: &Setting) -> Given {
    let mut given = Given::nothing();
    if !setting.name.starts_with("link") {
        let link = match setting.name.as_str() {
            "ca_file" => "flexfeed://s3cret@h?ch=lore",
            _ => LINK,
        };
        given
            .environment
            .insert("FLEXFEED_LINK".into(), link.into());
    }
    if setting.name.starts_with("webhook_secret") {
        let url = "https://hook.example/";
        given
            .environment
            .insert("FLEXFEED_WEBHOOK".into(), url.into());
    }
    given
}

/// Documented in docs/receiver.md: flags win over variables, variables over the file, and the file
/// over defaults, for each setting.
#[test]
fn flags_win_over_variables_and_variables_over_the_file() {
    for setting in TABLE.settings().iter().filter(|setting| setting.in_file()) {
        // What each of the three comes to alone.
        let [line, variable, file] = [0, 1, 2].map(|number| {
            let mut given = with(setting);
            let text = given.example(setting, number);
            given.in_file(setting, &text);
            outcome(&given, setting)
        });
        let name = &setting.name;
        assert!(
            line != variable && variable != file,
            "{name}: no test, {line}"
        );
        let mut given = with(setting);
        let (a, b, c) = (
            given.example(setting, 0),
            given.example(setting, 1),
            given.example(setting, 2),
        );
        given.in_file(setting, &c);
        assert_eq!(outcome(&given, setting), file, "{name} in the file");
        given.environment.insert(TABLE.variable(setting), b.clone());
        assert_eq!(outcome(&given, setting), variable, "{name} as a variable");
        if setting.on_line() {
            given.on_line(setting, &a);
            assert_eq!(outcome(&given, setting), line, "{name} as a flag");
            // An empty variable is none.
            given
                .environment
                .insert(TABLE.variable(setting), " ".into());
            assert_eq!(outcome(&given, setting), line, "{name} as a flag");
        }
        // A weaker one counts where a stronger one is silent, whatever defaults say.
        let mut given = with(setting);
        given.in_file(setting, &c);
        given
            .environment
            .insert(TABLE.variable(setting), " ".into());
        assert_eq!(outcome(&given, setting), file, "{name} in the file only");
    }
}

#[test]
fn defaults_apply_to_settings_that_are_not_given() {
    let mut given = Given::nothing();
    given.line.push(LINK.into());
    let settings = given.settings();
    assert_eq!(settings.data, Path::new("./flexfeed-receiver"));
    assert!(!settings.name.is_empty());
    let http = settings.http.unwrap();
    assert_eq!(
        (http.addr, http.explicit),
        ("127.0.0.1:8080".parse().unwrap(), false)
    );
    assert_eq!(settings.outputs.keep_entries, 500);
    assert_eq!(settings.outputs.file_interval, Duration::from_secs(5));
    assert!(settings.outputs.json && settings.network.multicast && settings.network.replicate);
    assert_eq!(settings.log.format, LogFormat::Text);
    assert_eq!(
        settings.journal,
        JournalSettings {
            updates: 10_000,
            bytes: 64 << 20
        }
    );
    assert!(settings.outputs.webhook.is_empty() && settings.outputs.exec.is_empty());
    assert!(matches!(settings.verify, Verify::Pins(pins) if pins.len() == 1));
}

#[test]
fn a_whole_file() {
    let mut given = Given::file(
        r#"
link-file = "link.txt"   # a hyphen is as good
data = "data"
http = ":8081"
keep_entries = 2_000
journal_updates = 5_000
no_multicast = true

[[webhook]]
url = "https://a.example/hook?x=y"
secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="
channels = ["net"]
timeout = "3s"
attempts = 0x10
max_age = "2h"

[[webhook]]
name = "second"
url = "http://[::1]:99/"
secret_file = "secret"

[[exec]]
command = "cat > /dev/null"
concurrency = 4
"#,
    );
    let folder = given.folder.path().to_owned();
    fs::write(
        folder.join("link.txt"),
        format!("# from the operator\n\n  {LINK}\n"),
    )
    .unwrap();
    fs::write(folder.join("secret"), "another secret of the file\n").unwrap();
    let settings = given.settings();
    // From the file's folder, wherever the program was started.
    assert_eq!(settings.data, folder.join("data"));
    assert_eq!(settings.link.channels, ["lore", "net"]);
    assert_eq!(settings.http.unwrap().addr, "[::]:8081".parse().unwrap());
    assert_eq!(settings.outputs.keep_entries, 2000);
    assert_eq!(settings.journal.updates, 5000);
    assert!(!settings.network.multicast);
    let [first, second] = &settings.outputs.webhook[..] else {
        panic!("{:?}", settings.outputs.webhook);
    };
    assert!(first.name().starts_with("a-example-"), "{first:?}");
    assert_eq!(
        first.secret.as_ref().unwrap().as_bytes(),
        b"0123456789abcdef"
    );
    assert_eq!(first.channels, ["net"]);
    assert_eq!(
        (first.timeout, first.attempts),
        (Duration::from_secs(3), 16)
    );
    assert_eq!(first.max_age, Duration::from_secs(7200));
    assert_eq!(second.name(), "second");
    assert_eq!(
        second.secret.as_ref().unwrap().as_bytes(),
        b"another secret of the file"
    );
    assert_eq!(
        (second.timeout, second.attempts),
        (Duration::from_secs(10), 20)
    );
    let exec = &settings.outputs.exec[0];
    assert_eq!((exec.concurrency, exec.attempts), (4, 3));
    assert!(exec.name().starts_with("exec-"));
    let loaded = given.load().unwrap();
    let text = checked(&loaded).0;
    assert!(text.contains("receiver.toml line 4: http"), "{text}");
    // Also defaults, and names derived from other settings.
    assert!(
        text.contains("log_format           text   (default)"),
        "{text}"
    );
    let names = [first.name(), second.name(), settings.outputs.exec[0].name()];
    for name in names {
        assert!(text.contains(&format!(" {name}: ")), "{name}: {text}");
    }
    for part in [
        "url https://a.example/…, signed true, channels net, timeout 3s, attempts 16, max_age 2h",
        "channels all, timeout 1m, attempts 3, concurrency 4",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = checked(&loaded).1;
    assert_eq!(json["hooks"][1]["name"], "second");
    assert_eq!(json["hooks"][2]["concurrency"], 4);
    let from = |hook: usize| json["hooks"][hook]["from"].as_str().unwrap();
    assert!(from(1).ends_with("line 17: webhook"), "{}", from(1));
    assert!(from(2).ends_with("line 22: exec"), "{}", from(2));
    assert_eq!(
        json["settings"].as_array().unwrap().len(),
        TABLE.settings().len()
    );
    let json = json.to_string();
    assert!(!json.contains("another secret") && !json.contains("s3cret"));
    // Defaults are not logged.
    let shown = format!("{settings:?} {text} {:?}", given.load().unwrap());
    assert!(
        !shown.contains("another secret") && !shown.contains("s3cret"),
        "{shown}"
    );

    // A stronger list takes the place of a weaker one.
    given
        .line
        .extend(["--webhook".into(), "https://b.example".into()]);
    let settings = given.settings();
    assert_eq!(settings.outputs.webhook.len(), 1);
    assert_eq!(settings.outputs.exec.len(), 1);
}

#[test]
fn a_mistake_in_the_file_is_named_with_its_line() {
    let cases = [
        (
            "\nintreface = \"x\"",
            "line 2: intreface: there is no such setting; is interface meant?",
        ),
        ("colour = 1", "line 1: colour: there is no such setting"),
        ("config = \"x\"", "cannot name another"),
        (
            "data = true",
            "line 1: data: takes a text in quotation marks or a number, not a TOML boolean",
        ),
        ("no_json = \"yes\"", "line 1: no_json: takes true or false"),
        (
            "keep_entries = 0",
            "line 1: keep_entries: \"0\" is no whole number from 1 to 10000",
        ),
        ("keep_entries = 10001", "from 1 to 10000"),
        (
            "journal_updates = true",
            "takes a text in quotation marks or a number",
        ),
        ("journal_updates = 99999999999999999999", "no whole number"),
        (
            "interface = \"eth0\"",
            "line 1: interface: \"eth0\" is no IP address",
        ),
        ("log_format = \"xml\"", "neither text nor json"),
        ("a = \n", "receiver.toml line 1"),
        ("data = \"a\"\ndata = \"b\"", "receiver.toml line 2"),
        ("webhook = \"https://h/\"", "begins with [[webhook]]"),
        (
            "\n\n[[webhook]]\nname = \"x\"",
            "line 3: webhook: has no url",
        ),
        (
            "[[webhook]]\nurl = \"x\"\nurls = 1",
            "line 3: urls: there is no such setting; is url meant?",
        ),
        (
            "[[webhook]]\nurl = \"ftp://h\"",
            "line 2: url: ftp://h/… is no URL that begins",
        ),
        (
            "[[webhook]]\nurl = \"http://h\"\ntimeout = 3",
            "line 3: timeout: \"3\" is no duration",
        ),
        (
            "[[webhook]]\nurl = \"http://h\"\ntimeout = \"3\"",
            "500ms, 10s",
        ),
        (
            "[[webhook]]\nurl = \"http://h\"\nchannels = [\"x\"]",
            "it has lore, net",
        ),
        ("[[webhook]]\nurl = \"http://h\"\nchannels = []", "is empty"),
        (
            "[[webhook]]\nurl = \"http://h\"\nsecret = \"short\"",
            "line 3: secret: a secret of less",
        ),
        (
            "[[webhook]]\nurl = \"http://h\"\nsecret_file = \"no\"",
            "cannot read the secret",
        ),
        (
            "[[webhook]]\nurl = \"http://h\"\n[[webhook]]\nurl = \"http://h\"",
            "a name of its own",
        ),
        (
            "[[exec]]\ncommand = \" \"",
            "line 2: command: (a command) is empty",
        ),
        (
            "[[exec]]\ncommand = \"a\"\nconcurrency = 1000",
            "no whole number from 1 to 256",
        ),
        (
            "[[exec]]\ncommand = \"a\"\nname = \"../x\"",
            "no name of 1 to 64",
        ),
    ];
    for (file, expected) in cases {
        let mut given = Given::file(file);
        given
            .environment
            .insert("FLEXFEED_LINK".into(), LINK.into());
        let problem = given.problem();
        assert!(problem.contains(expected), "{file}\n{problem}");
    }
    // All of them at once.
    let mut given = Given::file("data = true\nhttp = \"x\"\n");
    given
        .environment
        .insert("FLEXFEED_INTERFACE".into(), "y".into());
    let problem = given.problem();
    for part in [
        "line 1: data",
        "line 2: http",
        "FLEXFEED_INTERFACE: ",
        "enrolment link",
    ] {
        assert!(problem.contains(part), "{problem}");
    }
    // A file that is not there.
    let mut given = Given::nothing();
    given
        .line
        .extend(["--config".into(), "/does/not/exist".into()]);
    assert!(given.problem().contains("/does/not/exist"));
}

#[test]
fn secrets_are_in_no_message() {
    for (name, text) in [
        ("FLEXFEED_LINK", "flexfeed://s3cret@h?pin=x&ch=lore"),
        ("FLEXFEED_WEBHOOK_SECRET", "s3cret"),
        ("FLEXFEED_WEBHOOK_SECRET", "whsec_s3cret!"),
    ] {
        let mut given = Given::nothing();
        given
            .environment
            .insert("FLEXFEED_WEBHOOK".into(), "http://h/".into());
        given.environment.insert(name.into(), text.into());
        let problem = given.problem();
        assert!(!problem.contains("s3cret"), "{problem}");
        assert!(problem.contains(name), "{problem}");
    }
}

#[test]
fn two_ways_to_say_the_same_are_refused_and_a_stronger_one_counts() {
    let mut given = Given::nothing();
    let file = given.folder.path().join("link");
    fs::write(&file, LINK).unwrap();
    let file = file.display().to_string();
    given
        .environment
        .insert("FLEXFEED_LINK".into(), LINK.into());
    given
        .environment
        .insert("FLEXFEED_LINK_FILE".into(), file.clone());
    let problem = given.problem();
    assert!(
        problem.contains("both FLEXFEED_LINK and FLEXFEED_LINK_FILE"),
        "{problem}"
    );
    given.line.push("flexfeed://x@other?ch=a".into());
    assert_eq!(given.settings().link.host, "other");
    for (content, what) in [
        (&b""[..], "is empty"),
        (b"# nothing\n", "the link is empty"),
        (b"\xff", "valid UTF-8"),
        (&[b'x'; 70_000], "it is longer than"),
    ] {
        fs::write(&file, content).unwrap();
        given.line = vec![
            "flexfeed-receiver".into(),
            "--link-file".into(),
            file.clone(),
        ];
        let problem = given.problem();
        assert!(problem.starts_with("--link-file: "), "{problem}");
        assert!(problem.contains(what), "{problem}");
        assert!(!problem.contains('\n'), "{problem}");
    }
}

#[test]
fn the_source_is_authenticated_unless_verification_is_off() {
    let mut given = Given::nothing();
    given.line.push("flexfeed://t@h?ch=a".into());
    assert_eq!(given.settings().verify, Verify::Roots);
    given.line.push("--insecure".into());
    let loaded = given.load().unwrap();
    assert_eq!(loaded.settings.verify, Verify::Insecure);
    assert!(
        loaded.warnings[0].contains("NOT VERIFIED"),
        "{:?}",
        loaded.warnings
    );
    let mut given = Given::nothing();
    given.line = ["flexfeed-receiver", LINK, "--ca-file", "x"]
        .map(String::from)
        .into();
    assert!(given.problem().contains("the link has a pin"));
    let mut given = Given::nothing();
    let file = given.path().display().to_string();
    given.line = [
        "flexfeed-receiver",
        "flexfeed://t@h?ch=a",
        "--ca-file",
        &file,
    ]
    .map(String::from)
    .into();
    assert!(given.problem().contains("no certificate"));
    given.file = "# -----BEGIN CERTIFICATE-----".into();
    assert_eq!(given.settings().verify, Verify::CaFile(file.into()));
}

#[test]
fn variables_of_others_are_no_mistakes() {
    let environment = Environment::with([
        ("FLEXFEED_LINK", LINK),
        ("FLEXFEED_RELAY_UDP_PORTS", "1"),
        ("FLEXFEED_GATEWAY_FLOW", "x"),
        ("FLEXFEED_RELAY_SERVICE_HOST", "10.0.0.1"),
        ("FLEXFEED_SOURCE_PORT", "udp://10.0.0.1:4433"),
        ("FLEXFEED_RECEIVER_PORT", "4433"),
    ]);
    let loaded = TABLE
        .load(Layer::default(), &environment, complete)
        .unwrap();
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].contains("FLEXFEED_RECEIVER_PORT"));
}

/// A replacement would name another folder, with another receiver in it.
#[test]
fn a_variable_that_is_no_text_is_refused() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let environment = Environment::with([
        ("FLEXFEED_LINK", OsString::from(LINK)),
        ("FLEXFEED_DATA", OsString::from_vec(b"/data/\xe4".to_vec())),
    ]);
    let problems = TABLE
        .load(Layer::default(), &environment, complete)
        .unwrap_err();
    assert!(
        problems.to_string().contains("FLEXFEED_DATA: is not UTF-8"),
        "{problems}"
    );
    assert!(data_folder(Layer::default(), &environment).is_err());
}

/// Addresses of webhooks have secrets in their paths, commands anywhere.
#[test]
fn hooks_are_shown_without_possible_secrets() {
    let mut given = Given::nothing();
    given.line.push(LINK.into());
    let hooks = [
        "--webhook",
        "https://hooks.example/T0KEN?t0ken=T0KEN",
        "--exec",
        "mail -p T0KEN",
    ];
    given.line.extend(hooks.map(Into::into));
    let loaded = given.load().unwrap();
    let text = checked(&loaded).0;
    assert!(text.contains("https://hooks.example/…"), "{text}");
    assert!(text.contains("exec                 1 of them"), "{text}");
    let json = checked(&loaded).1.to_string();
    assert!(!format!("{text}{json}").contains("T0KEN"), "{text}{json}");

    for wrong in ["https://u:T0KEN@h.example/T0KEN", "ftp://h/T0KEN", "T0KEN"] {
        let mut given = Given::nothing();
        given.line.push(LINK.into());
        given.line.extend(["--webhook".into(), wrong.into()]);
        let problems = given.load().unwrap_err().to_string();
        assert!(problems.contains("--webhook"), "{problems}");
        assert!(!problems.contains("T0KEN"), "{problems}");
    }
}
