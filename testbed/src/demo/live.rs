//! A live feed for the demo: fetched in the host's network, shown inside the lab.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use feed::fetch::{FetchConfig, Fetcher, Poll, Validators};

/// The file in the run folder that the generator's server follows.
pub const FILE: &str = "live-feed.xml";

/// The time between two polls of somebody else's server.
const EVERY: Duration = Duration::from_secs(20);

/// A thread that polls the live feed until the process ends.
#[derive(Debug)]
pub struct LiveFeed {
    trouble: Arc<Mutex<Option<String>>>,
}

impl LiveFeed {
    /// Fetches the feed for the first time, and then keeps on fetching.
    ///
    /// # Errors
    /// When the first fetch fails or brings something that is no feed; later ones only show [`LiveFeed::trouble`].
    pub fn start(url: &str, run: &Path) -> Result<LiveFeed> {
        let mut config = FetchConfig::new(url);
        // Whoever starts the demo names the feed, also one of their own network.
        config.allow_private = true;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("preparing to fetch the live feed")?;
        let mut polling = Polling {
            fetcher: {
                let _inside = runtime.enter();
                Fetcher::new(config)?
            },
            validators: Validators::default(),
            file: run.join(FILE),
        };
        runtime
            .block_on(polling.once())
            .with_context(|| format!("FEED={url}"))?;
        let trouble = Arc::new(Mutex::new(None));
        let shared = trouble.clone();
        std::thread::spawn(move || {
            runtime.block_on(async move {
                loop {
                    tokio::time::sleep(EVERY).await;
                    let result = polling.once().await;
                    *shared.lock().unwrap_or_else(PoisonError::into_inner) =
                        result.err().map(|error| format!("{error:#}"));
                }
            });
        });
        Ok(LiveFeed { trouble })
    }

    /// What went wrong at the last poll, if something did.
    pub fn trouble(&self) -> Option<String> {
        self.trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

struct Polling {
    fetcher: Fetcher,
    validators: Validators,
    file: PathBuf,
}

impl Polling {
    async fn once(&mut self) -> Result<()> {
        let Poll::Fetched {
            document,
            validators,
            url,
        } = self.fetcher.poll(&self.validators).await?
        else {
            return Ok(());
        };
        // A bot-check page must not take the place of the feed.
        feed::parse::parse(&document, &url)?;
        let beside = self.file.with_extension("new");
        std::fs::write(&beside, &document)
            .and_then(|()| std::fs::rename(&beside, &self.file))
            .with_context(|| format!("writing {}", self.file.display()))?;
        self.validators = validators;
        Ok(())
    }
}
