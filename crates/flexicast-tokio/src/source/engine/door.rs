//! Packets of nobody: new receivers, receivers of an earlier life, noise.

use std::net::SocketAddr;
use std::time::Instant;

use tracing::warn;

use super::Engine;
use crate::link::Link;
use crate::source::peer::Peer;

/// Connections at once; further ones are not answered.
const MAX_PEERS: usize = 20_000;
/// Connections whose receivers are not served yet.
const MAX_UNSERVED: usize = 1_000;

impl Engine {
    /// A packet for a connection that does not exist: a new receiver, one of an earlier life, or noise.
    pub(super) fn stranger(
        &mut self,
        from: SocketAddr,
        header: &quiche::Header<'_>,
        data: &[u8],
        now: Instant,
    ) -> Option<u64> {
        if header.ty == quiche::Type::Short {
            self.counters.stray_datagrams += 1;
            if let Some(reset) = self.resets.answer(data, now) {
                self.counters.resets += 1;
                // A full socket buffer is no reason to keep a reset: the next packet provokes another.
                let _ = self.socket.try_send(from, &reset, None);
            }
            return None;
        }
        if header.ty != quiche::Type::Initial || data.len() < 1200 {
            self.counters.stray_datagrams += 1;
            return None;
        }
        if !quiche::version_is_supported(header.version) {
            let mut out = [0; 256];
            if let Ok(len) = quiche::negotiate_version(&header.scid, &header.dcid, &mut out) {
                let _ = self.socket.try_send(from, &out[..len], None);
            }
            return None;
        }
        if self.peers.len() >= MAX_PEERS || self.unserved >= MAX_UNSERVED {
            self.counters.over_limit += 1;
            return None;
        }
        let id = self.resets.connection_id().ok()?;
        self.quic
            .set_stateless_reset_token(Some(u128::from_be_bytes(self.resets.token(&id))));
        let scid = quiche::ConnectionId::from_ref(&id);
        let conn = match quiche::accept(&scid, None, self.local, from, &mut self.quic) {
            Ok(conn) => conn,
            Err(error) => {
                warn!(%from, %error, "cannot accept a connection");
                return None;
            }
        };
        let session = self.next_session;
        self.next_session += 1;
        let original = header.dcid.to_vec();
        self.by_id.insert(id.to_vec(), session);
        self.by_id.insert(original.clone(), session);
        self.unserved += 1;
        self.peers.insert(
            session,
            Peer::new(Link::new(conn, self.config.rate_bps), id, original, now),
        );
        Some(session)
    }
}
