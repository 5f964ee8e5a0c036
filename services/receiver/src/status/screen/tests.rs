#![allow(clippy::unwrap_used)]
use std::path::Path;

use jiff::tz::TimeZone;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::widgets::Paragraph;
use uuid::Uuid;

use flexicast::receiver::MessageCounters;

use super::super::model::tests::reception;
use super::super::model::{Latency, Move, Paths};
use super::*;

/// 2025-09-05T12:00:00Z.
const NOW: u64 = 1_757_073_600_000;

fn channel(name: &str) -> Channel {
    Channel {
        channel: name.into(),
        incarnation: Some(Uuid::from_u128(2)),
        rung: "multicast".into(),
        rung_since_ms: NOW - 240_000,
        relay: None,
        relay_detail: None,
        cursor: 1230,
        head: 1234,
        updates: 345,
        via: Paths {
            flow: 320,
            repaired: 5,
            unicast: 20,
        },
        latency_ms: Latency {
            last: Some(3.12),
            p50: Some(2.9),
            p99: Some(8.0),
        },
        reception: reception([1024, 0, 0, 0, 0, 0]),
        messages: MessageCounters::default(),
        legs: Vec::new(),
        undecodable: 0,
        auth_failures: 0,
        missing: 0,
        gaps: Vec::new(),
        moves: (0..8)
            .map(|n| Move {
                at_ms: NOW - 240_000 + n * 1000,
                from: "unicast".into(),
                to: "multicast".into(),
                cause: format!("joined{n}"),
            })
            .collect(),
    }
}

pub(in crate::status) fn status() -> Status {
    Status {
        version: 1,
        pid: 42,
        updated_ms: NOW - 1000,
        started_ms: NOW - 300_000,
        name: "r1".into(),
        receiver_id: Uuid::from_u128(1),
        source: "feeds.example.org:4433".into(),
        address: Some("203.0.113.5:4433".into()),
        connected: true,
        error: None,
        http: "127.0.0.1:8080".parse().ok(),
        channels: vec![channel("lore"), channel("netdev")],
        hooks: vec![Hook {
            name: "search".into(),
            kind: "webhook".into(),
            channels: Vec::new(),
            pending: 3,
            delivered: 40,
            failures: 5,
            dead: 1,
            lost: 6,
            expired: 0,
            error: Some("503 from the hook".into()),
            disabled: false,
        }],
    }
}

/// The rows of a terminal of this size, and whether any cell has a colour.
fn drawn(
    seen: Result<&Observation, &str>,
    rates: &Rates,
    size: (u16, u16),
    scroll: usize,
) -> Drawn {
    let zone = TimeZone::UTC;
    let draw = |colour| {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        terminal
            .draw(|frame| {
                let scene = Scene {
                    seen,
                    rates,
                    clock: Clock {
                        now_ms: NOW,
                        zone: &zone,
                    },
                    colour,
                    scroll,
                };
                let area = frame.area();
                let lines = scene.lines(area.width.into(), area.height.into());
                assert_eq!(lines.len(), usize::from(size.1));
                frame.render_widget(Paragraph::new(lines), area);
            })
            .unwrap();
        terminal.backend().buffer().clone()
    };
    let buffer = draw(true);
    let plain = draw(false);
    assert!(
        plain
            .content
            .iter()
            .all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset)
    );
    let rows = buffer.content.chunks(usize::from(size.0).max(1));
    let rows = rows.map(|row| {
        row.iter()
            .map(ratatui::buffer::Cell::symbol)
            .collect::<String>()
    });
    Drawn {
        rows: rows.map(|row| row.trim_end().to_owned()).collect(),
        colours: buffer.content.iter().any(|cell| cell.fg != Color::Reset),
    }
}

struct Drawn {
    rows: Vec<String>,
    colours: bool,
}

impl Drawn {
    fn text(&self) -> String {
        self.rows.join("\n")
    }
}

fn running(status: Status) -> Observation {
    Observation {
        status,
        life: ProcessState::Running,
    }
}

#[test]
fn everything_is_on_a_screen_of_80_by_24() {
    let mut rates = Rates::default();
    let mut before = status();
    before.updated_ms -= 2000;
    before.channels[0].updates -= 5;
    rates.see(&before, NOW);
    let seen = running(status());
    rates.see(&seen.status, NOW);
    let drawn = drawn(Ok(&seen), &rates, (80, 24), 0);
    let text = drawn.text();
    assert!(drawn.colours);
    assert!(
        drawn.rows[0].starts_with("r1  pid 42  up 5 min") && drawn.rows[0].ends_with("12:00:00"),
        "{text}"
    );
    assert!(
        drawn.rows[1].starts_with("connected to feeds.example.org:4433 (203.0.113.5:4433)"),
        "{text}"
    );
    assert!(drawn.rows[1].ends_with("http://127.0.0.1:8080/"), "{text}");
    assert_eq!(
        drawn.rows[3],
        "CHANNEL              RUNG  SINCE    CURSOR      HEAD  BEHIND    /S P50 MS P99 MS"
    );
    assert_eq!(
        drawn.rows[4],
        "lore            multicast  4 min      1230      1234       4   2.5    2.9    8.0"
    );
    assert_eq!(
        drawn.rows[5],
        "  345 updates: 320 flow, 5 repaired, 20 unicast; 1024 packets (0/s)"
    );
    assert!(drawn.rows[6].starts_with("netdev"), "{text}");
    for part in [
        "HOOKS",
        "webhook search: 40 taken, 3 wait, 5 failures, 1 dead, 6 LOST: 503 from the hook",
        "LAST MOVES",
        "11:56:07  lore  unicast → multicast  joined7",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    // The newest move comes first.
    assert!(
        text.find("joined7").unwrap() < text.find("joined3").unwrap(),
        "{text}"
    );
    assert!(drawn.rows[23].starts_with("q quit"), "{text}");
}

#[test]
fn a_wide_screen_shows_all_columns_and_a_narrow_one_the_first() {
    let seen = running(status());
    let wide = drawn(Ok(&seen), &Rates::default(), (120, 24), 0);
    assert!(wide.text().contains("P99 MS"), "{}", wide.text());
    let narrow = drawn(Ok(&seen), &Rates::default(), (40, 12), 0);
    assert_eq!(narrow.rows[3], "CHANNEL              RUNG  BEHIND");
    assert_eq!(narrow.rows[4], "lore            multicast       4");
    assert!(narrow.rows[1].ends_with('…'), "{}", narrow.text());
    assert!(narrow.rows[11].starts_with("q quit"));
    // Whatever the size is, nothing breaks.
    for width in 1..30 {
        for height in 1..30 {
            drawn(Ok(&seen), &Rates::default(), (width, height), 0);
            drawn(Err("no receiver"), &Rates::default(), (width, height), 3);
        }
    }
}

#[test]
fn end_silence_and_restarts_are_shown() {
    let mut seen = running(status());
    seen.status.updated_ms = NOW - 180_000;
    seen.life = ProcessState::Ended;
    let text = drawn(Ok(&seen), &Rates::default(), (80, 24), 0).text();
    assert!(
        text.contains("NOT RUNNING: process 42 has ended, last word 3 min ago"),
        "{text}"
    );
    assert!(!text.contains("http://"), "{text}");
    // Without a source no lag is known.
    assert!(
        text.lines()
            .any(|line| line.starts_with("lore") && line.contains(" ? ")),
        "{text}"
    );
    seen.life = ProcessState::Silent;
    let text = drawn(Ok(&seen), &Rates::default(), (80, 24), 0).text();
    assert!(text.contains("HANGS?"), "{text}");

    seen.life = ProcessState::Running;
    let mut rates = Rates::default();
    rates.see(&seen.status, NOW - 10_000);
    seen.status.pid = 43;
    seen.status.connected = false;
    rates.see(&seen.status, NOW - 5000);
    let text = drawn(Ok(&seen), &rates, (80, 24), 0).text();
    assert!(
        text.contains("restarted: process 42 was seen before, until 5 s ago"),
        "{text}"
    );
    assert!(
        text.contains("NOT CONNECTED to feeds.example.org:4433"),
        "{text}"
    );

    let reason = format!("no receiver has run on {}", Path::new("/data").display());
    let text = drawn(Err(&reason), &Rates::default(), (80, 24), 0).text();
    assert!(
        text.contains("No status to show") && text.contains("/data"),
        "{text}"
    );
}

#[test]
fn problems_cannot_touch_the_terminal_and_have_room() {
    let mut seen = running(status());
    seen.status.error = Some(format!("disk \u{1b}[31mfull {}", "very ".repeat(60)));
    seen.status.channels[0].missing = 7;
    let text = drawn(Ok(&seen), &Rates::default(), (80, 24), 0).text();
    assert!(text.contains("Problem: disk  [31mfull"), "{text}");
    assert!(text.contains("7 GONE AT THE SOURCE"), "{text}");
    assert!(text.contains("LAST MOVES"), "{text}");
}

#[test]
fn many_channels_can_be_scrolled() {
    let mut seen = running(status());
    seen.status.channels = (0..64).map(|n| channel(&format!("channel{n}"))).collect();
    let top = drawn(Ok(&seen), &Rates::default(), (80, 24), 0).text();
    assert!(
        top.contains("channel0 ") && !top.contains("channel40 "),
        "{top}"
    );
    assert!(top.contains("HOOKS"), "{top}");
    assert!(top.contains("↑↓ scroll"), "{top}");
    let down = drawn(Ok(&seen), &Rates::default(), (80, 24), 40).text();
    assert!(
        down.contains("channel40 ") && !down.contains("channel0 "),
        "{down}"
    );
    let end = drawn(Ok(&seen), &Rates::default(), (80, 24), 1000).text();
    assert!(end.contains("channel63 "), "{end}");
}
