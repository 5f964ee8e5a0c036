//! The native side: joins, and packets from sockets or from a capture.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use amt::ip::UdpTemplate;
use amt::relay::Join;
use netio::direct::{
    Capture, GroupPort, InterfaceState, Memberships, Poller, interface_state, route_interface,
};
use tracing::{debug, info, warn};

use super::CAPTURE;
use super::counters::Counters;

/// First token of the native sockets; the ports for gateways are below.
pub(super) const FIRST_TOKEN: u64 = 1 << 16;

/// Number of senders per group and port whose headers are cached.
const TEMPLATES: usize = 256;

/// Failed joins that are retried at a time.
const RETRIES: usize = 32;

/// Groups whose route is checked at a time.
const ROUTES: usize = 64;

/// TTL of packets with an unknown one.
const TTL: u8 = 64;

/// Socket for a group and port.
#[derive(Debug)]
pub(super) struct NativePort {
    pub(super) port: GroupPort,
    pub(super) headers: Headers,
    joined: Vec<Option<IpAddr>>,
}

/// State of a socket's packets.
#[derive(Debug)]
pub(super) struct Headers {
    group: SocketAddr,
    templates: HashMap<SocketAddr, UdpTemplate>,
    /// Packets that the kernel has counted as dropped.
    overflow: u32,
}

impl Headers {
    fn new(group: SocketAddr) -> Self {
        Self {
            group,
            templates: HashMap::new(),
            overflow: 0,
        }
    }

    /// Returns the headers of packets from `from` to this socket.
    pub(super) fn template(&mut self, from: SocketAddr) -> Option<&mut UdpTemplate> {
        if self.templates.len() >= TEMPLATES && !self.templates.contains_key(&from) {
            self.templates.clear();
        }
        match self.templates.entry(from) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => {
                UdpTemplate::new(from, self.group).map(|template| new.insert(template))
            }
        }
    }

    /// Returns the number of packets that the kernel has dropped since the last call.
    pub(super) fn overflowed(&mut self, total: u32) -> u32 {
        let more = total.wrapping_sub(self.overflow);
        self.overflow = total;
        more
    }
}

/// Reception of native packets.
#[derive(Debug)]
pub(super) enum Native {
    /// Sockets for these ports.
    Ports(Vec<u16>),
    /// Capture; `None` while the interface is gone.
    Capture(Option<Box<Capture>>, Memberships),
}

/// Interfaces on which groups are joined, as far as they select captured packets.
#[derive(Debug, Default)]
pub(super) struct JoinInterfaces {
    /// Whether the capture sees one interface at most.
    one: bool,
    /// Interface of each group, 0 if unknown, and the number of its joins.
    groups: HashMap<IpAddr, (u32, usize)>,
}

impl JoinInterfaces {
    /// Whether a packet to `group` that was captured on an interface belongs to the membership
    /// there. The same packet may be seen on several (a bridge and its ports, a bond, a tunnel).
    pub(super) fn is_joined_on(&self, group: IpAddr, interface: u32) -> bool {
        let here = |place: &(u32, usize)| place.0 == 0 || place.0 == interface;
        self.one || self.groups.get(&group).is_some_and(here)
    }

    fn join(&mut self, group: IpAddr, interface: u32) {
        let place = self.groups.entry(group).or_insert((interface, 0));
        // Of two interfaces, the one with the last join: the other joins follow.
        place.0 = interface;
        place.1 += 1;
    }

    fn leave(&mut self, group: IpAddr) {
        if let Entry::Occupied(mut place) = self.groups.entry(group) {
            place.get_mut().1 -= 1;
            if place.get().1 == 0 {
                place.remove();
            }
        }
    }
}

/// Joins that are held, and their receivers.
#[derive(Debug)]
pub(super) struct NativeSide {
    pub(super) native: Native,
    interface: Option<String>,
    /// Sockets by token, from the first one.
    pub(super) sockets: BTreeMap<u64, NativePort>,
    pub(super) interfaces: JoinInterfaces,
    next_token: u64,
    /// Joins with the index of their interface, 0 if unknown.
    held: BTreeMap<Join, u32>,
    /// Wanted joins that the kernel refused; retried periodically.
    missing: BTreeSet<Join>,
    /// Join that was retried last.
    tried: Option<Join>,
    /// Join whose route was checked last.
    looked: Option<Join>,
    counters: Arc<Counters>,
}

impl NativeSide {
    pub(super) fn new(native: Native, interface: Option<String>, counters: Arc<Counters>) -> Self {
        let capture = matches!(native, Native::Capture(..));
        Self {
            native,
            interfaces: JoinInterfaces {
                one: !capture || interface.is_some(),
                groups: HashMap::new(),
            },
            interface,
            sockets: BTreeMap::new(),
            next_token: FIRST_TOKEN,
            held: BTreeMap::new(),
            missing: BTreeSet::new(),
            tried: None,
            looked: None,
            counters,
        }
    }

    /// Joins for a gateway; a failure is logged and retried later. Log lines about single joins
    /// name the gateway, by which they are rate-limited.
    pub(super) fn join(&mut self, join: Join, gateway: SocketAddr, poller: &Poller) {
        match self.try_join(join, poller) {
            Ok(()) => info!(%gateway, join = shown(join), "joined"),
            Err(error) => {
                self.counters.join_failures.add(1);
                if self.missing.insert(join) {
                    warn!(%gateway, %error, join = shown(join), "join failed; retrying");
                }
            }
        }
        self.count();
    }

    /// Returns the index of the interface to join a group on; 0 leaves the choice to the kernel.
    fn interface_for(&self, group: IpAddr) -> io::Result<u32> {
        match &self.interface {
            // By name each time: an interface that disappeared may return with another index.
            Some(interface) => netio::find_interface(interface),
            None => match route_interface(group) {
                Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable => {
                    let what =
                        format!("{error}; add one, or choose an interface with --native-interface");
                    Err(io::Error::new(error.kind(), what))
                }
                Err(error) => {
                    debug!("{error}; the kernel chooses");
                    Ok(0)
                }
                found => found,
            },
        }
    }

    fn try_join(&mut self, join: Join, poller: &Poller) -> io::Result<()> {
        let interface = self.interface_for(join.group)?;
        match &mut self.native {
            Native::Capture(_, memberships) => {
                memberships.join(join.source, join.group, interface)?;
            }
            Native::Ports(ports) => {
                let ports = ports.clone();
                for (number, port) in ports.iter().enumerate() {
                    let joined = self.join_port(join, *port, interface, poller);
                    if let Err(error) = joined {
                        // All ports or none.
                        for port in ports.iter().take(number) {
                            self.leave_port(join, *port);
                        }
                        return Err(error);
                    }
                }
            }
        }
        self.interfaces.join(join.group, interface);
        self.held.insert(join, interface);
        Ok(())
    }

    fn join_port(
        &mut self,
        join: Join,
        port: u16,
        interface: u32,
        poller: &Poller,
    ) -> io::Result<()> {
        let group = SocketAddr::new(join.group, port);
        // Any-source and source-specific joins do not mix on one socket.
        let fits = |socket: &&mut NativePort| {
            let mut joined = socket.joined.iter();
            socket.port.group() == group
                && socket.port.interface() == interface
                && joined.all(|held| held.is_some() && join.source.is_some())
        };
        for socket in self.sockets.values_mut().filter(fits) {
            // A full socket: the next one, or a new one.
            if socket.port.join(join.source).is_ok() {
                socket.joined.push(join.source);
                return Ok(());
            }
        }
        let mut port = GroupPort::open(group, interface)?;
        port.join(join.source)?;
        poller.add(&port, self.next_token)?;
        let socket = NativePort {
            port,
            headers: Headers::new(group),
            joined: vec![join.source],
        };
        self.sockets.insert(self.next_token, socket);
        self.next_token += 1;
        Ok(())
    }

    fn leave_port(&mut self, join: Join, port: u16) {
        let group = SocketAddr::new(join.group, port);
        for socket in self.sockets.values_mut() {
            if socket.port.group() != group {
                continue;
            }
            if let Some(at) = socket.joined.iter().position(|one| *one == join.source) {
                socket.joined.swap_remove(at);
                // An interface that is gone has dropped its memberships.
                let _ = socket.port.leave(join.source);
                break;
            }
        }
        self.sockets.retain(|_, socket| !socket.joined.is_empty());
    }

    pub(super) fn leave(&mut self, join: Join, gateway: SocketAddr) {
        self.missing.remove(&join);
        if self.drop_join(join) {
            info!(%gateway, join = shown(join), "left");
        }
        self.count();
    }

    /// Drops a membership; false if it is not held.
    fn drop_join(&mut self, join: Join) -> bool {
        if self.held.remove(&join).is_none() {
            return false;
        }
        self.interfaces.leave(join.group);
        match &mut self.native {
            Native::Capture(_, memberships) => memberships.leave(join.source, join.group),
            Native::Ports(ports) => {
                for port in ports.clone() {
                    self.leave_port(join, port);
                }
            }
        }
        true
    }

    /// Checks whether held joins still exist: an interface drops its memberships when it
    /// disappears, and its capture ends, whatever replaces it. Lost joins are retried as missing
    /// ones.
    pub(super) fn check(&mut self, poller: &Poller) {
        self.check_capture(poller);
        let mut states: BTreeMap<u32, InterfaceState> = BTreeMap::new();
        let mut is_gone = |index: u32| {
            let state = states
                .entry(index)
                .or_insert_with(|| interface_state(index));
            index != 0 && *state == InterfaceState::Gone
        };
        let mut lost: Vec<Join> = match &self.interface {
            Some(name) => {
                let now = netio::find_interface(name).ok();
                let elsewhere = |on: u32| now.is_some_and(|now| now != on);
                let held = self.held.iter();
                let lost = held.filter(|(_, on)| elsewhere(**on) || is_gone(**on));
                lost.map(|(join, _)| *join).collect()
            }
            None => {
                let held = self.held.iter();
                let lost = held.filter(|(_, on)| is_gone(**on));
                lost.map(|(join, _)| *join).collect()
            }
        };
        if self.interface.is_none() {
            // Routes change, too; not all are checked at once, while packets wait.
            for (join, on) in after(&self.held, self.looked).take(ROUTES) {
                self.looked = Some(*join);
                let elsewhere = route_interface(join.group).is_ok_and(|now| now != *on);
                if elsewhere && *on != 0 {
                    lost.push(*join);
                }
            }
        }
        if lost.is_empty() {
            return;
        }
        warn!(
            groups = lost.len(),
            "interface of groups gone or changed; joining them again"
        );
        for join in lost {
            if self.drop_join(join) {
                self.missing.insert(join);
            }
        }
        self.count();
    }

    /// Handles the error of a capture, which would keep the loop busy for ever.
    pub(super) fn capture_failed(&mut self, poller: &Poller) {
        if let Native::Capture(Some(capture), _) = &self.native
            && let Some(error) = capture.take_error()
        {
            warn!(%error, "capture failed; resuming when the interface is up");
        }
        self.check_capture(poller);
    }

    /// Captures on the current interface.
    fn check_capture(&mut self, poller: &Poller) {
        let Native::Capture(capture, _) = &mut self.native else {
            return;
        };
        let interface = self.interface.as_deref();
        let now = interface.map_or(Ok(0), netio::find_interface);
        let is_there = now
            .as_ref()
            .is_ok_and(|now| *now == 0 || interface_state(*now) == InterfaceState::Up);
        match (&capture, now) {
            (Some(open), Ok(now)) if open.interface() == now && open.is_bound() => {}
            (_, Ok(now)) => {
                *capture = Capture::open(now)
                    .and_then(|open| poller.add(&open, CAPTURE).map(|()| Box::new(open)))
                    .inspect_err(|error| warn!(%error, "capture failed; retrying"))
                    .ok();
            }
            (_, Err(_)) => *capture = None,
        }
        let captures = is_there && capture.is_some();
        let before = self.counters.not_capturing.get() == 0;
        if captures && !before {
            info!("capture resumed");
        }
        self.counters.not_capturing.set(usize::from(!captures));
    }

    /// Returns the packets that the kernel dropped for want of room since the last call; a train
    /// counts as one.
    pub(super) fn take_lost(&mut self) -> u64 {
        match &mut self.native {
            Native::Capture(capture, _) => capture.as_mut().map_or(0, |it| it.take_lost()),
            Native::Ports(_) => {
                let sockets = self.sockets.values_mut();
                let lost = sockets.map(|socket| {
                    let total = socket.port.dropped();
                    u64::from(socket.headers.overflowed(total))
                });
                lost.sum()
            }
        }
    }

    /// Retries some missing joins; returns whether all of these succeeded, and there are more.
    pub(super) fn try_again(&mut self, poller: &Poller) -> bool {
        // Not all at once, while packets wait: those that fail again move to the end.
        let from = self.tried.unwrap_or(FIRST);
        let behind = self.missing.range((Excluded(from), Unbounded));
        let all = behind.chain(self.missing.range(..=from));
        let now: Vec<Join> = all.take(RETRIES).copied().collect();
        self.tried = now.last().copied();
        let mut well = true;
        for join in now {
            match self.try_join(join, poller) {
                Ok(()) => {
                    info!(group = %join.group, join = shown(join), "joined after retries");
                    self.missing.remove(&join);
                }
                Err(error) => {
                    debug!("{}: {error}; trying again", shown(join));
                    self.counters.join_failures.add(1);
                    well = false;
                }
            }
        }
        self.count();
        well && !self.missing.is_empty()
    }

    fn count(&self) {
        self.counters.joins.set(self.held.len());
        self.counters.joins_missing.set(self.missing.len());
    }
}

/// Smallest of all joins.
const FIRST: Join = Join {
    source: None,
    group: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
};

/// Returns all joins once, beginning after `last`.
fn after(held: &BTreeMap<Join, u32>, last: Option<Join>) -> impl Iterator<Item = (&Join, &u32)> {
    let from = last.unwrap_or(FIRST);
    held.range((Excluded(from), Unbounded))
        .chain(held.range(..=from))
}

/// Returns the TTL to rebuild a packet with: its own, except for one that was to stay in this host
/// (0), which is impossible for a packet anywhere else.
pub(super) fn ttl(of: Option<u8>) -> u8 {
    of.unwrap_or(TTL).max(1)
}

pub(super) fn shown(join: Join) -> String {
    match join.source {
        Some(source) => format!("group {} from {source}", join.group),
        None => format!("group {} from any source", join.group),
    }
}
