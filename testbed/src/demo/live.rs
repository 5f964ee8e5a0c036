//! A live feed for the demo: fetched in the host's network, shown inside the lab.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use feed::fetch::{FetchConfig, Fetcher, Poll, Validators};

/// The file in the run folder that the generator's server follows.
pub const FILE: &str = "live-feed.xml";

/// The time between two polls of a server on the internet.
const EVERY: Duration = Duration::from_secs(20);

/// A live feed that has been fetched once, so that it is known to be one.
pub struct FoundFeed {
    runtime: tokio::runtime::Runtime,
    fetcher: Fetcher,
    document: Bytes,
    validators: Validators,
}

impl FoundFeed {
    /// Fetches the feed for the first time.
    ///
    /// # Errors
    /// When it cannot be fetched, or is something else than a feed.
    pub fn find(url: &str) -> Result<FoundFeed> {
        let mut config = FetchConfig::new(url);
        // The demo's user chooses the feed, which may be on a private network.
        config.allow_private = true;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("preparing to fetch the live feed")?;
        let mut fetcher = {
            let _inside = runtime.enter();
            Fetcher::new(config)?
        };
        let found = runtime
            .block_on(fetch(&mut fetcher, &Validators::default()))
            .with_context(|| format!("FEED={url}"))?;
        let (document, validators) =
            found.with_context(|| format!("FEED={url}: not modified, though it is new to us"))?;
        Ok(FoundFeed {
            runtime,
            fetcher,
            document,
            validators,
        })
    }

    /// Keeps the feed's file in the run folder up to date from now on.
    ///
    /// # Errors
    /// When the file cannot be written; later trouble is shown only (see [`LiveFeed::trouble`]).
    pub fn keep(self, run: &Path) -> Result<LiveFeed> {
        let FoundFeed {
            runtime,
            mut fetcher,
            document,
            mut validators,
        } = self;
        let file = run.join(FILE);
        replace(&file, &document)?;
        let trouble = Arc::new(Mutex::new(None));
        let shared = trouble.clone();
        std::thread::spawn(move || {
            runtime.block_on(async move {
                loop {
                    tokio::time::sleep(EVERY).await;
                    let result = match fetch(&mut fetcher, &validators).await {
                        Ok(None) => Ok(()),
                        Ok(Some((document, newer))) => {
                            validators = newer;
                            replace(&file, &document)
                        }
                        Err(error) => Err(error),
                    };
                    *shared.lock().unwrap_or_else(PoisonError::into_inner) =
                        result.err().map(|error| format!("{error:#}"));
                }
            });
        });
        Ok(LiveFeed { trouble })
    }
}

/// A thread that polls the live feed until the process ends.
#[derive(Debug)]
pub struct LiveFeed {
    trouble: Arc<Mutex<Option<String>>>,
}

impl LiveFeed {
    /// Returns the failure of the last poll, if any.
    pub fn trouble(&self) -> Option<String> {
        self.trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Fetches the feed if it has changed; what is no feed (a bot-check page) is an error, and must not
/// take the feed's place.
async fn fetch(fetcher: &mut Fetcher, known: &Validators) -> Result<Option<(Bytes, Validators)>> {
    match fetcher.poll(known).await? {
        Poll::NotModified { .. } => Ok(None),
        Poll::Fetched {
            document,
            validators,
            url,
            charset,
            ..
        } => {
            feed::parse::parse_served(&document, &url, charset.as_deref())?;
            Ok(Some((document, validators)))
        }
    }
}

/// Puts a document into the file that the generator's server follows, whole or not at all.
fn replace(file: &Path, document: &[u8]) -> Result<()> {
    let beside = file.with_extension("new");
    std::fs::write(&beside, document)
        .and_then(|()| std::fs::rename(&beside, file))
        .with_context(|| format!("writing {}", file.display()))
}
