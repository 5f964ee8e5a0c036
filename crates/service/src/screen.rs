//! A status live on a terminal, for `status --watch`.

use std::fmt::Display;
use std::io::{IsTerminal, stdin, stdout};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::outcome::Failure;

/// Largest delay until a signal is noticed.
const TICK: Duration = Duration::from_millis(100);

/// A status to show.
pub trait Scene {
    /// Interval of queries.
    const INTERVAL: Duration;

    /// Queries the status. A failure is part of the picture: the program may be starting.
    fn refresh(&mut self);

    /// Returns the number of rows that can be scrolled.
    fn rows(&self) -> usize;

    /// Returns at most `height` lines, with the rows from number `scroll` on.
    fn lines(&self, width: usize, height: usize, scroll: usize) -> Vec<Line<'static>>;
}

/// Shows `scene` until q or Ctrl-C is pressed, or a signal arrives. Restores the terminal before it
/// returns.
///
/// # Errors
/// There is no terminal, or it cannot be used.
pub fn watch(mut scene: impl Scene) -> Result<(), Failure> {
    if !stdout().is_terminal() || !stdin().is_terminal() {
        let text = "status --watch needs a terminal; 'status' and 'status --json' do without one";
        return Err(Failure::Other(text.to_owned()));
    }
    // Only listens for signals, whose handlers must exist before the terminal is changed.
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(Failure::other)?;
    let stop = stop_on_signals(&runtime)?;
    // Installs a panic hook, too, which restores the terminal before the message.
    let mut terminal = ratatui::try_init().map_err(failed("use the terminal"))?;
    let shown = show(&mut terminal, &mut scene, &stop);
    let restored = ratatui::try_restore();
    shown.and(restored.map_err(failed("restore the terminal ('reset' does)")))
}

fn failed<E: Display>(what: &str) -> impl Fn(E) -> Failure {
    move |error| Failure::Other(format!("cannot {what}: {error}"))
}

fn stop_on_signals(runtime: &Runtime) -> Result<CancellationToken, Failure> {
    let _entered = runtime.enter();
    let stop = CancellationToken::new();
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ] {
        let mut signals = signal(kind).map_err(Failure::other)?;
        let stop = stop.clone();
        runtime.spawn(async move {
            signals.recv().await;
            stop.cancel();
        });
    }
    Ok(stop)
}

fn show<S: Scene>(
    terminal: &mut DefaultTerminal,
    scene: &mut S,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let mut scroll: usize = 0;
    while !stop.is_cancelled() {
        scene.refresh();
        let looked = Instant::now();
        let mut drawn = false;
        while looked.elapsed() < S::INTERVAL && !stop.is_cancelled() {
            if !drawn {
                terminal
                    .draw(|frame| draw(frame, scene, scroll))
                    .map_err(failed("draw on the terminal"))?;
                drawn = true;
            }
            if !event::poll(TICK).map_err(failed("read from the terminal"))? {
                continue;
            }
            match event::read().map_err(failed("read from the terminal"))? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                    KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c' | 'd') if key.modifiers == KeyModifiers::CONTROL => {
                        return Ok(());
                    }
                    KeyCode::Down | KeyCode::Char('j') => {
                        scroll = (scroll + 1).min(scene.rows().saturating_sub(1));
                    }
                    KeyCode::Up | KeyCode::Char('k') => scroll = scroll.saturating_sub(1),
                    _ => {}
                },
                Event::Resize(..) => {}
                _ => continue,
            }
            drawn = false;
        }
    }
    Ok(())
}

fn draw(frame: &mut Frame<'_>, scene: &impl Scene, scroll: usize) {
    let area = frame.area();
    let lines = scene.lines(area.width.into(), area.height.into(), scroll);
    frame.render_widget(Paragraph::new(lines), area);
}
