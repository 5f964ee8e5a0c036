//! Reports of the shards on their way into the state machine.

use std::time::Instant;

use flexicast::WireError;
use flexicast::source::close;
use tracing::{error, info, warn};

use super::shards::ShardEnd;
use super::{Engine, failed};
use crate::Error;
use crate::source::history::HistoryEventKind;
use crate::source::shard::{Passed, PathReport, ShardEvent, Work};

impl Engine {
    /// Takes what the shards report.
    pub(super) fn receive(&mut self) -> Result<(), Error> {
        self.shards.collect().map_err(failed())?;
        let now = Instant::now();
        while let Some((shard, report)) = self.shards.next_report() {
            self.counters.add(&report.counts);
            self.note_unread(&report, now);
            for (session, event) in report.events {
                self.shard_event(shard, session, event, now);
            }
            for datagram in report.feedback {
                self.feedback(shard, datagram, now);
            }
        }
        while let Some((shard, end)) = self.shards.next_ended() {
            self.lose_shard(shard, end, now);
        }
        self.shards.restart(now);
        Ok(())
    }

    fn shard_event(&mut self, shard: usize, session: u64, event: ShardEvent, now: Instant) {
        if matches!(event, ShardEvent::Accepted) {
            self.sessions.add(session, shard);
            self.core.accept(session, now);
        }
        let Some(known) = self.sessions.get_mut(session) else {
            return;
        };
        match event {
            ShardEvent::Accepted => {}
            // After a violation, or behind its end, nothing more is taken from a receiver.
            ShardEvent::Control(_) | ShardEvent::Datagram(_) if known.is_closing => {}
            ShardEvent::Control(bytes) => {
                let taken = self.core.on_control(session, &bytes, now);
                self.punish(session, taken);
            }
            ShardEvent::Datagram(datagram) => self.datagram(session, &datagram, now),
            ShardEvent::Violation(violation) => self.punish(session, Err(violation)),
            ShardEvent::Rtt(rtt) => self.core.set_rtt(session, rtt),
            ShardEvent::Path(report) => self.follow(session, &report, now),
            ShardEvent::Heard(from) => {
                if self.core.is_probed(session) {
                    self.core.heard(session, from);
                }
            }
            ShardEvent::Leaving => {
                if self.core.is_probed(session) {
                    self.core.closed(session, now);
                }
            }
            ShardEvent::Written { pieces, bytes } => known.note_written(pieces, bytes),
            ShardEvent::Delivered { works } => known.note_delivered(works),
            ShardEvent::Closed { reason } => return self.forget(session, reason, now),
        }
        self.touched.insert(session);
    }

    /// Takes a datagram that is addressed to a feedback ID.
    fn feedback(&mut self, shard: usize, mut datagram: Passed, now: Instant) {
        let (from, to) = (datagram.from, datagram.to);
        let sessions = &self.sessions;
        let notice = self.core.on_feedback(&mut datagram.data, now, |session| {
            let known = sessions.get(session);
            known.is_some_and(|known| known.is_on(from, to))
        });
        if let Some(notice) = notice
            && self.shards.has_room(shard)
        {
            let answer = Work::Answer(datagram, notice.to_vec());
            self.shards.send(shard, answer, now);
        }
    }

    /// Takes a datagram of a receiver's connection.
    fn datagram(&mut self, session: u64, datagram: &[u8], now: Instant) {
        let taken = self.core.on_datagram(session, datagram, now);
        self.punish(session, taken);
    }

    /// Closes the connection of a receiver that violates the protocol.
    fn punish(&mut self, session: u64, taken: Result<(), WireError>) {
        let Err(violation) = taken else {
            return;
        };
        if let Some(known) = self.sessions.get_mut(session) {
            let from = known.address();
            self.counters.violations += 1;
            warn!(%from, %violation, "closing a connection: the receiver violates the protocol");
            known.close(close::PROTOCOL_VIOLATION, violation.to_string());
        }
    }

    /// Follows the receiver to another address: until it has proved that it receives there, no
    /// copies go to it.
    fn follow(&mut self, session: u64, report: &PathReport, now: Instant) {
        if self.sessions.switch(session, report) {
            let validated = report.path.is_some_and(|p| p.validated);
            self.core.set_validated(session, validated, now);
        }
        if report.migrations > 0 {
            let name = self.core.receiver(session).map(|(_, name)| name);
            let to = report.path.map(|path| path.peer);
            info!(receiver = name, to = ?to, "moved to another address");
        }
        self.counters.migrations += report.migrations;
        self.counters.failed_paths += report.failed;
    }

    /// Forgets a connection that has ended.
    fn forget(&mut self, session: u64, reason: String, now: Instant) {
        let Some(known) = self.sessions.remove(session) else {
            return;
        };
        match self.core.receiver(session) {
            Some((_, name)) => {
                info!(receiver = name, from = %known.address(), reason, "disconnected");
            }
            // One that was served is known no more where another has taken its place.
            None => self.counters.handshakes_abandoned += u64::from(!known.served),
        }
        if let Some((receiver, _)) = known.receiver {
            self.records.add(HistoryEventKind::Disconnected {
                session,
                receiver,
                reason,
            });
        }
        self.touched.remove(&session);
        self.core.closed(session, now);
    }

    /// Forgets the sessions of a shard that has failed. Their receivers learn from its successor
    /// that they have to connect again.
    fn lose_shard(&mut self, shard: usize, end: ShardEnd, now: Instant) {
        let sessions = self.sessions.of_shard(shard);
        error!(
            shard,
            ?end,
            sessions = sessions.len(),
            "a shard has failed and is restarted; its receivers connect again"
        );
        self.counters.shard_failures += 1;
        self.counters.shard_hangs += u64::from(end == ShardEnd::Hung);
        self.gate.clear(shard as u8);
        for session in sessions {
            self.forget(session, "its shard has failed".into(), now);
        }
        if self.draining.is_some() {
            self.shards.drain(now);
        }
    }
}
