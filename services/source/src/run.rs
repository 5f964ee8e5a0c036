//! Putting the parts together, and taking them apart again.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use feed::fetch::{FetchConfig, FetchError, Fetcher};
use flexicast_tokio::source::{FlowEndpoint, Source, SourceConfig, SourceHandle};
use store::{Channel, Store};
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{Config, PublicAddress};
use crate::data::DataFolder;
use crate::data::enrolment::{self, Saved, Token};
use crate::data::identity::Identity;
use crate::http::{self, Pages, View};
use crate::ingest::{Ingest, Settings};
use crate::metrics::Metrics;
use crate::transport::StoreBacklog;
use crate::{sabotage, signals};

/// Who asks, in the log of the feed's server.
const USER_AGENT: &str = concat!("flexfeed-source/", env!("CARGO_PKG_VERSION"));

/// Hops that the flow's packets may make. Groups, not hops, say how far a flow goes.
const FLOW_TTL: u32 = 64;

/// Before the first further attempt to store what could not be stored.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// The time for a shutdown in good order. What is not done by then is left: the store is durable
/// at every moment, and receivers notice a closed port.
const SHUTDOWN: Duration = Duration::from_secs(4);

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
/// It cannot start, or a part of it failed for good.
pub async fn run(config: Config) -> Result<(), Failure> {
    let fetcher = fetcher(&config)?;
    let stop = signals::watch()?;
    let folder = DataFolder::open(&config.data)?;
    let public = config.public_address.clone();
    let public = public.unwrap_or_else(PublicAddress::local);
    let identity = Identity::load_or_make(&folder, &public.host_name())?;
    let store = open_store(&config, &folder).await?;
    let channel = store
        .open_channel(&config.channel)
        .await
        .map_err(Error::new)?;
    let source = bind(&config, &identity, &channel, Arc::clone(&store)).await?;
    let listener = listen(config.http).await?;
    let local = source.local_addr();
    let address = public.with_port(local.port());
    enrol(&folder, &*store, &identity, &address, &channel).await?;
    let parts = Parts::start(&config, source, fetcher, listener, store, channel).await?;
    info!(
        "serving channel {:?} on UDP {local}{}; status pages on http://{}",
        config.channel,
        match &config.flow {
            Some(flow) => format!(", its flow on {}", flow.group),
            None => ", by unicast only".to_owned(),
        },
        parts.http
    );
    parts.until(stop).await.map_err(Failure::Other)
    // The folder's lock goes last.
}

fn fetcher(config: &Config) -> Result<Fetcher, Failure> {
    let fetch = FetchConfig {
        allow_private: config.allow_private_feed,
        user_agent: USER_AGENT.to_owned(),
        ..FetchConfig::new(config.feed.secret.clone())
    };
    Fetcher::new(fetch).map_err(|error| match error {
        FetchError::Private { .. } => Failure::Usage(anyhow!("{error} (--allow-private-feed)")),
        FetchError::Address { .. } => Failure::Usage(anyhow!("--feed: {error}")),
        other => Failure::Other(other.into()),
    })
}

/// The address of the interface by which the way to an IPv4 group leaves.
fn source_towards(group: Ipv4Addr) -> Result<Ipv4Addr> {
    match netio::route_source(group.into())? {
        IpAddr::V4(ip) => Ok(ip),
        IpAddr::V6(ip) => Err(anyhow!("the way towards {group} leaves from {ip}")),
    }
}

async fn open_store(config: &Config, folder: &DataFolder) -> Result<Arc<dyn Store>> {
    let opened = match &config.database_url {
        Some(url) => store::open(url).await,
        None => store::open_file(&folder.file("flexfeed.db")).await,
    };
    Ok(opened?)
}

async fn bind(
    config: &Config,
    identity: &Identity,
    channel: &Channel,
    store: Arc<dyn Store>,
) -> Result<Source> {
    let flow = match config.flow {
        None => None,
        Some(flow) => {
            let interface = match flow.source {
                Some(ip) => ip,
                None => source_towards(*flow.group.ip()).with_context(|| {
                    format!(
                        "cannot find the interface that the flow to {} should leave by; name its \
                         address with --flow-source, or give --group '' to do without a flow",
                        flow.group
                    )
                })?,
            };
            Some(FlowEndpoint {
                group: flow.group,
                interface,
                asm: flow.asm,
                ttl: FLOW_TTL,
            })
        }
    };
    let settings = SourceConfig {
        listen: config.listen,
        cert: identity.cert.clone(),
        key: identity.key.clone(),
        reset_key: identity.reset_key,
        channel: channel.name.clone(),
        incarnation: channel.incarnation,
        head: channel.head,
        first: channel.first,
        flow,
        rate_bps: config.rate_bps,
        ack_delay: config.ack_delay,
        fall_back: config.fall_back,
        heartbeat: config.heartbeat,
        sabotage: sabotage::from_environment(),
    };
    let backlog = StoreBacklog::new(store, channel.name.clone());
    Source::bind(settings, Arc::new(backlog))
        .await
        .with_context(|| {
            format!(
                "cannot serve receivers on {} (--listen, --flow-source)",
                config.listen
            )
        })
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot serve the status pages on {address}: choose another address with --http")
    })
}

/// Makes sure that there is an enrolment link for the present settings, and says where.
async fn enrol(
    folder: &DataFolder,
    store: &dyn Store,
    identity: &Identity,
    address: &str,
    channel: &Channel,
) -> Result<()> {
    let (token, given_out) = match Token::load(folder)? {
        Some(token) => (token, true),
        None => (Token::make()?, false),
    };
    let hash = token.hash();
    if !store.token_valid(&hash).await? {
        // Before the link is written: one that is there always works. A database that was made
        // anew is told of the link that its operator has already given out.
        if given_out && channel.head == 0 {
            warn!(
                "the database is new although this data folder is not: receivers start over; \
                 restore a backup if this is not meant"
            );
        }
        store.add_token(&hash, "first enrolment link").await?;
    }
    let link = token.link(address, &identity.pin, &channel.name);
    let saved = enrolment::save(folder, &link)?;
    let file = enrolment::link_file(folder);
    match saved {
        Saved::New => announce(&link, &file.display().to_string()),
        Saved::Changed => info!(
            "the enrolment link in {} is another one now, because the public address, the \
             certificate or the channel has changed: give receivers the new one",
            file.display()
        ),
        Saved::Same => info!("the enrolment link for receivers is in {}", file.display()),
    }
    Ok(())
}

/// Prints the link. This is the one place where it is shown, and it is no log line.
fn announce(link: &str, file: &str) {
    let text = format!(
        "\nEnrolment link for receivers; whoever has it can subscribe (kept in {file}):\n\n  \
         {link}\n\nRun a receiver:\n\n  flexfeed-receiver '{link}'\n\n"
    );
    let mut out = std::io::stdout().lock();
    if out
        .write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_err()
    {
        info!("the enrolment link for receivers is in {file}");
    }
}

/// What runs.
struct Parts {
    transport: JoinHandle<Result<(), flexicast_tokio::Error>>,
    handle: SourceHandle,
    ingest: JoinHandle<()>,
    pages: JoinHandle<()>,
    sampler: JoinHandle<()>,
    store: Arc<dyn Store>,
    http: SocketAddr,
    /// Of everything but the transport.
    stop: CancellationToken,
}

impl Parts {
    async fn start(
        config: &Config,
        source: Source,
        fetcher: Fetcher,
        listener: TcpListener,
        store: Arc<dyn Store>,
        channel: Channel,
    ) -> Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let handle = source.handle();
        let settings = Settings {
            channel: channel.name.clone(),
            incarnation: channel.incarnation,
            head: channel.head,
            url: config.feed.shown.clone(),
            poll_interval: config.poll_interval,
            store_retry: STORE_RETRY,
        };
        let ingest = Ingest::new(
            settings,
            fetcher,
            Arc::clone(&store),
            Arc::new(handle.clone()),
            Arc::clone(&metrics),
        )
        .await?;
        let pages = Arc::new(Pages {
            channel: channel.name,
            incarnation: channel.incarnation,
            url: config.feed.shown.clone(),
            ingest: ingest.status(),
            store: Arc::clone(&store),
            metrics,
            view: View::new(Arc::new(handle.clone())),
        });
        let stop = CancellationToken::new();
        Ok(Self {
            http: listener.local_addr()?,
            transport: tokio::spawn(source.run()),
            handle,
            ingest: tokio::spawn(ingest.run(stop.clone())),
            sampler: tokio::spawn(http::sample(Arc::clone(&pages), stop.clone())),
            pages: tokio::spawn(http::serve(listener, http::router(pages), stop.clone())),
            store,
            stop,
        })
    }

    /// Runs until `signal`, or until a part ends by itself, which none should.
    async fn until(mut self, signal: CancellationToken) -> Result<()> {
        let ended = tokio::select! {
            () = signal.cancelled() => None,
            ended = &mut self.transport => Some(match ended {
                Ok(Ok(())) => anyhow!("the transport stopped without having been told to"),
                Ok(Err(error)) => Error::new(error).context("the transport failed"),
                Err(failure) => broken("the transport", failure),
            }),
            ended = &mut self.ingest => Some(unexpected("the ingest", ended)),
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
    async fn take_apart(self) {
        self.stop.cancel();
        // Parts that have ended already cannot be awaited again.
        for part in [self.ingest, self.sampler, self.pages] {
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
