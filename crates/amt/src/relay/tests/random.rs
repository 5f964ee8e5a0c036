//! Random histories, compared with a plain model.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::lab::{Lab, at, ip};
use crate::relay::{Config, Event, Join};
use crate::report::{Record, RecordKind};

/// A small generator: every seed is a history.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % below
    }
}

/// Sources of a group that a host wants.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SourceFilter {
    Only(BTreeSet<IpAddr>),
    AllBut(BTreeSet<IpAddr>),
}

impl SourceFilter {
    fn takes(&self, source: &IpAddr) -> bool {
        match self {
            SourceFilter::Only(sources) => sources.contains(source),
            SourceFilter::AllBut(sources) => !sources.contains(source),
        }
    }
}

/// A host: its groups, and the time until which the relay believes it.
#[derive(Default)]
struct Host {
    wishes: BTreeMap<IpAddr, SourceFilter>,
}

fn one_history(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut lab = Lab::new(Config::default());
    let sources: Vec<IpAddr> = (1..5).map(|n| ip(&format!("192.0.2.{n}"))).collect();
    let groups: Vec<IpAddr> = (1..4).map(|n| ip(&format!("239.1.1.{n}"))).collect();
    let ends: Vec<SocketAddr> = (0..6)
        .map(|n| at(&format!("203.0.113.{}:{}", n / 3, 1000 + n)))
        .collect();
    let mut hosts: BTreeMap<SocketAddr, Host> = BTreeMap::new();
    let mut joined: BTreeSet<Join> = BTreeSet::new();
    for _ in 0..120 {
        let end = ends[random.next(ends.len())];
        let group = groups[random.next(groups.len())];
        let some: BTreeSet<IpAddr> = sources
            .iter()
            .copied()
            .filter(|_| random.next(2) == 0)
            .collect();
        let host = hosts.entry(end).or_default();
        let old = host.wishes.remove(&group);
        let (kind, new) = match (random.next(5), old) {
            (0, _) => (RecordKind::ToEx, SourceFilter::AllBut(some.clone())),
            (1, Some(SourceFilter::Only(mut old))) => {
                old.extend(&some);
                (RecordKind::Allow, SourceFilter::Only(old))
            }
            (1, Some(SourceFilter::AllBut(mut old))) => {
                old.retain(|source| !some.contains(source));
                (RecordKind::Allow, SourceFilter::AllBut(old))
            }
            (2, Some(SourceFilter::Only(mut old))) => {
                old.retain(|source| !some.contains(source));
                (RecordKind::Block, SourceFilter::Only(old))
            }
            (2, Some(SourceFilter::AllBut(mut old))) => {
                old.extend(&some);
                (RecordKind::Block, SourceFilter::AllBut(old))
            }
            (3, _) => (RecordKind::IsEx, SourceFilter::AllBut(some.clone())),
            (_, _) => (RecordKind::ToIn, SourceFilter::Only(some.clone())),
        };
        host.wishes.insert(group, new);
        host.wishes
            .retain(|_, wish| *wish != SourceFilter::Only(BTreeSet::new()));
        let record = Record {
            kind,
            group,
            sources: some.into_iter().collect(),
        };
        lab.join(end, &[record]);
        // Sources missing from a new list expire after two seconds.
        lab.pass(Duration::from_secs(3));
        if random.next(10) == 0 {
            // Every host repeats its state, which changes nothing.
            lab.pass(Duration::from_secs(60));
            let all: Vec<(SocketAddr, Vec<Record>)> = hosts
                .iter()
                .map(|(end, host)| (*end, current(host)))
                .collect();
            for (end, records) in all {
                if !records.is_empty() {
                    lab.join(end, &records);
                }
            }
        }
        for group in &groups {
            for source in &sources {
                let wanted: Vec<SocketAddr> = hosts
                    .iter()
                    .filter(|(_, host)| host.wishes.get(group).is_some_and(|w| w.takes(source)))
                    .map(|(end, _)| *end)
                    .collect();
                let got = lab.receivers(&source.to_string(), &group.to_string());
                assert_eq!(got, wanted, "seed {seed}: {source} to {group}");
            }
        }
        for event in lab.events.drain(..) {
            match event {
                Event::Join(join) => assert!(joined.insert(join), "seed {seed}: twice {join:?}"),
                Event::Leave(join) => assert!(joined.remove(&join), "seed {seed}: {join:?}"),
            }
        }
        let reported: BTreeSet<Join> = lab.relay.joins().map(|(join, _)| join).collect();
        assert_eq!(reported, joined, "seed {seed}");
        let tunnels = hosts.values().filter(|host| !host.wishes.is_empty());
        assert_eq!(lab.relay.tunnels(), tunnels.count(), "seed {seed}");
    }
    lab.pass(Duration::from_secs(1000));
    assert_eq!(lab.relay.tunnels(), 0, "seed {seed}");
    for event in lab.events.drain(..) {
        if let Event::Leave(join) = event {
            joined.remove(&join);
        }
    }
    assert!(joined.is_empty(), "seed {seed}: {joined:?} stay joined");
}

fn current(host: &Host) -> Vec<Record> {
    let records = host.wishes.iter().map(|(group, wish)| {
        let (kind, sources) = match wish {
            SourceFilter::Only(sources) => (RecordKind::IsIn, sources),
            SourceFilter::AllBut(sources) => (RecordKind::IsEx, sources),
        };
        Record {
            kind,
            group: *group,
            sources: sources.iter().copied().collect(),
        }
    });
    records.collect()
}

#[test]
fn random_reports_yield_the_wanted_groups() {
    for seed in 0..100 {
        one_history(seed);
    }
}
