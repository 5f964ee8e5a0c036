//! Ctrl-C and its relatives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

/// Remembers that the user (or the system) asked for the end.
#[derive(Debug, Clone)]
pub struct StopSignal {
    asked: Arc<AtomicBool>,
}

impl StopSignal {
    /// Takes over SIGINT, SIGTERM and SIGHUP; a second SIGINT ends the process at once, and the
    /// kernel then cleans the lab up.
    ///
    /// # Errors
    /// When the signals cannot be taken over.
    pub fn install() -> Result<StopSignal> {
        let asked = Arc::new(AtomicBool::new(false));
        let flag = asked.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("preparing for Ctrl-C")?;
        let mut signals = {
            let _inside = runtime.enter();
            (
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
            )
        };
        std::thread::spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    _ = signals.0.recv() => {}
                    _ = signals.1.recv() => {}
                    _ = signals.2.recv() => {}
                }
                flag.store(true, Ordering::Relaxed);
                signals.0.recv().await;
                std::process::exit(130);
            });
        });
        Ok(StopSignal { asked })
    }

    /// Whether the end was asked for.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}
