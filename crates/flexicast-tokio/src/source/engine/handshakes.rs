//! Packets of no connection: new receivers, receivers of an earlier life, noise.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use quiche::{ConnectionId, Header};
use tracing::warn;

use super::Engine;
use crate::amplification::Amplification;
use crate::config::CID_LEN;
use crate::link::Link;
use crate::reset::ResetDecision;
use crate::source::peer::Peer;

/// Connections whose receivers are not served yet.
const MAX_UNSERVED: usize = 2_000;
/// Bound on connections; further ones are not answered. More than are served, so that latecomers
/// get a refusal.
const MAX_PEERS: usize = 20_000 + MAX_UNSERVED;
/// Those of one network that are not served yet: an IPv4 address, an IPv6 /64.
const MAX_UNSERVED_PER_ADDRESS: usize = 250;
/// With so many, new receivers have to prove their address first, at the cost of a round trip:
/// handshakes begun in others' names end there.
const RETRY_FROM: usize = 64;

/// Returns the network whose connections are counted together: an IPv6 host has all addresses of
/// its /64.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

impl Engine {
    /// A packet for a connection that does not exist: a new receiver, one of an earlier life, or
    /// noise.
    pub(super) fn stranger(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        header: &Header<'_>,
        data: &[u8],
        now: Instant,
    ) -> Option<u64> {
        if header.ty == quiche::Type::Short {
            self.counters.stray_datagrams += 1;
            match self.resets.answer(data, now) {
                ResetDecision::Reset(reset) => {
                    self.counters.resets += 1;
                    self.reply(from, to, &reset);
                }
                ResetDecision::TooMany => self.counters.resets_withheld += 1,
                ResetDecision::NotAPacket => {}
            }
            return None;
        }
        if header.ty != quiche::Type::Initial || data.len() < 1200 {
            self.counters.stray_datagrams += 1;
            return None;
        }
        if !quiche::version_is_supported(header.version) {
            let mut out = [0; 256];
            let made = quiche::negotiate_version(&header.scid, &header.dcid, &mut out);
            match made.ok().and_then(|len| out.get(..len)) {
                Some(answer) if self.resets.may_negotiate(now) => self.reply(from, to, answer),
                _ => self.counters.stray_datagrams += 1,
            }
            return None;
        }
        let (ip, token) = (
            network(from.ip()),
            header.token.as_deref().unwrap_or_default(),
        );
        let original = self.retries.check(token, &header.dcid, from, now);
        if original.is_none() && self.peers.unserved() >= RETRY_FROM {
            self.retry(from, to, header, now);
            return None;
        }
        if self.peers.len() >= MAX_PEERS
            || self.peers.unserved() >= MAX_UNSERVED
            || self.peers.unserved_of(ip) >= MAX_UNSERVED_PER_ADDRESS
        {
            self.counters.over_limit += 1;
            return None;
        }
        // A client that was given an ID by a Retry continues with it.
        let id = match original {
            Some(_) => <[u8; CID_LEN]>::try_from(header.dcid.as_ref()).ok()?,
            None => self.resets.connection_id().ok()?,
        };
        // A Retry's token validates the address.
        let proved = original.is_some();
        let token = u128::from_be_bytes(self.resets.token(&id));
        self.quic.set_stateless_reset_token(Some(token));
        let (scid, original) = (
            ConnectionId::from_ref(&id),
            original.map(ConnectionId::from_ref),
        );
        let mut conn = match quiche::accept(&scid, original.as_ref(), to, from, &mut self.quic) {
            Ok(conn) => conn,
            Err(error) => {
                warn!(%from, %error, "cannot accept a connection");
                return None;
            }
        };
        if let Some(qlog) = &self.qlog {
            qlog.attach(&mut conn, &id, &from.to_string());
        }
        self.counters.handshakes += 1;
        let mut link = Link::new(conn, self.config.rate_bps);
        if !proved {
            link = link.limited(Amplification::new(from));
        }
        let peer = Peer::new(link, ip, id, header.dcid.to_vec(), now);
        Some(self.peers.add(peer))
    }

    /// Asks a receiver to show that it receives at the address that it writes from.
    fn retry(&mut self, from: SocketAddr, to: SocketAddr, header: &Header<'_>, now: Instant) {
        let Ok(id) = self.resets.connection_id() else {
            return;
        };
        let token = self.retries.mint(&header.dcid, &id, from, now);
        let mut out = [0; 256];
        let scid = ConnectionId::from_ref(&id);
        let retry = quiche::retry(
            &header.scid,
            &header.dcid,
            &scid,
            &token,
            header.version,
            &mut out,
        );
        if let Ok(len) = retry {
            self.counters.retries += 1;
            self.reply(from, to, &out[..len]);
        }
    }

    /// Answers without a connection. A full socket buffer is no reason to keep the answer: the next
    /// packet provokes another.
    pub(super) fn reply(&self, from: SocketAddr, to: SocketAddr, answer: &[u8]) {
        let local = crate::train::source_ip(&self.socket, to);
        let _ = self.socket.try_send_some(from, local, answer, None);
    }
}
