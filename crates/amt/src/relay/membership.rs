//! What the one host behind a tunnel wants: the router's side of IGMPv3 and MLDv2 (RFC 3376 section 6,
//! RFC 3810 section 7).
//!
//! A router asks the others on a link before it stops forwarding. A tunnel has one host at its end, so
//! what that host says is the whole truth: a leave takes effect at once, and nobody is queried. Only
//! where a host needs several reports for one list (the second does not name the sources of the
//! first) do the ones that are not named stay for a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::report::{Record, RecordKind, is_source_specific};

/// The last member query time (RFC 3376, section 8.8, with its default values): how long sources stay
/// that a new list does not name.
const LAST_MEMBER_TIME: Duration = Duration::from_secs(2);

/// What a tunnel wants of one group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Interest {
    /// Nothing.
    #[default]
    Nothing,
    /// What these sources send.
    Only(BTreeSet<IpAddr>),
    /// What anybody sends but these.
    AllBut(BTreeSet<IpAddr>),
}

impl Interest {
    /// The sources that it asks for one by one.
    pub(super) fn sources(&self) -> Option<&BTreeSet<IpAddr>> {
        match self {
            Interest::Only(sources) => Some(sources),
            Interest::Nothing | Interest::AllBut(_) => None,
        }
    }
}

/// The state of one group.
#[derive(Debug, Clone)]
enum Group {
    /// Sources, and until when they are wanted.
    Include(BTreeMap<IpAddr, Instant>),
    /// Sources that are not wanted, and until when everything else is.
    Exclude(BTreeSet<IpAddr>, Instant),
}

impl Group {
    /// What counts against the limit.
    fn size(&self) -> usize {
        match self {
            Group::Include(sources) => sources.len(),
            Group::Exclude(blocked, _) => 1 + blocked.len(),
        }
    }

    fn until(&self) -> Option<Instant> {
        match self {
            Group::Include(sources) => sources.values().min().copied(),
            Group::Exclude(_, until) => Some(*until),
        }
    }

    fn interest(&self) -> Interest {
        match self {
            Group::Include(sources) if sources.is_empty() => Interest::Nothing,
            Group::Include(sources) => Interest::Only(sources.keys().copied().collect()),
            Group::Exclude(blocked, _) => Interest::AllBut(blocked.clone()),
        }
    }
}

/// Why a record changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The group is none that is forwarded, or sources and group do not go together.
    Group,
    /// The tunnel wants too much.
    TooMany,
}

/// All groups of one tunnel.
#[derive(Debug, Clone, Default)]
pub(super) struct Membership {
    groups: BTreeMap<IpAddr, Group>,
    /// The sum of the groups' sizes.
    size: usize,
}

impl Membership {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.groups.keys().copied()
    }

    pub(super) fn interest(&self, group: IpAddr) -> Interest {
        self.groups
            .get(&group)
            .map_or(Interest::Nothing, Group::interest)
    }

    /// When the next membership expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.groups.values().filter_map(Group::until).min()
    }

    /// Takes a record into account. What it names lasts for `lasting`. What is wanted already is
    /// renewed in any case; of what is new, as much is taken as fits `most` memberships and as `admit`
    /// lets through (`None` for any source).
    pub(super) fn apply(
        &mut self,
        record: &Record,
        lasting: Duration,
        most: usize,
        now: Instant,
        admit: &mut dyn FnMut(Option<IpAddr>) -> bool,
    ) -> Result<(), Refused> {
        check(record)?;
        let until = now + lasting;
        let sources = || record.sources.iter().copied();
        let old = self.groups.get(&record.group);
        let old_size = old.map_or(0, Group::size);
        // What this group may take; what it has fits.
        let room = (most + old_size).saturating_sub(self.size);
        let mut fits = true;
        let mut extended = |mut all: BTreeMap<IpAddr, Instant>| {
            for source in sources() {
                if let Some(known) = all.get_mut(&source) {
                    *known = until;
                } else if all.len() < room && admit(Some(source)) {
                    all.insert(source, until);
                } else {
                    fits = false;
                }
            }
            Group::Include(all)
        };
        let new = match (record.kind, old) {
            (RecordKind::IsEx | RecordKind::ToEx, old) => {
                let held = matches!(old, Some(Group::Exclude(..)));
                if held || (room > 0 && admit(None)) {
                    let (blocked, all) = shortened(&record.sources, old, room.saturating_sub(1));
                    fits = all;
                    Group::Exclude(blocked, until)
                } else {
                    fits = false;
                    match old {
                        // It wants more than these, and these still.
                        Some(Group::Include(old)) => {
                            let mut kept = old.clone();
                            kept.retain(|source, _| !record.sources.contains(source));
                            kept.values_mut().for_each(|known| *known = until);
                            Group::Include(kept)
                        }
                        _ => return Err(Refused::TooMany),
                    }
                }
            }
            (RecordKind::IsIn, Some(Group::Include(old))) if !record.sources.is_empty() => {
                extended(old.clone())
            }
            (RecordKind::ToIn, Some(Group::Include(old))) if !record.sources.is_empty() => {
                let mut all = old.clone();
                let soon = now + LAST_MEMBER_TIME;
                all.values_mut().for_each(|until| *until = soon.min(*until));
                // What is not named any more makes room for what is.
                let named: BTreeSet<IpAddr> = sources().collect();
                let new = named.iter().filter(|source| !all.contains_key(source));
                let mut over = (all.len() + new.count()).saturating_sub(room);
                all.retain(|source, _| {
                    let goes = over > 0 && !named.contains(source);
                    over -= usize::from(goes);
                    !goes
                });
                extended(all)
            }
            (RecordKind::IsIn | RecordKind::ToIn, _) => extended(BTreeMap::new()),
            (RecordKind::Allow, Some(Group::Exclude(blocked, until))) => {
                let mut blocked = blocked.clone();
                sources().for_each(|source| {
                    blocked.remove(&source);
                });
                Group::Exclude(blocked, *until)
            }
            (RecordKind::Allow, Some(Group::Include(old))) => extended(old.clone()),
            (RecordKind::Allow, None) => extended(BTreeMap::new()),
            (RecordKind::Block, Some(Group::Exclude(blocked, until))) => {
                let mut blocked = blocked.clone();
                for source in sources() {
                    if blocked.len() + 1 < room {
                        blocked.insert(source);
                    } else {
                        fits &= blocked.contains(&source);
                    }
                }
                Group::Exclude(blocked, *until)
            }
            (RecordKind::Block, Some(Group::Include(old))) => {
                let mut all = old.clone();
                sources().for_each(|source| {
                    all.remove(&source);
                });
                Group::Include(all)
            }
            (RecordKind::Block, None) => return Ok(()),
        };
        self.size = self.size - old_size.min(self.size) + new.size();
        if new.size() == 0 {
            self.groups.remove(&record.group);
        } else {
            self.groups.insert(record.group, new);
        }
        if fits { Ok(()) } else { Err(Refused::TooMany) }
    }

    /// Removes what has expired; the groups that it concerned.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<IpAddr> {
        let mut touched = Vec::new();
        self.groups.retain(|ip, group| {
            if group.until().is_some_and(|until| until > now) {
                return true;
            }
            touched.push(*ip);
            match group {
                Group::Include(sources) => {
                    sources.retain(|_, until| *until > now);
                    !sources.is_empty()
                }
                Group::Exclude(..) => false,
            }
        });
        self.size = self.groups.values().map(Group::size).sum();
        touched
    }
}

/// As many of the sources that are not wanted as there is room for, first those of before; whether
/// these are all. Without the others, some packets come that are not wanted.
fn shortened(sources: &[IpAddr], old: Option<&Group>, room: usize) -> (BTreeSet<IpAddr>, bool) {
    let named: BTreeSet<IpAddr> = sources.iter().copied().collect();
    let before = |source: &&IpAddr| match old {
        Some(Group::Exclude(blocked, _)) => blocked.contains(source),
        _ => false,
    };
    let known = named.iter().filter(before);
    let new = named.iter().filter(|source| !before(source));
    let blocked: BTreeSet<IpAddr> = known.chain(new).take(room).copied().collect();
    let all = blocked.len() == named.len();
    (blocked, all)
}

/// Whether a relay has to do with the group.
fn check(record: &Record) -> Result<(), Refused> {
    let group = record.group;
    let family = |source: &IpAddr| source.is_ipv4() == group.is_ipv4();
    let sender = |source: &IpAddr| !source.is_multicast() && !source.is_unspecified();
    let sources = record.sources.iter();
    if !is_forwarded(group) || !sources.clone().all(family) || !sources.clone().all(sender) {
        return Err(Refused::Group);
    }
    // Groups that have a meaning only together with their source (RFC 4604, section 2.2).
    let any_source = matches!(record.kind, RecordKind::IsEx | RecordKind::ToEx);
    if any_source && is_source_specific(group) {
        return Err(Refused::Group);
    }
    Ok(())
}

/// Whether a group is one that routers forward: those of the link stay on it.
fn is_forwarded(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(ip) => ip.is_multicast() && !matches!(ip.octets(), [224, 0, 0, _]),
        IpAddr::V6(ip) => match ip.octets() {
            [0xff, flags_and_scope, ..] => flags_and_scope & 0x0f > 2,
            _ => false,
        },
    }
}
