//! Status as a screen of text.

use std::fmt::Write;
use std::path::Path;

use jiff::tz::TimeZone;

use super::clock::Clock;
use super::model::{Channel, Hook, Status};
use service::peer_text::plain;

/// Number of last moves shown.
const MOVES: usize = 5;

/// State of the process that wrote a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessState {
    /// Running.
    Running,
    /// Running, without a recent status.
    Silent,
    /// Ended.
    Ended,
}

/// Renders a status at `now_ms`; `data` is the data folder.
pub(super) fn render(
    status: &Status,
    life: ProcessState,
    data: &Path,
    now_ms: u64,
    zone: &TimeZone,
) -> String {
    let clock = Clock { now_ms, zone };
    let mut out = String::new();
    let written = clock.ago(status.updated_ms);
    let name = plain(&status.name);
    // Writing to a string does not fail.
    let _ = match life {
        ProcessState::Running => writeln!(out, "{name} is running (pid {}).", status.pid),
        ProcessState::Silent => writeln!(
            out,
            "{name} is running (pid {}), but has not written its status since {written}. \
             It hangs, or the disk does. What follows is from then.",
            status.pid
        ),
        ProcessState::Ended => writeln!(
            out,
            "{name} is NOT RUNNING: process {} has ended; its last word is from {written}. \
             What follows is from then.",
            status.pid
        ),
    };
    let source = plain(&status.source);
    let _ = match (&status.address, status.connected, life) {
        (Some(address), true, ProcessState::Ended) => {
            writeln!(out, "It was connected to {source} ({}).", plain(address))
        }
        (Some(address), true, _) => {
            writeln!(out, "Connected to {source} ({}).", plain(address))
        }
        (None, true, _) => writeln!(out, "Connected to {source}."),
        (_, false, _) => writeln!(out, "Not connected to {source}."),
    };
    if let Some(error) = &status.error {
        let _ = writeln!(out, "Problem: {}", plain(error));
    }
    // The status of an ended process lacks updates stored since.
    let connected = status.connected && life != ProcessState::Ended;
    for channel in &status.channels {
        out.push('\n');
        render_channel(&mut out, channel, connected, data, &clock);
    }
    if !status.hooks.is_empty() {
        out.push('\n');
    }
    for hook in &status.hooks {
        render_hook(&mut out, hook);
    }
    if let (Some(http), true) = (status.http, life != ProcessState::Ended) {
        let _ = writeln!(out, "\nHTTP: http://{http}/");
    }
    out
}

fn render_channel(out: &mut String, c: &Channel, connected: bool, data: &Path, clock: &Clock<'_>) {
    let name = plain(&c.channel);
    let _ = writeln!(
        out,
        "{name}: on {} since {}",
        plain(&c.rung),
        clock.ago(c.rung_since_ms)
    );
    if !c.legs.is_empty() {
        let legs = c.legs.iter().map(|leg| {
            let (name, state) = (plain(&leg.label()), plain(&leg.state));
            format!("{name} {state} since {}", clock.ago(leg.since_ms))
        });
        let legs: Vec<_> = legs.collect();
        let _ = writeln!(out, "  legs       {}", legs.join("; "));
    }
    match (&c.relay, &c.relay_detail) {
        (Some(relay), _) => {
            let _ = writeln!(out, "  relay      {relay}");
        }
        (None, Some(detail)) if c.rung != "multicast" => {
            let _ = writeln!(out, "  relay      none: {}", plain(detail));
        }
        _ => {}
    }
    let _ = match (c.incarnation, connected, c.head.saturating_sub(c.cursor)) {
        // Neither a cursor nor a welcome.
        (None, ..) => writeln!(out, "  progress   nothing received yet"),
        (_, false, _) => writeln!(
            out,
            "  progress   at update {}; the source's last is unknown (not connected)",
            c.cursor
        ),
        (_, true, 0) => writeln!(out, "  progress   up to date, at update {}", c.cursor),
        (_, true, behind) => writeln!(
            out,
            "  progress   at update {}, {behind} behind the source's {}",
            c.cursor, c.head
        ),
    };
    let _ = writeln!(
        out,
        "  updates    {} since the start: {} by the flow, {} by the flow with repairs, {} by \
         unicast",
        c.updates, c.via.flow, c.via.repaired, c.via.unicast
    );
    let latency = &c.latency_ms;
    let _ = match (latency.last, latency.p50, latency.p99) {
        (Some(last), Some(p50), Some(p99)) => {
            let clocks = if p50 < 0.0 {
                " (negative: the clocks of source and receiver differ)"
            } else {
                ""
            };
            writeln!(
                out,
                "  latency    median {p50:.1} ms, 99 % within {p99:.1} ms, last {last:.1} \
                 ms{clocks}"
            )
        }
        _ => writeln!(out, "  latency    no live update yet"),
    };
    let _ = writeln!(
        out,
        "  flow       {} packets taken, {} rebuilt, {} invalid\n             {} duplicates, {} \
         mismatches, {} fetched again, {} forged",
        c.reception.flow_packets,
        c.reception.rebuilt,
        c.reception.flow_invalid,
        c.reception.duplicates,
        c.reception.mismatches,
        c.reception.refetched,
        c.reception.forged
    );
    if c.undecodable > 0 || c.missing > 0 {
        let _ = writeln!(
            out,
            "  LOST       {} updates were gone at the source, {} made no sense (see the log)",
            c.missing, c.undecodable
        );
        if let Some(gap) = c.gaps.last() {
            let _ = writeln!(
                out,
                "             the last of them were {} to {}, at {}",
                gap.from,
                gap.to,
                clock.time(gap.at_ms)
            );
        }
    }
    let _ = writeln!(
        out,
        "  file       {}",
        data.join(format!("{name}.atom")).display()
    );
    let skipped = c.moves.len().saturating_sub(MOVES);
    for (n, step) in c.moves.iter().skip(skipped).enumerate() {
        let title = if n == 0 { "last moves" } else { "" };
        let _ = writeln!(
            out,
            "  {title:<10} {}  {} → {} ({})",
            clock.time(step.at_ms),
            plain(&step.from),
            plain(&step.to),
            plain(&step.cause)
        );
    }
    if c.moves.is_empty() {
        let _ = writeln!(out, "  last moves none");
    }
}

fn render_hook(out: &mut String, hook: &Hook) {
    let _ = writeln!(
        out,
        "{} {}: {} taken, {} wait, {} failed attempts, {} in the dead-letter file{}{}{}",
        plain(&hook.kind),
        plain(&hook.name),
        hook.delivered,
        hook.pending,
        hook.failures,
        hook.dead,
        match hook.lost {
            0 => String::new(),
            lost => format!(", {lost} LOST with a damaged journal"),
        },
        match hook.expired {
            0 => String::new(),
            expired => format!(", {expired} messages given up"),
        },
        if hook.disabled {
            "; DISABLED until the next start"
        } else {
            ""
        }
    );
    if let Some(error) = &hook.error {
        let _ = writeln!(out, "  last failure: {}", plain(error));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::clock::DAY_MS;
    use super::super::model::tests::reception;
    use super::super::model::{Gap, Latency, Move, Paths};
    use super::*;
    use uuid::Uuid;

    /// 2025-09-05T12:00:00Z.
    const NOW: u64 = 1_757_073_600_000;

    fn status() -> Status {
        let moves = (0..8).map(|n| Move {
            at_ms: NOW - 240_000 + n * 1000,
            from: "unicast".into(),
            to: "multicast".into(),
            cause: format!("joined{n}"),
        });
        Status {
            version: 1,
            pid: 42,
            updated_ms: NOW - 1000,
            started_ms: NOW - 250_000,
            name: "r1".into(),
            receiver_id: Uuid::from_u128(1),
            source: "feeds.example.org:4433".into(),
            address: Some("203.0.113.5:4433".into()),
            connected: true,
            error: None,
            http: None,
            hooks: Vec::new(),
            channels: vec![Channel {
                channel: "lore".into(),
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
                reception: reception([1024, 1, 2, 3, 4, 5]),
                messages: flexicast::receiver::MessageCounters::default(),
                legs: Vec::new(),
                undecodable: 0,
                auth_failures: 0,
                missing: 0,
                gaps: Vec::new(),
                moves: moves.collect(),
            }],
        }
    }

    fn text(status: &Status, life: ProcessState) -> String {
        render(status, life, Path::new("/data"), NOW, &TimeZone::UTC)
    }

    #[test]
    fn one_screen_shows_everything() {
        let text = text(&status(), ProcessState::Running);
        for part in [
            "r1 is running (pid 42).",
            "Connected to feeds.example.org:4433 (203.0.113.5:4433).",
            "lore: on multicast since 11:56:00 (4 min ago)",
            "at update 1230, 4 behind the source's 1234",
            "345 since the start: 320 by the flow, 5 by the flow with repairs, 20 by unicast",
            "median 2.9 ms, 99 % within 8.0 ms, last 3.1 ms",
            "1024 packets taken, 0 rebuilt, 1 invalid",
            "2 duplicates, 3 mismatches, 4 fetched again, 5 forged",
            "/data/lore.atom",
            "last moves 11:56:03  unicast → multicast (joined3)",
            "           11:56:07  unicast → multicast (joined7)",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
        assert!(!text.contains("joined2"), "{text}");
        assert!(!text.contains("LOST"), "{text}");
        assert!(
            text.lines().count() < 24 && text.lines().all(|l| l.chars().count() <= 100),
            "{text}"
        );
    }

    #[test]
    fn the_end_and_silence_come_first() {
        let mut status = status();
        status.updated_ms = NOW - 180_000;
        let ended = text(&status, ProcessState::Ended);
        assert!(
            ended.starts_with("r1 is NOT RUNNING: process 42 has ended"),
            "{ended}"
        );
        assert!(ended.contains("11:57:00 (3 min ago)"), "{ended}");
        assert!(ended.contains("It was connected to"), "{ended}");
        assert!(ended.contains("last is unknown"), "{ended}");
        let silent = text(&status, ProcessState::Silent);
        assert!(
            silent.contains("has not written its status since 11:57:00"),
            "{silent}"
        );
    }

    #[test]
    fn problems_are_shown_and_cannot_control_the_terminal() {
        let mut status = status();
        status.connected = false;
        status.address = None;
        status.error = Some("disk \u{1b}[31mfull".into());
        status.channels[0].missing = 7;
        status.channels[0].gaps = vec![Gap {
            at_ms: NOW - 60_000,
            from: 3,
            to: 9,
        }];
        status.channels[0].latency_ms.p50 = Some(-4.0);
        status.channels[0].rung_since_ms = NOW - 3 * DAY_MS;
        let text = text(&status, ProcessState::Running);
        assert!(
            text.contains("Not connected to feeds.example.org:4433."),
            "{text}"
        );
        assert!(text.contains("Problem: disk  [31mfull"), "{text}");
        assert!(text.contains("7 updates were gone at the source"), "{text}");
        assert!(text.contains("were 3 to 9, at 11:59:00"), "{text}");
        assert!(text.contains("clocks"), "{text}");
        assert!(text.contains("2025-09-02 12:00:00 (3 days ago)"), "{text}");
    }

    #[test]
    fn hooks_and_http_are_shown() {
        let mut status = status();
        status.http = "127.0.0.1:8080".parse().ok();
        status.hooks = vec![Hook {
            name: "search".into(),
            kind: "webhook".into(),
            channels: Vec::new(),
            pending: 3,
            delivered: 40,
            failures: 5,
            dead: 1,
            lost: 2,
            expired: 6,
            error: Some("410 \u{1b}Gone".into()),
            disabled: true,
        }];
        let running = text(&status, ProcessState::Running);
        for part in [
            "webhook search: 40 taken, 3 wait, 5 failed attempts, 1 in the dead-letter file, 2 \
             LOST with a damaged journal, 6 messages given up; DISABLED",
            "last failure: 410  Gone",
            "HTTP: http://127.0.0.1:8080/",
        ] {
            assert!(running.contains(part), "{running}");
        }
        assert!(!text(&status, ProcessState::Ended).contains("HTTP"));
    }

    #[test]
    fn without_a_connection_no_channel_is_up_to_date() {
        let mut status = status();
        status.channels[0].cursor = 1234;
        assert!(text(&status, ProcessState::Running).contains("up to date, at update 1234"));
        status.connected = false;
        let apart = text(&status, ProcessState::Running);
        assert!(
            apart.contains("at update 1234; the source's last is unknown (not connected)"),
            "{apart}"
        );
        status.channels[0].incarnation = None;
        for life in [ProcessState::Running, ProcessState::Ended] {
            let never = text(&status, life);
            assert!(never.contains("progress   nothing received yet"), "{never}");
        }
    }

    #[test]
    fn a_receiver_that_has_just_started() {
        let mut status = status();
        let channel = &mut status.channels[0];
        channel.moves.clear();
        channel.latency_ms = Latency::default();
        channel.cursor = channel.head;
        channel.rung_since_ms = u64::MAX;
        let text = text(&status, ProcessState::Running);
        assert!(text.contains("up to date, at update 1234"), "{text}");
        assert!(text.contains("no live update yet"), "{text}");
        assert!(text.contains("last moves none"), "{text}");
        assert!(text.contains("an impossible time"), "{text}");
    }
}
