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

use crate::report::{Record, RecordKind};

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

    /// Takes a record into account. What it adds lasts for `lasting`; with more than `most`
    /// memberships in the end it is ignored as a whole.
    pub(super) fn apply(
        &mut self,
        record: &Record,
        lasting: Duration,
        most: usize,
        now: Instant,
    ) -> Result<(), Refused> {
        check(record)?;
        let until = now + lasting;
        let sources = || record.sources.iter().copied();
        let old = self.groups.get(&record.group);
        let old_size = old.map_or(0, Group::size);
        let listed = || sources().map(|source| (source, until)).collect();
        let new = match (record.kind, old) {
            (RecordKind::IsEx | RecordKind::ToEx, _) => Group::Exclude(sources().collect(), until),
            (RecordKind::IsIn | RecordKind::ToIn, Some(Group::Include(old)))
                if !record.sources.is_empty() =>
            {
                let mut all = old.clone();
                if record.kind == RecordKind::ToIn {
                    let soon = now + LAST_MEMBER_TIME;
                    all.values_mut().for_each(|until| *until = soon.min(*until));
                }
                all.extend(sources().map(|source| (source, until)));
                Group::Include(all)
            }
            (RecordKind::IsIn | RecordKind::ToIn, _) => Group::Include(listed()),
            (RecordKind::Allow, Some(Group::Exclude(blocked, until))) => {
                let mut blocked = blocked.clone();
                sources().for_each(|source| {
                    blocked.remove(&source);
                });
                Group::Exclude(blocked, *until)
            }
            (RecordKind::Allow, Some(Group::Include(old))) => {
                let mut all = old.clone();
                all.extend(sources().map(|source| (source, until)));
                Group::Include(all)
            }
            (RecordKind::Allow, None) => Group::Include(listed()),
            (RecordKind::Block, Some(Group::Exclude(blocked, until))) => {
                let mut blocked = blocked.clone();
                blocked.extend(sources());
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
        let size = self.size - old_size.min(self.size) + new.size();
        // Whoever wants less than before is never refused.
        if size > most && new.size() > old_size {
            return Err(Refused::TooMany);
        }
        self.size = size;
        if new.size() == 0 {
            self.groups.remove(&record.group);
        } else {
            self.groups.insert(record.group, new);
        }
        Ok(())
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

/// 232.0.0.0/8 and ff3x::/32 (RFC 4607, section 1).
fn is_source_specific(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(ip) => matches!(ip.octets(), [232, ..]),
        IpAddr::V6(ip) => matches!(ip.octets(), [0xff, flags, 0, 0, ..] if flags & 0xf0 == 0x30),
    }
}
