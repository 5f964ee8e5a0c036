//! The program from outside: messages and exit codes.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::program::{self, PATIENCE, Running, ends, receiver, text};

/// A valid link to a closed port.
const LINK: &str =
    "flexfeed://s3cret@127.0.0.1:9?pin=sha256:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8&ch=lore";

/// Waits until a receiver has written its status for the first time.
fn wait_for_status(data: &Path) {
    let end = Instant::now() + PATIENCE;
    while !data.join("status.json").exists() {
        assert!(Instant::now() < end, "there is never a status");
        // A test's own thread.
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn without_a_link_it_explains_itself() {
    for arguments in [&[][..], &["run"], &["--no-multicast"]] {
        let (code, text) = ends(&mut receiver(arguments));
        assert_eq!(code, Some(2), "{text}");
        for part in [
            "enrolment link",
            "flexfeed://TOKEN@host",
            "--link-file",
            "FLEXFEED_LINK",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
    }
}

#[test]
fn a_bad_link_is_explained() {
    let cases = [
        ("https://x", "does not begin with flexfeed://"),
        ("flexfeed://@h?ch=lore", "no token"),
        ("status", "has to come first"),
    ];
    for (link, reason) in cases {
        let (code, text) = ends(&mut receiver(&["--no-multicast", link]));
        assert_eq!(code, Some(2), "{text}");
        assert!(
            text.contains(reason) && text.contains("A link looks like"),
            "{text}"
        );
        let (code, text) = ends(receiver(&[]).env("FLEXFEED_LINK", link));
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(reason), "{text}");
    }
    // Two links: clap quotes what it did not expect.
    let (code, text) = ends(&mut receiver(&[LINK, LINK]));
    assert_eq!(code, Some(2), "{text}");
    let (code, text) = ends(&mut receiver(&["--link-file", "/does/not/exist"]));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("/does/not/exist"), "{text}");
    let (code, text) = ends(&mut receiver(&[LINK, "--log-level", "no=such=level"]));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("no=such=level"), "{text}");
}

#[test]
fn help_is_complete_and_shows_no_values_of_secrets() {
    let output = receiver(&["--help"])
        .env("FLEXFEED_LINK", LINK)
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("s3cret"), "{text}");
    for part in [
        "status",
        "--link-file",
        "--data",
        "--name",
        "--interface",
        "--no-multicast",
        "--delivery-log",
        "--log-format",
        "--log-level",
        "FLEXFEED_DATA",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let output = receiver(&["status", "--help"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("Exit codes"));
}

#[test]
fn a_folder_that_cannot_be_used_is_explained() {
    let outer = tempfile::tempdir().unwrap();
    // Root may write everywhere, but not into a file as if it were a folder.
    let file = outer.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (code, said) = ends(&mut receiver(&[LINK, "--data", text(&file)]));
    assert_eq!(code, Some(1), "{said}");
    for part in [text(&file), "uid ", "--data DIR"] {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

#[test]
fn a_receiver_runs_alone_on_its_folder_until_it_is_stopped() {
    let outer = tempfile::tempdir().unwrap();
    let data = outer.path().join("data");
    let data = text(&data);
    let (code, said) = ends(&mut receiver(&["status", "--data", data]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no receiver has run"), "{said}");

    let mut first = Running::start(
        receiver(&["run", "--name", "r1", "--data", data])
            .env("FLEXFEED_LINK", LINK)
            .env("FLEXFEED_TYPO", "1"),
    );
    first.wait_for("FLEXFEED_TYPO is no setting");
    first.wait_for("connects to 127.0.0.1:9");
    wait_for_status(Path::new(data));

    let (code, said) = ends(&mut receiver(&[LINK, "--data", data]));
    assert_eq!(code, Some(1), "{said}");
    let pid = format!("pid {}", first.id());
    assert!(said.contains(&pid) && said.contains(data), "{said}");

    let atom = std::fs::read_to_string(format!("{data}/lore.atom")).unwrap();
    assert!(atom.contains("http://www.w3.org/2005/Atom"), "{atom}");
    let output = receiver(&["status", "--data", data, "--json"])
        .output()
        .unwrap();
    // The receiver runs without a source.
    assert_eq!(output.status.code(), Some(1));

    first.signal(program::Signal::TERM);
    first.wait_for("SIGTERM");
    assert_eq!(first.exit_code(), Some(0));
    let output = receiver(&["status", "--data", data]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("r1 is NOT RUNNING"), "{shown}");

    // The folder is free again, and Ctrl-C does the same.
    let mut second = Running::start(&mut receiver(&[
        LINK,
        "--data",
        data,
        "--log-format",
        "json",
    ]));
    let line = second.wait_for("connects to");
    assert!(
        serde_json::from_str::<serde_json::Value>(&line).is_ok(),
        "{line}"
    );
    // As `timeout` does: to the program, and at once to its group.
    second.signal(program::Signal::INT);
    second.signal(program::Signal::INT);
    assert_eq!(second.exit_code(), Some(0));
}

#[test]
fn health_is_asked_of_the_receiver_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let http = kit::ports::free();
    let asked = |arguments: &[&str], http: &str| {
        let output = receiver(arguments).env("FLEXFEED_HTTP", http).output();
        let output = output.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, said) = asked(&["health"], &http.to_string());
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("flexfeed-receiver does not answer at"),
        "{said}"
    );
    let running = Running::start(
        receiver(&[LINK, "--data", text(folder.path())]).env("FLEXFEED_HTTP", http.to_string()),
    );
    running.wait_for("connects to");
    // Without a link: only where it answers counts. And as where it answers at all addresses.
    for http in [http.to_string(), format!(":{}", http.port())] {
        assert_eq!(asked(&["health"], &http), (Some(0), "alive\n".to_owned()));
    }
    // No source is there to connect to.
    let (code, said) = asked(&["health", "--ready"], &http.to_string());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("reasons"), "{said}");
    let (code, said) = asked(&["health"], "off");
    assert_eq!(code, Some(1));
    assert!(said.contains("--http ADDRESS:PORT"), "{said}");
}

#[test]
fn a_killed_receiver_is_seen_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path());
    let mut first = Running::start(&mut receiver(&[LINK, "--data", data]));
    wait_for_status(folder.path());
    first.signal(program::Signal::KILL);
    assert_eq!(first.exit_code(), None);
    let output = receiver(&["status", "--data", data]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("NOT RUNNING"), "{shown}");
    let again = Running::start(&mut receiver(&[LINK, "--data", data]));
    again.wait_for("connects to");
}

#[test]
fn a_damaged_cursor_is_reported_and_does_not_stop_the_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("lore.json"), "{\"version\":1,").unwrap();
    let running = Running::start(&mut receiver(&[LINK, "--data", text(folder.path())]));
    running.wait_for("cursor file is damaged");
    running.wait_for("connects to");
}

/// Faults are injected only where their feature was built in.
#[test]
fn faults_need_their_feature() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(
        receiver(&[LINK, "--data", text(folder.path())]).env("FLEXFEED_FAULTS", "cursor-first"),
    );
    if cfg!(feature = "fault-injection") {
        running.wait_for("faults are injected");
    } else {
        running.wait_for("FLEXFEED_FAULTS is no setting");
    }
}

#[test]
fn systemd_is_notified_of_the_status() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut running = Running::start(
        receiver(&[
            LINK,
            "--data",
            text(&folder.path().join("data")),
            "--http",
            "off",
        ])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "600000"),
    );
    let hear = |wanted: &str| {
        let mut buffer = [0; 4096];
        loop {
            let length = socket.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if text.lines().any(|line| line.starts_with(wanted)) {
                return text;
            }
        }
    };
    // Ready without a source; the connection failure may be known by then.
    let ready = hear("READY=1");
    let trouble = if ready.contains("STATUS=cannot connect") {
        ready
    } else {
        assert!(
            ready.contains("STATUS=connecting to 127.0.0.1:9"),
            "{ready}"
        );
        hear("WATCHDOG=1");
        hear("STATUS=cannot connect")
    };
    assert!(trouble.contains("127.0.0.1:9"), "{trouble}");
    hear("WATCHDOG=1");
    running.signal(program::Signal::TERM);
    hear("STOPPING=1");
    assert_eq!(running.exit_code(), Some(0));
}

#[test]
fn settings_are_checked_and_shown_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("receiver.toml");
    std::fs::write(
        &file,
        "data = \"data\"\n[[webhook]]\nurl = \"https://hook.example/\"\nsecret = \"s3cret s3cret \
         s3cret\"\n",
    )
    .unwrap();
    let mut command = receiver(&["config", "check", "--config", text(&file), "--no-json"]);
    let output = command.env("FLEXFEED_LINK", LINK).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let shown = String::from_utf8(output.stdout).unwrap();
    for part in [
        "fine",
        "receiver.toml line 1: data",
        "FLEXFEED_LINK",
        "--no-json",
        "webhook",
    ] {
        assert!(shown.contains(part), "{part:?} is not in:\n{shown}");
    }
    assert!(!shown.contains("s3cret"), "{shown}");
    let output = command.arg("--json").output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["ok"], true);
    assert!(!value.to_string().contains("s3cret"), "{value}");
    // Nothing was made by looking.
    assert!(!folder.path().join("data").exists());

    std::fs::write(&file, "date = \"data\"\n").unwrap();
    let (code, said) = ends(receiver(&["config", "check", LINK]).env("FLEXFEED_CONFIG", &file));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("receiver.toml line 1: date") && said.contains("is data meant?"),
        "{said}"
    );
    let (code, said) = ends(receiver(&[LINK]).env("FLEXFEED_CONFIG", &file));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("line 1: date"), "{said}");
}
