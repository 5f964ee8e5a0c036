//! Candidates: names are looked up in the background, whenever a relay is needed.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use amt::discovery::{RankedRelay, anycast, order};
use amt::gateway::{Candidate, Origin};
use tokio::task::{self, JoinSet};
use tracing::debug;

use crate::discovery::{self, DiscoveryError, Relays, Resolver};
use crate::{Hint, RelayName};

/// Time limit of a lookup.
const LOOKUP_WITHIN: Duration = Duration::from_secs(5);
/// Most addresses of one name.
const MAX_ADDRESSES: usize = 8;
/// Most hints.
const MAX_HINTS: usize = 32;
/// Most sources whose relays are looked up in the DNS.
const MAX_SOURCES: usize = 16;
/// Longest pause before names are looked up again.
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// State of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lookup {
    /// In progress.
    UnderWay,
    /// Finished with these addresses.
    Found(Vec<SocketAddr>),
    /// Failed for this reason.
    Failed(String),
}

/// Status of a lookup, for a status page.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameStatus {
    /// Name of the relay or, for [`Origin::Dns`], source address.
    pub name: String,
    /// Source of knowledge of the relay.
    pub origin: Origin,
    /// State of the lookup.
    pub lookup: Lookup,
}

/// Result of a lookup.
#[derive(Debug)]
enum LookupResult {
    Name(RelayName, io::Result<Vec<SocketAddr>>),
    Source(IpAddr, Result<Relays, DiscoveryError>),
}

/// Relays of a source in the DNS.
#[derive(Debug)]
enum DnsRelays {
    UnderWay,
    Known(Relays),
    Failed(String),
    /// Not looked up, because the bound on sources is reached.
    Deferred,
}

/// A source of subscribed flows.
#[derive(Debug)]
struct Source {
    /// Number of subscribed flows.
    uses: usize,
    published: DnsRelays,
}

/// Subject of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LookupTarget {
    Name(RelayName),
    Source(IpAddr),
}

/// Search for candidates.
#[derive(Debug)]
pub(crate) struct Finder {
    relays: Vec<RelayName>,
    /// Announced relays with their priorities.
    hints: Vec<(u8, RelayName)>,
    anycast: bool,
    dns: Option<discovery::Config>,
    /// Created when it is first needed, with the name servers of that time.
    resolver: Option<Resolver>,
    known: BTreeMap<RelayName, Lookup>,
    sources: BTreeMap<IpAddr, Source>,
    lookups: JoinSet<LookupResult>,
    /// Subjects of the lookups in progress, each only once.
    under_way: HashMap<task::Id, LookupTarget>,
    again: Option<Instant>,
    /// First pause before names are looked up again; doubles each time.
    first_pause: Duration,
    pause: Duration,
    /// Seed of the order among equal relays, which differs between gateways to spread them.
    seed: u64,
}

impl Finder {
    pub(crate) fn new(
        relays: Vec<RelayName>,
        dns: Option<discovery::Config>,
        anycast: bool,
        first_pause: Duration,
        seed: u64,
    ) -> Self {
        Self {
            dns,
            resolver: None,
            sources: BTreeMap::new(),
            anycast: anycast || relays.contains(&RelayName::Anycast),
            relays,
            hints: Vec::new(),
            known: BTreeMap::new(),
            lookups: JoinSet::new(),
            under_way: HashMap::new(),
            again: None,
            first_pause,
            pause: first_pause,
            seed,
        }
    }

    /// Adds a flow of this source; returns whether the DNS is asked for its relays because of that.
    pub(crate) fn wants(&mut self, source: IpAddr) -> bool {
        if self.dns.is_none() {
            return false;
        }
        let source = source.to_canonical();
        if let Some(known) = self.sources.get_mut(&source) {
            known.uses += 1;
            return false;
        }
        let published = DnsRelays::Deferred;
        self.sources.insert(source, Source { uses: 1, published });
        self.discover_further();
        !matches!(self.dns_relays_of(source), Some(DnsRelays::Deferred))
    }

    /// Removes a flow of this source; returns whether it was the last one, whose end drops the
    /// source's relays.
    pub(crate) fn forgets(&mut self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        let Some(known) = self.sources.get_mut(&source) else {
            return false;
        };
        known.uses = known.uses.saturating_sub(1);
        let last = known.uses == 0;
        if last {
            self.sources.remove(&source);
            self.discover_further();
        }
        last
    }

    /// Looks up the relays of deferred sources, as far as the bound allows.
    fn discover_further(&mut self) {
        let is_deferred = |source: &Source| matches!(source.published, DnsRelays::Deferred);
        let asked = self.sources.values().filter(|s| !is_deferred(s)).count();
        let waiting = self.sources.iter().filter(|(_, s)| is_deferred(s));
        let next: Vec<IpAddr> = waiting
            .take(MAX_SOURCES.saturating_sub(asked))
            .map(|(source, _)| *source)
            .collect();
        for source in next {
            self.discover(source);
        }
    }

    fn dns_relays_of(&self, source: IpAddr) -> Option<&DnsRelays> {
        self.sources.get(&source).map(|source| &source.published)
    }

    /// Stores the relays of a source, unless it is no longer subscribed.
    fn set_dns_relays(&mut self, source: IpAddr, published: DnsRelays) {
        if let Some(known) = self.sources.get_mut(&source) {
            known.published = published;
        }
    }

    fn is_under_way(&self, asked: &LookupTarget) -> bool {
        self.under_way.values().any(|other| other == asked)
    }

    /// Starts a DNS lookup of a source's relays.
    fn discover(&mut self, source: IpAddr) {
        let Some(config) = self.dns.clone() else {
            return;
        };
        // Earlier results remain in use meanwhile.
        if !matches!(self.dns_relays_of(source), Some(DnsRelays::Known(_))) {
            self.set_dns_relays(source, DnsRelays::UnderWay);
        }
        let asked = LookupTarget::Source(source);
        if self.is_under_way(&asked) {
            return;
        }
        if self.resolver.is_none() {
            match Resolver::new(&config) {
                Ok(resolver) => self.resolver = Some(resolver),
                Err(error) => {
                    self.set_dns_relays(source, DnsRelays::Failed(error.to_string()));
                    return;
                }
            }
        }
        let Some(resolver) = self.resolver.clone() else {
            return;
        };
        let task = self
            .lookups
            .spawn(async move { LookupResult::Source(source, resolver.relays(source).await) });
        self.under_way.insert(task.id(), asked);
    }

    /// Restarts all lookups: other name servers may be near.
    pub(crate) fn network_changed(&mut self) {
        self.resolver = None;
        self.resolve(true);
    }

    /// Replaces the hints; invalid ones are ignored.
    pub(crate) fn set_hints(&mut self, hints: &[Hint]) {
        self.hints.clear();
        for hint in hints.iter().take(MAX_HINTS) {
            match RelayName::new(&hint.host, hint.port) {
                Ok(name) => self.hints.push((hint.priority, name)),
                Err(error) => debug!(%error, "relay hint ignored"),
            }
        }
        let relays = &self.relays;
        let hints = &self.hints;
        let wanted =
            |name: &RelayName| relays.contains(name) || hints.iter().any(|(_, hint)| hint == name);
        self.known.retain(|name, _| wanted(name));
    }

    /// Looks up the names without a result, or `all` of them.
    pub(crate) fn resolve(&mut self, all: bool) {
        let names: Vec<RelayName> = self.names().map(|(_, _, name)| name.clone()).collect();
        for name in names {
            let RelayName::Host { host, port } = &name else {
                continue;
            };
            let asked = LookupTarget::Name(name.clone());
            match self.known.get(&name) {
                _ if self.is_under_way(&asked) => continue,
                Some(Lookup::Found(_)) if !all => continue,
                // Earlier results remain in use meanwhile.
                Some(Lookup::Found(_)) => {}
                Some(Lookup::UnderWay | Lookup::Failed(_)) | None => {
                    self.known.insert(name.clone(), Lookup::UnderWay);
                }
            }
            let (host, port) = (host.clone(), *port);
            let task = self.lookups.spawn(async move {
                let found = tokio::net::lookup_host((host.as_str(), port));
                let found = match tokio::time::timeout(LOOKUP_WITHIN, found).await {
                    Ok(found) => found.map(|addresses| addresses.collect()),
                    Err(_) => Err(io::Error::other("the name service does not answer")),
                };
                LookupResult::Name(name, found)
            });
            self.under_way.insert(task.id(), asked);
        }
        let now = Instant::now();
        let due = self
            .sources
            .iter()
            .filter(|(_, source)| match &source.published {
                DnsRelays::UnderWay | DnsRelays::Deferred => false,
                DnsRelays::Known(relays) => all && relays.valid_until <= now,
                DnsRelays::Failed(_) => true,
            });
        let due: Vec<IpAddr> = due.map(|(source, _)| *source).collect();
        for source in due {
            self.discover(source);
        }
    }

    /// Whether lookups are in progress.
    pub(crate) fn is_busy(&self) -> bool {
        !self.lookups.is_empty()
    }

    /// Waits for the end of a lookup; for ever if there is none. Cancel safe.
    pub(crate) async fn resolved(&mut self) {
        let Some(ended) = self.lookups.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let asked = self.under_way.remove(&id);
        match (ended, asked) {
            (Ok((_, LookupResult::Name(name, found))), _) => self.take(name, found),
            (Ok((_, LookupResult::Source(source, found))), _) => {
                self.store_dns_relays(source, found)
            }
            (Err(error), Some(LookupTarget::Name(name))) => self.take(name, Err(error.into())),
            (Err(error), Some(LookupTarget::Source(source))) => {
                self.set_dns_relays(source, DnsRelays::Failed(error.to_string()));
            }
            (Err(error), None) => debug!(%error, "lookup ended early"),
        }
    }

    fn take(&mut self, name: RelayName, found: io::Result<Vec<SocketAddr>>) {
        if !self.names().any(|(_, _, wanted)| *wanted == name) {
            // The hint was withdrawn.
            return;
        }
        let failure = match found {
            Ok(mut found) if !found.is_empty() => {
                found.truncate(MAX_ADDRESSES);
                self.known.insert(name, Lookup::Found(found));
                return;
            }
            Ok(_) => "the name has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        debug!(%name, failure, "relay name lookup failed");
        // Earlier addresses are better than none.
        if !matches!(self.known.get(&name), Some(Lookup::Found(_))) {
            self.known.insert(name, Lookup::Failed(failure));
        }
    }

    fn store_dns_relays(&mut self, source: IpAddr, found: Result<Relays, DiscoveryError>) {
        let published = match found {
            Ok(relays) => DnsRelays::Known(relays),
            Err(error) => {
                debug!(%source, %error, "relay discovery failed");
                // Earlier relays are better than none.
                if matches!(self.dns_relays_of(source), Some(DnsRelays::Known(_))) {
                    return;
                }
                DnsRelays::Failed(error.to_string())
            }
        };
        self.set_dns_relays(source, published);
    }

    fn published(&self) -> impl Iterator<Item = &Relays> {
        self.sources
            .values()
            .filter_map(|source| match &source.published {
                DnsRelays::Known(relays) => Some(relays),
                DnsRelays::UnderWay | DnsRelays::Failed(_) | DnsRelays::Deferred => None,
            })
    }

    /// Returns all known candidates, the preferred ones first.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let mut relays = Vec::new();
        for (origin, preference, name) in self.names() {
            let found: &[SocketAddr] = match (name, self.known.get(name)) {
                (RelayName::Address(address), _) => std::slice::from_ref(address),
                (_, Some(Lookup::Found(found))) => found,
                _ => &[],
            };
            relays.extend(found.iter().map(|addr| RankedRelay {
                addr: *addr,
                discover: false,
                origin,
                preference,
            }));
        }
        for published in self.published() {
            let in_order = published.candidates.iter().zip(0..);
            relays.extend(in_order.map(|(candidate, preference)| RankedRelay {
                addr: candidate.addr,
                discover: candidate.discover,
                origin: candidate.origin,
                preference,
            }));
        }
        // A source may forbid relays for its flows (RFC 8777, section 4.3.1).
        if self.anycast && !self.published().any(|relays| relays.refused) {
            relays.extend(anycast());
        }
        order(relays, self.seed)
    }

    /// Returns the addresses of the other family that have a name in common with this one: they may
    /// be the same host. The two anycast addresses lead to the same relays, too.
    pub(crate) fn other_family(&self, ip: IpAddr) -> Vec<IpAddr> {
        let ip = ip.to_canonical();
        let hosts = self.known.values().filter_map(|lookup| match lookup {
            Lookup::Found(found) => Some(found.iter().map(|a| a.ip().to_canonical()).collect()),
            Lookup::UnderWay | Lookup::Failed(_) => None,
        });
        let published = self.published().flat_map(|relays| relays.names.values());
        let anycast = anycast().map(|relay| relay.addr.ip());
        let names = hosts.chain(published.cloned()).chain([anycast.into()]);
        let shared = names.filter(|addresses: &Vec<IpAddr>| addresses.contains(&ip));
        let others = shared.flatten();
        others
            .filter(|other| other.is_ipv4() != ip.is_ipv4())
            .collect()
    }

    /// Returns all names with their origin and rank in it.
    fn names(&self) -> impl Iterator<Item = (Origin, u32, &RelayName)> {
        let configured = self.relays.iter().zip(0..);
        let configured = configured.map(|(name, place)| (Origin::Configured, place, name));
        let hints = self.hints.iter();
        configured.chain(hints.map(|(priority, name)| (Origin::Hint, (*priority).into(), name)))
    }

    /// Looks names up again because no relay answers: after a pause that grows each time, and DNS
    /// results not before they expire. May be called at any rate.
    pub(crate) fn needs_more(&mut self, now: Instant) {
        if self.again.is_some() || self.is_busy() {
            return;
        }
        let names = self
            .names()
            .any(|(_, _, name)| matches!(name, RelayName::Host { .. }));
        let failed = |source: &Source| matches!(source.published, DnsRelays::Failed(_));
        let at = match names || self.sources.values().any(failed) {
            true => now,
            false => match self.published().map(|relays| relays.valid_until).min() {
                Some(valid_until) => valid_until,
                // There is nothing to look up.
                None => return,
            },
        };
        self.again = Some(at.max(now + self.pause));
        self.pause = (self.pause * 2).min(AGAIN_MAX);
    }

    /// Resets the pause because a relay answers.
    pub(crate) fn settled(&mut self) {
        self.again = None;
        self.pause = self.first_pause;
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.again
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.again.is_some_and(|at| at <= now) {
            self.again = None;
            self.resolve(true);
        }
    }

    #[cfg(test)]
    pub(crate) fn know(&mut self, name: RelayName, found: Vec<SocketAddr>) {
        self.known.insert(name, Lookup::Found(found));
    }

    pub(crate) fn status(&self) -> Vec<NameStatus> {
        let hosts = self
            .names()
            .filter(|(_, _, name)| matches!(name, RelayName::Host { .. }));
        let hosts = hosts.map(|(origin, _, name)| NameStatus {
            name: name.to_string(),
            origin,
            lookup: self.known.get(name).cloned().unwrap_or(Lookup::UnderWay),
        });
        let sources = self.sources.iter().map(|(source, known)| NameStatus {
            name: source.to_string(),
            origin: Origin::Dns,
            lookup: match &known.published {
                DnsRelays::UnderWay => Lookup::UnderWay,
                DnsRelays::Known(relays) => {
                    Lookup::Found(relays.candidates.iter().map(|c| c.addr).collect())
                }
                DnsRelays::Failed(why) => Lookup::Failed(why.clone()),
                DnsRelays::Deferred => Lookup::Failed(format!(
                    "the DNS is asked for the relays of {MAX_SOURCES} sources at most"
                )),
            },
        });
        hosts.chain(sources).collect()
    }
}
