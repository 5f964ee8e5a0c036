//! What the engine shows of itself.

use std::net::SocketAddr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Engine;
use crate::source::peer::Peer;
use crate::source::{Counters, FlowStatus, ReceiverStatus, SourceStatus};

impl Engine {
    pub(super) fn status(&self, now: Instant) -> SourceStatus {
        let wall = SystemTime::now();
        let since = |at: Instant| {
            unix_ms(
                wall.checked_sub(now.saturating_duration_since(at))
                    .unwrap_or(UNIX_EPOCH),
            )
        };
        let flow = self
            .core
            .flow()
            .zip(self.config.flow)
            .map(|(flow, endpoint)| FlowStatus {
                id: flow.config().flow.to_string(),
                group: endpoint.group.to_string(),
                source: (!endpoint.asm).then(|| endpoint.interface.to_string()),
                next_pn: flow.next_pn(),
                members: flow.members(),
                packets: flow.stats().packets,
                bytes: flow.stats().bytes,
                outstanding: flow.outstanding(),
            });
        let receivers = self.core.sessions().map(|s| ReceiverStatus {
            id: s.receiver.to_string(),
            name: s.name,
            addr: self
                .peers
                .get(&s.session)
                .map(|p| address(p).to_string())
                .unwrap_or_default(),
            rung: s.rung.to_string(),
            since_ms: since(s.since),
            cursor: s.cursor.map(|c| c.seq),
            backlog: s.backlog,
            rtt_ms: s.rtt.as_secs_f64() * 1e3,
        });
        SourceStatus {
            head: self.core.head(),
            flow,
            receivers: receivers.collect(),
            moves: self.moves.iter().cloned().collect(),
            counters: Counters {
                invalid_acks: self.core.invalid_acks(),
                ..self.counters
            },
        }
    }
}

/// Where a connection comes from.
pub(super) fn address(peer: &Peer) -> SocketAddr {
    peer.link
        .conn
        .path_stats()
        .find(|p| p.active)
        .map_or(SocketAddr::from(([0, 0, 0, 0], 0)), |p| p.peer_addr)
}

/// Why a connection ended, for people.
pub(super) fn end_of(conn: &quiche::Connection) -> String {
    let said = |e: &quiche::ConnectionError| String::from_utf8_lossy(&e.reason).into_owned();
    if conn.is_timed_out() {
        return "nothing was heard from it any more".into();
    }
    match (conn.peer_error(), conn.local_error()) {
        (Some(error), _) => format!(
            "closed by the receiver: {} (code {})",
            said(error),
            error.error_code
        ),
        (None, Some(error)) => format!("closed: {} (code {})", said(error), error.error_code),
        (None, None) => "closed".into(),
    }
}

pub(super) fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis() as u64
}
