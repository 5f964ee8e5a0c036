//! Another certificate while the source runs: on SIGHUP, and when the files change.

use std::sync::Arc;
use std::time::Duration;

use flexicast_tokio::source::SourceHandle;
use sd_notify::NotifyState;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::service;
use crate::data::identity::Files;
use crate::metrics::Metrics;

/// Interval of checks of the files.
pub(super) const LOOK: Duration = Duration::from_secs(30);

/// Owner of the certificate shown to receivers.
#[async_trait::async_trait]
pub(super) trait CertificateHolder: Send + Sync {
    /// Shows this certificate from now on. After an error, the one before stays.
    ///
    /// # Errors
    /// The certificate cannot be used.
    async fn show(&self, files: &Files) -> Result<(), String>;
}

/// The certificate of the transport, with its end in the metrics.
pub(super) struct ServedCertificate {
    pub(super) handle: SourceHandle,
    pub(super) metrics: Arc<Metrics>,
}

#[async_trait::async_trait]
impl CertificateHolder for ServedCertificate {
    async fn show(&self, files: &Files) -> Result<(), String> {
        let shown = self
            .handle
            .reload_certificate(files.cert.clone(), files.key.clone());
        shown.await.map_err(|error| error.to_string())?;
        if let Some(end) = files.end() {
            self.metrics.certificate_ends(end);
        }
        Ok(())
    }
}

/// Reloads the certificate after each change of the files and on each hangup, until `stop`, and
/// publishes its pin.
pub(super) async fn keep_up(
    files: Files,
    look: Duration,
    shows: Arc<dyn CertificateHolder>,
    pin: watch::Sender<[u8; 32]>,
    hangup: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut seen = files.fingerprint();
    let watching = async {
        loop {
            let asked = tokio::select! {
                () = hangup.notified() => true,
                () = sleep(look) => false,
            };
            let now = files.fingerprint();
            if !asked && (now.is_none() || now == seen) {
                continue;
            }
            seen = now;
            if asked && let Ok(moment) = NotifyState::monotonic_usec_now() {
                service::notify(&[NotifyState::Reloading, moment]).await;
            }
            take(&files, &*shows, &pin).await;
            if asked {
                service::ready(None).await;
            }
        }
    };
    stop.run_until_cancelled(watching).await;
}

async fn take(files: &Files, shows: &dyn CertificateHolder, pin: &watch::Sender<[u8; 32]>) {
    let fresh = match files.check() {
        Ok(fresh) => fresh,
        // Perhaps only one file is replaced yet: the next check sees both.
        Err(why) => return warn!("the certificate stays as it was: {why:#}"),
    };
    if let Err(why) = shows.show(files).await {
        return error!("the certificate stays as it was: {why}");
    }
    info!(path = %files.cert.display(), "certificate reloaded");
    let changed = pin.send_if_modified(|pin| std::mem::replace(pin, fresh) != fresh);
    if changed {
        warn!(
            "the certificate has another key: receivers without its pin (--next-pin) in their \
             enrolment links will refuse it"
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::data::DataFolder;
    use crate::data::identity::Identity;
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LOOKS: Duration = Duration::from_millis(20);

    #[derive(Default)]
    struct Counts(AtomicUsize);

    #[async_trait::async_trait]
    impl CertificateHolder for Counts {
        async fn show(&self, _: &Files) -> Result<(), String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_pair_that_fits_together_is_taken_and_no_other() {
        let outer = tempfile::tempdir().unwrap();
        let identity = |name: &str| {
            let folder = DataFolder::open(&outer.path().join(name)).unwrap();
            Identity::load_or_make(&folder, "localhost", None).unwrap()
        };
        let (present, next) = (identity("a"), identity("b"));
        let shows = Arc::new(Counts::default());
        let (pin, seen) = watch::channel(present.pin);
        let hangup = Arc::new(Notify::new());
        let stop = CancellationToken::new();
        tokio::spawn(keep_up(
            present.files.clone(),
            LOOKS,
            Arc::clone(&shows) as Arc<dyn CertificateHolder>,
            pin,
            Arc::clone(&hangup),
            stop.clone(),
        ));
        let looks = async || sleep(5 * LOOKS).await;
        let shown = || shows.0.load(Ordering::Relaxed);
        let until = async |count: usize| {
            let there = async {
                while shown() < count {
                    sleep(LOOKS).await;
                }
            };
            tokio::time::timeout(LOOK, there).await.unwrap();
        };
        looks().await;
        assert_eq!(shown(), 0, "nothing has changed");

        // The certificate comes before its key.
        fs::copy(&next.files.cert, &present.files.cert).unwrap();
        looks().await;
        assert_eq!((shown(), *seen.borrow()), (0, present.pin));
        fs::copy(&next.files.key, &present.files.key).unwrap();
        until(1).await;
        assert_eq!(*seen.borrow(), next.pin);

        hangup.notify_one();
        until(2).await;
        fs::remove_file(&present.files.cert).unwrap();
        looks().await;
        assert_eq!(shown(), 2, "missing files change nothing");
        stop.cancel();
    }
}
