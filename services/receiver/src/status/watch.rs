//! `status --watch`: the status live on a terminal.

use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use jiff::tz::TimeZone;
use ratatui::DefaultTerminal;
use ratatui::widgets::Paragraph;
use tokio::signal::unix::{SignalKind, signal};

use super::clock::Clock;
use super::command::{Seen, look};
use super::rates::Rates;
use super::screen::Scene;
use crate::board::now_ms;

/// The folder is looked at so often.
const LOOK: Duration = Duration::from_millis(250);

/// A signal is noticed within this time.
const TICK: Duration = Duration::from_millis(100);

/// Shows the status of a data folder until q or Ctrl-C is pressed, or a signal asks for the end.
/// The terminal is as it was before when this returns.
///
/// # Errors
/// If there is no terminal, or it cannot be used.
pub fn watch(data: &Path) -> anyhow::Result<()> {
    if !stdout().is_terminal() || !std::io::stdin().is_terminal() {
        anyhow::bail!(
            "status --watch needs a terminal; 'status' and 'status --json' do without one"
        );
    }
    // The runtime only listens for signals, whose handlers must exist before the terminal changes.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let asked = Arc::new(AtomicBool::new(false));
    end_on_signals(&runtime, &asked)?;
    // Installs a panic hook, too, which restores the terminal before the message.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let shown = show(&mut terminal, data, &asked);
    let restored = ratatui::try_restore().context("cannot put the terminal right; 'reset' does");
    shown.and(restored)
}

fn end_on_signals(
    runtime: &tokio::runtime::Runtime,
    asked: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let _entered = runtime.enter();
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ] {
        let mut signals = signal(kind)?;
        let asked = Arc::clone(asked);
        runtime.spawn(async move {
            signals.recv().await;
            asked.store(true, Ordering::Relaxed);
        });
    }
    Ok(())
}

fn show(terminal: &mut DefaultTerminal, data: &Path, asked: &AtomicBool) -> anyhow::Result<()> {
    let zone = TimeZone::system();
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut rates = Rates::default();
    let mut scroll: usize = 0;
    let mut seen = see(data, &mut rates);
    let mut looked = Instant::now();
    while !asked.load(Ordering::Relaxed) {
        let now_ms = now_ms() as u64;
        terminal
            .draw(|frame| {
                let area = frame.area();
                let scene = Scene {
                    seen: seen.as_ref().map_err(String::as_str),
                    rates: &rates,
                    clock: Clock {
                        now_ms,
                        zone: &zone,
                    },
                    colour,
                    scroll,
                };
                let lines = scene.lines(area.width.into(), area.height.into());
                frame.render_widget(Paragraph::new(lines), area);
            })
            .context("cannot draw on the terminal")?;
        while looked.elapsed() < LOOK && !asked.load(Ordering::Relaxed) {
            if !event::poll(TICK).context("cannot read from the terminal")? {
                continue;
            }
            match event::read().context("cannot read from the terminal")? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                    KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c' | 'd') if key.modifiers == KeyModifiers::CONTROL => {
                        return Ok(());
                    }
                    KeyCode::Down | KeyCode::Char('j') => {
                        let last = seen.as_ref().map_or(0, |seen| seen.status.channels.len());
                        scroll = (scroll + 1).min(last.saturating_sub(1));
                    }
                    KeyCode::Up | KeyCode::Char('k') => scroll = scroll.saturating_sub(1),
                    _ => {}
                },
                Event::Resize(..) => {}
                _ => continue,
            }
            break;
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            seen = see(data, &mut rates);
        }
    }
    Ok(())
}

/// Reads the present state; an error is shown, since the receiver may be starting.
fn see(data: &Path, rates: &mut Rates) -> Result<Seen, String> {
    let seen = look(data).map_err(|error| error.to_string())?;
    rates.see(&seen.status, now_ms() as u64);
    Ok(seen)
}
