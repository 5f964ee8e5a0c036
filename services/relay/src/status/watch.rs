//! `status --watch`: the status live on a terminal.

use std::io::{IsTerminal, stdout};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use tokio::signal::unix::{SignalKind, signal};

use super::command::ask;
use super::model::Status;
use super::view::{gateways, groups, head};
use service::peer_text::plain;

/// Interval of queries.
const LOOK: Duration = Duration::from_secs(1);

/// Largest delay until a signal is noticed.
const TICK: Duration = Duration::from_millis(100);

/// Shows the status of the relay with HTTP at `address` until q or Ctrl-C is pressed, or a signal
/// arrives. Restores the terminal before the return.
///
/// # Errors
/// If there is no terminal, or it cannot be used.
pub fn watch(address: SocketAddr) -> anyhow::Result<()> {
    if !stdout().is_terminal() || !std::io::stdin().is_terminal() {
        anyhow::bail!(
            "status --watch needs a terminal; 'status' and 'status --json' do without one"
        );
    }
    // The runtime only listens for signals, whose handlers must exist before the terminal is
    // changed.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let asked = Arc::new(AtomicBool::new(false));
    end_on_signals(&runtime, &asked)?;
    // Also handles a panic: the terminal is restored before the message.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let shown = show(&mut terminal, address, &asked);
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

fn show(
    terminal: &mut DefaultTerminal,
    address: SocketAddr,
    asked: &AtomicBool,
) -> anyhow::Result<()> {
    let mut scroll: usize = 0;
    let mut seen = ask(address);
    let mut looked = Instant::now();
    while !asked.load(Ordering::Relaxed) {
        terminal
            .draw(|frame| {
                let area = frame.area();
                let lines = picture(seen.as_ref(), area.height.into(), scroll);
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
                        let last = seen.as_ref().map_or(0, |seen| seen.gateways.list.len());
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
            seen = ask(address);
        }
    }
    Ok(())
}

/// Returns the picture, at most `height` lines, of which the last one names the key to quit. Bold
/// and dim, without colours.
fn picture(
    seen: Result<&Status, &anyhow::Error>,
    height: usize,
    scroll: usize,
) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let dim = Style::new().add_modifier(Modifier::DIM);
    let mut lines = Vec::new();
    match seen {
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
        lines.push(Line::styled("q ends, up and down scroll", dim));
    }
    lines
}
