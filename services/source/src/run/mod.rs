//! From the settings to a source that serves.

mod parts;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow, bail};
use feed::fetch::{FetchConfig, FetchError, Fetcher};
use flexicast_tokio::source::{ChannelConfig, FlowEndpoint, FlowSettings, Source, SourceConfig};
use store::{Adopted, NewToken, Retention, Store};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::config::{ChannelSettings, Config, PublicAddress};
use crate::data::DataFolder;
use crate::data::enrolment::{self, Saved, Token};
use crate::data::identity::Identity;
use crate::transport::StoreBacklog;
use crate::{sabotage, signals};
use parts::Parts;

/// Who asks, in the log of the feed's server.
const USER_AGENT: &str = concat!("flexfeed-source/", env!("CARGO_PKG_VERSION"));

/// Hops that the flow's packets may make. Groups, not hops, say how far a flow goes.
const FLOW_TTL: u32 = 64;

/// The longest enrolment link that receivers read, in bytes.
const MAX_LINK: usize = 4096;

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

/// A channel that is ready to be served.
struct Channel {
    settings: ChannelSettings,
    /// Of its feed, if it has one.
    fetcher: Option<Fetcher>,
    adopted: Adopted,
}

/// Runs the source until a signal ends it.
///
/// # Errors
/// It cannot start, or a part of it failed for good.
pub async fn run(config: Config) -> Result<(), Failure> {
    let fetchers = config
        .channels
        .iter()
        .map(|settings| fetcher(&config, settings));
    let fetchers: Vec<Option<Fetcher>> = fetchers.collect::<Result<_, _>>()?;
    let stop = signals::watch()?;
    let folder = DataFolder::open(&config.data)?;
    let public = config.public_address.clone();
    let public = public.unwrap_or_else(PublicAddress::local);
    let identity = Identity::load_or_make(&folder, &public.host_name())?;
    make_qlog_folder(&config)?;
    let store = open_store(&config, &folder).await?;
    let mut channels = Vec::new();
    for (settings, fetcher) in config.channels.iter().zip(fetchers) {
        channels.push(Channel {
            adopted: adopt(&config, &folder, &*store, &settings.name).await?,
            settings: settings.clone(),
            fetcher,
        });
    }
    let source = bind(&config, &identity, &channels, Arc::clone(&store)).await?;
    let listener = listen(config.http).await?;
    let local = source.local_addr();
    let address = public.with_port(local.port());
    enrol(&folder, &*store, &identity, &address, &channels).await?;
    let parts = Parts::start(&config, source, listener, store, channels).await?;
    let (what, ways) = match config.channels.as_slice() {
        [only] => (format!("channel {:?}", only.name), ways(&config, only)),
        all => {
            let each = all
                .iter()
                .map(|c| format!("{:?}: {}", c.name, ways(&config, c)));
            let each: Vec<String> = each.collect();
            (format!("{} channels", all.len()), each.join(", "))
        }
    };
    info!(
        "serving {what} on UDP {local}, {ways}; status pages on http://{}",
        parts.http
    );
    parts.until(stop).await.map_err(Failure::Other)
    // The folder's lock goes last.
}

/// The ways that a channel goes, in words.
fn ways(config: &Config, channel: &ChannelSettings) -> String {
    let groups = channel.groups.all().iter().map(ToString::to_string);
    let groups: Vec<String> = groups.collect();
    let private = if channel.private { "private, " } else { "" };
    match (groups.as_slice(), config.replicate) {
        ([], true) => format!("{private}its flow in copies only"),
        ([], false) => format!("{private}by unicast only"),
        (groups, _) => format!("{private}its flow on {}", groups.join(" and ")),
    }
}

/// The fetcher for the feed of a channel.
fn fetcher(config: &Config, channel: &ChannelSettings) -> Result<Option<Fetcher>, Failure> {
    let Some(feed) = channel.feeds.first() else {
        return Ok(None);
    };
    let fetch = FetchConfig {
        allow_private: config.allow_private_feed || feed.local,
        user_agent: USER_AGENT.to_owned(),
        ..FetchConfig::new(feed.address.secret.clone())
    };
    Fetcher::new(fetch).map(Some).map_err(|error| match error {
        FetchError::Private { .. } => Failure::Usage(anyhow!("{error} (--allow-private-feed)")),
        FetchError::Address { .. } => {
            Failure::Usage(anyhow!("the feed of channel {:?}: {error}", channel.name))
        }
        other => Failure::Other(other.into()),
    })
}

fn make_qlog_folder(config: &Config) -> Result<()> {
    let Some(folder) = &config.qlog else {
        return Ok(());
    };
    std::fs::create_dir_all(folder).with_context(|| {
        format!(
            "cannot make the folder {}: choose another one with --qlog",
            folder.display()
        )
    })
}

async fn open_store(config: &Config, folder: &DataFolder) -> Result<Arc<dyn Store>> {
    let opened = match &config.database_url {
        Some(url) => store::open(url).await,
        None => store::open_file(&folder.file("flexfeed.db")).await,
    };
    Ok(opened?)
}

/// Opens a channel of the store for publishing, and lets go of what is not to be kept.
async fn adopt(
    config: &Config,
    folder: &DataFolder,
    store: &dyn Store,
    name: &str,
) -> Result<Adopted> {
    let mark = folder.file(&format!("{name}.head"));
    let mut adopted = sabotage::adopt(&mark, store, name).await?;
    if let Some(renewal) = &adopted.renewal {
        warn!(
            "channel {name:?} gets a new incarnation ({}), so its receivers start over: {renewal}. \
             This is on the safe side: without it, receivers could miss updates that have the \
             numbers of others",
            adopted.channel.incarnation
        );
    }
    if let Some(count) = config.keep.count {
        let keep = Retention {
            count: Some(count),
            age_ms: None,
        };
        adopted.channel.first = store.retain(name, &keep).await?;
    }
    Ok(adopted)
}

async fn bind(
    config: &Config,
    identity: &Identity,
    channels: &[Channel],
    store: Arc<dyn Store>,
) -> Result<Source> {
    let mut configured = Vec::new();
    for Channel {
        settings, adopted, ..
    } in channels
    {
        let channel = &adopted.channel;
        configured.push(ChannelConfig {
            name: channel.name.clone(),
            incarnation: channel.incarnation,
            head: channel.head,
            first: channel.first,
            private: settings.private,
            flow: flow(config, settings)?,
        });
    }
    let settings = SourceConfig {
        listen: config.listen,
        cert: identity.cert.clone(),
        key: identity.key.clone(),
        reset_key: identity.reset_key,
        channels: configured,
        rate_bps: config.rate_bps,
        unicast_rate_bps: Some(config.unicast_rate_bps),
        ack_delay: config.ack_delay,
        fall_back: config.fall_back,
        heartbeat: config.heartbeat,
        qlog: config.qlog.clone(),
        sabotage: sabotage::from_environment(),
    };
    let marks = channels
        .iter()
        .map(|c| (c.settings.name.clone(), c.adopted.mark.clone()))
        .collect();
    let backlog = StoreBacklog::new(store, marks);
    Source::bind(settings, Arc::new(backlog))
        .await
        .with_context(|| {
            format!(
                "cannot serve receivers on {} (--listen, --flow-source)",
                config.listen
            )
        })
}

/// The flow of a channel; `None` if everything goes by unicast.
fn flow(config: &Config, channel: &ChannelSettings) -> Result<Option<FlowSettings>> {
    let groups = channel.groups.all();
    if groups.is_empty() && !config.replicate {
        return Ok(None);
    }
    let endpoints = groups.iter().map(|&group| {
        Ok(FlowEndpoint {
            group,
            interface: interface(config, group)?,
            asm: config.asm,
            ttl: FLOW_TTL,
        })
    });
    Ok(Some(FlowSettings {
        endpoints: endpoints.collect::<Result<_>>()?,
        replicate: config.replicate,
        rate_bps: channel.rate_bps,
    }))
}

/// The address that the flow to a group leaves from.
fn interface(config: &Config, group: SocketAddr) -> Result<IpAddr> {
    if let Some(ip) = config.flow_sources.towards(group) {
        return Ok(ip);
    }
    let remedy = "name its address with --flow-source, or leave the group out of --group";
    let ip = netio::route_source(group.ip()).with_context(|| {
        format!("cannot find the interface that the flow to {group} should leave by; {remedy}")
    })?;
    if let IpAddr::V6(v6) = ip
        && v6.is_unicast_link_local()
    {
        bail!(
            "the flow to {group} would leave from {v6}, which routers do not forward for: this \
             machine's interface has no other IPv6 address; {remedy}"
        );
    }
    Ok(ip)
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
    channels: &[Channel],
) -> Result<()> {
    let (token, given_out) = match Token::load(folder)? {
        Some(token) => (token, true),
        None => (Token::make()?, false),
    };
    let hash = token.hash();
    if !store.token_valid(&hash).await? {
        // Before the link is written: one that is there always works. A database that was made
        // anew is told of the link that its operator has already given out.
        if given_out && channels.iter().all(|c| c.adopted.channel.head == 0) {
            warn!(
                "the database is new although this data folder is not: receivers start over; \
                 restore a backup if this is not meant"
            );
        }
        let token = NewToken {
            hash,
            label: "first enrolment link".to_owned(),
            limit: None,
            expires_ms: None,
            public: false,
            channels: Vec::new(),
        };
        store.add_token(&token).await?;
    }
    let names: Vec<&str> = channels.iter().map(|c| c.settings.name.as_str()).collect();
    let link = token.link(address, &identity.pin, &names);
    if link.len() > MAX_LINK {
        bail!(
            "the names of the {} channels make the enrolment link longer than the {MAX_LINK} bytes \
             that receivers read: give them shorter names",
            names.len()
        );
    }
    let saved = enrolment::save(folder, &link)?;
    let file = enrolment::link_file(folder);
    match saved {
        Saved::New => announce(&link, &file.display().to_string()),
        Saved::Changed => info!(
            "the enrolment link in {} is another one now, because the public address, the \
             certificate or a channel has changed: give receivers the new one",
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
