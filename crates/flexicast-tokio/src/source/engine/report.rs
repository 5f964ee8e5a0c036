//! What the engine shows of itself.

use std::net::SocketAddr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use flexicast::source::ChannelIndex;

use super::Engine;
use crate::source::peer::Peer;
use crate::source::{
    ChannelStatus, FlowEndpoint, FlowStatus, ReceiverChannel, ReceiverStatus, SourceStatus,
};

impl Engine {
    pub(super) fn status(&self, now: Instant) -> SourceStatus {
        let wall = SystemTime::now();
        let since = |at: Instant| {
            unix_ms(
                wall.checked_sub(now.saturating_duration_since(at))
                    .unwrap_or(UNIX_EPOCH),
            )
        };
        let names: Vec<_> = (0..self.core.channels())
            .map(|c| self.core.channel_name(c).to_owned())
            .collect();
        let name_of = |c: ChannelIndex| names.get(c).cloned().unwrap_or_default();
        let there = (0..self.core.channels()).filter(|c| self.core.has_channel(*c));
        let channels = there.map(|c| ChannelStatus {
            channel: name_of(c),
            head: self.core.head(c),
            flow: self.flow_status(c),
        });
        let receivers = self.core.sessions().map(|s| ReceiverStatus {
            id: s.receiver.to_string(),
            name: s.name,
            addr: self
                .peers
                .get(&s.session)
                .map(|p| address(p).to_string())
                .unwrap_or_default(),
            rtt_ms: s
                .channels
                .first()
                .map_or(0.0, |c| c.rtt.as_secs_f64() * 1e3),
            channels: s
                .channels
                .into_iter()
                .map(|c| ReceiverChannel {
                    channel: name_of(c.channel),
                    rung: c.rung.to_string(),
                    since_ms: since(c.since),
                    cursor: c.cursor.map(|c| c.seq),
                    backlog: c.backlog,
                    key_sequence: c.key_sequence,
                })
                .collect(),
        });
        SourceStatus {
            channels: channels.collect(),
            receivers: receivers.collect(),
            moves: self.moves.iter().cloned().collect(),
            mass_fall_backs: self.mass_fall_backs.iter().cloned().collect(),
            counters: self.counters.with(self.core.counters()),
        }
    }

    fn flow_status(&self, channel: ChannelIndex) -> Option<FlowStatus> {
        let flow = self.core.flow(channel)?;
        let place = self.places.get(channel).and_then(Option::as_ref);
        let endpoints = place
            .and_then(|place| place.config.flow.as_ref())
            .map_or(&[][..], |f| &f.endpoints);
        let source = |e: &FlowEndpoint| (!e.asm).then(|| e.interface.to_string());
        let first = endpoints.first();
        Some(FlowStatus {
            id: flow.config().flow.to_string(),
            endpoints: endpoints
                .iter()
                .map(|e| {
                    let source = source(e).unwrap_or_else(|| "*".into());
                    format!("({source}, {})", e.group)
                })
                .collect(),
            group: first.map(|e| e.group.to_string()).unwrap_or_default(),
            source: first.and_then(source),
            next_pn: flow.next_pn(),
            key_sequence: flow.epoch().sequence,
            members: flow.members(),
            replicas: self.core.replicas(channel).len(),
            packets: flow.stats().packets,
            bytes: flow.stats().bytes,
            outstanding: flow.outstanding(),
        })
    }
}

/// Where a connection comes from.
pub(super) fn address(peer: &Peer) -> SocketAddr {
    let path = peer.path.or_else(|| peer.link.path());
    path.map_or(SocketAddr::from(([0, 0, 0, 0], 0)), |p| p.peer)
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
