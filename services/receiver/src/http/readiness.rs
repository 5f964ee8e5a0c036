//! Readiness of the receiver.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Site;
use crate::status::model::{Hook, Status};

/// Time for which a channel still counts as up to date: between the announcement of an update and
/// its output there is always a moment.
const BEHIND: Duration = Duration::from_secs(30);

/// Lifetime of a disk check's result.
const PROBED: Duration = Duration::from_secs(5);

/// Time limit for a check of the disk.
const DISK_TIME: Duration = Duration::from_secs(2);

/// Content of the check, as long as an update may be.
const PROBE: &[u8] = &[b'.'; 8 << 10];

/// Interval of checks.
const SAMPLE: Duration = Duration::from_secs(1);

/// Results of repeated checks.
#[derive(Debug)]
pub(super) struct Readiness {
    probe: PathBuf,
    /// Time at which each channel was last up to date.
    up_to_date: Mutex<HashMap<String, Instant>>,
    /// Time of the last disk check, and its problem.
    disk: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
    /// Whether a disk check is running. A disk that hangs is not checked again, because each check
    /// would occupy a thread.
    trying: Arc<AtomicBool>,
}

impl Readiness {
    pub(super) fn new(data: &Path) -> Self {
        Self {
            probe: data.join("state").join(".writable"),
            up_to_date: Mutex::default(),
            disk: tokio::sync::Mutex::default(),
            trying: Arc::default(),
        }
    }

    /// Records the channels that are up to date.
    fn see(&self, status: &Status) {
        let mut seen = self
            .up_to_date
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for channel in &status.channels {
            // The head is unknown before the source's WELCOME.
            let known = status.connected && channel.incarnation.is_some();
            if known && channel.cursor >= channel.head {
                seen.insert(channel.channel.clone(), Instant::now());
            }
        }
    }

    /// Returns the reasons why the receiver is not ready; none if it is.
    pub(super) async fn reasons(&self, status: &Status) -> Vec<String> {
        self.see(status);
        let mut reasons = Vec::new();
        if let Some(error) = &status.error {
            reasons.push(error.clone());
        } else if !status.connected {
            reasons.push("there is no connection to the source yet".to_owned());
        }
        if let Some(problem) = self.disk_problem().await {
            reasons.push(problem);
        }
        let seen = self
            .up_to_date
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for channel in &status.channels {
            let name = &channel.channel;
            match seen.get(name) {
                Some(at) if at.elapsed() < BEHIND => {}
                _ if channel.cursor < channel.head => reasons.push(format!(
                    "channel {name}: {} updates behind the source",
                    channel.head - channel.cursor
                )),
                Some(_) => {}
                None => reasons.push(format!(
                    "channel {name}: the source has not announced its head yet"
                )),
            }
        }
        reasons
    }

    /// Returns why the outputs cannot be written, if so; without the check a full disk would go
    /// unnoticed until the next update.
    async fn disk_problem(&self) -> Option<String> {
        let mut disk = self.disk.lock().await;
        if let Some((at, problem)) = &*disk
            && at.elapsed() < PROBED
        {
            return problem.clone();
        }
        let folder = self.probe.parent().unwrap_or(Path::new("."));
        let silent = || format!("the disk with {} does not answer", folder.display());
        if self.trying.swap(true, Ordering::AcqRel) {
            return Some(silent());
        }
        let (probe, trying) = (self.probe.clone(), Arc::clone(&self.trying));
        let tried = tokio::task::spawn_blocking(move || {
            let tried = fs::write(&probe, PROBE);
            let _ = fs::remove_file(&probe);
            trying.store(false, Ordering::Release);
            tried
        });
        let problem = match tokio::time::timeout(DISK_TIME, tried).await {
            Ok(tried) => {
                let tried = tried.map_err(io::Error::other).and_then(|tried| tried);
                let error = tried.err();
                error.map(|error| format!("cannot write in {}: {error}", folder.display()))
            }
            Err(_) => Some(silent()),
        };
        *disk = Some((Instant::now(), problem.clone()));
        problem
    }
}

/// Refreshes hook status and readiness until the site stops. Runs also without an HTTP listener,
/// for the status file.
pub async fn sample(site: Arc<Site>) {
    let looking = async {
        loop {
            look(&site).await;
            tokio::time::sleep(SAMPLE).await;
        }
    };
    site.stop.run_until_cancelled(looking).await;
    look(&site).await;
}

async fn look(site: &Arc<Site>) {
    if !site.hooks.is_empty() {
        let of = Arc::clone(site);
        // Counts the pending updates of each hook in the journals.
        if let Ok(hooks) = tokio::task::spawn_blocking(move || hooks(&of)).await {
            site.board.set_hooks(hooks);
        }
    }
    site.readiness.see(&site.board.status());
}

/// Returns the hooks for the status.
fn hooks(site: &Site) -> Vec<Hook> {
    let hooks = site.hooks.iter().map(|stats| {
        let hook = stats.status();
        Hook {
            name: hook.name,
            kind: hook.kind.to_owned(),
            channels: hook.channels,
            pending: hook.pending,
            delivered: hook.delivered,
            failures: hook.failed_attempts,
            dead: hook.dead_letters,
            lost: hook.lost,
            expired: hook.expired,
            error: hook.error,
            disabled: hook.disabled,
        }
    });
    hooks.collect()
}
