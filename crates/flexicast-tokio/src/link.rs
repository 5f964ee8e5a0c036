//! One QUIC connection with what both ends do with it: a control stream, streams to be written, packets out under a token bucket.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use flexicast::pace::TokenBucket;
use netio::UdpSocket;

use crate::config::{CONTROL_STREAM, UDP_PAYLOAD};

/// Packets that go out in one system call at most.
const TRAIN: usize = 10;
/// Streams and bytes that wait inside a link before it takes more.
const MAX_WAITING: usize = 64;
const MAX_WAITING_BYTES: usize = 512 << 10;
/// Bytes of the control stream that may wait for a peer to read them.
const MAX_CONTROL: usize = 256 << 10;
/// What a session may send at once after a pause, in bytes.
const BURST: usize = 32 * UDP_PAYLOAD;

struct Outgoing {
    stream: u64,
    parts: VecDeque<Bytes>,
    fin: bool,
}

/// A connection and its outgoing work.
pub(crate) struct Link {
    pub(crate) conn: quiche::Connection,
    control: VecDeque<u8>,
    waiting: VecDeque<Outgoing>,
    waiting_bytes: usize,
    bucket: TokenBucket,
    /// Pacing holds packets back until then.
    held_until: Option<Instant>,
}

/// Why a link's socket cannot go on.
pub(crate) type SendResult = std::io::Result<()>;

impl Link {
    /// Wraps a connection; `rate` is in bit/s.
    pub(crate) fn new(conn: quiche::Connection, rate: u64) -> Self {
        let bucket = TokenBucket::new(rate, BURST);
        Link {
            conn,
            control: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            bucket,
            held_until: None,
        }
    }

    /// Queues bytes of the control stream.
    pub(crate) fn control(&mut self, bytes: &[u8]) {
        self.control.extend(bytes);
    }

    /// Whether the peer leaves so much of its control stream unread that it cannot be served.
    pub(crate) fn is_choked(&self) -> bool {
        self.control.len() > MAX_CONTROL
    }

    /// Whether more streams may be queued.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < MAX_WAITING
            && self.waiting_bytes < MAX_WAITING_BYTES
            && self.conn.is_established()
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
        self.waiting.push_back(Outgoing { stream, parts, fin });
    }

    /// Moves queued bytes into quiche as far as flow and congestion control allow.
    fn write(&mut self) {
        if !self.conn.is_established() {
            return;
        }
        while !self.control.is_empty() {
            // Control frames overtake the updates.
            let _ = self.conn.stream_priority(CONTROL_STREAM, 0, false);
            let (front, _) = self.control.as_slices();
            match self.conn.stream_send(CONTROL_STREAM, front, false) {
                Ok(n) => drop(self.control.drain(..n)),
                // No capacity now, or the connection is on its way out.
                Err(_) => break,
            }
        }
        while let Some(out) = self.waiting.front_mut() {
            let before = out.len();
            let whole = out.write(&mut self.conn);
            self.waiting_bytes -= before - out.len();
            if !whole {
                break;
            }
            self.waiting.pop_front();
        }
    }

    /// Sends what quiche has to send, as far as pacing allows, in trains of equal packets. `buffer` holds at least [`Link::BUFFER`] bytes.
    pub(crate) async fn transmit(
        &mut self,
        socket: &UdpSocket,
        buffer: &mut [u8],
        now: Instant,
    ) -> SendResult {
        self.write();
        self.held_until = None;
        let mut train = Train::default();
        // Last words are not held back: nobody comes back to send them.
        let closing = self.conn.local_error().is_some();
        loop {
            let ready = self.bucket.ready_at(now);
            if ready > now && !closing {
                self.held_until = Some(ready);
                break;
            }
            if train.packets == TRAIN {
                train.flush(socket, buffer).await?;
            }
            let room = &mut buffer[train.len..train.len + UDP_PAYLOAD];
            // Done is the usual end; any other error has closed the connection, which its owner sees.
            let Ok((len, info)) = self.conn.send(room) else {
                break;
            };
            self.bucket.take(len);
            if train.packets > 0 && (info.to != train.to || len > train.segment) {
                let start = train.len;
                train.flush(socket, buffer).await?;
                buffer.copy_within(start..start + len, 0);
            }
            train.add(len, info.to);
            if len < train.segment {
                // A shorter packet can only be the last of its train.
                train.flush(socket, buffer).await?;
            }
        }
        train.flush(socket, buffer).await
    }

    /// When the connection has to be looked at again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.conn.timeout_instant(), self.held_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Bytes that [`Link::transmit`] needs.
    pub(crate) const BUFFER: usize = TRAIN * UDP_PAYLOAD;
}

impl Outgoing {
    fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// Returns whether the stream needs nothing more.
    fn write(&mut self, conn: &mut quiche::Connection) -> bool {
        // In the order in which they were opened and not interleaved: the receiver delivers in order.
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

/// Packets of one size to one address, for one system call.
struct Train {
    to: SocketAddr,
    segment: usize,
    len: usize,
    packets: usize,
}

impl Default for Train {
    fn default() -> Self {
        Train {
            to: SocketAddr::from(([0, 0, 0, 0], 0)),
            segment: 0,
            len: 0,
            packets: 0,
        }
    }
}

impl Train {
    fn add(&mut self, len: usize, to: SocketAddr) {
        if self.packets == 0 {
            (self.segment, self.to) = (len, to);
        }
        self.len += len;
        self.packets += 1;
    }

    async fn flush(&mut self, socket: &UdpSocket, buffer: &[u8]) -> SendResult {
        let train = std::mem::take(self);
        if train.packets == 0 {
            return Ok(());
        }
        let segment = (train.packets > 1).then_some(train.segment);
        socket.send(train.to, &buffer[..train.len], segment).await
    }
}
