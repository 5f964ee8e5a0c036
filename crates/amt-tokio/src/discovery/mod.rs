//! Relays that a source publishes in the DNS (RFC 8777): AMTRELAY records under the reverse name of
//! its address.
//!
//! CNAMEs are followed, truncated answers fetched again over TCP, and the names of relays resolved
//! to their addresses. Everything is bounded: the records and names of one answer, and the time.

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

/// Records of one answer that are read.
const MAX_RECORDS: usize = 32;
/// Names of relays that are resolved for one source: with two queries each, the bound of RFC 8777,
/// section 2.4.2, of ten queries at once is kept.
const MAX_NAMES: usize = 4;
/// Addresses of one name and family that are taken.
const MAX_ADDRESSES: usize = 8;
/// The names of further relays have this part of the timeout, once there is a relay.
const GRACE: u32 = 5;
/// Answers that are remembered.
const CACHE: u64 = 64;

/// An answer is not asked for again before this time, whatever its TTL.
const MIN_VALID: Duration = Duration::from_secs(10);
/// And again after this time.
const MAX_VALID: Duration = Duration::from_secs(24 * 3600);
/// How long an answer is taken where nobody says, or where a part of it is missing.
const INCOMPLETE: Duration = Duration::from_secs(60);

/// How to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The name servers; none for those of the system.
    pub nameservers: Vec<SocketAddr>,
    /// How long one discovery takes at most. A name server that does not answer is asked again
    /// within it; with one relay found, a fifth of it is left for the names of others.
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

/// Why nothing is known of a source's relays. That it publishes none is no error.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The system does not say which name servers to ask.
    #[error(
        "the system's name servers are not known ({0}); correct /etc/resolv.conf, or configure relays"
    )]
    System(NetError),
    /// The name servers did not answer, or not with an answer.
    #[error("the DNS gave no AMTRELAY records of {name}: {why}")]
    Lookup {
        /// The reverse name.
        name: String,
        /// What went wrong.
        why: NetError,
    },
    /// They did not answer in time.
    #[error("the DNS gave no AMTRELAY records of {name} within {within:?}")]
    Timeout {
        /// The reverse name.
        name: String,
        /// [`Config::timeout`].
        within: Duration,
    },
}

/// What a source's relays are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relays {
    /// They, the preferred ones first; all of [`Origin::Dns`].
    pub candidates: Vec<Candidate>,
    /// The source says that no relay is to be used for it, and names none: not even anycast
    /// addresses are to be tried.
    pub refused: bool,
    /// Names of relays that gave no address, and why.
    pub unresolved: Vec<(String, String)>,
    /// When to ask again: as the TTLs say, within bounds.
    pub valid_until: Instant,
}

/// Asks the DNS for relays, and remembers answers as long as they are valid. It knows the name
/// servers of the time when it was made: make a new one after the network changed.
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
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// The system's name servers are to be asked and are not known.
    pub fn new(config: &Config) -> Result<Self, DiscoveryError> {
        let mut builder = if config.nameservers.is_empty() {
            TokioResolver::builder_tokio().map_err(DiscoveryError::System)?
        } else {
            let servers = config.nameservers.iter().map(server).collect();
            let config = ResolverConfig::from_name_servers(servers);
            TokioResolver::builder_with_config(config, Default::default())
        };
        set(builder.options_mut(), config.timeout);
        Ok(Resolver {
            inner: builder.build().map_err(DiscoveryError::System)?,
            timeout: config.timeout,
        })
    }

    /// The relays of `source`; none is an answer, too. Cancel safe.
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
        let mut answer = Answer::new(&records, lookup.valid_until());
        let left = self.timeout.saturating_sub(started.elapsed());
        self.resolve_names(&records, left, &mut answer).await;
        Ok(answer.finish(&records))
    }

    /// Adds the addresses of the records with names. Each address family of each name is asked for
    /// by itself, and what is there is not kept waiting for long by what is missing (RFC 8305,
    /// section 3): what is not found within `left`, or soon after the first relay, is left out.
    async fn resolve_names(&self, records: &[AmtRelay], left: Duration, answer: &mut Answer) {
        // Several records may have one name, with other precedences.
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
        // Names with the families that have not ended, and why another gave nothing.
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
            // They neither panic nor are they aborted.
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

/// The addresses in an answer, behind whatever CNAMEs.
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

fn set(options: &mut ResolverOpts, within: Duration) {
    // Two attempts, and the second may need TCP.
    options.timeout = options
        .timeout
        .min(within / 3)
        .max(Duration::from_millis(50));
    options.attempts = 2;
    options.cache_size = CACHE;
    options.positive_max_ttl = Some(MAX_VALID);
    options.negative_max_ttl = Some(MAX_VALID);
}

/// For how long there is nothing, if that is what the error says: the name does not exist, or has
/// no such records.
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

/// The readable records of an answer, the preferred ones first.
fn records(lookup: &Lookup, name: &str) -> Vec<AmtRelay> {
    let data = lookup
        .answers()
        .iter()
        .filter_map(|record| match &record.data {
            RData::Unknown { code, rdata } if u16::from(*code) == RECORD_TYPE => {
                Some(rdata.anything.as_slice())
            }
            // CNAMEs on the way.
            _ => None,
        });
    let read = data.filter_map(|data| match AmtRelay::parse(data) {
        Ok(record) => Some(record),
        Err(error) => {
            debug!(name, %error, "a record is left out");
            None
        }
    });
    let mut records: Vec<_> = read.collect();
    records.sort_by_key(|record| record.precedence);
    records.truncate(MAX_RECORDS);
    records
}

/// What becomes [`Relays`].
struct Answer {
    found: Vec<RankedRelay>,
    unresolved: Vec<(String, String)>,
    valid_until: Instant,
}

impl Answer {
    /// With the records that have addresses.
    fn new(records: &[AmtRelay], valid_until: Instant) -> Self {
        let mut answer = Answer {
            found: Vec::new(),
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
        debug!(name, why, "the name of a relay gave no address");
        self.unresolved.push((name, why));
        self.is_incomplete();
    }

    /// There may be more than what was found: it is asked for again soon.
    fn is_incomplete(&mut self) {
        self.valid_until = self.valid_until.min(Instant::now() + INCOMPLETE);
    }

    fn finish(mut self, records: &[AmtRelay]) -> Relays {
        self.unresolved.sort();
        Relays {
            candidates: order(self.found, rand::random()),
            refused: !records.is_empty() && records.iter().all(|r| r.relay == RelayTarget::None),
            unresolved: self.unresolved,
            valid_until: within_bounds(self.valid_until),
        }
    }
}
