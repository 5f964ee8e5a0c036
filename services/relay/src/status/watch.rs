//! `status --watch`: the status live on a terminal.

use std::net::SocketAddr;
use std::time::Duration;

use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use service::peer_text::plain;
use service::program::Failure;
use service::screen::{self, Scene};

use super::command::ask;
use super::model::Status;
use super::view::{gateways, groups, head};

/// Shows the status of the relay with HTTP at `address` until q or Ctrl-C is pressed, or a signal
/// arrives.
///
/// # Errors
/// There is no terminal, or it cannot be used.
pub fn watch(address: SocketAddr) -> Result<(), Failure> {
    let seen = Err(anyhow::Error::msg("not queried yet"));
    screen::watch(Relay { address, seen })
}

struct Relay {
    address: SocketAddr,
    seen: anyhow::Result<Status>,
}

impl Scene for Relay {
    const INTERVAL: Duration = Duration::from_secs(1);

    fn refresh(&mut self) {
        self.seen = ask(self.address);
    }

    fn rows(&self) -> usize {
        self.seen
            .as_ref()
            .map_or(0, |seen| seen.gateways.list.len())
    }

    /// The last line names the key to quit. Bold and dim, without colours.
    fn lines(&self, _width: usize, height: usize, scroll: usize) -> Vec<Line<'static>> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let dim = Style::new().add_modifier(Modifier::DIM);
        let mut lines = Vec::new();
        match &self.seen {
            Ok(status) => {
                let head = head(status).into_iter().enumerate();
                lines.extend(head.map(|(number, text)| match number {
                    0 => Line::styled(text, bold),
                    _ => Line::from(text),
                }));
                let room = height.saturating_sub(lines.len() + 1);
                let (groups, gateways) = (groups(status), gateways(status));
                // Groups get up to a third, gateways the rest.
                let shown = groups.len().min((room / 3).saturating_sub(2));
                if shown > 0 {
                    lines.push(Line::default());
                    lines.push(Line::styled("GROUPS", dim));
                    lines.extend(groups.into_iter().take(shown).map(Line::from));
                }
                if !gateways.is_empty() {
                    lines.push(Line::default());
                    lines.push(Line::styled("GATEWAYS", dim));
                    lines.extend(gateways.into_iter().skip(scroll).map(Line::from));
                }
            }
            Err(error) => {
                lines.push(Line::styled("No status to show.", bold));
                lines.push(Line::from(plain(&format!("{error:#}"))));
            }
        }
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), Line::default());
        if height > 0 {
            lines.push(Line::styled("q quits, up and down scroll", dim));
        }
        lines
    }
}
