//! Who gets what: from the memberships of all tunnels to a list of gateways for each (S,G), and to the
//! joins on the native side.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::config::Local;
use super::membership::Interest;
use crate::report::{Record, RecordKind};

/// A tunnel, as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelId(pub(super) u32);

/// A gateway that gets the packets of an (S,G).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipient {
    /// Its address and port.
    pub gateway: SocketAddr,
    /// Where its packets leave.
    pub local: Local,
    /// The largest inner packet that fits the way to it, in bytes.
    pub room: u16,
    /// Its tunnel.
    pub tunnel: TunnelId,
}

/// Those who get the packets of an (S,G), by socket. Never changed: whoever holds one sees the same
/// gateways until it asks anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipients {
    /// In the order of their sockets.
    pub all: Arc<[Recipient]>,
    /// The room of the narrowest, `u16::MAX` of none.
    pub room: u16,
}

/// A membership on the native side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Join {
    /// `None` for any source.
    pub source: Option<IpAddr>,
    /// The group.
    pub group: IpAddr,
}

/// A change on the native side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants this from now on.
    Join(Join),
    /// Nobody wants it any more.
    Leave(Join),
}

/// Lists of one group that are kept ready. Any-source groups have a list per sender, and anybody can
/// send: with more, all of the group's are made anew.
const MOST_LISTS: usize = 1024;

#[derive(Debug, Default)]
struct Group {
    /// Tunnels by the source that they want.
    only: BTreeMap<IpAddr, BTreeSet<TunnelId>>,
    /// Tunnels that want any source, with those that they do not want.
    any: BTreeMap<TunnelId, BTreeSet<IpAddr>>,
    /// What is joined on the native side.
    joined: BTreeSet<Option<IpAddr>>,
}

impl Group {
    fn receives(&self, source: IpAddr) -> impl Iterator<Item = TunnelId> + '_ {
        let only = self.only.get(&source).into_iter().flatten().copied();
        let any = self.any.iter();
        let any = any.filter(move |(_, blocked)| !blocked.contains(&source));
        only.chain(any.map(|(tunnel, _)| *tunnel))
    }

    /// What has to be joined: any source covers each.
    fn wanted(&self) -> BTreeSet<Option<IpAddr>> {
        if self.any.is_empty() {
            self.only.keys().copied().map(Some).collect()
        } else {
            BTreeSet::from([None])
        }
    }
}

/// Memberships by group, and lists of recipients made from them when they are first needed.
#[derive(Debug, Default)]
pub(super) struct Table {
    groups: BTreeMap<IpAddr, Group>,
    lists: HashMap<IpAddr, HashMap<IpAddr, Recipients>>,
    events: VecDeque<Event>,
    /// The number of joins.
    joined: usize,
}

impl Table {
    /// Replaces what `tunnel` wants of `group`.
    pub(super) fn change(
        &mut self,
        tunnel: TunnelId,
        group_ip: IpAddr,
        old: &Interest,
        new: &Interest,
    ) {
        if old == new {
            return;
        }
        self.lists.remove(&group_ip);
        let group = self.groups.entry(group_ip).or_default();
        match old {
            Interest::Nothing => {}
            Interest::Only(sources) => {
                for source in sources {
                    if let Some(tunnels) = group.only.get_mut(source) {
                        tunnels.remove(&tunnel);
                        if tunnels.is_empty() {
                            group.only.remove(source);
                        }
                    }
                }
            }
            Interest::AllBut(_) => {
                group.any.remove(&tunnel);
            }
        }
        match new {
            Interest::Nothing => {}
            Interest::Only(sources) => {
                for source in sources {
                    group.only.entry(*source).or_default().insert(tunnel);
                }
            }
            Interest::AllBut(blocked) => {
                group.any.insert(tunnel, blocked.clone());
            }
        }
        let wanted = group.wanted();
        let join = |source: &Option<IpAddr>| Join {
            source: *source,
            group: group_ip,
        };
        // First the new ones: what both cover is not interrupted.
        let new = wanted.difference(&group.joined).map(join);
        self.events.extend(new.map(Event::Join));
        let old = group.joined.difference(&wanted).map(join);
        self.events.extend(old.map(Event::Leave));
        self.joined = self.joined - group.joined.len().min(self.joined) + wanted.len();
        group.joined = wanted;
        if group.joined.is_empty() {
            self.groups.remove(&group_ip);
        }
    }

    /// How many joins there are on the native side.
    pub(super) fn joined(&self) -> usize {
        self.joined
    }

    /// Whether a record asks for nothing that has to be joined first.
    pub(super) fn covers(&self, record: &Record) -> bool {
        let joined = self.groups.get(&record.group).map(|group| &group.joined);
        let has = |source| joined.is_some_and(|joined| joined.contains(&source));
        match record.kind {
            RecordKind::Block => true,
            RecordKind::IsEx | RecordKind::ToEx => has(None),
            RecordKind::IsIn | RecordKind::ToIn | RecordKind::Allow => {
                has(None) || record.sources.iter().all(|source| has(Some(*source)))
            }
        }
    }

    /// Forgets the lists with a tunnel that gets to its gateway in another way now.
    pub(super) fn forget_lists(&mut self, groups: impl Iterator<Item = IpAddr>) {
        for group in groups {
            self.lists.remove(&group);
        }
    }

    /// Who gets what `source` sends to `group`; `None` for nobody.
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
            // A group of nobody: nothing is kept of it.
            self.lists.remove(&group_ip);
            return None;
        }
        self.lists
            .get(&group_ip)?
            .get(&source)
            .filter(|list| !list.all.is_empty())
    }

    pub(super) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    #[cfg(test)]
    pub(super) fn lists(&self) -> usize {
        self.lists.values().map(HashMap::len).sum()
    }

    /// What is joined on the native side.
    pub(super) fn joins(&self) -> impl Iterator<Item = (Join, usize)> + '_ {
        self.groups.iter().flat_map(|(group_ip, group)| {
            let count = |source: Option<IpAddr>| match source {
                Some(source) => group.only.get(&source).map_or(0, BTreeSet::len),
                None => group.any.len() + group.only.values().map(BTreeSet::len).sum::<usize>(),
            };
            group.joined.iter().map(move |source| {
                let join = Join {
                    source: *source,
                    group: *group_ip,
                };
                (join, count(*source))
            })
        })
    }
}
