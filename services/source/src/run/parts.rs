//! What runs at the same time: started together, and taken apart again in good order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use flexicast_tokio::source::{Source, SourceHandle};
use store::{Adopted, Store};
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Channel;
use crate::config::Config;
use crate::http::{self, ChannelPage, Pages, View};
use crate::ingest_legacy::{Ingest, Settings};
use crate::metrics::Metrics;

/// Before the first further attempt to store what could not be stored.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// Between the first polls of the channels' feeds, which may all be on one server.
const FIRST_POLLS: Duration = Duration::from_millis(250);

/// The time for a shutdown in good order. What is not done by then is left: the store is durable
/// at every moment, and receivers notice a closed port.
const SHUTDOWN: Duration = Duration::from_secs(4);

/// What runs.
pub(super) struct Parts {
    transport: JoinHandle<Result<(), flexicast_tokio::Error>>,
    handle: SourceHandle,
    ingests: JoinSet<()>,
    pages: JoinHandle<()>,
    sampler: JoinHandle<()>,
    store: Arc<dyn Store>,
    pub(super) http: SocketAddr,
    /// Of everything but the transport.
    stop: CancellationToken,
}

impl Parts {
    /// Starts all parts.
    pub(super) async fn start(
        config: &Config,
        source: Source,
        listener: TcpListener,
        store: Arc<dyn Store>,
        channels: Vec<Channel>,
    ) -> Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let handle = source.handle();
        let (mut ingests, mut pages) = (Vec::new(), Vec::new());
        for (number, channel) in (0u32..).zip(channels) {
            let Channel {
                settings,
                fetcher,
                adopted: Adopted { channel, mark, .. },
            } = channel;
            let (Some(fetcher), Some(feed)) = (fetcher, settings.feeds.into_iter().next()) else {
                continue;
            };
            let poll_interval = config.poll.min;
            let spread = FIRST_POLLS.saturating_mul(number);
            let ingest = Ingest::new(
                Settings {
                    channel: channel.name.clone(),
                    incarnation: channel.incarnation,
                    head: channel.head,
                    first: channel.first,
                    retention: config.keep.count.unwrap_or(0),
                    url: feed.address.shown.clone(),
                    first_poll: spread.min(poll_interval),
                    poll_interval,
                    store_retry: STORE_RETRY,
                },
                fetcher,
                Arc::clone(&store),
                mark,
                Arc::new(handle.clone()),
                metrics.channel(&channel.name),
            )
            .await?;
            pages.push(ChannelPage {
                name: channel.name,
                incarnation: channel.incarnation,
                private: settings.private,
                url: feed.address.shown,
                ingest: ingest.status(),
            });
            ingests.push(ingest);
        }
        let pages = Arc::new(Pages {
            channels: pages,
            store: Arc::clone(&store),
            metrics,
            view: View::new(Arc::new(handle.clone())),
        });
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        for ingest in ingests {
            running.spawn(ingest.run(stop.clone()));
        }
        Ok(Self {
            http: listener.local_addr()?,
            transport: tokio::spawn(source.run()),
            handle,
            ingests: running,
            sampler: tokio::spawn(http::sample(Arc::clone(&pages), stop.clone())),
            pages: tokio::spawn(http::serve(listener, http::router(pages), stop.clone())),
            store,
            stop,
        })
    }

    /// Runs until `signal`, or until a part ends by itself, which none should.
    pub(super) async fn until(mut self, signal: CancellationToken) -> Result<()> {
        let ended = tokio::select! {
            () = signal.cancelled() => None,
            ended = &mut self.transport => Some(match ended {
                Ok(Ok(())) => anyhow!("the transport stopped without having been told to"),
                Ok(Err(error)) => Error::new(error).context("the transport failed"),
                Err(failure) => broken("the transport", failure),
            }),
            Some(ended) = self.ingests.join_next() => Some(unexpected("an ingest", ended)),
            ended = &mut self.pages => Some(unexpected("the status pages", ended)),
            ended = &mut self.sampler => Some(unexpected("the metrics", ended)),
        };
        if tokio::time::timeout(SHUTDOWN, self.take_apart())
            .await
            .is_err()
        {
            warn!(
                "not everything was closed within {} s; what is stored is safe",
                SHUTDOWN.as_secs()
            );
        }
        match ended {
            Some(failure) => Err(failure),
            None => {
                info!("stopped");
                Ok(())
            }
        }
    }

    /// First nothing new comes in, then receivers are told goodbye, then the store is closed.
    async fn take_apart(mut self) {
        self.stop.cancel();
        while self.ingests.join_next().await.is_some() {}
        // Parts that have ended already cannot be awaited again.
        for part in [self.sampler, self.pages] {
            if !part.is_finished() {
                let _ = part.await;
            }
        }
        if !self.transport.is_finished() {
            self.handle.shutdown().await;
            if let Ok(Err(error)) = self.transport.await {
                warn!("while closing the connections: {error}");
            }
        }
        self.store.close().await;
    }
}

fn unexpected(part: &str, ended: Result<(), JoinError>) -> Error {
    match ended {
        Ok(()) => anyhow!("{part} stopped without having been told to"),
        Err(failure) => broken(part, failure),
    }
}

fn broken(part: &str, failure: JoinError) -> Error {
    Error::new(failure).context(format!("{part} broke down"))
}
