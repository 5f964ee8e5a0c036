//! The native side: joins, and packets from sockets or from a capture.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use amt::ip::UdpTemplate;
use amt::relay::Join;
use netio::direct::{Capture, GroupPort, Memberships, Poller};
use tracing::{info, warn};

use super::counters::Counters;

/// The native sockets' tokens begin here; below are the ports for gateways.
pub(super) const FIRST_TOKEN: u64 = 1 << 16;

/// Senders of one group and port whose headers are kept ready.
const TEMPLATES: usize = 256;

/// Failed joins that are tried again in one go.
const RETRIES: usize = 32;

/// The TTL of packets whose own is not known.
const TTL: u8 = 64;

/// A socket for a group and port.
#[derive(Debug)]
pub(super) struct NativePort {
    pub(super) port: GroupPort,
    pub(super) headers: Headers,
    joined: Vec<Option<IpAddr>>,
}

/// What is kept of what comes by a socket.
#[derive(Debug)]
pub(super) struct Headers {
    group: SocketAddr,
    templates: HashMap<SocketAddr, UdpTemplate>,
    /// What the kernel has counted as dropped.
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

    /// The headers of what `from` sends here.
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

    /// How many more the kernel has dropped since the last time.
    pub(super) fn overflowed(&mut self, total: u32) -> u32 {
        let more = total.wrapping_sub(self.overflow);
        self.overflow = total;
        more
    }
}

/// How packets get here.
#[derive(Debug)]
pub(super) enum Native {
    /// By sockets for these ports.
    Ports(Vec<u16>),
    /// By capturing them.
    Capture(Box<Capture>, Memberships),
}

/// Joins that are held, and what receives.
#[derive(Debug)]
pub(super) struct NativeSide {
    pub(super) native: Native,
    interface: Option<String>,
    /// By token, from the first one.
    pub(super) sockets: BTreeMap<u64, NativePort>,
    next_token: u64,
    held: BTreeSet<Join>,
    /// Wanted, but refused by the kernel; tried again now and then.
    missing: BTreeSet<Join>,
    /// The last one that was tried again.
    tried: Option<Join>,
    counters: Arc<Counters>,
}

impl NativeSide {
    pub(super) fn new(native: Native, interface: Option<String>, counters: Arc<Counters>) -> Self {
        Self {
            native,
            interface,
            sockets: BTreeMap::new(),
            next_token: FIRST_TOKEN,
            held: BTreeSet::new(),
            missing: BTreeSet::new(),
            tried: None,
            counters,
        }
    }

    /// Joins; a failure is told and tried again later.
    pub(super) fn join(&mut self, join: Join, poller: &Poller) {
        match self.try_join(join, poller) {
            Ok(()) => {
                info!("joined {}", shown(join));
                self.held.insert(join);
            }
            Err(error) => {
                self.counters.join_failures.add(1);
                if self.missing.insert(join) {
                    warn!("{}: {error}; trying again", shown(join));
                }
            }
        }
        self.count();
    }

    fn try_join(&mut self, join: Join, poller: &Poller) -> io::Result<()> {
        // By name each time: an interface that went away may be back with another number.
        let interface = self.interface.as_deref();
        let interface = interface.map_or(Ok(0), netio::find_interface)?;
        match &mut self.native {
            Native::Capture(_, memberships) => memberships.join(join.source, join.group, interface),
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
                Ok(())
            }
        }
    }

    fn join_port(
        &mut self,
        join: Join,
        port: u16,
        interface: u32,
        poller: &Poller,
    ) -> io::Result<()> {
        let group = SocketAddr::new(join.group, port);
        // Any source and single ones do not go together on one socket.
        let fits = |socket: &&mut NativePort| {
            let mut joined = socket.joined.iter();
            socket.port.group() == group
                && joined.all(|held| held.is_some() && join.source.is_some())
        };
        for socket in self.sockets.values_mut().filter(fits) {
            // One that has as many as it can: the next, or a new one.
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
                // An interface that is gone has taken its memberships with it.
                let _ = socket.port.leave(join.source);
                break;
            }
        }
        self.sockets.retain(|_, socket| !socket.joined.is_empty());
    }

    pub(super) fn leave(&mut self, join: Join) {
        self.missing.remove(&join);
        if self.held.remove(&join) {
            match &mut self.native {
                Native::Capture(_, memberships) => {
                    memberships.leave(join.source, join.group);
                }
                Native::Ports(ports) => {
                    for port in ports.clone() {
                        self.leave_port(join, port);
                    }
                }
            }
            info!("left {}", shown(join));
        }
        self.count();
    }

    /// What the kernel lost for want of room since the last call; a train counts as one.
    pub(super) fn take_lost(&mut self) -> u64 {
        match &self.native {
            Native::Capture(capture, _) => capture.take_lost(),
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

    /// Whether joins have failed and are to be tried again.
    pub(super) fn is_missing(&self) -> bool {
        !self.missing.is_empty()
    }

    pub(super) fn try_again(&mut self, poller: &Poller) {
        // Not all at once, while packets wait: those that fail again go behind the others.
        let from = self.tried.unwrap_or(Join {
            source: None,
            group: std::net::Ipv4Addr::UNSPECIFIED.into(),
        });
        let behind = self.missing.range((Excluded(from), Unbounded));
        let all = behind.chain(self.missing.range(..=from));
        let now: Vec<Join> = all.take(RETRIES).copied().collect();
        self.tried = now.last().copied();
        for join in now {
            if self.try_join(join, poller).is_ok() {
                info!("joined {} after all", shown(join));
                self.missing.remove(&join);
                self.held.insert(join);
            } else {
                self.counters.join_failures.add(1);
            }
        }
        self.count();
    }

    fn count(&self) {
        self.counters.joins.set(self.held.len());
        self.counters.joins_missing.set(self.missing.len());
    }
}

/// The TTL to rebuild a packet with: its own, but for one that was to stay in this host (0), with
/// which no packet can be anywhere else.
pub(super) fn ttl(of: Option<u8>) -> u8 {
    of.unwrap_or(TTL).max(1)
}

pub(super) fn shown(join: Join) -> String {
    match join.source {
        Some(source) => format!("group {} from {source}", join.group),
        None => format!("group {} from any source", join.group),
    }
}
