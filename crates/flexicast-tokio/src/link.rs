//! One QUIC connection with what both ends do with it: a control stream, streams to be written,
//! packets out under a token bucket.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::WireError;
use flexicast::pace::TokenBucket;
use flexicast::source::Datagram;
use netio::UdpSocket;
use zeroize::Zeroizing;

use crate::amplification::Amplification;
use crate::config::{CONTROL_STREAM, UDP_PAYLOAD};
use crate::control::Outbox;
use crate::recall::Recall;
use crate::train::{send_train, source_ip};

/// Packets that go out in one system call at most.
const TRAIN: usize = 10;
/// Bytes of the control stream that may wait for a peer to read them.
const MAX_CONTROL: usize = 256 << 10;
/// Bytes of messages that may wait for a connection's capacity.
const MAX_DATAGRAM_BYTES: usize = 512 << 10;
/// Part of the round-trip time after which a PING follows repairs: with the time threshold for
/// losses (RFC 9002 section 6.1.2), its acknowledgement comes just when they count as lost.
const FOLLOWED_WITHIN: u32 = 8;
/// Repair symbols that may wait for a connection's capacity.
const MAX_SYMBOLS: usize = 32;
/// DATAGRAMs that quiche has at least when it gets no repair symbol.
const SYMBOLS_AHEAD: usize = 4;
/// Burst of a session after a pause, in bytes.
const BURST: usize = 32 * UDP_PAYLOAD;

struct Outgoing {
    stream: u64,
    parts: VecDeque<Bytes>,
    /// FIN is still to be sent.
    fin: bool,
    /// Nothing of this stream follows.
    ends: bool,
}

/// A connection and its outgoing work.
pub(crate) struct Link {
    pub(crate) conn: quiche::Connection,
    control: Outbox,
    /// The peer has sent FIN on the control stream.
    control_ended: bool,
    waiting: VecDeque<Outgoing>,
    waiting_bytes: usize,
    /// Messages that quiche has not taken, and the bytes in them.
    datagrams: VecDeque<Datagram>,
    datagram_bytes: usize,
    /// Repair symbols that it has not taken.
    symbols: VecDeque<Datagram>,
    /// Streams that were written to their end, in this order; some may be on their way still.
    ended: VecDeque<u64>,
    bucket: TokenBucket,
    rate: u64,
    /// Pacing holds packets back until then.
    held_until: Option<Instant>,
    /// Whether a PING is to follow what waits, and when it does.
    owes_ping: bool,
    ping_at: Option<Instant>,
    recall: Recall,
    /// Limit until the peer's address is validated; `None` afterwards, and at a client.
    amplification: Option<Amplification>,
    /// Fragments of messages for which there was no room.
    pub(crate) dropped_fragments: u64,
    /// Trains that the kernel refused because of their destination.
    pub(crate) refused: u64,
}

/// Hands a DATAGRAM to quiche, unless it is late. Returns whether it is done with.
fn hand_over(conn: &mut quiche::Connection, datagram: &Datagram, now: Instant) -> bool {
    let is_late = datagram.until.is_some_and(|until| until <= now);
    // Done: it has as many as it holds.
    is_late || conn.dgram_send(&datagram.bytes) != Err(quiche::Error::Done)
}

/// Why a link's socket cannot go on.
pub(crate) type SendResult = std::io::Result<()>;

impl Link {
    /// Wraps a connection; `rate` is in bit/s.
    pub(crate) fn new(conn: quiche::Connection, rate: u64) -> Self {
        let bucket = TokenBucket::new(rate, BURST);
        Link {
            conn,
            control: Outbox::default(),
            control_ended: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            datagrams: VecDeque::new(),
            datagram_bytes: 0,
            symbols: VecDeque::new(),
            ended: VecDeque::new(),
            bucket,
            rate,
            held_until: None,
            owes_ping: false,
            ping_at: None,
            recall: Recall::default(),
            amplification: None,
            dropped_fragments: 0,
            refused: 0,
        }
    }

    /// Limits what leaves until the peer's address is validated.
    pub(crate) fn limited(self, amplification: Amplification) -> Self {
        Link {
            amplification: Some(amplification),
            ..self
        }
    }

    /// Hands a datagram to quiche.
    ///
    /// # Errors
    /// quiche's.
    pub(crate) fn receive(
        &mut self,
        data: &mut [u8],
        info: quiche::RecvInfo,
    ) -> quiche::Result<usize> {
        let Some(amplification) = &mut self.amplification else {
            return self.conn.recv(data, info);
        };
        let received = amplification.receive(&mut self.conn, data, info);
        if amplification.is_over() {
            self.amplification = None;
        }
        received
    }

    /// Goes on with another rate, in bit/s.
    pub(crate) fn set_rate(&mut self, rate: u64, now: Instant) {
        if std::mem::replace(&mut self.rate, rate) != rate {
            self.bucket.set_rate(rate, now);
        }
    }

    /// Queues bytes of the control stream.
    pub(crate) fn control(&mut self, bytes: Zeroizing<Vec<u8>>) {
        self.control.push(bytes);
    }

    /// Reads bytes of the control stream; `None` if there are no more now, or the connection is on
    /// its way out.
    ///
    /// # Errors
    /// The peer has closed a direction of the stream (protocol.md section 2).
    pub(crate) fn read_control(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
        if self.conn.local_error().is_some() {
            return Ok(None);
        }
        let closed = |why| {
            let what = "control stream";
            Err(WireError::Invalid { what, why })
        };
        let read = match self.control_ended {
            true => Ok((0, true)),
            false => self.conn.stream_recv(CONTROL_STREAM, buffer),
        };
        match read {
            Ok((0, true)) => closed("it was ended before the connection"),
            Ok((n, fin)) => {
                self.control_ended = fin;
                Ok(Some(n))
            }
            Err(quiche::Error::StreamReset(_)) => closed("it was reset"),
            Err(_) => match self.conn.stream_capacity(CONTROL_STREAM) {
                Err(quiche::Error::StreamStopped(_)) => closed("it is not read any more"),
                _ => Ok(None),
            },
        }
    }

    /// Whether the peer leaves so much of its control stream unread that it cannot be served.
    pub(crate) fn is_choked(&self) -> bool {
        self.control.len() > MAX_CONTROL
    }

    /// Returns the pieces that wait for quiche to take them, and the bytes in them.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.waiting.len(), self.waiting_bytes)
    }

    /// Whether the peer has acknowledged all streams that were written, and nothing waits.
    pub(crate) fn is_delivered(&mut self) -> bool {
        self.settle();
        self.waiting.is_empty() && self.control.front().is_none() && self.ended.is_empty()
    }

    /// Forgets streams that the peer has acknowledged to their end: quiche does not know them any
    /// more.
    fn settle(&mut self) {
        while let Some(stream) = self.ended.front() {
            if self.conn.stream_capacity(*stream).is_ok() {
                break;
            }
            self.ended.pop_front();
        }
    }

    /// Queues bytes for a stream; `fin` ends it.
    pub(crate) fn stream(
        &mut self,
        stream: u64,
        parts: impl IntoIterator<Item = Bytes>,
        fin: bool,
    ) {
        let parts: VecDeque<Bytes> = parts.into_iter().filter(|p| !p.is_empty()).collect();
        self.waiting_bytes += parts.iter().map(Bytes::len).sum::<usize>();
        self.waiting.push_back(Outgoing {
            stream,
            parts,
            fin,
            ends: fin,
        });
    }

    /// Has a PING follow the repairs that wait: its acknowledgement shows whether they got lost,
    /// long before a probe timeout would.
    pub(crate) fn follow_repairs(&mut self) {
        self.owes_ping = true;
    }

    /// Has quiche send the PING behind repairs, if it is due.
    fn ping_if_due(&mut self, now: Instant) {
        if self.ping_at.take_if(|at| *at <= now).is_some() {
            let _ = self.conn.send_ack_eliciting();
        }
    }

    /// Times the PING behind repairs, once they have left.
    fn time_ping(&mut self, now: Instant) {
        let has_left = self.waiting.is_empty() && self.held_until.is_none();
        if has_left && std::mem::take(&mut self.owes_ping) {
            let rtt = self.conn.path_stats().find(|path| path.active);
            let after = rtt.map_or(Duration::ZERO, |path| path.rtt / FOLLOWED_WITHIN);
            self.ping_at = Some(now + after);
        }
    }

    /// Queues repair symbols, whose oldest make room for them, and fragments of whole messages:
    /// those for which there is no room are dropped, all of them, and counted.
    pub(crate) fn datagrams(&mut self, datagrams: Vec<Datagram>) {
        let (symbols, fragments): (Vec<_>, Vec<_>) = datagrams
            .into_iter()
            .partition(|datagram| datagram.is_symbol);
        self.symbols.extend(symbols);
        let too_many = self.symbols.len().saturating_sub(MAX_SYMBOLS);
        self.symbols.drain(..too_many);
        let bytes: usize = fragments.iter().map(|datagram| datagram.bytes.len()).sum();
        if self.datagram_bytes + bytes > MAX_DATAGRAM_BYTES {
            self.dropped_fragments += fragments.len() as u64;
            return;
        }
        self.datagram_bytes += bytes;
        self.datagrams.extend(fragments);
    }

    fn pop_datagram(&mut self) {
        if let Some(first) = self.datagrams.pop_front() {
            self.datagram_bytes -= first.bytes.len();
        }
    }

    /// Moves messages into quiche as far as it takes them. Those that are late are dropped.
    fn write_datagrams(&mut self, now: Instant) {
        while let Some(first) = self.datagrams.front() {
            if !hand_over(&mut self.conn, first, now) {
                break;
            }
            self.pop_datagram();
        }
    }

    /// Moves a few repair symbols into quiche, behind all messages: there, they would not expire.
    fn write_symbols(&mut self, now: Instant) {
        while let Some(first) = self.symbols.front()
            && self.conn.is_established()
            && self.datagrams.is_empty()
            && self.conn.dgram_send_queue_len() < SYMBOLS_AHEAD
            && hand_over(&mut self.conn, first, now)
        {
            self.symbols.pop_front();
        }
    }

    /// The 4-tuple that the connection uses, and whether the peer has proved that it receives
    /// there.
    pub(crate) fn path(&self) -> Option<Path> {
        let path = self.conn.path_stats().find(|p| p.active)?;
        let validated = self.conn.is_path_validated(path.local_addr, path.peer_addr);
        Some(Path {
            local: path.local_addr,
            peer: path.peer_addr,
            // quiche takes a connection's first path for validated from the start.
            validated: self.amplification.is_none() && validated == Ok(true),
        })
    }

    /// The peer has moved to another address and proved it.
    pub(crate) fn moved(&mut self, now: Instant) {
        self.recall.moved(&self.conn, now);
    }

    /// Has what was on its way to the peer's old address sent again.
    async fn recall(&mut self, socket: &UdpSocket, buffer: &mut [u8], now: Instant) -> SendResult {
        if self.recall.deadline().is_none_or(|at| at > now) {
            return Ok(());
        }
        let Some(path) = self.path().filter(|path| path.validated) else {
            self.recall.postpone(now);
            return Ok(());
        };
        let from = source_ip(socket.local_addr(), path.local);
        let room = &mut buffer[..UDP_PAYLOAD];
        while let Some(len) = self.recall.packet(&mut self.conn, room, now) {
            send_train(socket, path.peer, from, &room[..len], None).await?;
        }
        Ok(())
    }

    /// Moves queued bytes into quiche as far as flow and congestion control allow.
    fn write(&mut self, now: Instant) {
        if !self.conn.is_established() {
            return;
        }
        while let Some(front) = self.control.front() {
            // Control frames overtake the updates.
            let _ = self.conn.stream_priority(CONTROL_STREAM, 0, false);
            match self.conn.stream_send(CONTROL_STREAM, front, false) {
                Ok(n) if n > 0 => self.control.advance(n),
                // No capacity now, or the connection is on its way out.
                _ => break,
            }
        }
        self.write_datagrams(now);
        self.settle();
        while let Some(out) = self.waiting.front_mut() {
            let before = out.len();
            let whole = out.write(&mut self.conn);
            self.waiting_bytes -= before - out.len();
            if !whole {
                break;
            }
            if out.ends {
                self.ended.push_back(out.stream);
            }
            self.waiting.pop_front();
        }
    }

    /// Sends what quiche has to send, as far as pacing allows, in trains of equal packets. `buffer`
    /// holds at least [`Link::BUFFER`] bytes.
    pub(crate) async fn transmit(
        &mut self,
        socket: &UdpSocket,
        buffer: &mut [u8],
        now: Instant,
    ) -> SendResult {
        self.write(now);
        self.ping_if_due(now);
        self.recall(socket, buffer, now).await?;
        self.held_until = None;
        let mut train = Train::default();
        // A closing frame is not held back: there is no later chance to send it.
        let closing = self.conn.local_error().is_some();
        loop {
            let ready = self.bucket.ready_at(now);
            if ready > now && !closing {
                self.held_until = Some(ready);
                break;
            }
            if train.packets == TRAIN {
                self.refused += train.flush(socket, buffer).await?;
            }
            let limit = self.amplification.as_ref();
            let room = limit.map_or(UDP_PAYLOAD, |limit| limit.room().min(UDP_PAYLOAD));
            let room = &mut buffer[train.len..train.len + room];
            if room.is_empty() {
                // The peer's next datagram brings more; its arrival brings the caller back.
                break;
            }
            self.write_symbols(now);
            // Done is the usual end; any other error has closed the connection, which its owner
            // sees.
            let Ok((len, info)) = self.conn.send(room) else {
                break;
            };
            if let Some(limit) = &mut self.amplification {
                limit.spend(len);
            }
            self.bucket.take(len);
            let from = source_ip(socket.local_addr(), info.from);
            if train.packets > 0 && !train.takes(len, from, info.to) {
                let start = train.len;
                self.refused += train.flush(socket, buffer).await?;
                buffer.copy_within(start..start + len, 0);
            }
            train.add(len, from, info.to);
            if len < train.segment {
                // A shorter packet can only be the last of its train.
                self.refused += train.flush(socket, buffer).await?;
            }
        }
        self.refused += train.flush(socket, buffer).await?;
        self.time_ping(now);
        Ok(())
    }

    /// When the connection has to be looked at again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let recall = self.recall.deadline();
        let timers = [self.conn.timeout_instant(), self.held_until, recall];
        timers.into_iter().chain([self.ping_at]).flatten().min()
    }

    /// Pieces, and bytes in them, that should wait inside a link at most.
    pub(crate) const MAX_WAITING: usize = 64;
    pub(crate) const MAX_WAITING_BYTES: usize = 128 << 10;

    /// Bytes that [`Link::transmit`] needs.
    pub(crate) const BUFFER: usize = TRAIN * UDP_PAYLOAD;
}

/// A 4-tuple of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// The peer has shown that it receives there.
    pub(crate) validated: bool,
}

impl Outgoing {
    fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// Returns whether the stream needs nothing more.
    fn write(&mut self, conn: &mut quiche::Connection) -> bool {
        // In the order in which they were opened and not interleaved: the receiver delivers in
        // order.
        let _ = conn.stream_priority(self.stream, 127, false);
        while !self.parts.is_empty() || self.fin {
            let fin = self.fin && self.parts.len() <= 1;
            let part: &[u8] = self.parts.front().map_or(&[], |p| p);
            match conn.stream_send(self.stream, part, fin) {
                Ok(n) if n == part.len() => {
                    self.parts.pop_front();
                    self.fin &= !fin;
                }
                Ok(n) => {
                    if let Some(part) = self.parts.front_mut() {
                        let _ = part.split_to(n);
                    }
                    return false;
                }
                Err(quiche::Error::Done | quiche::Error::StreamLimit) => return false,
                Err(_) => {
                    // The receiver stopped this stream: what is left of it is not wanted.
                    self.parts.clear();
                    self.fin = false;
                }
            }
        }
        true
    }
}

/// Packets of one size on one path, for one system call.
#[derive(Default)]
struct Train {
    path: Option<(Option<IpAddr>, SocketAddr)>,
    segment: usize,
    len: usize,
    packets: usize,
}

impl Train {
    fn takes(&self, len: usize, from: Option<IpAddr>, to: SocketAddr) -> bool {
        self.path == Some((from, to)) && len <= self.segment
    }

    fn add(&mut self, len: usize, from: Option<IpAddr>, to: SocketAddr) {
        if self.packets == 0 {
            (self.segment, self.path) = (len, Some((from, to)));
        }
        self.len += len;
        self.packets += 1;
    }

    /// Returns 1 if the kernel refused the destination.
    async fn flush(&mut self, socket: &UdpSocket, buffer: &[u8]) -> std::io::Result<u64> {
        let train = std::mem::take(self);
        let Some((from, to)) = train.path else {
            return Ok(0);
        };
        let segment = (train.packets > 1).then_some(train.segment);
        let taken = send_train(socket, to, from, &buffer[..train.len], segment).await?;
        Ok(u64::from(!taken))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::amplification::tests::{CLIENT, SERVER, datagrams, info, pair};

    /// Both ends of an established connection.
    fn connected() -> (quiche::Connection, quiche::Connection) {
        let (mut client, mut server) = pair();
        for _ in 0..10 {
            for mut packet in datagrams(&mut client) {
                server.recv(&mut packet, info(CLIENT, SERVER)).unwrap();
            }
            for mut packet in datagrams(&mut server) {
                client.recv(&mut packet, info(SERVER, CLIENT)).unwrap();
            }
        }
        assert!(server.is_established());
        (client, server)
    }

    /// A lost repair shows before a probe timeout, by the PING behind it, which does not follow
    /// other streams.
    #[tokio::test]
    async fn a_lost_repair_shows_by_the_ping_behind_it() {
        for is_repair in [true, false] {
            let (mut client, server) = connected();
            let mut link = Link::new(server, 1_000_000);
            link.stream(3, [Bytes::from_static(b"repair")], true);
            if is_repair {
                link.follow_repairs();
            }
            let now = Instant::now();
            link.write(now);
            link.held_until = Some(now);
            link.time_ping(now);
            assert_eq!(link.ping_at, None, "pacing holds it");
            link.held_until = None;
            assert_eq!(datagrams(&mut link.conn).len(), 1, "it gets lost");
            link.time_ping(now);
            assert_eq!(link.ping_at.is_some(), is_repair);
            let at = link.ping_at.unwrap_or(now);
            assert!(!is_repair || link.deadline().is_some_and(|next| next <= at));
            link.ping_if_due(at);
            let pings = datagrams(&mut link.conn);
            assert_eq!(pings.len(), usize::from(is_repair));
            for mut ping in pings {
                client.recv(&mut ping, info(SERVER, CLIENT)).unwrap();
            }
            for mut ack in datagrams(&mut client) {
                link.receive(&mut ack, info(CLIENT, SERVER)).unwrap();
            }
            if is_repair {
                let until = Instant::now() + Duration::from_secs(5);
                while link.conn.stats().lost == 0 && Instant::now() < until {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    link.conn.on_timeout();
                }
                assert_eq!(link.conn.stats().lost, 1);
                assert_eq!(datagrams(&mut link.conn).len(), 1, "it is sent again");
            }
        }
    }

    /// Messages go before repair symbols, of which the newest are kept; what is late goes nowhere.
    #[test]
    fn repair_symbols_take_no_room_from_messages() {
        let (mut client, server) = connected();
        let mut link = Link::new(server, 1_000_000);
        let now = Instant::now();
        let datagram = |is_symbol, content: u8, until| Datagram {
            bytes: Bytes::from(vec![content; 1024]),
            until,
            is_symbol,
        };
        let symbols = (0..100).map(|n| {
            let is_late = n % 2 == 1;
            datagram(true, n, is_late.then_some(now))
        });
        link.datagrams(symbols.collect());
        assert_eq!(link.symbols.len(), MAX_SYMBOLS);
        for _ in 0..MAX_DATAGRAM_BYTES / 1024 {
            link.datagrams(vec![datagram(false, 200, None)]);
        }
        assert_eq!(link.dropped_fragments, 0);
        link.datagrams(vec![datagram(false, 201, None), datagram(true, 100, None)]);
        assert_eq!(
            (link.dropped_fragments, link.symbols.len()),
            (1, MAX_SYMBOLS)
        );
        let (mut got, mut buffer) = (Vec::new(), [0; UDP_PAYLOAD]);
        let until = now + Duration::from_secs(20);
        while !link.symbols.is_empty() && Instant::now() < until {
            link.write_datagrams(now);
            link.write_symbols(now);
            assert!(link.symbols.is_empty() || link.conn.dgram_send_queue_len() > 0);
            for mut packet in datagrams(&mut link.conn) {
                client.recv(&mut packet, info(SERVER, CLIENT)).unwrap();
                while let Ok(len) = client.dgram_recv(&mut buffer) {
                    assert_eq!(len, 1024);
                    got.push(buffer[0]);
                }
            }
            for mut ack in datagrams(&mut client) {
                link.receive(&mut ack, info(CLIENT, SERVER)).unwrap();
            }
        }
        for mut packet in datagrams(&mut link.conn) {
            client.recv(&mut packet, info(SERVER, CLIENT)).unwrap();
            while let Ok(len) = client.dgram_recv(&mut buffer) {
                got.push(buffer[..len][0]);
            }
        }
        let (messages, symbols) = got.split_at(MAX_DATAGRAM_BYTES / 1024);
        assert!(messages.iter().all(|content| *content == 200));
        let newest: Vec<u8> = (70..=100).filter(|n| n % 2 == 0).collect();
        assert_eq!(symbols, newest);
    }
}
