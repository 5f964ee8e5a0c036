//! Lines of the live view, for a terminal of any size.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::clock::Clock;
use super::command::Observation;
use super::model::{Channel, Hook, Status};
use super::rates::{Rate, Rates};
use super::view::ProcessState;
use service::peer_text::plain;

/// Content of the view.
pub(super) struct Scene<'a> {
    /// State read from the data folder, or the error.
    pub(super) seen: Result<&'a Observation, &'a str>,
    pub(super) rates: &'a Rates,
    pub(super) clock: Clock<'a>,
    /// Whether to use colours.
    pub(super) colour: bool,
    /// Index of the first channel shown.
    pub(super) scroll: usize,
}

/// Column of the table of channels. Without room, those of the highest rank number are dropped
/// first.
struct Column {
    title: &'static str,
    width: usize,
    rank: u8,
}

const COLUMNS: [Column; 9] = [
    Column {
        title: "CHANNEL",
        width: 14,
        rank: 0,
    },
    Column {
        title: "RUNG",
        width: 10,
        rank: 1,
    },
    Column {
        title: "SINCE",
        width: 6,
        rank: 4,
    },
    Column {
        title: "CURSOR",
        width: 9,
        rank: 3,
    },
    Column {
        title: "HEAD",
        width: 9,
        rank: 8,
    },
    Column {
        title: "BEHIND",
        width: 7,
        rank: 2,
    },
    Column {
        title: "/S",
        width: 5,
        rank: 5,
    },
    Column {
        title: "P50 MS",
        width: 6,
        rank: 6,
    },
    Column {
        title: "P99 MS",
        width: 6,
        rank: 7,
    },
];

impl Scene<'_> {
    /// Returns at most `height` lines, of which the last names the keys.
    pub(super) fn lines(&self, width: usize, height: usize) -> Vec<Line<'static>> {
        let mut lines = self.body(width, height.saturating_sub(1));
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), Line::default());
        if height > 0 {
            lines.push(Line::styled(self.foot(width), self.dim()));
        }
        lines
    }

    fn body(&self, width: usize, height: usize) -> Vec<Line<'static>> {
        let status = match self.seen {
            Ok(seen) => &seen.status,
            Err(reason) => {
                let mut lines = vec![Line::styled("No status to show.", self.bold())];
                lines.extend(
                    wrapped(&plain(reason), width, 8)
                        .into_iter()
                        .map(Line::from),
                );
                return lines;
            }
        };
        let mut lines = self.head(status, width);
        let room = height.saturating_sub(lines.len());
        let (channels, hooks) = (status.channels.len(), status.hooks.len());
        let moves = self.moves(status);
        // Every section has a line before any has details, and the moves come last.
        let hook_lines = if hooks == 0 { 0 } else { hooks + 2 };
        let few_moves = moves.len().min(4) + 2;
        let detailed = 2 * channels + 2 + hook_lines + few_moves <= room;
        let table = self.table(status, width, detailed);
        let kept = room.saturating_sub(hook_lines.min(room / 3));
        lines.extend(table.into_iter().take(kept.max(2)));
        if hooks > 0 && lines.len() + 2 < height {
            lines.push(Line::default());
            lines.push(Line::styled("HOOKS", self.dim()));
            lines.extend(status.hooks.iter().map(|hook| self.hook(hook, width)));
        }
        if lines.len() + 3 <= height {
            lines.push(Line::default());
            lines.push(Line::styled("LAST MOVES", self.dim()));
            let left = height.saturating_sub(lines.len());
            if moves.is_empty() {
                lines.push(Line::from("none"));
            }
            lines.extend(
                moves
                    .into_iter()
                    .take(left)
                    .map(|text| Line::from(cut(&text, width))),
            );
        }
        lines
    }

    /// Returns the lines about the receiver, its process, its source and its failures.
    fn head(&self, status: &Status, width: usize) -> Vec<Line<'static>> {
        let life = self.seen.map_or(ProcessState::Ended, |seen| seen.life);
        let name = plain(&status.name);
        let title = match life {
            ProcessState::Ended => format!("{name}  pid {}", status.pid),
            _ => format!(
                "{name}  pid {}  up {}",
                status.pid,
                self.clock.age(status.started_ms)
            ),
        };
        let time = self.clock.time(self.clock.now_ms);
        let mut lines = vec![Line::styled(apart(&title, &time, width), self.bold())];
        let source = plain(&status.source);
        let (text, style) = match (life, status.connected, &status.address) {
            (ProcessState::Ended, ..) => (
                format!(
                    "NOT RUNNING: process {} has ended, last word {} ago",
                    status.pid,
                    self.clock.age(status.updated_ms)
                ),
                self.colour(Color::Red),
            ),
            (ProcessState::Silent, ..) => (
                format!(
                    "HANGS? It has not written its status for {}",
                    self.clock.age(status.updated_ms)
                ),
                self.colour(Color::Red),
            ),
            (_, true, Some(address)) => (
                format!("connected to {source} ({})", plain(address)),
                self.colour(Color::Green),
            ),
            (_, true, None) => (format!("connected to {source}"), self.colour(Color::Green)),
            (_, false, _) => (
                format!("NOT CONNECTED to {source}"),
                self.colour(Color::Red),
            ),
        };
        let http = status.http.filter(|_| life != ProcessState::Ended);
        let text = match http.map(|address| format!("http://{address}/")) {
            Some(http) if text.chars().count() + http.len() + 2 <= width => {
                apart(&text, &http, width)
            }
            _ => cut(&text, width),
        };
        lines.push(Line::styled(text, style));
        if let Some(restart) = self.rates.restarted(self.clock.now_ms) {
            let text = format!(
                "restarted: process {} was seen before, until {} ago",
                restart.pid,
                self.clock.age(restart.at_ms)
            );
            lines.push(Line::styled(cut(&text, width), self.colour(Color::Yellow)));
        }
        if let Some(error) = &status.error {
            let text = format!("Problem: {}", plain(error));
            let style = self.colour(Color::Red);
            let wrapped = wrapped(&text, width, 3).into_iter();
            lines.extend(wrapped.map(|text| Line::styled(text, style)));
        }
        lines.push(Line::default());
        lines
    }

    fn table(&self, status: &Status, width: usize, detailed: bool) -> Vec<Line<'static>> {
        let columns = columns(width);
        let titles = COLUMNS.iter().zip(&columns).filter(|(_, shown)| **shown);
        let titles: Vec<String> = titles
            .map(|(column, _)| pad(column.title, column.width, column.title != "CHANNEL"))
            .collect();
        let mut lines = vec![Line::styled(titles.join(" "), self.dim())];
        let running = self.seen.is_ok_and(|seen| seen.life != ProcessState::Ended);
        let last = status.channels.len().saturating_sub(1);
        let shown = status
            .channels
            .iter()
            .enumerate()
            .skip(self.scroll.min(last));
        for (index, channel) in shown {
            let rate = self.rates.of(index).filter(|_| running);
            let cells = self.cells(channel, rate, running && status.connected);
            let mut spans = Vec::new();
            for ((column, cell), _) in COLUMNS.iter().zip(cells).zip(&columns).filter(|c| *c.1) {
                let (text, style) = cell;
                let text = pad(&text, column.width, column.title != "CHANNEL");
                if !spans.is_empty() {
                    spans.push(Span::raw(" "));
                }
                spans.push(Span::styled(text, style));
            }
            lines.push(Line::from(spans));
            if detailed {
                lines.push(Line::styled(
                    cut(&details(channel, rate), width),
                    self.dim(),
                ));
            }
        }
        lines
    }

    fn cells(&self, c: &Channel, rate: Option<Rate>, connected: bool) -> [(String, Style); 9] {
        let none = Style::default();
        let number = |n: Option<f64>| n.map_or_else(|| "-".into(), |n| format!("{n:.1}"));
        let behind = c.head.saturating_sub(c.cursor);
        let (behind, late) = match (c.incarnation, connected) {
            (None, _) | (_, false) => ("?".to_owned(), none),
            (_, true) if behind == 0 => ("0".to_owned(), none),
            (_, true) => (behind.to_string(), self.colour(Color::Yellow)),
        };
        let rung = match c.rung.as_str() {
            "multicast" | "amt" => self.colour(Color::Green),
            "replicated" => self.colour(Color::Cyan),
            _ => self.colour(Color::Yellow),
        };
        [
            (plain(&c.channel), self.bold()),
            (plain(&c.rung), rung),
            (self.clock.age(c.rung_since_ms), none),
            (c.cursor.to_string(), none),
            (c.head.to_string(), none),
            (behind, late),
            (number(rate.map(|rate| rate.updates)), none),
            (number(c.latency_ms.p50), none),
            (number(c.latency_ms.p99), none),
        ]
    }

    fn hook(&self, hook: &Hook, width: usize) -> Line<'static> {
        let mut text = format!(
            "{} {}: {} taken, {} wait, {} failures, {} dead",
            plain(&hook.kind),
            plain(&hook.name),
            hook.delivered,
            hook.pending,
            hook.failures,
            hook.dead
        );
        if hook.lost > 0 {
            text.push_str(&format!(", {} LOST", hook.lost));
        }
        if hook.disabled {
            text.push_str(", DISABLED");
        }
        let style = match &hook.error {
            None => Style::default(),
            Some(error) => {
                text.push_str(": ");
                text.push_str(&plain(error));
                self.colour(Color::Red)
            }
        };
        Line::styled(cut(&text, width), style)
    }

    /// Returns the moves of all channels, newest first.
    fn moves(&self, status: &Status) -> Vec<String> {
        let mut moves: Vec<(u64, String)> = Vec::new();
        for channel in &status.channels {
            moves.extend(channel.moves.iter().map(|step| {
                let text = format!(
                    "{}  {}  {} → {}  {}",
                    self.clock.time(step.at_ms),
                    plain(&channel.channel),
                    plain(&step.from),
                    plain(&step.to),
                    plain(&step.cause)
                );
                (step.at_ms, text)
            }));
        }
        moves.sort_by_key(|(at_ms, _)| std::cmp::Reverse(*at_ms));
        moves.into_iter().map(|(_, text)| text).collect()
    }

    fn foot(&self, width: usize) -> String {
        let channels = self.seen.map_or(0, |seen| seen.status.channels.len());
        let scroll = if channels > 1 { "  ↑↓ scroll" } else { "" };
        cut(&format!("q quit{scroll}"), width)
    }

    fn colour(&self, colour: Color) -> Style {
        if self.colour {
            Style::default().fg(colour)
        } else {
            Style::default()
        }
    }

    fn bold(&self) -> Style {
        Style::default().add_modifier(Modifier::BOLD)
    }

    fn dim(&self) -> Style {
        // Works on terminals without colours as well.
        Style::default().add_modifier(Modifier::DIM)
    }
}

/// Returns which columns fit.
fn columns(width: usize) -> [bool; 9] {
    let mut shown = [false; 9];
    let mut used = 0;
    for rank in 0..=8 {
        let Some(at) = COLUMNS.iter().position(|column| column.rank == rank) else {
            continue;
        };
        let wanted = COLUMNS.get(at).map_or(0, |column| column.width) + usize::from(used > 0);
        // The name is always shown, cut by the terminal.
        if rank > 0 && used + wanted > width {
            break;
        }
        used += wanted;
        if let Some(shown) = shown.get_mut(at) {
            *shown = true;
        }
    }
    shown
}

fn details(c: &Channel, rate: Option<Rate>) -> String {
    let count = |list: &[(u64, &str)]| {
        let there = list.iter().filter(|(number, _)| *number > 0);
        there.fold(String::new(), |text, (number, what)| {
            format!("{text}, {number} {what}")
        })
    };
    // Losses come first, so that they are not cut off.
    let lost = count(&[
        (c.missing, "GONE AT THE SOURCE"),
        (c.undecodable, "MADE NO SENSE"),
    ]);
    let odd = count(&[
        (c.reception.forged, "FORGED"),
        (c.reception.mismatches, "mismatches"),
        (c.reception.refetched, "fetched again"),
        (c.reception.flow_invalid, "invalid"),
        (c.reception.duplicates, "duplicates"),
    ]);
    let rate = rate.map_or_else(String::new, |rate| format!(" ({:.0}/s)", rate.packets));
    let of_legs = c.legs.iter().filter_map(|leg| leg.relay);
    let of_legs: Vec<_> = of_legs.map(|relay| relay.to_string()).collect();
    let relay = match (&of_legs[..], c.relay) {
        _ if c.rung != "amt" => String::new(),
        ([], Some(relay)) => format!("by relay {relay}, "),
        ([], None) => String::new(),
        (relays, _) => format!("by relay {}, ", relays.join(" and ")),
    };
    format!(
        "  {relay}{} updates{lost}: {} flow, {} repaired, {} unicast; {} packets{rate}{odd}",
        c.updates, c.via.flow, c.via.repaired, c.via.unicast, c.reception.flow_packets
    )
}

/// Returns a text of exactly this width.
fn pad(text: &str, width: usize, right: bool) -> String {
    let text = cut(text, width);
    if right {
        format!("{text:>width$}")
    } else {
        format!("{text:<width$}")
    }
}

/// Returns a text of at most this width, with a mark if it is cut.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        out.push('…');
    }
    out
}

/// Returns two texts at both ends of a line; without room, only the first.
fn apart(left: &str, right: &str, width: usize) -> String {
    let used = left.chars().count() + right.chars().count();
    if used + 2 > width {
        return cut(left, width);
    }
    format!("{left}{}{right}", " ".repeat(width - used))
}

/// Returns the text on at most `most` lines of at most `width` characters.
fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let fits = |line: &String| line.chars().count() + 1 + word.chars().count() <= width;
        match lines.last_mut().filter(|line| fits(line)) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(cut(word, width)),
        }
    }
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            *last = cut(&format!("{last} …"), width);
        }
    }
    lines
}

#[cfg(test)]
pub(super) mod tests;
