//! Subscriptions: by packet, to find the one it belongs to, and by group, to report them (host part
//! of RFC 3376 and RFC 3810).

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use super::types::{
    MAX_SOURCES_PER_GROUP, MAX_SUBSCRIPTIONS, SubscribeError, Subscription, SubscriptionId,
};
use crate::report::{Record, RecordKind};

/// A subscription and its number of uses.
#[derive(Debug)]
struct Entry {
    subscription: Subscription,
    uses: u32,
}

/// A group, over all ports, and its changes that the relay was not yet notified of.
#[derive(Debug, Default)]
struct Group {
    /// Number of subscriptions from any source.
    any: u32,
    /// Number of subscriptions from each source.
    sources: BTreeMap<IpAddr, u32>,
    /// Remaining reports of a change between "any source" and "these sources".
    mode: u8,
    /// Remaining reports of each new source.
    allow: BTreeMap<IpAddr, u8>,
    /// Remaining reports of each source that left.
    block: BTreeMap<IpAddr, u8>,
}

impl Group {
    fn sources(&self) -> Vec<IpAddr> {
        self.sources.keys().copied().collect()
    }

    fn has_changes(&self) -> bool {
        self.mode > 0 || !self.allow.is_empty() || !self.block.is_empty()
    }

    fn is_wanted(&self) -> bool {
        self.any > 0 || !self.sources.is_empty()
    }

    /// Notes a change of the filter mode, whose report replaces all pending ones.
    fn turn(&mut self, repeats: u8) {
        self.mode = repeats;
        self.allow.clear();
        self.block.clear();
    }

    fn take_changes(&mut self, group: IpAddr, records: &mut Vec<Record>) {
        let mut tell = |kind, sources| {
            records.push(Record {
                kind,
                group,
                sources,
            })
        };
        if self.mode > 0 {
            self.mode -= 1;
            match self.any {
                0 => tell(RecordKind::ToIn, self.sources.keys().copied().collect()),
                _ => tell(RecordKind::ToEx, Vec::new()),
            }
            return;
        }
        for (kind, left) in [
            (RecordKind::Allow, &mut self.allow),
            (RecordKind::Block, &mut self.block),
        ] {
            if left.is_empty() {
                continue;
            }
            tell(kind, left.keys().copied().collect());
            left.retain(|_, times| {
                *times = times.saturating_sub(1);
                *times > 0
            });
        }
    }
}

/// FlowEntry source, or any, and its subscription.
type FlowEntry = (Option<IpAddr>, SubscriptionId);

/// All subscriptions of a gateway.
#[derive(Debug, Default)]
pub(super) struct Membership {
    entries: BTreeMap<SubscriptionId, Entry>,
    ids: HashMap<Subscription, SubscriptionId>,
    /// Sources and their subscriptions by group and port, for the lookup of packets.
    flows: HashMap<(IpAddr, u16), Vec<FlowEntry>>,
    groups: BTreeMap<IpAddr, Group>,
    next: u64,
    /// Last packet found: the next one is most likely of the same flow.
    last: Option<(IpAddr, SocketAddr, SubscriptionId)>,
}

/// Whether an address is of the family that MLD reports.
fn is_mld(group: &IpAddr) -> bool {
    group.is_ipv6()
}

impl Membership {
    /// Adds one use of a subscription. A new source or group is then reported `repeats` times.
    pub(super) fn add(
        &mut self,
        subscription: Subscription,
        repeats: u8,
    ) -> Result<SubscriptionId, SubscribeError> {
        let subscription = check(subscription)?;
        if let Some(id) = self.ids.get(&subscription) {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.uses = entry.uses.saturating_add(1);
            }
            return Ok(*id);
        }
        let Subscription {
            source,
            group,
            port,
        } = subscription;
        let crowded = self.groups.get(&group).is_some_and(|known| {
            // A source that left counts until its last report: it takes room in a record, too.
            source.is_some() && known.sources.len() + known.block.len() >= MAX_SOURCES_PER_GROUP
        });
        if self.entries.len() >= MAX_SUBSCRIPTIONS || crowded {
            return Err(SubscribeError::TooMany);
        }
        let id = SubscriptionId(self.next);
        self.next += 1;
        self.ids.insert(subscription, id);
        let entry = Entry {
            subscription,
            uses: 1,
        };
        self.entries.insert(id, entry);
        let flow = self.flows.entry((group, port)).or_default();
        flow.push((source, id));
        // A single source goes before "any source".
        flow.sort_by_key(|(source, _)| source.is_none());
        self.last = None;
        let known = self.groups.entry(group).or_default();
        match source {
            None => {
                known.any += 1;
                if known.any == 1 {
                    known.turn(repeats);
                }
            }
            Some(source) => {
                let ports = known.sources.entry(source).or_default();
                *ports += 1;
                if *ports == 1 && known.any == 0 && known.mode == 0 {
                    known.block.remove(&source);
                    known.allow.insert(source, repeats);
                }
            }
        }
        Ok(id)
    }

    /// Removes one use; the removal of the last one is reported `repeats` times.
    pub(super) fn remove(&mut self, id: SubscriptionId, repeats: u8) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.uses = entry.uses.saturating_sub(1);
        if entry.uses > 0 {
            return;
        }
        let Subscription {
            source,
            group,
            port,
        } = entry.subscription;
        self.ids.remove(&entry.subscription);
        self.entries.remove(&id);
        self.last = None;
        if let Some(flow) = self.flows.get_mut(&(group, port)) {
            flow.retain(|(_, other)| *other != id);
            if flow.is_empty() {
                self.flows.remove(&(group, port));
            }
        }
        let Some(known) = self.groups.get_mut(&group) else {
            return;
        };
        match source {
            None => {
                known.any = known.any.saturating_sub(1);
                if known.any == 0 {
                    known.turn(repeats);
                }
            }
            Some(source) => {
                let ports = known.sources.entry(source).or_default();
                *ports = ports.saturating_sub(1);
                if *ports == 0 {
                    known.sources.remove(&source);
                    if known.any == 0 && known.mode == 0 {
                        known.allow.remove(&source);
                        known.block.insert(source, repeats);
                    }
                }
            }
        }
    }

    /// Returns the subscription that a packet belongs to.
    pub(super) fn find(&mut self, from: IpAddr, to: SocketAddr) -> Option<SubscriptionId> {
        if let Some((last_from, last_to, id)) = self.last
            && last_from == from
            && last_to == to
        {
            return Some(id);
        }
        let flow = self.flows.get(&(to.ip(), to.port()))?;
        let (_, id) = flow
            .iter()
            .find(|(source, _)| source.is_none_or(|source| source == from))?;
        self.last = Some((from, to, *id));
        Some(*id)
    }

    /// Whether packets of this source to this group are wanted, on any port.
    pub(super) fn wants_from(&self, source: IpAddr, group: IpAddr) -> bool {
        self.entries.values().any(|entry| {
            let wanted = &entry.subscription;
            wanted.group.to_canonical() == group
                && wanted.source.is_none_or(|s| s.to_canonical() == source)
        })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn subscription(&self, id: SubscriptionId) -> Option<Subscription> {
        self.entries.get(&id).map(|entry| entry.subscription)
    }

    /// Whether a subscription is for an IPv6 group.
    pub(super) fn is_mld(&self, id: SubscriptionId) -> bool {
        let entry = self.entries.get(&id);
        entry.is_some_and(|entry| is_mld(&entry.subscription.group))
    }

    /// Removes all subscriptions; ids are not reused.
    pub(super) fn clear(&mut self) {
        let next = self.next;
        *self = Self {
            next,
            ..Self::default()
        };
    }

    /// Whether any group of this family is subscribed.
    pub(super) fn wants(&self, mld: bool) -> bool {
        self.groups
            .iter()
            .any(|(group, known)| is_mld(group) == mld && known.is_wanted())
    }

    /// Returns the current state, for the answer to a query.
    pub(super) fn current(&self, mld: bool) -> Vec<Record> {
        let of_family = self
            .groups
            .iter()
            .filter(|(group, known)| is_mld(group) == mld && known.is_wanted());
        of_family
            .map(|(group, known)| Record {
                kind: match known.any {
                    0 => RecordKind::IsIn,
                    _ => RecordKind::IsEx,
                },
                group: *group,
                sources: match known.any {
                    0 => known.sources(),
                    _ => Vec::new(),
                },
            })
            .collect()
    }

    /// Returns records that make a relay forget all groups of this family.
    pub(super) fn leave_all(&self, mld: bool) -> Vec<Record> {
        let of_family = self.groups.iter().filter(|(group, _)| is_mld(group) == mld);
        of_family
            .map(|(group, known)| match known.any {
                0 => Record {
                    kind: RecordKind::Block,
                    group: *group,
                    sources: known
                        .sources
                        .keys()
                        .chain(known.block.keys())
                        .copied()
                        .collect(),
                },
                _ => Record {
                    kind: RecordKind::ToIn,
                    group: *group,
                    sources: Vec::new(),
                },
            })
            .filter(|record| record.kind == RecordKind::ToIn || !record.sources.is_empty())
            .collect()
    }

    pub(super) fn has_changes(&self, mld: bool) -> bool {
        self.groups
            .iter()
            .any(|(group, known)| is_mld(group) == mld && known.has_changes())
    }

    /// Takes the pending changes, for one more report.
    pub(super) fn take_changes(&mut self, mld: bool) -> Vec<Record> {
        let mut records = Vec::new();
        for (group, known) in &mut self.groups {
            if is_mld(group) == mld {
                known.take_changes(*group, &mut records);
            }
        }
        self.groups
            .retain(|_, known| known.is_wanted() || known.has_changes());
        records
    }

    /// Drops the pending changes: a new relay gets the whole state.
    pub(super) fn forget_changes(&mut self, mld: bool) {
        for (group, known) in &mut self.groups {
            if is_mld(group) == mld {
                known.turn(0);
            }
        }
        self.groups
            .retain(|_, known| known.is_wanted() || known.has_changes());
    }
}

/// Returns the canonical form of a subscription, if a relay could serve it.
fn check(subscription: Subscription) -> Result<Subscription, SubscribeError> {
    let group = subscription.group.to_canonical();
    let source = subscription.source.map(|ip| ip.to_canonical());
    if !group.is_multicast() {
        return Err(SubscribeError::NotMulticast(group));
    }
    let stays = match group {
        // 224.0.0.0/24
        IpAddr::V4(ip) => matches!(ip.octets(), [224, 0, 0, _]),
        // Scopes 0 (reserved), 1 (interface) and 2 (link).
        IpAddr::V6(ip) => matches!(ip.octets(), [_, flags, ..] if flags & 0x0f < 3),
    };
    if stays {
        return Err(SubscribeError::LinkLocal(group));
    }
    let needs_source = match group {
        IpAddr::V4(ip) => ip.octets()[0] == 232,
        IpAddr::V6(ip) => matches!(ip.segments(), [0xff30..=0xff3f, 0, ..]),
    };
    if source.is_none() && needs_source {
        return Err(SubscribeError::NeedsSource(group));
    }
    if let Some(sender) = source {
        if sender.is_ipv4() != group.is_ipv4() {
            return Err(SubscribeError::MixedFamilies { sender, group });
        }
        if sender.is_multicast() || sender.is_unspecified() {
            return Err(SubscribeError::BadSource(sender));
        }
    }
    if subscription.port == 0 {
        return Err(SubscribeError::NoPort);
    }
    Ok(Subscription {
        source,
        group,
        port: subscription.port,
    })
}
