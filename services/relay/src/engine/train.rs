//! Packets of one flow and size, made ready to be sent together.

use std::net::IpAddr;

use amt::relay::Recipients;
use netio::direct::Fanout;

/// The header of Multicast Data (RFC 7450, section 5.1.6): version and type, and a reserved byte.
pub(super) const DATA: [u8; 2] = [0x06, 0];

/// No packet with its header is larger.
pub(super) const LARGEST: usize = (1 << 16) + DATA.len();

/// Datagrams of the same length, of which the last may be shorter, for the same gateways.
#[derive(Debug)]
pub(super) struct Train {
    /// Datagram behind datagram; of constant length.
    buffer: Vec<u8>,
    used: usize,
    /// The length of each but the last.
    segment: usize,
    datagrams: usize,
    most: usize,
    /// One that is shorter was the last.
    ended: bool,
    flow: Option<Flow>,
}

/// For whom.
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

    /// Whether a packet of `len` bytes of this flow can be appended.
    pub(super) fn takes(&self, source: IpAddr, group: IpAddr, len: usize) -> bool {
        let len = len + DATA.len();
        match &self.flow {
            None => true,
            Some(flow) => {
                !self.ended
                    && flow.source == source
                    && flow.group == group
                    && len <= self.segment
                    && self.datagrams < self.most
                    && self.used + len <= self.buffer.len()
            }
        }
    }

    /// Begins a new train.
    pub(super) fn begin(&mut self, flow: Flow) {
        self.clear();
        self.flow = Some(flow);
    }

    /// Appends a packet, which `write` puts into the place that it gets; it answers the packet's
    /// length, 0 for none.
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

    /// What there is to send, and to whom; `None` if there is nothing.
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
