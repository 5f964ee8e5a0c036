//! Packets of one flow and size, prepared for sending together.

use std::net::IpAddr;

use amt::relay::Recipients;
use netio::direct::Fanout;

/// The header of Multicast Data (RFC 7450, section 5.1.6): version and type, and a reserved byte.
pub(super) const DATA: [u8; 2] = [0x06, 0];

/// Length of the largest packet with its header.
pub(super) const LARGEST: usize = (1 << 16) + DATA.len();

/// Number of flows in progress at a time: packets of several flows that alternate still form
/// trains.
const OPEN: usize = 4;

/// Trains in progress, one per flow: packets of a flow stay in order.
#[derive(Debug)]
pub(super) struct Trains {
    open: [Train; OPEN],
    /// Index of the train to be replaced for another flow.
    next: usize,
}

impl Trains {
    pub(super) fn new() -> Self {
        Self {
            open: std::array::from_fn(|_| Train::new()),
            next: 0,
        }
    }

    /// Returns the index of the train for a flow, and whether it already is the flow's: otherwise
    /// its content has to be sent first.
    pub(super) fn place(&mut self, source: IpAddr, group: IpAddr) -> (usize, bool) {
        let mut trains = self.open.iter();
        if let Some(at) = trains.position(|train| train.is_of(source, group)) {
            return (at, true);
        }
        let mut trains = self.open.iter();
        if let Some(at) = trains.position(|train| train.flow.is_none()) {
            return (at, false);
        }
        self.next = (self.next + 1) % OPEN;
        (self.next, false)
    }

    pub(super) fn get(&mut self, at: usize) -> Option<&mut Train> {
        self.open.get_mut(at)
    }

    /// Returns all trains.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Train> {
        self.open.iter_mut()
    }
}

/// Datagrams of the same length, of which the last may be shorter, for the same gateways.
#[derive(Debug)]
pub(super) struct Train {
    /// Consecutive datagrams; of constant length.
    buffer: Vec<u8>,
    used: usize,
    /// Length of each datagram but the last.
    segment: usize,
    datagrams: usize,
    most: usize,
    /// Whether a shorter datagram was the last.
    ended: bool,
    flow: Option<Flow>,
}

/// Flow of the packets.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    pub(super) source: IpAddr,
    pub(super) group: IpAddr,
    pub(super) recipients: Recipients,
}

impl Train {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; LARGEST],
            used: 0,
            segment: 0,
            datagrams: 0,
            most: 0,
            ended: false,
            flow: None,
        }
    }

    /// Whether the train belongs to this flow.
    fn is_of(&self, source: IpAddr, group: IpAddr) -> bool {
        let flow = self.flow.as_ref();
        flow.is_some_and(|flow| flow.source == source && flow.group == group)
    }

    /// Whether a packet of `len` bytes can be appended.
    pub(super) fn takes(&self, len: usize) -> bool {
        let len = len + DATA.len();
        self.datagrams > 0
            && !self.ended
            && len <= self.segment
            && self.datagrams < self.most
            && self.used + len <= self.buffer.len()
    }

    /// Starts a new train.
    pub(super) fn begin(&mut self, flow: Flow) {
        self.clear();
        self.flow = Some(flow);
    }

    /// Appends a packet, which `write` puts into its place, and returns the packet's length, 0 for
    /// none.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let Some(place) = self.buffer.get_mut(self.used..) else {
            return 0;
        };
        let Some((header, body)) = place.split_at_mut_checked(DATA.len()) else {
            return 0;
        };
        let written = write(body);
        if written == 0 {
            return 0;
        }
        header.copy_from_slice(&DATA);
        let len = written + DATA.len();
        if self.datagrams == 0 {
            self.segment = len;
            self.most = Fanout::train_len(len);
        }
        self.ended = len < self.segment;
        self.used += len;
        self.datagrams += 1;
        written
    }

    /// Returns the bytes to send and their flow; `None` if the train is empty.
    pub(super) fn ready(&self) -> Option<(&[u8], &Flow)> {
        let flow = self.flow.as_ref()?;
        let bytes = self.buffer.get(..self.used)?;
        (self.datagrams > 0).then_some((bytes, flow))
    }

    pub(super) fn segment(&self) -> usize {
        self.segment
    }

    pub(super) fn datagrams(&self) -> usize {
        self.datagrams
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.datagrams = 0;
        self.segment = 0;
        self.ended = false;
        self.flow = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn alternating_flows_have_a_train_each() {
        let mut trains = Trains::new();
        let group = ip("232.1.1.1");
        let sources: Vec<IpAddr> = (1..=5).map(|n| ip(&format!("192.0.2.{n}"))).collect();
        let begin = |trains: &mut Trains, source: IpAddr| {
            let (at, is_its) = trains.place(source, group);
            assert!(!is_its);
            let recipients = Recipients {
                all: [].into(),
                room: 1400,
            };
            let train = trains.get(at).unwrap();
            train.begin(Flow {
                source,
                group,
                recipients,
            });
            train.push(|place| {
                place[..100].fill(1);
                100
            });
            at
        };
        let mut indexes: Vec<usize> = Vec::new();
        for source in &sources[..4] {
            indexes.push(begin(&mut trains, *source));
        }
        for (source, at) in sources.iter().zip(&indexes) {
            assert_eq!(trains.place(*source, group), (*at, true));
            let train = trains.get(*at).unwrap();
            assert!(train.takes(100) && !train.takes(101));
        }
        // The fifth replaces one of them, and the next replaces another.
        let (fifth, is_its) = trains.place(sources[4], group);
        assert!(!is_its);
        assert_ne!(trains.place(sources[4], group).0, fifth);
    }
}
