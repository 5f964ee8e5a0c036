//! Recipients: from the memberships of all tunnels to a list of gateways for each (S,G), and to the
//! joins on the native side.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::config::LocalEndpoint;
use super::membership::Interest;
use crate::report::{Record, RecordKind};

/// Identifier of a tunnel, unique while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelId(pub(super) u32);

/// A gateway that gets the packets of an (S,G).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipient {
    /// Address and port of the gateway.
    pub gateway: SocketAddr,
    /// Local end that its packets leave by.
    pub local: LocalEndpoint,
    /// Largest inner packet that fits the path, in bytes.
    pub room: u16,
    /// Its tunnel.
    pub tunnel: TunnelId,
}

/// Recipients of an (S,G). The list is immutable: a holder sees the same gateways until it asks
/// again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipients {
    /// The gateways, in the order of their sockets.
    pub all: Arc<[Recipient]>,
    /// Room of the narrowest path, `u16::MAX` without recipients.
    pub room: u16,
}

/// A membership on the native side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Join {
    /// Source address; `None` for any source.
    pub source: Option<IpAddr>,
    /// The group.
    pub group: IpAddr,
}

/// A change on the native side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The first tunnel wants this membership.
    Join(Join),
    /// No tunnel wants this membership any more.
    Leave(Join),
}

/// Most cached lists of one group. Any-source groups have a list per sender, and anybody can send:
/// at this number all of the group's lists are dropped.
const MOST_LISTS: usize = 1024;

/// Most leaves that wait for joins: beyond, they take turns, so that the native side never holds
/// much more than is wanted.
const MOST_LEAVES: usize = 1024;

#[derive(Debug, Default)]
struct Group {
    /// Tunnels by wanted source.
    only: BTreeMap<IpAddr, BTreeSet<TunnelId>>,
    /// Tunnels that want any source, with the sources that they exclude.
    any: BTreeMap<TunnelId, BTreeSet<IpAddr>>,
}

impl Group {
    fn receives(&self, source: IpAddr) -> impl Iterator<Item = TunnelId> + '_ {
        let only = self.only.get(&source).into_iter().flatten().copied();
        let any = self.any.iter();
        let any = any.filter(move |(_, blocked)| !blocked.contains(&source));
        only.chain(any.map(|(tunnel, _)| *tunnel))
    }

    /// Returns the number of memberships that count against the limit: each source counts even
    /// while an any-source membership covers it, as its join returns when that one ends.
    fn size(&self) -> usize {
        self.only.len() + usize::from(!self.any.is_empty())
    }

    /// Replaces the interest of `tunnel`; returns the sources that gained their first tunnel and
    /// those that lost their last.
    fn replace(&mut self, tunnel: TunnelId, old: &Interest, new: &Interest) -> SourceChanges {
        let mut changed = SourceChanges::default();
        let none = BTreeSet::new();
        let before = old.sources().unwrap_or(&none);
        let after = new.sources().unwrap_or(&none);
        for source in before.difference(after) {
            if let Some(tunnels) = self.only.get_mut(source) {
                tunnels.remove(&tunnel);
                if tunnels.is_empty() {
                    self.only.remove(source);
                    changed.gone.push(*source);
                }
            }
        }
        for source in after.difference(before) {
            let tunnels = self.only.entry(*source).or_default();
            if tunnels.is_empty() {
                changed.come.push(*source);
            }
            tunnels.insert(tunnel);
        }
        match new {
            Interest::AllBut(blocked) => {
                self.any.insert(tunnel, blocked.clone());
            }
            _ => {
                self.any.remove(&tunnel);
            }
        }
        changed
    }
}

/// Sources that gained their first tunnel, and those that lost their last.
#[derive(Debug, Default)]
struct SourceChanges {
    come: Vec<IpAddr>,
    gone: Vec<IpAddr>,
}

/// Pending changes for the native side, each with the gateway that caused it. A change that is
/// undone while it waits is dropped.
#[derive(Debug, Default)]
struct Events {
    joins: BTreeMap<Join, SocketAddr>,
    leaves: BTreeMap<Join, SocketAddr>,
    /// Whether the last one was a leave.
    left: bool,
}

impl Events {
    fn join(&mut self, join: Join, gateway: SocketAddr) {
        if self.leaves.remove(&join).is_none() {
            self.joins.insert(join, gateway);
        }
    }

    fn leave(&mut self, join: Join, gateway: SocketAddr) {
        if self.joins.remove(&join).is_none() {
            self.leaves.insert(join, gateway);
        }
    }

    /// Takes the next change. Joins go first, so that traffic that a join and a leave both cover is
    /// not interrupted; any-source joins are the very first.
    fn next(&mut self) -> Option<(Event, SocketAddr)> {
        let many = self.leaves.len() > MOST_LEAVES && !self.left;
        self.left = many || self.joins.is_empty();
        if self.left {
            let next = self.leaves.pop_first();
            next.map(|(join, gateway)| (Event::Leave(join), gateway))
        } else {
            let next = self.joins.pop_first();
            next.map(|(join, gateway)| (Event::Join(join), gateway))
        }
    }
}

/// Memberships by group, and lists of recipients, cached when they are first needed.
#[derive(Debug, Default)]
pub(super) struct Table {
    groups: BTreeMap<IpAddr, Group>,
    lists: HashMap<IpAddr, HashMap<IpAddr, Recipients>>,
    events: Events,
    /// Sum of the groups' sizes.
    size: usize,
}

impl Table {
    /// Replaces the interest of `tunnel`, the one of `gateway`, in `group`.
    pub(super) fn change(
        &mut self,
        (tunnel, gateway): (TunnelId, SocketAddr),
        group_ip: IpAddr,
        old: &Interest,
        new: &Interest,
    ) {
        if old == new {
            return;
        }
        self.lists.remove(&group_ip);
        let group = self.groups.entry(group_ip).or_default();
        let (old_size, had_any) = (group.size(), !group.any.is_empty());
        let SourceChanges { come, gone } = group.replace(tunnel, old, new);
        let join = |source| Join {
            source,
            group: group_ip,
        };
        let single = |source: &IpAddr| join(Some(*source));
        let events = &mut self.events;
        // An any-source join covers each source.
        match (had_any, !group.any.is_empty()) {
            (false, false) => {
                let joins = come.iter().map(single);
                joins.for_each(|one| events.join(one, gateway));
                let leaves = gone.iter().map(single);
                leaves.for_each(|one| events.leave(one, gateway));
            }
            (false, true) => {
                events.join(join(None), gateway);
                let before = group.only.keys().chain(&gone).map(single);
                before.for_each(|one| events.leave(one, gateway));
            }
            (true, false) => {
                let left = group.only.keys().map(single);
                left.for_each(|one| events.join(one, gateway));
                events.leave(join(None), gateway);
            }
            (true, true) => {}
        }
        self.size = self.size - old_size.min(self.size) + group.size();
        if group.size() == 0 {
            self.groups.remove(&group_ip);
        }
    }

    /// Returns the number of memberships of the record's group that `tunnel` may add until all
    /// tunnels together have `most`. Memberships of this tunnel alone that the record ends count as
    /// free.
    pub(super) fn room(&self, tunnel: TunnelId, record: &Record, most: usize) -> usize {
        let given_up = self.groups.get(&record.group).map_or(0, |group| {
            let alone =
                |tunnels: &&BTreeSet<TunnelId>| tunnels.len() == 1 && tunnels.contains(&tunnel);
            match record.kind {
                RecordKind::IsEx | RecordKind::ToEx => group.only.values().filter(alone).count(),
                RecordKind::IsIn | RecordKind::ToIn => {
                    usize::from(group.any.len() == 1 && group.any.contains_key(&tunnel))
                }
                RecordKind::Allow | RecordKind::Block => 0,
            }
        });
        (most + given_up).saturating_sub(self.size)
    }

    /// Whether any tunnel wants this already.
    pub(super) fn wants(&self, group: IpAddr, source: Option<IpAddr>) -> bool {
        let group = self.groups.get(&group);
        group.is_some_and(|group| match source {
            Some(source) => group.only.contains_key(&source),
            None => !group.any.is_empty(),
        })
    }

    /// Drops the lists with a tunnel whose path to its gateway has changed.
    pub(super) fn forget_lists(&mut self, groups: impl Iterator<Item = IpAddr>) {
        for group in groups {
            self.lists.remove(&group);
        }
    }

    /// Returns the gateways that get packets of `source` to `group`; `None` if there are none.
    pub(super) fn recipients(
        &mut self,
        source: IpAddr,
        group_ip: IpAddr,
        describe: impl Fn(TunnelId) -> Option<Recipient>,
    ) -> Option<&Recipients> {
        let lists = self.lists.entry(group_ip).or_default();
        if lists.len() >= MOST_LISTS && !lists.contains_key(&source) {
            lists.clear();
        }
        let list = lists.entry(source).or_insert_with(|| {
            let tunnels = self.groups.get(&group_ip);
            let tunnels = tunnels.into_iter().flat_map(|group| group.receives(source));
            let mut all: Vec<Recipient> = tunnels.filter_map(describe).collect();
            all.sort_by_key(|recipient| recipient.local.socket);
            let room = all.iter().map(|recipient| recipient.room).min();
            Recipients {
                all: all.into(),
                room: room.unwrap_or(u16::MAX),
            }
        });
        let empty = list.all.is_empty();
        if empty && !self.groups.contains_key(&group_ip) {
            // Nothing is cached of a group without members.
            self.lists.remove(&group_ip);
            return None;
        }
        self.lists
            .get(&group_ip)?
            .get(&source)
            .filter(|list| !list.all.is_empty())
    }

    pub(super) fn next_event(&mut self) -> Option<(Event, SocketAddr)> {
        self.events.next()
    }

    pub(super) fn has_events(&self) -> bool {
        !self.events.joins.is_empty() || !self.events.leaves.is_empty()
    }

    #[cfg(test)]
    pub(super) fn lists(&self) -> usize {
        self.lists.values().map(HashMap::len).sum()
    }

    /// Returns the joins on the native side, each with its number of gateways.
    pub(super) fn joins(&self) -> impl Iterator<Item = (Join, usize)> + '_ {
        self.groups.iter().flat_map(|(group_ip, group)| {
            let join = |source| Join {
                source,
                group: *group_ip,
            };
            let any = (!group.any.is_empty()).then(|| {
                let single = group.only.values().map(BTreeSet::len);
                (join(None), group.any.len() + single.sum::<usize>())
            });
            let single = group.any.is_empty().then_some(&group.only);
            let single = single.into_iter().flatten();
            let single = single.map(move |(source, tunnels)| (join(Some(*source)), tunnels.len()));
            any.into_iter().chain(single)
        })
    }
}
