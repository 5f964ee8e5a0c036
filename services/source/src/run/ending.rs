//! Concurrent parts of the process, and their orderly shutdown.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::context::Context;
use super::service;
use super::supervisor::Supervisor;
use crate::http::{self, Pages};
use crate::status::Phase;

/// Time for an orderly shutdown, in addition to the drain time of receivers. Unfinished parts are
/// abandoned: the store is durable at every moment, and receivers notice a closed port.
const SHUTDOWN: Duration = Duration::from_secs(12);

/// Running parts.
pub(super) struct RunningParts {
    context: Arc<Context>,
    transport: JoinHandle<Result<(), flexicast_tokio::Error>>,
    supervisor: JoinHandle<Result<()>>,
    pages: JoinHandle<()>,
    sampler: JoinHandle<()>,
    /// Tasks without supervision.
    others: JoinSet<()>,
    /// Stops what publishes.
    no_more: CancellationToken,
    /// Stops everything but the transport.
    stop: CancellationToken,
}

impl RunningParts {
    /// Starts the remaining parts.
    pub(super) fn start(
        context: Arc<Context>,
        transport: JoinHandle<Result<(), flexicast_tokio::Error>>,
        supervisor: Supervisor,
        listener: TcpListener,
        pages: Arc<Pages>,
    ) -> Self {
        let (stop, no_more) = (CancellationToken::new(), CancellationToken::new());
        let mut others = JoinSet::new();
        others.spawn(service::report_status(
            Arc::clone(&context.board),
            context.handle.clone(),
            stop.clone(),
        ));
        Self {
            transport,
            supervisor: tokio::spawn(supervisor.run(no_more.clone())),
            sampler: tokio::spawn(http::sample(Arc::clone(&pages), stop.clone())),
            pages: tokio::spawn(http::serve(listener, http::router(pages), stop.clone())),
            others,
            no_more,
            stop,
            context,
        }
    }

    /// Starts a task that ends by itself.
    pub(super) fn spawn(&mut self, part: impl Future<Output = ()> + Send + 'static) {
        self.others.spawn(part);
    }

    /// Starts a task that ends after the transport and before the store is closed.
    pub(super) fn spawn_until_shutdown<F>(&mut self, part: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.others.spawn(part(self.stop.clone()));
    }

    /// Runs until `signal`, or until a part ends by itself, which none should.
    pub(super) async fn until(mut self, signal: CancellationToken) -> Result<()> {
        let ended = tokio::select! {
            () = signal.cancelled() => None,
            ended = &mut self.transport => Some(match ended {
                Ok(Ok(())) => anyhow!("the transport stopped without a request"),
                Ok(Err(error)) => Error::new(error).context("the transport failed"),
                Err(failure) => broken("the transport", failure),
            }),
            ended = &mut self.supervisor => Some(match ended {
                Ok(Ok(())) => anyhow!("the supervisor stopped without a request"),
                Ok(Err(error)) => error,
                Err(failure) => broken("the supervisor", failure),
            }),
            ended = &mut self.pages => Some(unexpected("the status pages", ended)),
            ended = &mut self.sampler => Some(unexpected("the metrics", ended)),
        };
        service::notify(&[
            NotifyState::Stopping,
            NotifyState::Status("stopping: published updates are delivered"),
        ])
        .await;
        let time = SHUTDOWN + self.context.config.drain_time;
        if tokio::time::timeout(time, self.take_apart()).await.is_err() {
            warn!(
                "not everything was closed within {} s; what is stored is safe",
                time.as_secs()
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

    /// First no new entries are taken in, stored updates are published, and the leases are
    /// released: another source may continue. Then receivers get the rest, and a goodbye. Then the
    /// store is closed.
    async fn take_apart(mut self) {
        let context = &self.context;
        context.board.set_phase(Phase::Stopping);
        self.no_more.cancel();
        // Parts that have ended already cannot be awaited again.
        if !self.supervisor.is_finished()
            && let Ok(Err(error)) = self.supervisor.await
        {
            warn!(error = format!("{error:#}"), "shutdown error");
        }
        if !self.transport.is_finished() {
            match context.config.drain_time {
                Duration::ZERO => context.handle.shutdown().await,
                time => context.handle.drain(time).await,
            }
            if let Ok(Err(error)) = self.transport.await {
                warn!(%error, "connections not closed cleanly");
            }
        }
        self.stop.cancel();
        for part in [self.sampler, self.pages] {
            if !part.is_finished() {
                let _ = part.await;
            }
        }
        while self.others.join_next().await.is_some() {}
        context.store.close().await;
    }
}

fn unexpected(part: &str, ended: Result<(), JoinError>) -> Error {
    match ended {
        Ok(()) => anyhow!("{part} stopped without a request"),
        Err(failure) => broken(part, failure),
    }
}

fn broken(part: &str, failure: JoinError) -> Error {
    Error::new(failure).context(format!("{part} broke down"))
}
