//! Forwarding of trains to gateways.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amt::ip;
use amt::relay::{Recipient, Recipients, Relay, TunnelId};
use netio::direct::{Fanout, IcmpPort, PathError, SendFailure, Target, UdpPort};
use tracing::{debug, warn};

use super::counters::Counters;
use super::train::{DATA, Flow, Train};

/// Largest number of ICMP messages per second, and in one burst.
const ICMP_RATE: u32 = 10;

/// Largest number of packets and trains to gateways from one read of the native side, unless the
/// first alone exceeds it: gateways' messages wait meanwhile.
const SENDS: usize = 4096;

/// Errors of the network that are read at a time.
const PATH_ERRORS: usize = 64;

/// Sender to gateways.
#[derive(Debug)]
pub(super) struct Forwarder {
    pub(super) ports: Vec<UdpPort>,
    fanout: Fanout,
    counters: Arc<Counters>,
    icmp: Icmp,
    /// Recipients that did not get the last train, with the reason.
    failed: Vec<(usize, SendFailure)>,
    /// Number of gateways that the last train was sent to.
    last: usize,
    /// Messages of each port that the kernel had dropped.
    dropped: Vec<u32>,
    datagram: Vec<u8>,
}

impl Forwarder {
    pub(super) fn new(ports: Vec<UdpPort>, counters: Arc<Counters>) -> Self {
        Self {
            dropped: ports.iter().map(UdpPort::dropped).collect(),
            last: 0,
            ports,
            fanout: Fanout::new(),
            counters,
            icmp: Icmp::new(),
            failed: Vec::new(),
            datagram: Vec::new(),
        }
    }

    /// Starts a turn in which full send buffers are waited for up to `patience`, for all gateways
    /// together.
    pub(super) fn begin_turn(&mut self, patience: Duration) {
        self.fanout.set_patience(patience);
    }

    /// Returns the number of packets, at most `most`, to read at a time, by the number of gateways
    /// that the last train was sent to.
    pub(super) fn share(&self, most: usize) -> usize {
        (SENDS / self.last.max(1)).clamp(1, most)
    }

    /// Returns the messages of gateways that the kernel dropped for want of room since the last
    /// call.
    pub(super) fn take_lost(&mut self) -> u64 {
        let ports = self.ports.iter().zip(&mut self.dropped);
        let lost = ports.map(|(port, before)| {
            let total = port.dropped();
            let lost = total.wrapping_sub(*before);
            *before = total;
            u64::from(lost)
        });
        lost.sum()
    }

    /// Sends the train, which is empty afterwards.
    pub(super) fn flush(&mut self, train: &mut Train, relay: &mut Relay, now: Instant) {
        if let Some((bytes, flow)) = train.ready() {
            let segment = train.segment();
            self.last = flow.recipients.all.len();
            let inner = segment - DATA.len();
            let fits = inner <= usize::from(flow.recipients.room);
            // Nothing is too large for a network that fragments.
            #[cfg(feature = "fault-injection")]
            let fits = fits || service::faults::Fault::FragmentOuter.is_injected();
            if fits {
                self.send_fitting(bytes, segment, train.datagrams(), flow, relay, now);
            } else {
                self.send_apart(bytes, segment, flow, relay, now);
            }
        }
        train.clear();
    }

    /// Sends a train in the ordinary case: every packet fits every path.
    fn send_fitting(
        &mut self,
        bytes: &[u8],
        segment: usize,
        datagrams: usize,
        flow: &Flow,
        relay: &mut Relay,
        now: Instant,
    ) {
        let inner_bytes = bytes.len() - datagrams * DATA.len();
        let (packets, inner_bytes) = (datagrams as u64, inner_bytes as u64);
        // By socket, which is the order of the recipients.
        for group in flow
            .recipients
            .all
            .chunk_by(|a, b| a.local.socket == b.local.socket)
        {
            let Some(port) = group
                .first()
                .and_then(|one| self.ports.get(usize::from(one.local.socket)))
            else {
                continue;
            };
            let failed = &mut self.failed;
            failed.clear();
            self.fanout.send(
                port,
                bytes,
                segment,
                group.iter().map(target),
                |number, what| failed.push((number, what)),
            );
            let mut sent = group.len() as u64 * packets;
            let mut narrow: Vec<TunnelId> = Vec::new();
            for (number, what) in &self.failed {
                let lost = match what {
                    SendFailure::TooLarge => {
                        narrow.extend(group.get(*number).map(|one| one.tunnel));
                        packets
                    }
                    SendFailure::Lost { datagrams, errno } => {
                        let lost = *datagrams as u64;
                        self.counters.lost.refused.add(lost);
                        if let Some(recipient) = group.get(*number) {
                            let error = io::Error::from_raw_os_error(*errno);
                            debug!(
                                "{lost} packets for {} were refused: {error}",
                                recipient.gateway
                            );
                        }
                        lost
                    }
                };
                sent = sent.saturating_sub(lost);
            }
            self.counters.sent_packets.add(sent);
            self.counters
                .sent_bytes
                .add(inner_bytes / packets.max(1) * sent);
            for (number, recipient) in group.iter().enumerate() {
                if self.failed.iter().all(|(failed, _)| *failed != number) {
                    relay.sent(recipient.tunnel, packets, inner_bytes);
                }
            }
            if !narrow.is_empty() {
                self.send_narrow(bytes, segment, flow, &narrow, relay, now);
            }
        }
    }

    /// Sends a train once more to gateways whose path MTU has just turned out to be smaller.
    fn send_narrow(
        &mut self,
        bytes: &[u8],
        segment: usize,
        flow: &Flow,
        narrow: &[TunnelId],
        relay: &mut Relay,
        now: Instant,
    ) {
        // The kernel has reported the new MTU.
        self.path_errors(relay, now);
        let all = relay.recipients(flow.source, flow.group);
        let all = all.map(|recipients| recipients.all.to_vec());
        let mut all = all.unwrap_or_default();
        all.retain(|one| narrow.contains(&one.tunnel));
        let room = all.iter().map(|one| one.room).min();
        let flow = Flow {
            recipients: Recipients {
                all: all.into(),
                room: room.unwrap_or(u16::MAX),
            },
            ..flow.clone()
        };
        self.send_apart(bytes, segment, &flow, relay, now);
    }

    /// Handles a train that does not fit every path: each packet and gateway is examined.
    fn send_apart(
        &mut self,
        bytes: &[u8],
        segment: usize,
        flow: &Flow,
        relay: &mut Relay,
        now: Instant,
    ) {
        for datagram in bytes.chunks(segment) {
            let packet = datagram.get(DATA.len()..).unwrap_or_default();
            // The source is notified of the smallest path MTU.
            let mut reported: Option<u16> = None;
            for recipient in flow.recipients.all.iter() {
                if packet.len() <= usize::from(recipient.room) {
                    self.send_pieces(recipient, [datagram], relay);
                    continue;
                }
                let mut pieces = Vec::new();
                let cut = ip::fragment_v4(packet, usize::from(recipient.room), |fragment| {
                    let mut datagram = Vec::with_capacity(DATA.len() + fragment.len());
                    datagram.extend_from_slice(&DATA);
                    datagram.extend_from_slice(fragment);
                    pieces.push(datagram);
                });
                match cut {
                    Ok(()) => {
                        self.counters.fragmented.add(1);
                        self.send_pieces(recipient, pieces, relay);
                    }
                    Err(_) => {
                        self.counters.lost.too_large.add(1);
                        reported = Some(reported.unwrap_or(u16::MAX).min(recipient.room));
                    }
                }
            }
            if let Some(mtu) = reported {
                self.notify_source(packet, flow.source, mtu, now);
            }
        }
    }

    fn send_pieces<T: AsRef<[u8]>>(
        &mut self,
        recipient: &Recipient,
        pieces: impl IntoIterator<Item = T>,
        relay: &mut Relay,
    ) {
        let Some(port) = self.ports.get(usize::from(recipient.local.socket)) else {
            return;
        };
        let to = target(recipient);
        for piece in pieces {
            let piece = piece.as_ref();
            match self.fanout.send_one(port, piece, to) {
                None => {
                    let bytes = piece.len().saturating_sub(DATA.len()) as u64;
                    self.counters.sent_packets.add(1);
                    self.counters.sent_bytes.add(bytes);
                    relay.sent(recipient.tunnel, 1, bytes);
                }
                // The path MTU has become even smaller.
                Some(SendFailure::TooLarge) => self.counters.lost.too_large.add(1),
                Some(SendFailure::Lost { errno, .. }) => {
                    self.counters.lost.refused.add(1);
                    let error = io::Error::from_raw_os_error(errno);
                    debug!("a packet for {} was refused: {error}", to.to);
                }
            }
        }
    }

    /// Processes the network's errors about earlier datagrams.
    pub(super) fn path_errors(&mut self, relay: &mut Relay, now: Instant) {
        for port in &self.ports {
            let counters = &self.counters;
            let taken = port.path_errors(PATH_ERRORS, |error| match error {
                PathError::TooLarge { to, mtu } => {
                    debug!(%to, mtu, "path MTU changed");
                    counters.narrowed.add(1);
                    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
                    relay.path_mtu(to, mtu, now);
                }
                // A gateway that is gone: its memberships expire. Anyone could forge such a
                // message.
                PathError::Other { .. } => {}
            });
            if let Err(error) = taken {
                debug!(
                    "the errors of {} cannot be read: {error}",
                    port.local_addr()
                );
            }
        }
    }

    fn notify_source(&mut self, packet: &[u8], source: IpAddr, mtu: u16, now: Instant) {
        if !self.icmp.may(now) {
            self.counters.icmp_unsent.add(1);
            return;
        }
        self.datagram.clear();
        // The kernel makes the IP header, with its own address.
        let (from, header): (IpAddr, usize) = match source {
            IpAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED.into(), ip::V4_HEADER),
            IpAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED.into(), ip::V6_HEADER),
        };
        ip::icmp_too_big(packet, from, mtu.into(), &mut self.datagram);
        let message = self.datagram.get(header..).unwrap_or_default();
        match self.icmp.send(message, source) {
            Ok(()) => self.counters.icmp.add(1),
            Err(error) => {
                self.counters.icmp_unsent.add(1);
                debug!(%source, %error, "ICMP message not sent");
            }
        }
    }
}

fn target(recipient: &Recipient) -> Target {
    Target {
        to: recipient.gateway,
        from: Some(recipient.local.ip),
    }
}

/// Rate-limited sender of ICMP messages.
#[derive(Debug)]
struct Icmp {
    v4: Option<IcmpPort>,
    v6: Option<IcmpPort>,
    left: u32,
    since: Option<Instant>,
}

impl Icmp {
    fn new() -> Self {
        let open = |v4| {
            let port = IcmpPort::open(v4);
            port.map_err(|error| {
                let effect =
                    "no ICMP socket; sources are not notified of packets that are too large";
                if error.kind() == io::ErrorKind::PermissionDenied {
                    debug!(%error, "{effect}");
                } else {
                    warn!(%error, "{effect}");
                }
            })
            .ok()
        };
        Self {
            v4: open(true),
            v6: open(false),
            left: ICMP_RATE,
            since: None,
        }
    }

    fn may(&mut self, now: Instant) -> bool {
        let due = self
            .since
            .is_none_or(|since| now.saturating_duration_since(since) >= Duration::from_secs(1));
        if due {
            self.since = Some(now);
            self.left = ICMP_RATE;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    fn send(&self, message: &[u8], to: IpAddr) -> io::Result<()> {
        let port = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        match port {
            Some(port) => port.send(message, to),
            None => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}
