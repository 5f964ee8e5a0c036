//! The candidates: names are looked up in the background, whenever a relay is needed.

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

/// A name has to be found by then.
const LOOKUP_WITHIN: Duration = Duration::from_secs(5);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;
/// Hints that are kept.
const MAX_HINTS: usize = 32;
/// Sources whose relays are looked for in the DNS.
const MAX_SOURCES: usize = 16;
/// Longest pause before names are looked up again.
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
    /// It is not asked, for it was asked for so many others.
    TurnedDown,
}

/// A source of flows that are wanted.
#[derive(Debug)]
struct Source {
    /// How many flows.
    uses: usize,
    published: Published,
}

/// Something that is being looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Name(RelayName),
    Source(IpAddr),
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
    sources: BTreeMap<IpAddr, Source>,
    lookups: JoinSet<Resolved>,
    /// What the lookups are for: no two are for the same.
    under_way: HashMap<task::Id, Asked>,
    again: Option<Instant>,
    /// First pause before names are looked up again; it doubles.
    first_pause: Duration,
    pause: Duration,
    /// Relays that are alike are tried in another order by each gateway, so that they share them.
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

    /// A flow of this source is wanted; true if the DNS is asked for its relays because of that.
    pub(crate) fn wants(&mut self, source: IpAddr) -> bool {
        if self.dns.is_none() {
            return false;
        }
        let source = source.to_canonical();
        if let Some(known) = self.sources.get_mut(&source) {
            known.uses += 1;
            return false;
        }
        let published = Published::TurnedDown;
        self.sources.insert(source, Source { uses: 1, published });
        self.discover_further();
        !matches!(self.published_by(source), Some(Published::TurnedDown))
    }

    /// A flow of this source is not wanted any more. With its last one, its relays are forgotten;
    /// true then.
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

    /// Asks for the relays of sources that were turned down, as far as there is room now.
    fn discover_further(&mut self) {
        let turned_down = |source: &Source| matches!(source.published, Published::TurnedDown);
        let asked = self.sources.values().filter(|s| !turned_down(s)).count();
        let waiting = self.sources.iter().filter(|(_, s)| turned_down(s));
        let next: Vec<IpAddr> = waiting
            .take(MAX_SOURCES.saturating_sub(asked))
            .map(|(source, _)| *source)
            .collect();
        for source in next {
            self.discover(source);
        }
    }

    fn published_by(&self, source: IpAddr) -> Option<&Published> {
        self.sources.get(&source).map(|source| &source.published)
    }

    /// Only of sources that are wanted.
    fn set_published(&mut self, source: IpAddr, published: Published) {
        if let Some(known) = self.sources.get_mut(&source) {
            known.published = published;
        }
    }

    fn is_under_way(&self, asked: &Asked) -> bool {
        self.under_way.values().any(|other| other == asked)
    }

    /// Asks the DNS for the relays of a source.
    fn discover(&mut self, source: IpAddr) {
        let Some(config) = self.dns.clone() else {
            return;
        };
        // What was found before goes on to be used meanwhile.
        if !matches!(self.published_by(source), Some(Published::Known(_))) {
            self.set_published(source, Published::UnderWay);
        }
        let asked = Asked::Source(source);
        if self.is_under_way(&asked) {
            return;
        }
        if self.resolver.is_none() {
            match Resolver::new(&config) {
                Ok(resolver) => self.resolver = Some(resolver),
                Err(error) => {
                    self.set_published(source, Published::Failed(error.to_string()));
                    return;
                }
            }
        }
        let Some(resolver) = self.resolver.clone() else {
            return;
        };
        let task = self
            .lookups
            .spawn(async move { Resolved::Source(source, resolver.relays(source).await) });
        self.under_way.insert(task.id(), asked);
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
            let asked = Asked::Name(name.clone());
            match self.known.get(&name) {
                _ if self.is_under_way(&asked) => continue,
                Some(Lookup::Found(_)) if !all => continue,
                // What was found before goes on to be used meanwhile.
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
                Resolved::Name(name, found)
            });
            self.under_way.insert(task.id(), asked);
        }
        let now = Instant::now();
        let due = self
            .sources
            .iter()
            .filter(|(_, source)| match &source.published {
                Published::UnderWay | Published::TurnedDown => false,
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
        let Some(ended) = self.lookups.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let asked = self.under_way.remove(&id);
        match (ended, asked) {
            (Ok((_, Resolved::Name(name, found))), _) => self.take(name, found),
            (Ok((_, Resolved::Source(source, found))), _) => self.take_published(source, found),
            (Err(error), Some(Asked::Name(name))) => self.take(name, Err(error.into())),
            (Err(error), Some(Asked::Source(source))) => {
                self.set_published(source, Published::Failed(error.to_string()));
            }
            (Err(error), None) => debug!(%error, "a lookup ended early"),
        }
    }

    fn take(&mut self, name: RelayName, found: io::Result<Vec<SocketAddr>>) {
        if !self.names().any(|(_, _, wanted)| *wanted == name) {
            // A hint that is over.
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
                if matches!(self.published_by(source), Some(Published::Known(_))) {
                    return;
                }
                Published::Failed(error.to_string())
            }
        };
        self.set_published(source, published);
    }

    fn published(&self) -> impl Iterator<Item = &Relays> {
        self.sources
            .values()
            .filter_map(|source| match &source.published {
                Published::Known(relays) => Some(relays),
                Published::UnderWay | Published::Failed(_) | Published::TurnedDown => None,
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

    /// No relay answers: names may mean something else by now. They are looked up again after a
    /// pause that grows with each time; what the DNS said before, not before that is out of date.
    /// May be called as often as one likes.
    pub(crate) fn needs_more(&mut self, now: Instant) {
        if self.again.is_some() || self.is_busy() {
            return;
        }
        let names = self
            .names()
            .any(|(_, _, name)| matches!(name, RelayName::Host { .. }));
        let failed = |source: &Source| matches!(source.published, Published::Failed(_));
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

    /// A relay answers.
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
        let sources = self.sources.iter().map(|(source, known)| NameStatus {
            name: source.to_string(),
            origin: Origin::Dns,
            lookup: match &known.published {
                Published::UnderWay => Lookup::UnderWay,
                Published::Known(relays) => {
                    Lookup::Found(relays.candidates.iter().map(|c| c.addr).collect())
                }
                Published::Failed(why) => Lookup::Failed(why.clone()),
                Published::TurnedDown => Lookup::Failed(format!(
                    "the DNS is asked for the relays of {MAX_SOURCES} sources at most"
                )),
            },
        });
        hosts.chain(sources).collect()
    }
}
