//! The candidates: names are looked up in the background, whenever a relay is needed.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use amt::discovery::{Found, anycast, order};
use amt::gateway::{Candidate, Origin};
use tokio::task::JoinSet;
use tracing::debug;

use crate::discovery::{self, DiscoveryError, Relays, Resolver};
use crate::{Hint, RelayName};

/// A name has to be found by then.
const LOOKUP_WITHIN: Duration = Duration::from_secs(5);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;
/// Hints that are kept.
const MAX_HINTS: usize = 32;
/// Sources whose relays are looked for in the DNS.
const MAX_SOURCES: usize = 16;
/// First pause before names are looked up again; it doubles.
const AGAIN_FIRST: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// How a lookup stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It has not ended yet.
    UnderWay,
    /// The addresses.
    Found(Vec<SocketAddr>),
    /// Why not.
    Failed(String),
}

/// Something that is looked up, for a status page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameStatus {
    /// The relay's name; of [`Origin::Dns`], the source whose relays are looked for.
    pub name: String,
    /// How it became known.
    pub origin: Origin,
    /// What it was found to mean.
    pub lookup: Lookup,
}

/// The end of a lookup.
#[derive(Debug)]
enum Resolved {
    Name(RelayName, io::Result<Vec<SocketAddr>>),
    Source(IpAddr, Result<Relays, DiscoveryError>),
}

/// What the DNS says of a source's relays.
#[derive(Debug)]
enum Published {
    UnderWay,
    Known(Relays),
    Failed(String),
}

/// All ways to find relays.
#[derive(Debug)]
pub(crate) struct Finder {
    relays: Vec<RelayName>,
    /// Each with its priority.
    hints: Vec<(u8, RelayName)>,
    anycast: bool,
    dns: Option<discovery::Config>,
    /// Made when it is needed, for it takes the name servers of that time.
    resolver: Option<Resolver>,
    known: BTreeMap<RelayName, Lookup>,
    sources: BTreeMap<IpAddr, Published>,
    lookups: JoinSet<Resolved>,
    again: Option<Instant>,
    pause: Duration,
    /// Relays that are alike are tried in another order by each gateway, so that they share them.
    seed: u64,
}

impl Finder {
    pub(crate) fn new(
        relays: Vec<RelayName>,
        dns: Option<discovery::Config>,
        anycast: bool,
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
            again: None,
            pause: AGAIN_FIRST,
            seed,
        }
    }

    /// A flow of this source is wanted; true if the DNS had not been asked for its relays.
    pub(crate) fn wants(&mut self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        let fresh = self.dns.is_some()
            && self.sources.len() < MAX_SOURCES
            && !self.sources.contains_key(&source);
        if fresh {
            self.discover(source);
        }
        fresh
    }

    /// Asks the DNS for the relays of a source.
    fn discover(&mut self, source: IpAddr) {
        let Some(config) = &self.dns else {
            return;
        };
        if self.resolver.is_none() {
            match Resolver::new(config) {
                Ok(resolver) => self.resolver = Some(resolver),
                Err(error) => {
                    let failed = Published::Failed(error.to_string());
                    self.sources.insert(source, failed);
                    return;
                }
            }
        }
        let Some(resolver) = self.resolver.clone() else {
            return;
        };
        let before = self.sources.get(&source);
        // What was found before goes on to be used meanwhile.
        if !matches!(before, Some(Published::Known(_))) {
            self.sources.insert(source, Published::UnderWay);
        }
        self.lookups
            .spawn(async move { Resolved::Source(source, resolver.relays(source).await) });
    }

    /// The network changed: other name servers may be near.
    pub(crate) fn network_changed(&mut self) {
        self.resolver = None;
        self.look_up(true);
    }

    /// Replaces the hints; those that name no relay are left out.
    pub(crate) fn set_hints(&mut self, hints: &[Hint]) {
        self.hints.clear();
        for hint in hints.iter().take(MAX_HINTS) {
            match RelayName::new(&hint.host, hint.port) {
                Ok(name) => self.hints.push((hint.priority, name)),
                Err(error) => debug!("the source's hint is left out: {error}"),
            }
        }
        let relays = &self.relays;
        let hints = &self.hints;
        let wanted =
            |name: &RelayName| relays.contains(name) || hints.iter().any(|(_, hint)| hint == name);
        self.known.retain(|name, _| wanted(name));
    }

    /// Looks up the names that are not known yet, or `all` of them.
    pub(crate) fn look_up(&mut self, all: bool) {
        let names: Vec<RelayName> = self.names().map(|(_, _, name)| name.clone()).collect();
        for name in names {
            let RelayName::Host { host, port } = &name else {
                continue;
            };
            match self.known.get(&name) {
                Some(Lookup::UnderWay) => continue,
                Some(Lookup::Found(_)) if !all => continue,
                // What was found before goes on to be used meanwhile.
                Some(Lookup::Found(_)) => {}
                Some(Lookup::Failed(_)) | None => {
                    self.known.insert(name.clone(), Lookup::UnderWay);
                }
            }
            let (host, port) = (host.clone(), *port);
            self.lookups.spawn(async move {
                let found = tokio::net::lookup_host((host.as_str(), port));
                let found = match tokio::time::timeout(LOOKUP_WITHIN, found).await {
                    Ok(found) => found.map(|addresses| addresses.collect()),
                    Err(_) => Err(io::Error::other("the name service does not answer")),
                };
                Resolved::Name(name, found)
            });
        }
        let now = Instant::now();
        let due = self
            .sources
            .iter()
            .filter(|(_, published)| match published {
                Published::UnderWay => false,
                Published::Known(relays) => all && relays.valid_until <= now,
                Published::Failed(_) => true,
            });
        let due: Vec<IpAddr> = due.map(|(source, _)| *source).collect();
        for source in due {
            self.discover(source);
        }
    }

    /// Whether relays may yet come of a lookup.
    pub(crate) fn is_busy(&self) -> bool {
        !self.lookups.is_empty()
    }

    /// Waits for the end of a lookup; for ever if none is under way. Cancel safe.
    pub(crate) async fn resolved(&mut self) {
        loop {
            match self.lookups.join_next().await {
                Some(Ok(Resolved::Name(name, found))) => return self.take(name, found),
                Some(Ok(Resolved::Source(source, found))) => {
                    return self.take_published(source, found);
                }
                // A lookup that was aborted has nothing to say.
                Some(Err(error)) => debug!(%error, "a lookup ended early"),
                None => std::future::pending().await,
            }
        }
    }

    fn take(&mut self, name: RelayName, found: io::Result<Vec<SocketAddr>>) {
        let failure = match found {
            Ok(mut found) if !found.is_empty() => {
                found.truncate(MAX_ADDRESSES);
                self.known.insert(name, Lookup::Found(found));
                return;
            }
            Ok(_) => "the name has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        debug!(%name, failure, "a relay's name was not found");
        // Addresses of before are better than none.
        if !matches!(self.known.get(&name), Some(Lookup::Found(_))) {
            self.known.insert(name, Lookup::Failed(failure));
        }
    }

    fn take_published(&mut self, source: IpAddr, found: Result<Relays, DiscoveryError>) {
        let published = match found {
            Ok(relays) => Published::Known(relays),
            Err(error) => {
                debug!(%source, "{error}");
                // Relays of before are better than none.
                if matches!(self.sources.get(&source), Some(Published::Known(_))) {
                    return;
                }
                Published::Failed(error.to_string())
            }
        };
        self.sources.insert(source, published);
    }

    fn published(&self) -> impl Iterator<Item = &Relays> {
        self.sources
            .values()
            .filter_map(|published| match published {
                Published::Known(relays) => Some(relays),
                Published::UnderWay | Published::Failed(_) => None,
            })
    }

    /// All candidates that are known, the preferred ones first.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let mut relays = Vec::new();
        for (origin, preference, name) in self.names() {
            let found: &[SocketAddr] = match (name, self.known.get(name)) {
                (RelayName::Address(address), _) => std::slice::from_ref(address),
                (_, Some(Lookup::Found(found))) => found,
                _ => &[],
            };
            relays.extend(found.iter().map(|addr| Found {
                addr: *addr,
                discover: false,
                origin,
                preference,
            }));
        }
        for published in self.published() {
            let in_order = published.candidates.iter().zip(0..);
            relays.extend(in_order.map(|(candidate, preference)| Found {
                addr: candidate.addr,
                discover: candidate.discover,
                origin: candidate.origin,
                preference,
            }));
        }
        // A source may forbid that others forward it (RFC 8777, section 4.3.1).
        if self.anycast && !self.published().any(|relays| relays.refused) {
            relays.extend(anycast());
        }
        order(relays, self.seed)
    }

    /// All names with their origin and preference in it.
    fn names(&self) -> impl Iterator<Item = (Origin, u32, &RelayName)> {
        let configured = self.relays.iter().zip(0..);
        let configured = configured.map(|(name, place)| (Origin::Configured, place, name));
        let hints = self.hints.iter();
        configured.chain(hints.map(|(priority, name)| (Origin::Hint, (*priority).into(), name)))
    }

    /// No relay answers: names may mean something else by now.
    pub(crate) fn needs_more(&mut self, now: Instant) {
        if self.again.is_none() {
            self.again = Some(now + self.pause);
            self.pause = (self.pause * 2).min(AGAIN_MAX);
        }
    }

    /// A relay answers.
    pub(crate) fn settled(&mut self) {
        self.again = None;
        self.pause = AGAIN_FIRST;
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.again
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.again.is_some_and(|at| at <= now) {
            self.again = None;
            self.look_up(true);
        }
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
        let sources = self.sources.iter().map(|(source, published)| NameStatus {
            name: source.to_string(),
            origin: Origin::Dns,
            lookup: match published {
                Published::UnderWay => Lookup::UnderWay,
                Published::Known(relays) => {
                    Lookup::Found(relays.candidates.iter().map(|c| c.addr).collect())
                }
                Published::Failed(why) => Lookup::Failed(why.clone()),
            },
        });
        hosts.chain(sources).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn hint(host: &str, priority: u8) -> Hint {
        Hint {
            host: host.to_owned(),
            port: 2268,
            priority,
        }
    }

    #[tokio::test]
    async fn configured_ones_go_before_hints_and_anycast_is_last() {
        let relays = ["192.0.2.1", "anycast", "localhost:7"];
        let relays = relays.map(|r| r.parse().unwrap()).into();
        let mut finder = Finder::new(relays, None, false, 1);
        finder.set_hints(&[
            hint("192.0.2.30", 9),
            hint("192.0.2.20", 1),
            hint("not a name", 0),
            hint("232.1.1.1", 0),
        ]);
        finder.look_up(false);
        assert_eq!(finder.status()[0].lookup, Lookup::UnderWay);
        finder.resolved().await;
        let candidates = finder.candidates();
        let origins: Vec<_> = candidates.iter().map(|c| c.origin).collect();
        let local = candidates.iter().filter(|c| c.addr.port() == 7).count();
        assert!(local >= 1, "the name is found");
        assert_eq!(candidates[0].addr, addr("192.0.2.1:2268"));
        let hints: Vec<_> = candidates
            .iter()
            .filter(|c| c.origin == Origin::Hint)
            .collect();
        assert_eq!(hints[0].addr, addr("192.0.2.20:2268"));
        assert_eq!(hints.len(), 2);
        assert!(origins.is_sorted(), "{origins:?}");
        let anycast: Vec<_> = candidates.iter().filter(|c| c.discover).collect();
        assert_eq!(anycast.len(), 2);
        finder.set_hints(&[]);
        assert!(finder.candidates().iter().all(|c| c.origin != Origin::Hint));
    }

    #[tokio::test]
    async fn a_source_in_the_dns_is_asked_for_once_and_may_forbid_anycast() {
        // Nobody answers there; the answers are put in by hand.
        let nowhere = discovery::Config {
            nameservers: vec![addr("127.0.0.1:9")],
            timeout: Duration::from_millis(20),
        };
        let mut finder = Finder::new(Vec::new(), Some(nowhere), true, 1);
        let source: IpAddr = "192.0.2.10".parse().unwrap();
        assert!(finder.wants(source));
        assert!(!finder.wants(source));
        finder.resolved().await;
        assert!(matches!(finder.status()[0].lookup, Lookup::Failed(_)));
        assert_eq!(finder.candidates().len(), 2, "anycast is what is left");
        let relays = |refused, candidates: &[&str]| Relays {
            candidates: candidates
                .iter()
                .map(|at| Candidate {
                    addr: addr(at),
                    discover: true,
                    origin: Origin::Dns,
                })
                .collect(),
            refused,
            unresolved: Vec::new(),
            valid_until: Instant::now(),
        };
        let in_dns = ["192.0.2.9:2268", "192.0.2.3:2268"];
        finder.take_published(source, Ok(relays(false, &in_dns)));
        let candidates = finder.candidates();
        assert_eq!(candidates[0].addr, addr(in_dns[0]), "the order of the DNS");
        assert!(candidates[0].discover && candidates[0].origin == Origin::Dns);
        assert_eq!(candidates.len(), 4);
        finder.take_published(source, Ok(relays(true, &[])));
        assert_eq!(finder.candidates(), []);
    }

    #[tokio::test]
    async fn a_name_that_is_not_found_says_why_and_is_tried_again() {
        let mut finder = Finder::new(vec!["relay.invalid".parse().unwrap()], None, false, 1);
        finder.look_up(false);
        finder.resolved().await;
        assert!(matches!(finder.status()[0].lookup, Lookup::Failed(_)));
        assert!(finder.candidates().is_empty());
        let now = Instant::now();
        finder.needs_more(now);
        let first = finder.poll_timeout().unwrap();
        assert_eq!(first - now, AGAIN_FIRST);
        finder.handle_timeout(first);
        assert_eq!(finder.status()[0].lookup, Lookup::UnderWay);
        finder.needs_more(first);
        assert_eq!(finder.poll_timeout().unwrap() - first, AGAIN_FIRST * 2);
        finder.settled();
        assert_eq!(finder.poll_timeout(), None);
    }
}
