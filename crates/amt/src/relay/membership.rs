//! Membership of the one host behind a tunnel: the router's side of IGMPv3 and MLDv2 (RFC 3376
//! section 6, RFC 3810 section 7).
//!
//! A router queries the other hosts of a link before it stops forwarding. A tunnel has a single
//! host at its end, so a leave takes effect at once, without a query. Only where a host needs
//! several reports for one list (the second does not name the sources of the first) do sources that
//! are not named stay for a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::report::{Record, RecordKind, is_source_specific};

/// Last member query time (RFC 3376, section 8.8, with its default values): time for which sources
/// stay that a new list does not name.
const LAST_MEMBER_TIME: Duration = Duration::from_secs(2);

/// Sources of one group that a tunnel wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Interest {
    /// No source.
    #[default]
    Nothing,
    /// These sources.
    Only(BTreeSet<IpAddr>),
    /// All sources except these.
    AllBut(BTreeSet<IpAddr>),
}

impl Interest {
    /// Returns the sources that are wanted one by one.
    pub(super) fn sources(&self) -> Option<&BTreeSet<IpAddr>> {
        match self {
            Interest::Only(sources) => Some(sources),
            Interest::Nothing | Interest::AllBut(_) => None,
        }
    }
}

/// State of one group.
#[derive(Debug, Clone)]
enum Group {
    /// Wanted sources, and the end of each membership.
    Include(BTreeMap<IpAddr, Instant>),
    /// Excluded sources, and the end of the any-source membership.
    Exclude(BTreeSet<IpAddr>, Instant),
}

impl Group {
    /// Returns the number of memberships that count against the limit.
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

/// Reason for ignoring a record, or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The group is not forwarded, or the record contradicts its source-specific range.
    Group,
    /// A limit of memberships is reached.
    TooMany,
}

/// All groups of one tunnel.
#[derive(Debug, Clone, Default)]
pub(super) struct Membership {
    groups: BTreeMap<IpAddr, Group>,
    /// Sum of the groups' sizes.
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

    /// Returns the time at which the next membership expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.groups.values().filter_map(Group::until).min()
    }

    /// Applies a record, whose memberships last for `lasting`. Existing memberships are renewed in
    /// any case; new ones are limited to `most` in total and to those that `admit` accepts (`None`
    /// for any source).
    pub(super) fn apply(
        &mut self,
        record: &Record,
        lasting: Duration,
        most: usize,
        now: Instant,
        admit: &mut dyn FnMut(Option<IpAddr>) -> bool,
    ) -> Result<(), Refusal> {
        check(record)?;
        let until = now + lasting;
        let sources = || record.sources.iter().copied();
        let old = self.groups.get(&record.group);
        let old_size = old.map_or(0, Group::size);
        // Room for this group; its present memberships fit.
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
                        // Any source is refused, so the single sources stay.
                        Some(Group::Include(old)) => {
                            let mut kept = old.clone();
                            kept.retain(|source, _| !record.sources.contains(source));
                            kept.values_mut().for_each(|known| *known = until);
                            Group::Include(kept)
                        }
                        _ => return Err(Refusal::TooMany),
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
                // Sources that are no longer named make room for those that are.
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
        if fits { Ok(()) } else { Err(Refusal::TooMany) }
    }

    /// Removes expired memberships and returns their groups.
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

/// Returns as many of the excluded sources as there is room for, known ones first, and whether
/// these are all. Without the others, some unwanted packets are forwarded.
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

/// Checks that a relay forwards the group.
fn check(record: &Record) -> Result<(), Refusal> {
    let group = record.group;
    let family = |source: &IpAddr| source.is_ipv4() == group.is_ipv4();
    let sender = |source: &IpAddr| !source.is_multicast() && !source.is_unspecified();
    let sources = record.sources.iter();
    if !is_forwarded(group) || !sources.clone().all(family) || !sources.clone().all(sender) {
        return Err(Refusal::Group);
    }
    // Source-specific groups have no any-source membership (RFC 4604, section 2.2).
    let any_source = matches!(record.kind, RecordKind::IsEx | RecordKind::ToEx);
    if any_source && is_source_specific(group) {
        return Err(Refusal::Group);
    }
    Ok(())
}

/// Whether routers forward a group: link-local groups stay on their link.
fn is_forwarded(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(ip) => ip.is_multicast() && !matches!(ip.octets(), [224, 0, 0, _]),
        IpAddr::V6(ip) => match ip.octets() {
            [0xff, flags_and_scope, ..] => flags_and_scope & 0x0f > 2,
            _ => false,
        },
    }
}
