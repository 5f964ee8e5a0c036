//! Relays that a source publishes in the DNS (RFC 8777): AMTRELAY records under the reverse name of
//! its address.
//!
//! CNAMEs are followed, truncated answers are fetched again over TCP, and names of relays are
//! resolved to addresses. Records and names per answer are bounded, and so is the time.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use amt::PORT;
use amt::discovery::{AmtRelay, RECORD_TYPE, RankedRelay, RelayTarget, order, reverse_name};
use amt::gateway::{Candidate, Origin};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use tokio::task::JoinSet;
use tokio::time::{timeout, timeout_at};
use tracing::debug;

/// Most records read of one answer.
const MAX_RECORDS: usize = 32;
/// Most relay names resolved for one source: with two queries each, this keeps the bound of ten
/// queries at once of RFC 8777, section 2.4.2.
const MAX_NAMES: usize = 4;
/// Most addresses of one name and family.
const MAX_ADDRESSES: usize = 8;
/// Divisor of the timeout for the remaining names, once there is a relay.
const GRACE: u32 = 5;
/// Cached answers.
const CACHE: u64 = 64;

/// Shortest validity of an answer, whatever its TTL.
const MIN_VALID: Duration = Duration::from_secs(10);
/// Longest validity of an answer.
const MAX_VALID: Duration = Duration::from_secs(24 * 3600);
/// Validity of an incomplete answer, and of one without a TTL.
const INCOMPLETE: Duration = Duration::from_secs(60);

/// DNS settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name servers; those of the system if empty.
    pub nameservers: Vec<SocketAddr>,
    /// Time limit of one discovery. An unresponsive name server is asked again within it; once
    /// there is a relay, a fifth of it remains for the names of others.
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            nameservers: Vec::new(),
            timeout: Duration::from_secs(5),
        }
    }
}

/// Error of a discovery. A source without relays is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// The system's name servers are unknown.
    #[error(
        "the system's name servers are not known ({0}); correct /etc/resolv.conf, or configure \
         relays"
    )]
    System(NetError),
    /// The lookup failed.
    #[error("the DNS gave no AMTRELAY records of {name}: {why}")]
    Lookup {
        /// Reverse name.
        name: String,
        /// Error of the resolver.
        why: NetError,
    },
    /// The lookup timed out.
    #[error("the DNS gave no AMTRELAY records of {name} within {within:?}")]
    Timeout {
        /// Reverse name.
        name: String,
        /// Time waited: [`Config::timeout`].
        within: Duration,
    },
}

/// Relays of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Relays {
    /// Candidates, the preferred ones first; all of [`Origin::Dns`].
    pub candidates: Vec<Candidate>,
    /// Whether the source forbids all relays, and names none: not even anycast addresses may be
    /// tried.
    pub refused: bool,
    /// Addresses of the relays with names, by these.
    pub names: BTreeMap<String, Vec<IpAddr>>,
    /// Names of relays without an address, and the reasons.
    pub unresolved: Vec<(String, String)>,
    /// End of the validity: from the TTLs, within bounds.
    pub valid_until: Instant,
}

/// Caching resolver of relays. It keeps the name servers of its creation: replace it when the
/// network changes.
#[derive(Clone)]
pub struct Resolver {
    inner: TokioResolver,
    timeout: Duration,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Resolver {
    /// Creates a resolver, without asking anything yet.
    ///
    /// # Errors
    /// The system's name servers are needed and unknown.
    pub fn new(config: &Config) -> Result<Self, DiscoveryError> {
        let mut builder = if config.nameservers.is_empty() {
            TokioResolver::builder_tokio().map_err(DiscoveryError::System)?
        } else {
            let servers = config.nameservers.iter().map(server).collect();
            let config = ResolverConfig::from_name_servers(servers);
            TokioResolver::builder_with_config(config, Default::default())
        };
        set_options(builder.options_mut(), config.timeout);
        Ok(Resolver {
            inner: builder.build().map_err(DiscoveryError::System)?,
            timeout: config.timeout,
        })
    }

    /// Returns the relays of `source`, possibly none. Cancel safe.
    ///
    /// # Errors
    /// The name servers do not answer, or answer with an error.
    pub async fn relays(&self, source: IpAddr) -> Result<Relays, DiscoveryError> {
        let started = Instant::now();
        let name = reverse_name(source);
        let failed = |why| DiscoveryError::Lookup {
            name: name.clone(),
            why,
        };
        let asked = Name::from_ascii(&name).map_err(|error| failed(error.into()))?;
        let lookup = self.inner.lookup(asked, RecordType::from(RECORD_TYPE));
        let lookup = match timeout(self.timeout, lookup).await {
            Ok(Ok(lookup)) => lookup,
            Ok(Err(error)) => {
                let valid = nothing_there(&error).ok_or_else(|| failed(error))?;
                return Ok(Relays {
                    candidates: Vec::new(),
                    refused: false,
                    names: BTreeMap::new(),
                    unresolved: Vec::new(),
                    valid_until: within_bounds(Instant::now() + valid),
                });
            }
            Err(_) => {
                let within = self.timeout;
                return Err(DiscoveryError::Timeout { name, within });
            }
        };
        let records = records(&lookup, &name);
        let mut answer = RelaysBuilder::new(&records, lookup.valid_until());
        let left = self.timeout.saturating_sub(started.elapsed());
        self.resolve_names(&records, left, &mut answer).await;
        Ok(answer.finish(&records))
    }

    /// Adds the addresses of the records with names. Each address family of each name is a query of
    /// its own, and missing answers do not delay the present ones for long (RFC 8305, section 3):
    /// addresses that arrive neither within `left` nor soon after the first relay are left out.
    async fn resolve_names(
        &self,
        records: &[AmtRelay],
        left: Duration,
        answer: &mut RelaysBuilder,
    ) {
        // Several records may have the same name, with different precedences.
        let mut names: BTreeMap<&str, Vec<&AmtRelay>> = BTreeMap::new();
        for record in records {
            if let RelayTarget::Name(name) = &record.relay
                && (names.len() < MAX_NAMES || names.contains_key(name.as_str()))
            {
                names.entry(name).or_default().push(record);
            }
        }
        let mut lookups = JoinSet::new();
        for name in names.keys() {
            for kind in [RecordType::A, RecordType::AAAA] {
                let (resolver, name) = (self.inner.clone(), (*name).to_owned());
                lookups.spawn(async move {
                    let found = resolver.lookup(name.as_str(), kind).await;
                    (name, found)
                });
            }
        }
        let mut ends = tokio::time::Instant::now() + left;
        let mut hurried = false;
        // Names with their pending families, and the first failure.
        let mut missing: BTreeMap<&str, (u8, Option<String>)> =
            names.keys().map(|name| (*name, (2, None))).collect();
        let mut with_address = BTreeSet::new();
        loop {
            if !hurried && !answer.found.is_empty() {
                hurried = true;
                ends = ends.min(tokio::time::Instant::now() + self.timeout / GRACE);
            }
            let ended = match timeout_at(ends, lookups.join_next()).await {
                Ok(Some(ended)) => ended,
                Ok(None) | Err(_) => break,
            };
            // Lookups neither panic nor are they aborted.
            let Ok((name, found)) = ended else {
                continue;
            };
            let Some((left, why)) = missing.get_mut(name.as_str()) else {
                continue;
            };
            *left = left.saturating_sub(1);
            let addresses = match &found {
                Ok(found) => addresses(found),
                Err(error) => {
                    why.get_or_insert_with(|| error.to_string());
                    Vec::new()
                }
            };
            if addresses.is_empty() {
                continue;
            }
            if let Ok(found) = found {
                answer.valid_until = answer.valid_until.min(found.valid_until());
            }
            for record in names.get(name.as_str()).into_iter().flatten() {
                for ip in &addresses {
                    answer.add(record, *ip);
                }
            }
            let known = answer.names.entry(name.clone()).or_default();
            known.extend(addresses);
            with_address.insert(name);
        }
        for (name, (left, why)) in missing {
            match (with_address.contains(name), left) {
                (true, 0) => {}
                (true, _) => answer.is_incomplete(),
                (false, 0) => {
                    let why = why.unwrap_or_else(|| "the name has no address".to_owned());
                    answer.unresolved(name.to_owned(), why);
                }
                (false, _) => answer.unresolved(name.to_owned(), "no answer in time".to_owned()),
            }
        }
    }
}

/// Returns the addresses in an answer, after any CNAMEs.
fn addresses(lookup: &Lookup) -> Vec<IpAddr> {
    let addresses = lookup
        .answers()
        .iter()
        .filter_map(|record| match &record.data {
            RData::A(ip) => Some(IpAddr::V4(ip.0)),
            RData::AAAA(ip) => Some(IpAddr::V6(ip.0)),
            _ => None,
        });
    addresses.take(MAX_ADDRESSES).collect()
}

fn server(address: &SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
    let connections = connections.map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.into())
}

fn set_options(options: &mut ResolverOpts, within: Duration) {
    // Two attempts, of which the second may need TCP.
    options.timeout = options
        .timeout
        .min(within / 3)
        .max(Duration::from_millis(50));
    options.attempts = 2;
    options.cache_size = CACHE;
    options.positive_max_ttl = Some(MAX_VALID);
    options.negative_max_ttl = Some(MAX_VALID);
}

/// Returns the validity of a negative answer: the name does not exist, or has no such records.
fn nothing_there(error: &NetError) -> Option<Duration> {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => {
            let ttl = none.negative_ttl.map(u64::from);
            Some(ttl.map_or(INCOMPLETE, Duration::from_secs))
        }
        _ => None,
    }
}

fn within_bounds(valid_until: Instant) -> Instant {
    let now = Instant::now();
    valid_until.clamp(now + MIN_VALID, now + MAX_VALID)
}

/// Returns the valid records of an answer, the preferred ones first.
fn records(lookup: &Lookup, name: &str) -> Vec<AmtRelay> {
    let data = lookup
        .answers()
        .iter()
        .filter_map(|record| match &record.data {
            RData::Unknown { code, rdata } if u16::from(*code) == RECORD_TYPE => {
                Some(rdata.anything.as_slice())
            }
            // CNAMEs on the path.
            _ => None,
        });
    let read = data.filter_map(|data| match AmtRelay::parse(data) {
        Ok(record) => Some(record),
        Err(error) => {
            debug!(name, %error, "AMTRELAY record ignored");
            None
        }
    });
    let mut records: Vec<_> = read.collect();
    records.sort_by_key(|record| record.precedence);
    records.truncate(MAX_RECORDS);
    records
}

/// [`Relays`] in progress.
struct RelaysBuilder {
    found: Vec<RankedRelay>,
    names: BTreeMap<String, Vec<IpAddr>>,
    unresolved: Vec<(String, String)>,
    valid_until: Instant,
}

impl RelaysBuilder {
    /// Starts with the records that have addresses.
    fn new(records: &[AmtRelay], valid_until: Instant) -> Self {
        let mut answer = RelaysBuilder {
            found: Vec::new(),
            names: BTreeMap::new(),
            unresolved: Vec::new(),
            valid_until,
        };
        for record in records {
            if let RelayTarget::Address(ip) = record.relay {
                answer.add(record, ip);
            }
        }
        answer
    }

    fn add(&mut self, record: &AmtRelay, ip: IpAddr) {
        self.found.push(RankedRelay {
            addr: SocketAddr::new(ip, PORT),
            discover: !record.discovery_optional,
            origin: Origin::Dns,
            preference: u32::from(record.precedence),
        });
    }

    fn unresolved(&mut self, name: String, why: String) {
        debug!(name, why, "relay name without address");
        self.unresolved.push((name, why));
        self.is_incomplete();
    }

    /// Shortens the validity, because more may be found.
    fn is_incomplete(&mut self) {
        self.valid_until = self.valid_until.min(Instant::now() + INCOMPLETE);
    }

    fn finish(mut self, records: &[AmtRelay]) -> Relays {
        self.unresolved.sort();
        Relays {
            candidates: order(self.found, rand::random()),
            names: self.names,
            refused: !records.is_empty() && records.iter().all(|r| r.relay == RelayTarget::None),
            unresolved: self.unresolved,
            valid_until: within_bounds(self.valid_until),
        }
    }
}
