//! `status --watch` in a real terminal.

use std::process::Command;

use crate::program::{self, Running, receiver, text};
use crate::terminal::Terminal;

/// A valid link to a closed port.
const LINK: &str = "flexfeed://s3cret@127.0.0.1:9?\
    pin=sha256:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8&ch=lore&ch=net";

fn run(data: &str) -> Running {
    let mut command = receiver(&["--name", "r1", "--data", data, "--http", "off"]);
    Running::start(command.env("FLEXFEED_LINK", LINK))
}

fn watch(data: &str) -> Command {
    receiver(&["status", "--watch", "--data", data])
}

/// The terminal is as it was before.
fn is_left_alone(terminal: &mut Terminal) {
    assert_eq!(terminal.exit_code(), Some(0));
    terminal.until("the first screen is back", |screen| {
        !screen.alternate && screen.cursor_shown
    });
    assert!(terminal.is_ordinary());
}

#[test]
fn a_receiver_is_seen_to_come_to_end_and_to_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data = text(&data);
    let mut terminal = Terminal::start(&watch(data), 80, 24);
    let said = terminal.until("no receiver yet", |screen| {
        let text = screen.text();
        text.contains("no receiver has run") && text.contains("q quit")
    });
    assert!(said.contains("q quit"), "{said}");
    assert!(!terminal.is_ordinary());

    let mut first = run(data);
    // The picture comes in pieces.
    let shown = terminal.until("the receiver", |screen| {
        let text = screen.text();
        let parts = ["NOT CONNECTED to 127.0.0.1:9", "CHANNEL", "lore", "net"];
        let mut parts = parts.iter().chain(&["unicast", "LAST MOVES"]);
        parts.all(|part| text.contains(part)) && screen.rows()[23].starts_with("q quit")
    });
    let rows: Vec<&str> = shown.lines().collect();
    assert_eq!(rows.len(), 24);
    assert!(rows[0].starts_with("r1  pid "), "{shown}");

    // Narrow: less, but in order.
    terminal.resize(40, 10);
    let narrow = terminal.until("a narrow screen", |screen| {
        screen.rows()[9].starts_with("q quit") && screen.text().contains("lore")
    });
    assert!(!narrow.contains("P99"), "{narrow}");
    terminal.resize(80, 24);
    terminal.until("the wide screen again", |screen| {
        screen.text().contains("P99 MS") && screen.rows()[23].starts_with("q quit")
    });
    // Down: the first channel goes out of the table.
    terminal.press(b"\x1b[B");
    terminal.until("scrolled", |screen| {
        !screen.rows().iter().any(|row| row.starts_with("lore "))
    });
    terminal.press(b"\x1b[A");
    terminal.until("scrolled back", |screen| {
        screen.rows().iter().any(|row| row.starts_with("lore "))
    });

    first.signal(program::Signal::KILL);
    first.exit_code();
    terminal.until("its end", |screen| screen.text().contains("NOT RUNNING"));
    let pid = first.id();
    let _second = run(data);
    terminal.until("another one", |screen| {
        let text = screen.text();
        text.contains(&format!("restarted: process {pid}")) && text.contains("NOT CONNECTED")
    });
    assert!(
        terminal
            .until("colours", |screen| screen.coloured)
            .contains("r1")
    );
    terminal.press(b"q");
    is_left_alone(&mut terminal);
}

#[test]
fn without_colours_where_they_are_not_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path());
    let _receiver = run(data);
    let mut terminal = Terminal::start(watch(data).env("NO_COLOR", "1"), 80, 24);
    terminal.until("the receiver", |screen| {
        screen.text().contains("NOT CONNECTED")
    });
    // Ctrl-C.
    terminal.press(b"\x03");
    is_left_alone(&mut terminal);
    terminal.until("no colour", |screen| !screen.coloured);
}

#[test]
fn a_signal_leaves_the_terminal_in_order_too() {
    let folder = tempfile::tempdir().unwrap();
    for signal in ["-TERM", "-INT", "-HUP"] {
        let mut terminal = Terminal::start(&watch(text(folder.path())), 80, 24);
        terminal.until("it is there", |screen| screen.text().contains("q quit"));
        let pid = terminal.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .unwrap()
                .success()
        );
        is_left_alone(&mut terminal);
    }
}

#[test]
fn watch_needs_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let (code, said) = program::ends(&mut watch(text(folder.path())));
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("needs a terminal") && said.contains("--json"),
        "{said}"
    );
}
