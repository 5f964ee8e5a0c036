//! `status --watch`: the status live on a terminal.

use std::path::PathBuf;
use std::time::Duration;

use jiff::tz::TimeZone;
use ratatui::text::Line;
use service::program::Failure;
use service::screen;

use super::clock::Clock;
use super::command::{Observation, observe};
use super::rates::Rates;
use super::screen::Scene;
use crate::board::now_ms;

/// Shows the status of a data folder until q or Ctrl-C is pressed, or a signal arrives.
///
/// # Errors
/// There is no terminal, or it cannot be used.
pub fn watch(data: PathBuf) -> Result<(), Failure> {
    screen::watch(Watch {
        data,
        zone: TimeZone::system(),
        colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        rates: Rates::default(),
        seen: Err(String::new()),
    })
}

struct Watch {
    data: PathBuf,
    zone: TimeZone,
    colour: bool,
    rates: Rates,
    seen: Result<Observation, String>,
}

impl screen::Scene for Watch {
    const INTERVAL: Duration = Duration::from_millis(250);

    fn refresh(&mut self) {
        self.seen = observe(&self.data).map_err(|error| error.to_string());
        if let Ok(seen) = &self.seen {
            self.rates.see(&seen.status, now_ms() as u64);
        }
    }

    fn rows(&self) -> usize {
        let seen = self.seen.as_ref();
        seen.map_or(0, |seen| seen.status.channels.len())
    }

    fn lines(&self, width: usize, height: usize, scroll: usize) -> Vec<Line<'static>> {
        let scene = Scene {
            seen: self.seen.as_ref().map_err(String::as_str),
            rates: &self.rates,
            clock: Clock {
                now_ms: now_ms() as u64,
                zone: &self.zone,
            },
            colour: self.colour,
            scroll,
        };
        scene.lines(width, height)
    }
}
