//! Status of the engine.

use flexicast::control::LegReport;
use flexicast::source::ChannelIndex;
use tracing::info;

use super::Engine;
use crate::source::history::HistoryEventKind;
use crate::source::wall_clock::unix_ms_now;
use crate::source::{
    ChannelBytes, ChannelStatus, Counters, FlowEndpoint, FlowStatus, LegStatus, ReceiverChannel,
    ReceiverStatus, SourceStatus, UNVERIFIED,
};

impl Engine {
    /// A receiver was welcomed.
    pub(super) fn has_connected(&mut self, session: u64) {
        let Some(hello) = self.core.hello(session) else {
            return;
        };
        let Some(known) = self.sessions.get_mut(session) else {
            return;
        };
        self.gate.serve(session);
        known.served = true;
        let at_ms = unix_ms_now();
        known.receiver = Some((hello.receiver, at_ms));
        let from = known.address();
        info!(receiver = hello.name, %from, "connected");
        let connected = HistoryEventKind::Connected {
            session,
            receiver: hello.receiver,
            name: hello.name.clone(),
            software: hello.software.clone(),
            addr: from.to_string(),
            channels: hello
                .channels
                .iter()
                .map(|(name, _)| name.clone())
                .collect(),
        };
        self.records.events.add(at_ms, |_| connected);
        self.counters.connections += 1;
    }

    pub(super) fn status(&mut self) -> SourceStatus {
        let names: Vec<_> = (0..self.core.channels())
            .map(|c| self.core.channel_name(c).to_owned())
            .collect();
        let name_of = |c: ChannelIndex| names.get(c).cloned().unwrap_or_default();
        let there = (0..self.core.channels()).filter(|c| self.core.has_channel(*c));
        let channels = there.map(|c| ChannelStatus {
            channel: name_of(c),
            head: self.core.head(c),
            flow: self.flow_status(c),
            bytes: self.bytes(c),
        });
        let channels = channels.collect();
        let (core, sessions) = (&self.core, &mut self.sessions);
        let mut receivers = Vec::new();
        for s in core.sessions() {
            let Some(known) = sessions.get_mut(s.session) else {
                continue;
            };
            let rtt = s.channels.first().map(|c| c.rtt);
            let its = s.channels.into_iter().map(|c| ReceiverChannel {
                channel: name_of(c.channel),
                rung: c.rung.to_string(),
                since_ms: known.since_ms(c.channel, c.since),
                cause: match c.unverified {
                    true => Some(UNVERIFIED.to_owned()),
                    false => c.cause.map(|cause| cause.to_string()),
                },
                legs: c.legs.iter().filter_map(leg_status).collect(),
                cursor: c.cursor.map(|c| c.seq),
                backlog: c.backlog,
                key_sequence: c.key_sequence,
            });
            receivers.push(ReceiverStatus {
                id: s.receiver.to_string(),
                name: s.name,
                session: s.session,
                software: s.software,
                rtt_ms: rtt.map_or(0.0, |rtt| rtt.as_secs_f64() * 1e3),
                channels: its.collect(),
                addr: known.address().to_string(),
                connected_ms: known.receiver.map_or(0, |(_, at_ms)| at_ms),
            });
        }
        SourceStatus {
            channels,
            receivers,
            moves: self.records.moves.iter().cloned().collect(),
            mass_fall_backs: self.records.mass_fall_backs.iter().cloned().collect(),
            replication_queue: self.replication.queued(),
            load: self.records.load.status(),
            shards: self.sessions.by_shard(),
            counters: Counters {
                copies_dropped: self.replication.dropped(),
                overloads: self.records.load.begun,
                protocol: self.core.counters(),
                ..self.counters
            },
        }
    }

    fn bytes(&self, channel: ChannelIndex) -> ChannelBytes {
        let opened = self.channels.get(channel);
        let settings = opened.and_then(|opened| opened.config.flow.as_ref());
        let mut traffic = self.core.traffic(channel);
        if settings.is_none_or(|flow| flow.endpoints.is_empty()) {
            // Its packets exist as copies only.
            traffic.flow = 0;
        }
        ChannelBytes::of(
            traffic,
            opened.map_or(0, |opened| opened.replicas.sent_bytes()),
        )
    }

    fn flow_status(&self, channel: ChannelIndex) -> Option<FlowStatus> {
        let flow = self.core.flow(channel)?;
        let opened = self.channels.get(channel);
        let endpoints = opened
            .and_then(|opened| opened.config.flow.as_ref())
            .map_or(&[][..], |f| &f.endpoints);
        let source = |e: &FlowEndpoint| (!e.asm).then(|| e.interface.to_string());
        let first = endpoints.first();
        let (rate, size) = (flow.rate(), flow.packet_size());
        let limiting = rate.limited_by.and_then(|id| self.core.hello(id));
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
            packet_size: size.bytes,
            narrow_members: size.narrow,
            ecn_ce: flow.stats().ce,
            fec: flow.config().fec.map(|fec| fec.to_string()),
            repair_symbols: flow.stats().repair_symbols,
            rebuilt: flow.stats().rebuilt,
            rate_bps: rate.bits_per_s,
            limited_by: limiting.map(|hello| hello.receiver.to_string()),
            breaker: rate.breaker,
        })
    }
}

fn leg_status(report: &LegReport) -> Option<LegStatus> {
    Some(LegStatus {
        leg: report.leg()?.to_string(),
        state: report.state.to_string(),
        missed: report.missed,
        lag_ms: report.lag.as_secs_f64() * 1e3,
    })
}
