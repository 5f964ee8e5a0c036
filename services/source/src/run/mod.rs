//! From the settings to a source that serves.

mod addresses;
mod certificate;
mod channel;
mod console;
mod context;
mod describe;
mod ending;
mod feeds;
mod flow;
mod followed_heads;
mod link;
mod receivers;
mod relays;
mod service;
mod startup;
mod supervisor;
mod unsigned;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context as _, Error, Result, anyhow};
use feed::fetch::{FetchError, Limits};
use flexicast_tokio::source::{Source, SourceConfig};
use store::{Holder, SourceInfo};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::backlog::{OpenChannels, StoreBacklog};
use crate::board::Board;
use crate::config::{Config, PublicAddress};
use crate::data::identity::Identity;
use crate::data::{DataFolder, signing_key};
use crate::http::{Pages, Sample, View};
use crate::ingest::{Bounds, PollReport, Refreshes, Reports};
use crate::metrics::Metrics;
use crate::publish::LeaseTerms;
use crate::record::CommandExecutor;
use crate::status::{Phase, TransportState, readiness};
use crate::{record, signals};
use context::{Context, PollSpacing};
use ending::RunningParts;
use link::Link;
use supervisor::Supervisor;

/// Number of polls that wait to be recorded; further ones are counted as dropped.
const POLLS: usize = 1024;
/// Shards on a machine with more processors, unless another number is set.
const MAX_DEFAULT_SHARDS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

/// Why the source ended, other than by a signal.
#[derive(Debug)]
pub enum Failure {
    /// The command line or the environment has to be changed.
    Usage(Error),
    /// Anything else.
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Other(error)
    }
}

/// Runs the source until a signal ends it.
///
/// # Errors
/// The start failed, or a part of it failed for good.
pub async fn run(config: Config) -> Result<(), Failure> {
    check_feeds(&config)?;
    let stop = signals::watch()?;
    // Until the first signal, whatever the start waits for; then the end is in good order.
    match stop.run_until_cancelled(start(config, stop.clone())).await {
        Some(started) => started?.until(stop).await.map_err(Failure::Other),
        None => {
            info!("stopped");
            Ok(())
        }
    }
}

/// Starts all parts; then receivers are served, or another source serves them.
async fn start(config: Config, stop: CancellationToken) -> Result<RunningParts> {
    let hangup = signals::hangups()?;
    let folder = DataFolder::open(&config.data)?;
    let public = config.public_address.clone();
    let public = public.unwrap_or_else(PublicAddress::local);
    let own = config.cert.clone().zip(config.key.clone());
    let identity = Identity::load_or_make(&folder, &public.host_name(), own)?;
    let signer = signing_key::load_or_make(&folder, config.signing_key.as_deref())?;
    ::service::startup::make_qlog_folder(config.qlog.as_deref()).map_err(Error::msg)?;
    let store = startup::open_store(&config, &folder).await?;
    let holder = Holder {
        id: folder.holder()?,
        name: config.holder_name.clone(),
    };
    let is_withheld =
        startup::put_settings(&config, &store, &holder, startup::SetupPhase::Start).await?;
    let open = OpenChannels::default();
    let metrics = Arc::new(Metrics::default());
    let backlog = StoreBacklog::new(store.clone(), open.clone());
    let backlog = backlog.counting(metrics.admissions.clone());
    let source = bind(&config, &identity, backlog).await?;
    let listener = listen(config.http)?;
    let console = console::listen(&config.console).await?;
    let (local, http) = (
        source.local_addr(),
        listener.local_addr().context("no address")?,
    );
    let address = public.with_port(local.port());
    let info = describe::describe(&config, &address, local, http, &identity.pin);
    let (info, infos) = watch::channel(info);
    let (reports, polls) = mpsc::channel(POLLS);
    let reports = Reports::new(reports, metrics.records.clone());
    let link = Link::prepare(&folder, &store, address, config.next_pin.map(|pin| pin.0)).await?;
    let (addresses, known_addresses) = watch::channel(netio::host_addresses().unwrap_or_default());
    let context = Arc::new(Context {
        addresses: known_addresses,
        terms: terms(&config),
        folder,
        store,
        handle: source.handle(),
        signer: Arc::new(signer),
        open,
        board: Arc::new(Board::default()),
        metrics,
        limits: Arc::new(Limits::default()),
        first_polls: PollSpacing::default(),
        bounds: Bounds::default(),
        refreshes: Refreshes::default(),
        reports,
        config,
    });
    let (pin, pins) = watch::channel(identity.pin);
    let mut supervisor = Supervisor::new(Arc::clone(&context), holder, link, pins);
    supervisor.withhold(is_withheld);
    let transport = tokio::spawn(source.run());
    let (served, paths) = supervisor.begin().await?;
    let pages = Arc::new(Pages {
        board: Arc::clone(&context.board),
        metrics: Arc::clone(&context.metrics),
        view: View::new(Arc::new(context.handle.clone())),
    });
    let samples = pages.view.samples();
    let mut parts =
        RunningParts::start(Arc::clone(&context), transport, supervisor, listener, pages);
    let recorded = record_parts(&context, samples, polls, infos);
    parts.spawn_until_shutdown(|end| record::run(recorded, end));
    if let Some(console) = console {
        let context = Arc::clone(&context);
        parts.spawn_until_shutdown(|end| console::serve(console, context, end));
    }
    let executor = CommandExecutor {
        store: context.store.clone(),
        board: Arc::clone(&context.board),
        handle: context.handle.clone(),
        refreshes: context.refreshes.clone(),
        metrics: context.metrics.records.clone(),
        drain: stop.clone(),
    };
    parts.spawn(executor.follow(stop.clone()));
    let pins = pin.subscribe();
    parts.spawn(describe::keep_up(
        context.config.clone(),
        info,
        pins,
        stop.clone(),
    ));
    if let Some(end) = identity.files.end() {
        context.metrics.certificate_ends(end);
    }
    let shown = Arc::new(certificate::ServedCertificate {
        handle: context.handle.clone(),
        metrics: Arc::clone(&context.metrics),
    });
    parts.spawn(addresses::follow(
        context.handle.clone(),
        local,
        addresses,
        stop.clone(),
    ));
    parts.spawn(relays::watch(
        context.config.flows.relays.clone().unwrap_or_default(),
        context.handle.clone(),
        Arc::clone(&context.board),
        stop.clone(),
    ));
    parts.spawn(certificate::keep_up(
        identity.files,
        certificate::LOOK,
        shown,
        pin,
        hangup,
        stop,
    ));
    context.board.set_phase(Phase::Running);
    info!("serving {served} on UDP {local}, {paths}; status pages on http://{http}");
    let found = readiness(
        &context.board.snapshot(),
        TransportState::Answered(std::time::Duration::ZERO),
    );
    for note in found.notes {
        warn!("{note}");
    }
    service::ready(None).await;
    Ok(parts)
}

/// Returns the dependencies of recording.
fn record_parts(
    context: &Context,
    samples: watch::Receiver<Sample>,
    polls: mpsc::Receiver<PollReport>,
    info: watch::Receiver<SourceInfo>,
) -> record::RecordParts {
    record::RecordParts {
        store: context.store.clone(),
        transport: Arc::new(context.handle.clone()),
        samples,
        latest: context.handle.latest(),
        board: Arc::clone(&context.board),
        metrics: context.metrics.records.clone(),
        polls,
        info,
        last_words: record::LAST_WORDS,
    }
}

/// Checks that the feeds of the command line can be fetched at all.
fn check_feeds(config: &Config) -> Result<(), Failure> {
    for channel in &config.channels {
        for feed in &channel.feeds {
            let may_be_local = config.feeds.allow_private || feed.polls.local;
            let checked = feed::fetch::check(&feed.address.secret, may_be_local);
            checked.map_err(|error| match error {
                FetchError::Private { .. } => {
                    Failure::Usage(anyhow!("{error} (--allow-private-feed)"))
                }
                other => Failure::Usage(anyhow!("the feed of channel {:?}: {other}", channel.name)),
            })?;
        }
    }
    Ok(())
}

/// Returns the lease terms. A database file is lost to all sources or to none; a server may be
/// unreachable for one alone.
fn terms(config: &Config) -> LeaseTerms {
    let url = config.database_url.as_deref().unwrap_or_default();
    let default = LeaseTerms::default();
    LeaseTerms {
        cut_off: default.cut_off.filter(|_| url.starts_with("postgres")),
        ..default
    }
}

async fn bind(config: &Config, identity: &Identity, backlog: StoreBacklog) -> Result<Source> {
    let (cert, key) = (&identity.files.cert, &identity.files.key);
    let settings = SourceConfig {
        channels: Vec::new(),
        rate_bps: config.flows.rate_bps,
        unicast_rate_bps: Some(config.flows.unicast_rate_bps),
        max_replicas: config.flows.max_replicas,
        replication_threads: NonZeroUsize::new(config.flows.replication_threads)
            .unwrap_or(NonZeroUsize::MIN),
        shards: shards(config.flows.shards),
        ack_delay: config.flows.ack_delay,
        fall_back: config.flows.fall_back,
        heartbeat: config.flows.heartbeat,
        max_udp_payload: config.flows.max_packet_size,
        qlog: config.qlog.clone(),
        ..SourceConfig::new(config.listen, cert.clone(), key.clone(), identity.reset_key)
    };
    let source = Source::bind(settings, Arc::new(backlog))
        .await
        .with_context(|| format!("cannot serve receivers on {} (--listen)", config.listen))?;
    #[cfg(feature = "fault-injection")]
    let source = {
        let mut source = source;
        source.inject_faults(crate::faults::of_transport())?;
        source
    };
    Ok(source)
}

/// Returns the number of shards: the one that is set, or one for each processor.
fn shards(wanted: Option<usize>) -> NonZeroUsize {
    let wanted = wanted.and_then(NonZeroUsize::new);
    wanted.unwrap_or_else(|| {
        let processors = std::thread::available_parallelism();
        processors.map_or(NonZeroUsize::MIN, |n| n.min(MAX_DEFAULT_SHARDS))
    })
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    ::service::listen::listen(address).with_context(|| {
        format!("cannot serve the status pages on {address}: choose another address with --http")
    })
}
