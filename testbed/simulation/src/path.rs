//! A unicast path as QUIC gives it: an ordered reliable control stream, server streams that are
//! ordered and reliable each by itself, a bound on what is under way, and an end that the two sides
//! notice at different times.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The lane of the control stream; the others are those of the server streams, by their ids.
pub(crate) const CONTROL: u64 = 0;
/// Approximate bound on a source's bytes in flight on one path.
pub(crate) const WINDOW: usize = 256 << 10;
/// Streams arrive in pieces of at most so many bytes.
pub(crate) const PIECE: usize = 16 << 10;

/// From the source to the receiver.
#[derive(Debug)]
pub(crate) enum Down {
    Control(Vec<u8>),
    Stream { bytes: Vec<u8>, fin: bool },
    Closed,
}

/// From the receiver to the source.
#[derive(Debug)]
pub(crate) enum Up {
    Control(Vec<u8>),
    Closed,
}

/// Messages that arrive in their order.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    queue: VecDeque<T>,
    last: Option<Instant>,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Lane {
            queue: VecDeque::new(),
            last: None,
        }
    }
}

impl<T> Lane<T> {
    /// Takes a message that would arrive at `at` by itself; returns when it does.
    pub(crate) fn push(&mut self, at: Instant, message: T) -> Instant {
        let at = self.last.map_or(at, |last| at.max(last));
        self.last = Some(at);
        self.queue.push_back(message);
        at
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.queue.pop_front()
    }
}

/// A piece of a server stream that the receiver has not read yet.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) stream: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) fin: bool,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) receiver: usize,
    /// Of the source: another life of it knows nothing of this connection.
    pub(crate) boot: u64,
    pub(crate) accepted: bool,
    /// The ends that still hold it.
    pub(crate) at_source: bool,
    pub(crate) at_receiver: bool,
    pub(crate) down: BTreeMap<u64, Lane<Down>>,
    pub(crate) up: Lane<Up>,
    /// Arrived on server streams, unread.
    pub(crate) unread: VecDeque<Unread>,
    /// Bytes of server streams that the receiver has not read, as far as the source knows.
    pub(crate) in_flight: usize,
    /// The source has more for it than fits.
    pub(crate) blocked: bool,
    /// When the bottleneck is free again.
    pub(crate) free_at: Instant,
    pub(crate) next_stream: u64,
    pub(crate) catch_up: BTreeMap<usize, u64>,
    /// The source knows the receiver's address to be its own.
    pub(crate) validated: bool,
}

impl Path {
    pub(crate) fn new(receiver: usize, boot: u64, now: Instant) -> Self {
        Path {
            receiver,
            boot,
            accepted: false,
            at_source: true,
            at_receiver: true,
            down: BTreeMap::new(),
            up: Lane::default(),
            unread: VecDeque::new(),
            in_flight: 0,
            blocked: false,
            free_at: now,
            next_stream: 3,
            catch_up: BTreeMap::new(),
            validated: true,
        }
    }

    /// A new server stream.
    pub(crate) fn open(&mut self) -> u64 {
        let stream = self.next_stream;
        self.next_stream += 4;
        stream
    }

    /// When the last byte of `len` has passed the bottleneck of `bandwidth` bit/s.
    pub(crate) fn squeeze(&mut self, len: usize, bandwidth: u64, now: Instant) -> Instant {
        let takes = Duration::from_nanos(len as u64 * 8_000_000_000 / bandwidth.max(1));
        self.free_at = self.free_at.max(now) + takes;
        self.free_at
    }
}
