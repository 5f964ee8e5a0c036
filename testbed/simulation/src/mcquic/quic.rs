//! One end of a QUIC connection without its packets' bytes: streams and datagrams, acknowledgements
//! (RFC 9000 section 13.2) and the detection of losses (RFC 9002 sections 5 and 6). There is no
//! congestion control, as in the paper's runs, and no limit of flow control. A PING follows repairs
//! (protocol.md section 7.3).
//!
//! quiche reads the system's clock, so that it cannot run in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::range::RangeSet;

/// UDP payload of a full packet: the paper's.
pub(super) const UDP_PAYLOAD: usize = 1_350;
/// Short header with a connection ID of 8 bytes and a packet number of 2, and the AEAD's tag.
const PACKET_OVERHEAD: usize = 1 + 8 + 2 + 16;
/// Type, stream ID, offset and length of a STREAM frame.
const STREAM_HEADER: usize = 1 + 4 + 2 + 2;
/// Type and length of a DATAGRAM frame.
const DATAGRAM_HEADER: usize = 3;
/// An ACK frame with one range, and each further one.
const ACK_FRAME: usize = 8;
const ACK_RANGE: usize = 2;
/// Ranges of an ACK frame, at most.
const MAX_RANGES: usize = 32;
/// Largest time that an acknowledgement is held back.
const MAX_ACK_DELAY: Duration = Duration::from_millis(25);
/// Packets after which an earlier one is lost.
const PACKET_THRESHOLD: u64 = 3;
const GRANULARITY: Duration = Duration::from_millis(1);
/// Part of the round-trip time after which a PING follows repairs.
const FOLLOWED_WITHIN: u32 = 8;

/// Content of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    Stream {
        id: u64,
        offset: u64,
        data: Bytes,
        fin: bool,
    },
    Datagram(Bytes),
    Ping,
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Item::Stream { data, .. } => STREAM_HEADER + data.len(),
            Item::Datagram(data) => DATAGRAM_HEADER + data.len(),
            Item::Ping => 1,
        }
    }

    /// Returns what is sent again where its packet was lost.
    fn again(self) -> Option<Item> {
        match self {
            Item::Stream { .. } => Some(self),
            Item::Datagram(_) | Item::Ping => None,
        }
    }
}

#[derive(Debug, Clone)]
struct Ack {
    ranges: Vec<Range<u64>>,
    delay: Duration,
}

/// A packet.
#[derive(Debug, Clone)]
pub(super) struct Packet {
    pn: u64,
    ack: Option<Ack>,
    items: Vec<Item>,
    /// Bytes of UDP payload.
    pub(super) len: usize,
}

#[derive(Debug)]
struct Sent {
    at: Instant,
    items: Vec<Item>,
}

#[derive(Debug, Clone, Copy)]
struct Rtt {
    latest: Duration,
    smoothed: Duration,
    variation: Duration,
    least: Duration,
}

/// One end of a connection.
#[derive(Debug, Default)]
pub(super) struct Endpoint {
    next_pn: u64,
    queue: VecDeque<Item>,
    offsets: BTreeMap<u64, u64>,
    sent: BTreeMap<u64, Sent>,
    largest_acked: Option<u64>,
    rtt: Option<Rtt>,
    loss_at: Option<Instant>,
    last_sent_at: Option<Instant>,
    probes: u32,
    received: RangeSet,
    largest_at: Option<Instant>,
    unacknowledged: u32,
    ack_at: Option<Instant>,
    /// Whether a PING is to follow what is queued, and when it does.
    owes_ping: bool,
    ping_at: Option<Instant>,
    /// Packets that were taken for lost.
    pub(super) lost: u64,
}

impl Endpoint {
    /// An end with an estimate of the round-trip time, as the handshake leaves one.
    pub(super) fn new(rtt: Duration) -> Endpoint {
        Endpoint {
            rtt: Some(Rtt {
                latest: rtt,
                smoothed: rtt,
                variation: rtt / 2,
                least: rtt,
            }),
            ..Endpoint::default()
        }
    }

    /// Queues bytes of a stream.
    pub(super) fn send_stream(&mut self, id: u64, data: Bytes, fin: bool) {
        let offset = self.offsets.entry(id).or_default();
        let start = *offset;
        *offset += data.len() as u64;
        if fin {
            self.offsets.remove(&id);
        }
        self.queue.push_back(Item::Stream {
            id,
            offset: start,
            data,
            fin,
        });
    }

    /// Queues a datagram.
    pub(super) fn send_datagram(&mut self, data: Bytes) {
        self.queue.push_back(Item::Datagram(data));
    }

    /// Has a PING follow what is queued, once that is sent.
    pub(super) fn follow_repairs(&mut self) {
        self.owes_ping = true;
    }

    /// Returns the next packet to be sent.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        let must_ack = self.ack_at.is_some_and(|at| at <= now);
        if self.queue.is_empty()
            && let (true, Some(rtt)) = (std::mem::take(&mut self.owes_ping), self.rtt)
        {
            self.ping_at = Some(now + rtt.smoothed / FOLLOWED_WITHIN);
        }
        if self.queue.is_empty() && !must_ack {
            return None;
        }
        let ack = (self.unacknowledged > 0).then(|| self.take_ack(now));
        let ranges = ack.as_ref().map_or(0, |ack| ack.ranges.len());
        let mut len = PACKET_OVERHEAD;
        if ranges > 0 {
            len += ACK_FRAME + ACK_RANGE * (ranges - 1);
        }
        let mut items = Vec::new();
        while let Some(mut item) = self.queue.pop_front() {
            let room = UDP_PAYLOAD - len;
            if item.len() > room {
                let whole = item.clone();
                match &mut item {
                    Item::Stream {
                        id,
                        offset,
                        data,
                        fin,
                    } if room > STREAM_HEADER => {
                        let first = data.split_to(room - STREAM_HEADER);
                        let rest = Item::Stream {
                            id: *id,
                            offset: *offset + first.len() as u64,
                            data: std::mem::replace(data, first),
                            fin: std::mem::take(fin),
                        };
                        self.queue.push_front(rest);
                    }
                    // One that fits no packet is none that anything here makes.
                    _ if items.is_empty() => continue,
                    _ => {
                        self.queue.push_front(whole);
                        break;
                    }
                }
            }
            len += item.len();
            items.push(item);
        }
        let pn = self.next_pn;
        self.next_pn += 1;
        if !items.is_empty() {
            self.last_sent_at = Some(now);
            let items = items.clone();
            self.sent.insert(pn, Sent { at: now, items });
        }
        Some(Packet {
            pn,
            ack,
            items,
            len,
        })
    }

    fn take_ack(&mut self, now: Instant) -> Ack {
        (self.unacknowledged, self.ack_at) = (0, None);
        let ranges = self.received.iter().rev().take(MAX_RANGES).cloned();
        Ack {
            ranges: ranges.collect(),
            delay: self.largest_at.map_or(Duration::ZERO, |at| now - at),
        }
    }

    /// Takes a packet and returns what is new in it.
    pub(super) fn on_packet(&mut self, packet: Packet, now: Instant) -> Vec<Item> {
        if let Some(ack) = packet.ack {
            self.on_ack(&ack, now);
        }
        let largest = self.received.max();
        if !self.received.insert_one(packet.pn) {
            return Vec::new();
        }
        if largest.is_none_or(|largest| packet.pn > largest) {
            self.largest_at = Some(now);
        }
        if packet.items.is_empty() {
            return Vec::new();
        }
        self.unacknowledged += 1;
        let in_order = largest.map_or(0, |largest| largest + 1) == packet.pn;
        let at = match self.unacknowledged >= 2 || !in_order {
            true => now,
            false => now + MAX_ACK_DELAY,
        };
        self.ack_at = Some(self.ack_at.map_or(at, |known| known.min(at)));
        packet.items
    }

    fn on_ack(&mut self, ack: &Ack, now: Instant) {
        let Some(largest) = ack.ranges.iter().map(|range| range.end).max() else {
            return;
        };
        let largest = largest - 1;
        let mut newly = false;
        for range in &ack.ranges {
            let acked: Vec<u64> = self.sent.range(range.clone()).map(|(pn, _)| *pn).collect();
            for pn in acked {
                newly = true;
                if let Some(sent) = self.sent.remove(&pn).filter(|_| pn == largest) {
                    self.sample(now - sent.at, ack.delay);
                }
            }
        }
        if newly {
            self.largest_acked = self.largest_acked.max(Some(largest));
            self.probes = 0;
            self.detect_losses(now);
        }
    }

    fn sample(&mut self, latest: Duration, delay: Duration) {
        let Some(rtt) = &mut self.rtt else {
            self.rtt = Some(Rtt {
                latest,
                smoothed: latest,
                variation: latest / 2,
                least: latest,
            });
            return;
        };
        rtt.least = rtt.least.min(latest);
        rtt.latest = latest;
        let delay = delay.min(MAX_ACK_DELAY);
        let adjusted = match latest >= rtt.least + delay {
            true => latest - delay,
            false => latest,
        };
        rtt.variation = (rtt.variation * 3 + rtt.smoothed.abs_diff(adjusted)) / 4;
        rtt.smoothed = (rtt.smoothed * 7 + adjusted) / 8;
    }

    fn detect_losses(&mut self, now: Instant) {
        self.loss_at = None;
        let (Some(rtt), Some(largest)) = (self.rtt, self.largest_acked) else {
            return;
        };
        let wait = (rtt.smoothed.max(rtt.latest) * 9 / 8).max(GRANULARITY);
        let mut lost = Vec::new();
        for (pn, sent) in self.sent.range(..largest) {
            if pn + PACKET_THRESHOLD <= largest || sent.at + wait <= now {
                lost.push(*pn);
            } else {
                let at = sent.at + wait;
                self.loss_at = Some(self.loss_at.map_or(at, |known| known.min(at)));
            }
        }
        self.lost += lost.len() as u64;
        for pn in lost.into_iter().rev() {
            let items = self.sent.remove(&pn).map_or(Vec::new(), |sent| sent.items);
            for item in items.into_iter().rev().filter_map(Item::again) {
                self.queue.push_front(item);
            }
        }
    }

    fn probe_at(&self) -> Option<Instant> {
        let (at, rtt) = (self.last_sent_at?, self.rtt?);
        if self.sent.is_empty() {
            return None;
        }
        let period = rtt.smoothed + (rtt.variation * 4).max(GRANULARITY) + MAX_ACK_DELAY;
        Some(at + period * 2_u32.pow(self.probes.min(10)))
    }

    /// Returns when to call [`Endpoint::handle_timeout`] next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let recovery = self.loss_at.or_else(|| self.probe_at());
        [self.ack_at, recovery, self.ping_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles timers that have expired.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.ping_at.take_if(|at| *at <= now).is_some() {
            self.queue.push_back(Item::Ping);
        }
        if self.loss_at.is_some_and(|at| at <= now) {
            self.detect_losses(now);
        } else if self.loss_at.is_none() && self.probe_at().is_some_and(|at| at <= now) {
            self.probes += 1;
            let oldest = self.sent.values().next();
            let items = oldest.map_or(Vec::new(), |sent| sent.items.clone());
            let again: Vec<Item> = items.into_iter().filter_map(Item::again).collect();
            if again.is_empty() {
                self.queue.push_front(Item::Ping);
            }
            for item in again.into_iter().rev() {
                self.queue.push_front(item);
            }
        }
    }
}

/// Streams that come in, each in order.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    streams: BTreeMap<u64, Stream>,
    done: RangeSet,
}

#[derive(Debug, Default)]
struct Stream {
    next: u64,
    parts: BTreeMap<u64, Bytes>,
    end: Option<u64>,
}

impl Inbox {
    /// Takes a part of a stream, and returns the bytes that are in order now and whether they are
    /// its last; `None` if there are none.
    pub(super) fn take(
        &mut self,
        id: u64,
        offset: u64,
        data: Bytes,
        fin: bool,
    ) -> Option<(Vec<u8>, bool)> {
        if self.done.contains(id) {
            return None;
        }
        let stream = self.streams.entry(id).or_default();
        if fin {
            stream.end = Some(offset + data.len() as u64);
        }
        let longer = stream.parts.get(&offset).map_or(0, Bytes::len);
        if data.len() > longer {
            stream.parts.insert(offset, data);
        }
        let mut bytes = Vec::new();
        while let Some(part) = stream.parts.first_entry() {
            let start = *part.key();
            if start > stream.next {
                break;
            }
            let part = part.remove();
            let known = (stream.next - start) as usize;
            let new = part.get(known..).unwrap_or_default();
            bytes.extend_from_slice(new);
            stream.next += new.len() as u64;
        }
        let ended = stream.end == Some(stream.next);
        if ended {
            self.streams.remove(&id);
            self.done.insert_one(id);
        }
        (ended || !bytes.is_empty()).then_some((bytes, ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sends messages over a path of 10 ms on which `loses` says which packets get lost; returns
    /// when each was whole, in ms.
    fn converse(messages: &[(u64, usize)], loses: impl Fn(bool, u64) -> bool) -> Vec<u64> {
        let start = Instant::now();
        let mut ends = [Endpoint::new(MS * 20), Endpoint::new(MS * 20)];
        let mut flying: Vec<(Instant, usize, Packet)> = Vec::new();
        let (mut inbox, mut whole) = (Inbox::default(), vec![0; messages.len()]);
        for tick in 0..2_000 {
            let now = start + MS * tick;
            for (id, (at, len)) in messages.iter().enumerate() {
                if *at == u64::from(tick) {
                    ends[0].send_stream(id as u64, vec![id as u8; *len].into(), true);
                }
            }
            let (due, rest) = flying.into_iter().partition(|(at, ..)| *at <= now);
            flying = rest;
            let due: Vec<(Instant, usize, Packet)> = due;
            for (_, to, packet) in due {
                for item in ends[to].on_packet(packet, now) {
                    let Item::Stream {
                        id,
                        offset,
                        data,
                        fin,
                    } = item
                    else {
                        continue;
                    };
                    if let Some((_, true)) = inbox.take(id, offset, data, fin) {
                        whole[id as usize] = u64::from(tick);
                    }
                }
            }
            for (from, end) in ends.iter_mut().enumerate() {
                if end.poll_timeout().is_some_and(|at| at <= now) {
                    end.handle_timeout(now);
                }
                while let Some(packet) = end.poll_transmit(now) {
                    assert!(packet.len <= UDP_PAYLOAD);
                    if !loses(from == 0, packet.pn) {
                        flying.push((now + MS * 10, 1 - from, packet));
                    }
                }
            }
        }
        assert!(ends[0].sent.is_empty(), "everything is acknowledged");
        whole
    }

    #[test]
    fn nothing_is_late_without_losses() {
        assert_eq!(converse(&[(0, 10_000), (7, 10)], |_, _| false), [10, 17]);
    }

    #[test]
    fn three_later_packets_show_a_loss() {
        // The acknowledgement of packet 4 comes at 20 ms.
        let whole = converse(&[(0, 10_000)], |down, pn| down && pn == 1);
        assert_eq!(whole, [30]);
    }

    #[test]
    fn a_lost_last_packet_waits_for_a_probe() {
        let whole = converse(&[(0, 100)], |down, pn| down && pn == 0);
        // RTT 20 + 4 × variation 10 + acknowledgement delay 25, and the path.
        assert_eq!(whole, [95]);
    }

    /// The PING of a repair shows its loss by the time threshold, 9/8 of the round-trip time.
    #[test]
    fn a_lost_repair_shows_by_the_ping_behind_it() {
        let start = Instant::now();
        let mut ends = [Endpoint::new(MS * 16), Endpoint::new(MS * 16)];
        ends[0].send_stream(3, vec![1; 100].into(), true);
        ends[0].follow_repairs();
        assert!(ends[0].poll_transmit(start).is_some(), "and it gets lost");
        assert!(ends[0].poll_transmit(start).is_none());
        let at = ends[0].poll_timeout().unwrap();
        assert_eq!(at, start + MS * 2);
        ends[0].handle_timeout(at);
        let ping = ends[0].poll_transmit(at).unwrap();
        assert_eq!(ping.items, [Item::Ping]);
        ends[1].on_packet(ping, at + MS * 8);
        let ack = ends[1].poll_transmit(at + MS * 8).unwrap();
        ends[0].on_packet(ack, at + MS * 16);
        let again = ends[0].poll_transmit(at + MS * 16).unwrap();
        assert!(matches!(again.items[..], [Item::Stream { id: 3, .. }]));
    }

    #[test]
    fn bad_paths_only_delay() {
        let messages: Vec<_> = (0..50).map(|n| (n * 10, 3_000)).collect();
        let whole = converse(&messages, |_, pn| pn % 3 == 1);
        assert!(whole.iter().all(|at| *at > 0), "{whole:?}");
        assert!(
            whole
                .iter()
                .zip(&messages)
                .any(|(at, (sent, _))| *at > sent + 30)
        );
    }

    #[test]
    fn streams_come_in_order() {
        let mut inbox = Inbox::default();
        assert_eq!(inbox.take(3, 2, vec![3, 4].into(), true), None);
        let all = inbox.take(3, 0, vec![1, 2].into(), false);
        assert_eq!(all, Some((vec![1, 2, 3, 4], true)));
        assert_eq!(inbox.take(3, 0, vec![1, 2].into(), false), None);
    }
}
