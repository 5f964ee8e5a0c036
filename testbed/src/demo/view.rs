//! The live view: redrawn in place on a terminal, a line every few seconds elsewhere.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::{BLOCKED, CUT, GOOD, Options};
use crate::lab::on_path;
use crate::scenario::Stage;
use crate::status::{Move, ReceiverChannel, SourceStatus};

/// The time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Number of changes of rung that are shown.
const MOVES: usize = 6;

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// Displayed state and its target.
#[derive(Debug)]
pub struct View {
    terminal: bool,
    feed: String,
    files: Vec<PathBuf>,
    open_hint: String,
    next_line: Duration,
    started_ms: f64,
    ends: Option<Duration>,
}

impl View {
    /// Prepares the view; on a terminal it takes the screen.
    ///
    /// # Errors
    /// When the list of files for a feed reader cannot be written.
    pub fn new(terminal: bool, stage: &Stage, options: &Options) -> Result<View> {
        let files: Vec<PathBuf> = stage.seats().iter().map(|seat| seat.atom_file()).collect();
        let view = View {
            terminal,
            feed: options
                .feed
                .clone()
                .unwrap_or_else(|| "made up, like that of lore.kernel.org".to_owned()),
            open_hint: open_hint(stage, &files)?,
            files,
            next_line: Duration::ZERO,
            started_ms: unix_ms(),
            ends: options.time,
        };
        if terminal {
            print!("\x1b[2J\x1b[?25l");
        } else {
            for file in &view.files {
                println!("Atom file: {}", file.display());
            }
            println!("open them with: {}", view.open_hint);
        }
        Ok(view)
    }

    /// Shows the present state.
    pub fn show(&mut self, stage: &Stage, elapsed: Duration, cut: bool, trouble: Option<String>) {
        if !self.terminal && elapsed < self.next_line {
            return;
        }
        self.next_line = elapsed + LINE_EVERY;
        let status = stage.source_status();
        let channels: Vec<(String, Option<ReceiverChannel>)> = stage
            .seats()
            .iter()
            .map(|seat| (seat.name().to_owned(), seat.channel().ok().flatten()))
            .collect();
        let text = if self.terminal {
            self.screen(status.as_ref(), &channels, elapsed, cut, trouble)
        } else {
            line(status.as_ref(), &channels, elapsed, cut)
        };
        let mut out = std::io::stdout().lock();
        // A closed pipe is no reason to stop: the judgement at the end counts.
        let _ = out.write_all(text.as_bytes());
        let _ = out.flush();
    }

    /// Gives the terminal back, with the last state left on it.
    pub fn finish(&self) {
        if self.terminal {
            println!("\x1b[?25h");
        }
    }

    fn screen(
        &self,
        status: Option<&SourceStatus>,
        channels: &[(String, Option<ReceiverChannel>)],
        elapsed: Duration,
        cut: bool,
        trouble: Option<String>,
    ) -> String {
        let mut lines = vec![format!(
            "{BOLD}flexfeed demo{PLAIN}  {} s{}   Ctrl-C ends it and cleans up",
            elapsed.as_secs(),
            self.ends
                .map_or_else(String::new, |ends| format!(" of {}", ends.as_secs()))
        )];
        lines.push(String::new());
        lines.push(format!("feed     {}", self.feed));
        if let Some(trouble) = trouble {
            lines.push(format!("         {RED}{trouble}{PLAIN}"));
        }
        match status {
            None => lines.push(format!("source   {RED}does not answer{PLAIN}")),
            Some(status) => {
                lines.push(format!(
                    "source   {} updates stored; feed: {} {}",
                    status.head,
                    status.feed.state,
                    status.feed.detail.as_deref().unwrap_or_default()
                ));
                if let Some(flow) = &status.flow {
                    lines.push(format!(
                        "flow     {} to {} members, each packet sent once: {} packets, {} kB",
                        flow.group,
                        flow.members,
                        flow.packets,
                        flow.bytes / 1000
                    ));
                }
            }
        }
        lines.push(String::new());
        lines.push(format!(
            "{BOLD}{:<11} {:<16} {:<10} {:>7}  {:>6} {:>8} {:>8}  {:>9} {:>9}{PLAIN}",
            "receiver",
            "its multicast",
            "rung",
            "updates",
            "flow",
            "repaired",
            "unicast",
            "p50",
            "p99"
        ));
        for (name, channel) in channels {
            lines.push(row(name, channel.as_ref(), cut));
        }
        lines.push(String::new());
        lines.push("last moves".to_owned());
        let moves = status.map_or(&[][..], |status| status.moves.as_slice());
        for step in moves.iter().rev().take(MOVES) {
            lines.push(self.describe(step));
        }
        lines.push(String::new());
        lines.push("Atom files, always up to date:".to_owned());
        for file in &self.files {
            lines.push(format!("  {}", file.display()));
        }
        lines.push(format!("open them with:  {}", self.open_hint));
        // Home, each line with its rest cleared, then all below: redrawn without flicker.
        let mut text = String::from("\x1b[H");
        for line in lines {
            let _ = write!(text, "{line}\x1b[K\r\n");
        }
        text.push_str("\x1b[J");
        text
    }

    fn describe(&self, step: &Move) -> String {
        let colour = if step.to == "multicast" {
            GREEN
        } else {
            YELLOW
        };
        format!(
            "  {:>6.1} s  {:<11} {} → {colour}{}{PLAIN}  {}",
            (step.at_ms - self.started_ms) / 1000.0,
            step.name,
            step.from,
            step.to,
            step.cause
        )
    }
}

fn row(name: &str, channel: Option<&ReceiverChannel>, cut: bool) -> String {
    let network = match (name, cut) {
        (BLOCKED, _) => "blocked",
        (CUT, true) => "cut off now",
        (CUT, false) => "comes and goes",
        (GOOD, _) => "good",
        _ => "",
    };
    let Some(channel) = channel else {
        return format!("{name:<11} {network:<16} not connected");
    };
    let colour = if channel.rung == "multicast" {
        GREEN
    } else {
        YELLOW
    };
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"));
    format!(
        "{name:<11} {network:<16} {colour}{:<10}{PLAIN} {:>7}  {:>6} {:>8} {:>8}  {:>9} {:>9}",
        channel.rung,
        channel.updates,
        channel.via.flow,
        channel.via.repaired,
        channel.via.unicast,
        ms(channel.latency_ms.p50),
        ms(channel.latency_ms.p99)
    )
}

fn line(
    status: Option<&SourceStatus>,
    channels: &[(String, Option<ReceiverChannel>)],
    elapsed: Duration,
    cut: bool,
) -> String {
    let mut text = format!(
        "{:>4} s  {} updates stored",
        elapsed.as_secs(),
        status.map_or_else(|| "?".to_owned(), |status| status.head.to_string())
    );
    for (name, channel) in channels {
        match channel {
            None => {
                let _ = write!(text, " | {name}: not connected");
            }
            Some(channel) => {
                let _ = write!(
                    text,
                    " | {name}: {} {} (flow {}, repaired {}, unicast {})",
                    channel.rung,
                    channel.updates,
                    channel.via.flow,
                    channel.via.repaired,
                    channel.via.unicast
                );
            }
        }
    }
    if cut {
        let _ = write!(text, " | {CUT} is cut off now");
    }
    text.push('\n');
    text
}

/// A line that opens the files: with Newsboat, if it is there, by a list written for it.
fn open_hint(stage: &Stage, files: &[PathBuf]) -> Result<String> {
    if on_path("newsboat").is_none() {
        return Ok("any feed reader that takes files, or a text viewer such as less".to_owned());
    }
    let list = stage.run_folder().join("newsboat-urls");
    let cache = stage.run_folder().join("newsboat.db");
    let urls: String = files
        .iter()
        .map(|file| format!("file://{}\n", file.display()))
        .collect();
    std::fs::write(&list, urls)?;
    Ok(format!(
        "newsboat -r -u {} -c {}",
        list.display(),
        cache.display()
    ))
}

fn unix_ms() -> f64 {
    jiff::Timestamp::now().as_duration().as_secs_f64() * 1000.0
}
