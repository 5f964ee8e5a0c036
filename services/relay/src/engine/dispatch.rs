//! Path of packets to gateways: their recipients, and their trains.

use std::net::IpAddr;
use std::time::Instant;

use amt::relay::Relay;
use netio::direct::CapturedPacket;

use super::counters::Counters;
use super::forward::Forwarder;
use super::native::JoinInterfaces;
use super::segment;
use super::train::{Flow, Trains};

/// Path of packets to gateways.
pub(super) struct Dispatcher<'a> {
    pub(super) relay: &'a mut Relay,
    pub(super) forwarder: &'a mut Forwarder,
    pub(super) trains: &'a mut Trains,
    pub(super) counters: &'a Counters,
    pub(super) now: Instant,
}

impl Dispatcher<'_> {
    /// Adds a packet of `len` bytes, which `write` makes if a gateway wants it.
    pub(super) fn push(
        &mut self,
        source: IpAddr,
        group: IpAddr,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let (at, is_its) = self.trains.place(source, group);
        let goes_along = is_its && self.trains.get(at).is_some_and(|train| train.takes(len));
        if !goes_along {
            // Before any state changes: no gateway may want the packet.
            let Some(recipients) = self.relay.recipients(source, group) else {
                self.counters.unwanted.add(1);
                return;
            };
            let flow = Flow {
                source,
                group,
                recipients: recipients.clone(),
            };
            if let Some(train) = self.trains.get(at) {
                self.forwarder.flush(train, self.relay, self.now);
                train.begin(flow);
            }
        }
        let Some(train) = self.trains.get(at) else {
            return;
        };
        let written = train.push(write);
        if written > 0 {
            self.counters.native_packets.add(1);
            self.counters.native_bytes.add(written as u64);
        }
    }

    /// Adds a packet of a capture, or the packets that it consists of.
    pub(super) fn push_captured(
        &mut self,
        captured: &CapturedPacket<'_>,
        interfaces: &JoinInterfaces,
    ) {
        let whole = amt::ip::addresses(captured.packet).ok();
        let whole =
            whole.and_then(|found| captured.packet.get(..found.2).map(|packet| (found, packet)));
        let Some(((source, group, len), packet)) = whole else {
            self.counters.broken.add(1);
            return;
        };
        if !interfaces.is_joined_on(group, captured.interface) {
            self.counters.unwanted.add(1);
            return;
        }
        if captured.arrived && segment::hops(packet) <= 1 {
            // The packet was to stay in that network.
            match self.relay.recipients(source, group) {
                Some(_) => self.counters.lost.expired.add(1),
                None => self.counters.unwanted.add(1),
            }
            return;
        }
        let forwarded = |place: &mut [u8], len: usize| {
            if captured.arrived {
                segment::lower_hops(place.get_mut(..len).unwrap_or_default());
            }
            len
        };
        if captured.segment.is_none() && !captured.checksum_missing {
            self.push(source, group, len, |place| {
                let len = segment::copy(packet, place);
                forwarded(place, len)
            });
            return;
        }
        let size = captured.segment.unwrap_or(usize::MAX);
        let cut = segment::datagrams(packet, size, |len, write| {
            self.push(source, group, len, |place| {
                let len = write(place);
                forwarded(place, len)
            });
        });
        if !cut {
            self.counters.broken.add(1);
        }
    }

    /// Sends the trains.
    pub(super) fn flush(&mut self) {
        for train in self.trains.all() {
            self.forwarder.flush(train, self.relay, self.now);
        }
    }
}
