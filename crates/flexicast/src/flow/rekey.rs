//! Going from one key epoch to the next (protocol.md section 5.3).

use std::time::Instant;

use super::epoch::Epoch;
use super::sender::{FlowEvent, FlowSender, MemberId};
use crate::Cause;
use crate::protect::{FlowSecret, KeyError};

impl FlowSender {
    /// The epoch in use.
    pub fn epoch(&self) -> &Epoch {
        &self.epochs.current
    }

    /// The epoch that is announced and not in use yet.
    pub fn next_epoch(&self) -> Option<&Epoch> {
        self.epochs.next.as_ref().map(|(epoch, _)| epoch)
    }

    /// Announces another epoch. A pending one begins now, confirmed or not, so that at most two are
    /// alive.
    pub fn announce_epoch(&mut self, secret: FlowSecret, now: Instant) -> Result<(), KeyError> {
        self.switch(now);
        let (rate, payload) = (self.config.rate, self.config.udp_payload);
        let next_pn = self.next_pn();
        self.epochs.announce(secret, next_pn, rate, payload, now)?;
        self.switch_if_due(now);
        Ok(())
    }

    /// A member says which epoch it holds.
    pub fn confirm(&mut self, member: MemberId, sequence: u64, now: Instant) {
        if let Some(member) = self.members.get_mut(&member) {
            member.confirmed = member.confirmed.max(sequence);
            self.switch_if_due(now);
        }
    }

    /// Begins the announced epoch if all members hold it, if it was announced long enough ago, or
    /// if the current one reaches its first packet number.
    pub(super) fn switch_if_due(&mut self, now: Instant) {
        let Some((next, by)) = &self.epochs.next else {
            return;
        };
        let sequence = next.sequence;
        let due = *by <= now || self.is_spent() || self.next_pn() >= next.first_pn;
        if due {
            return self.switch(now);
        }
        // Members confirm about in order, and this is asked for each of them: the search goes on
        // where it ended.
        let from = self.unconfirmed;
        let mut around = self.members.range(from..).chain(self.members.range(..from));
        match around.find(|(_, m)| m.confirmed < sequence) {
            Some((member, _)) => self.unconfirmed = *member,
            None => self.switch(now),
        }
    }

    fn switch(&mut self, now: Instant) {
        let before = self.next_pn();
        let Some(first_pn) = self.epochs.switch() else {
            return;
        };
        let sequence = self.epochs.current.sequence;
        self.stats.epochs += 1;
        if let Some(fec) = &mut self.fec {
            // Who holds the newer key alone must not rebuild what is older.
            fec.begin_epoch();
        }
        // A member without a confirmation cannot read what follows: it gets everything on its
        // unicast path until it has confirmed.
        let late = self.members.iter().filter(|(_, m)| m.confirmed < sequence);
        let late: Vec<_> = late.map(|(id, _)| *id).collect();
        for member in late {
            self.drop_member(member, Cause::RekeyMissed);
        }
        self.ledger.skip_to(first_pn);
        for member in self.members.values_mut() {
            member.skip(before..first_pn, &mut self.ledger);
        }
        self.events.push_back(FlowEvent::Switched { sequence });
        // The first packet of an epoch follows soon, so that members do not wait for a heartbeat.
        self.probe_from(now);
    }
}
