//! Feedback packets of receivers: which keys they were given, and whose packets arrive (protocol.md
//! sections 4.10 and 5.4).

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::Source;
use super::scope::ChannelScope;
use super::types::{ChannelIndex, SessionId};
use crate::FlowId;
use crate::control::{CAPABILITY_FEEDBACK, Control, FeedbackKey};
use crate::feedback::{
    FEEDBACK_BIT, FeedbackIds, FeedbackOpener, FeedbackPacket, NOTICE_LEN, RENEWED_AT,
    return_notice,
};
use crate::protect::{Algorithm, FlowSecret, KeyError, peek_flow_id};

/// A key that a receiver may use.
#[derive(Debug)]
struct LiveKey {
    session: SessionId,
    channel: ChannelIndex,
    opener: FeedbackOpener,
}

/// Keys of one receiver for the flow of one channel.
#[derive(Debug)]
struct Issued {
    flow: FlowId,
    algorithm: Algorithm,
    sequence: u64,
    current: FlowId,
    /// Feedback ID of the key before, until a packet under the current one has come.
    previous: Option<FlowId>,
    /// Whether the receiver was notified that its packets arrive.
    heard: bool,
}

/// Consequences of a packet that verified.
#[derive(Debug, Default, PartialEq, Eq)]
struct Progress {
    /// Flow whose receiver is to be notified that its packets arrive.
    first: Option<FlowId>,
    /// Whether the key has protected many packets.
    worn: bool,
}

/// Outcome of a datagram for a feedback ID.
enum FeedbackInput {
    Taken,
    Dropped,
    /// Authentic, but from another address than the receiver's connection.
    Elsewhere,
}

/// Origin of all keys and feedback IDs of a source.
#[derive(Debug)]
struct Issuer {
    secret: FlowSecret,
    ids: FeedbackIds,
}

impl Issuer {
    fn new(secret: FlowSecret, prefix: u8) -> Result<Self, KeyError> {
        let ids = FeedbackIds::new(&secret, prefix)?;
        Ok(Issuer { secret, ids })
    }
}

/// Keys of feedback packets.
#[derive(Debug, Default)]
pub(super) struct Feedback {
    /// `None` where no feedback packets are taken.
    issuer: Option<Issuer>,
    /// Keys that were made: none is derived twice.
    made: u64,
    live: HashMap<FlowId, LiveKey>,
    issued: BTreeMap<(SessionId, ChannelIndex), Issued>,
}

impl Feedback {
    /// Makes the first key of a receiver for a flow; `None` if it has one, or if no feedback
    /// packets are taken.
    fn issue(
        &mut self,
        place: (SessionId, ChannelIndex),
        flow: FlowId,
        algorithm: Algorithm,
    ) -> Option<FeedbackKey> {
        if self.issued.get(&place).is_some_and(|i| i.flow == flow) {
            return None;
        }
        self.forget(place);
        let key = self.make(place, flow, algorithm, 1)?;
        let issued = Issued {
            flow,
            algorithm,
            sequence: 1,
            current: key.id,
            previous: None,
            heard: false,
        };
        self.issued.insert(place, issued);
        Some(key)
    }

    /// Makes the next key of a receiver; the one before stays alive until this one is used.
    fn renew(&mut self, place: (SessionId, ChannelIndex)) -> Option<FeedbackKey> {
        let issued = self.issued.get(&place)?;
        let (flow, algorithm) = (issued.flow, issued.algorithm);
        let key = self.make(place, flow, algorithm, issued.sequence + 1)?;
        let issued = self.issued.get_mut(&place)?;
        issued.sequence += 1;
        let previous = std::mem::replace(&mut issued.current, key.id);
        if let Some(older) = issued.previous.replace(previous) {
            self.live.remove(&older);
        }
        Some(key)
    }

    fn make(
        &mut self,
        (session, channel): (SessionId, ChannelIndex),
        flow: FlowId,
        algorithm: Algorithm,
        sequence: u64,
    ) -> Option<FeedbackKey> {
        let issuer = self.issuer.as_ref()?;
        self.made += 1;
        let context = self.made.to_be_bytes();
        let secret = issuer.secret.derive(b"flexfeed feedback key", &context);
        let (secret, id) = (secret.ok()?, issuer.ids.make(self.made as u32)?);
        if self.live.contains_key(&id) {
            return None;
        }
        let live = LiveKey {
            session,
            channel,
            opener: FeedbackOpener::new(algorithm, &secret).ok()?,
        };
        self.live.insert(id, live);
        Some(FeedbackKey {
            flow,
            sequence,
            id,
            secret,
            algorithm: algorithm as u64,
        })
    }

    /// Takes note of a packet of a live key.
    fn advance(&mut self, id: FlowId, place: (SessionId, ChannelIndex), pn: u64) -> Progress {
        let Some(issued) = self.issued.get_mut(&place) else {
            return Progress::default();
        };
        let is_current = issued.current == id;
        if is_current && let Some(previous) = issued.previous.take() {
            self.live.remove(&previous);
        }
        Progress {
            first: (!std::mem::replace(&mut issued.heard, true)).then_some(issued.flow),
            worn: is_current && pn >= RENEWED_AT,
        }
    }

    /// Has the receiver notified again by the next packet that its packets arrive.
    fn doubt(&mut self, place: (SessionId, ChannelIndex)) {
        if let Some(issued) = self.issued.get_mut(&place) {
            issued.heard = false;
        }
    }

    fn forget(&mut self, place: (SessionId, ChannelIndex)) {
        if let Some(issued) = self.issued.remove(&place) {
            self.live.remove(&issued.current);
            if let Some(previous) = issued.previous {
                self.live.remove(&previous);
            }
        }
    }

    /// Forgets the keys of a session that has ended.
    pub(super) fn forget_session(&mut self, id: SessionId) {
        let places = self.issued.range((id, 0)..=(id, ChannelIndex::MAX));
        for place in places.map(|(place, _)| *place).collect::<Vec<_>>() {
            self.forget(place);
        }
    }

    /// Forgets the keys of a flow that has ended.
    pub(super) fn forget_channel(&mut self, channel: ChannelIndex) {
        let places = self.issued.keys().filter(|(_, c)| *c == channel);
        for place in places.copied().collect::<Vec<_>>() {
            self.forget(place);
        }
    }
}

impl ChannelScope<'_> {
    /// Gives a receiver that can acknowledge by feedback packets its key for them.
    pub(super) fn give_feedback_key(&mut self, id: SessionId) {
        let (Some(flow), Some(session)) = (&self.channel.flow, self.sessions.get_mut(id)) else {
            return;
        };
        if !session.can(CAPABILITY_FEEDBACK) {
            return;
        }
        let (flow, algorithm) = (flow.config().flow, flow.config().algorithm);
        if let Some(key) = self.feedback.issue((id, self.index), flow, algorithm) {
            session.say(&Control::Feedback(key));
        }
    }

    /// Has a receiver whose membership has ended notified again that its feedback packets arrive:
    /// it may have ended because they do not.
    pub(super) fn doubt_feedback(&mut self, id: SessionId) {
        self.feedback.doubt((id, self.index));
    }
}

impl Source {
    /// Takes feedback packets from now on. All keys are derived from `secret`, fresh random at
    /// every start; `shard` is the first byte of the connection IDs that lead to this source, below
    /// [`FEEDBACK_BIT`].
    pub fn enable_feedback(&mut self, secret: FlowSecret, shard: u8) {
        self.feedback.issuer = Issuer::new(secret, shard | FEEDBACK_BIT).ok();
    }

    /// Returns the feedback IDs of this source, for callers that drop other datagrams before
    /// [`Source::on_feedback`]; `None` where no feedback packets are taken.
    pub fn feedback_ids(&self) -> Option<FeedbackIds> {
        self.feedback.issuer.as_ref().map(|own| own.ids.clone())
    }

    /// Takes a datagram that is addressed to a feedback ID ([`crate::feedback::is_feedback`]). It
    /// is decrypted in place; what does not verify or arrived before is dropped. `is_path` says
    /// whether it came by the validated path of that session's connection. If it did not, it is
    /// dropped, and the notice that is returned is to be sent back where it came from.
    pub fn on_feedback(
        &mut self,
        datagram: &mut [u8],
        now: Instant,
        is_path: impl FnOnce(SessionId) -> bool,
    ) -> Option<[u8; NOTICE_LEN]> {
        let address = peek_flow_id(datagram);
        match address.map(|id| self.take_feedback(id, datagram, now, is_path)) {
            Some(FeedbackInput::Taken) => return None,
            Some(FeedbackInput::Elsewhere) => {}
            Some(FeedbackInput::Dropped) | None => {
                self.out.counters.feedback.invalid += 1;
                return None;
            }
        }
        self.out.counters.feedback.elsewhere += 1;
        address.map(return_notice)
    }

    fn take_feedback(
        &mut self,
        address: FlowId,
        datagram: &mut [u8],
        now: Instant,
        is_path: impl FnOnce(SessionId) -> bool,
    ) -> FeedbackInput {
        let Some(live) = self.feedback.live.get_mut(&address) else {
            return FeedbackInput::Dropped;
        };
        let place = (live.session, live.channel);
        let (id, _) = place;
        let Some(session) = self.sessions.get_mut(id).filter(|s| !s.is_closing()) else {
            return FeedbackInput::Dropped;
        };
        // A flood costs no decryption. DATAGRAM frames have a budget of their own.
        if session.budgets.feedback.ready_at(now) > now {
            return FeedbackInput::Dropped;
        }
        session.budgets.feedback.take(1);
        let (pn, payload) = match live.opener.open_if(datagram, || is_path(id)) {
            Some(FeedbackPacket::Accepted(pn, payload)) => (pn, payload),
            Some(FeedbackPacket::Refused) => return FeedbackInput::Elsewhere,
            None => return FeedbackInput::Dropped,
        };
        self.out.counters.feedback.packets += 1;
        let progress = self.feedback.advance(address, place, pn);
        if let Some(flow) = progress.first {
            session.say(&Control::Heard(flow));
            self.out.mark_dirty(id);
        }
        if progress.worn
            && let Some(key) = self.feedback.renew(place)
        {
            session.say(&Control::Feedback(key));
            self.out.mark_dirty(id);
        }
        // No violation: only what arrives on the connection can close it.
        match self.on_datagram(id, payload, now) {
            Ok(()) => FeedbackInput::Taken,
            Err(_) => FeedbackInput::Dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feedback::{FeedbackSealer, is_feedback};

    const FLOW: FlowId = FlowId([1; 8]);
    const OTHER: FlowId = FlowId([2; 8]);
    const AES: Algorithm = Algorithm::Aes128Gcm;

    fn feedback() -> Feedback {
        let issuer = Issuer::new(FlowSecret::from([9; 32]), FEEDBACK_BIT | 3);
        Feedback {
            issuer: issuer.ok(),
            ..Feedback::default()
        }
    }

    fn open(feedback: &mut Feedback, key: &FeedbackKey) -> bool {
        let mut sealer = FeedbackSealer::new(key.id, AES, &key.secret).unwrap();
        let mut packet = sealer.seal(b"payload").unwrap();
        assert!(is_feedback(&packet));
        let live = feedback.live.get_mut(&key.id);
        live.is_some_and(|live| live.opener.open(&mut packet).is_some())
    }

    #[test]
    fn keys_of_two_receivers_or_flows_have_nothing_in_common() {
        let mut feedback = feedback();
        let keys = [((1, 0), FLOW), ((2, 0), FLOW), ((1, 1), OTHER)];
        let keys = keys.map(|(place, flow)| feedback.issue(place, flow, AES).unwrap());
        for (i, key) in keys.iter().enumerate() {
            assert_eq!((key.sequence, key.id.0[0]), (1, 0x83));
            for other in &keys[..i] {
                assert!(key.id != other.id && key.secret != other.secret);
            }
        }
        assert_eq!(feedback.issue((1, 0), FLOW, AES), None, "once");
        assert!(keys.iter().all(|key| open(&mut feedback, key)));
        let again = feedback.issue((1, 0), OTHER, AES).unwrap();
        assert!(open(&mut feedback, &again) && !open(&mut feedback, &keys[0]));
        feedback.forget_session(1);
        feedback.forget_channel(0);
        assert!(feedback.live.is_empty() && feedback.issued.is_empty());
    }

    #[test]
    fn a_worn_key_is_renewed_and_lives_until_the_next_is_used() {
        let (mut feedback, place) = (feedback(), (1, 0));
        let first = feedback.issue(place, FLOW, AES).unwrap();
        let progress = |first: bool, worn| Progress {
            first: first.then_some(FLOW),
            worn,
        };
        assert_eq!(feedback.advance(first.id, place, 0), progress(true, false));
        let worn = feedback.advance(first.id, place, RENEWED_AT);
        assert_eq!(worn, progress(false, true));
        let second = feedback.renew(place).unwrap();
        assert_eq!(second.sequence, 2);
        // The old one no longer counts as worn: its successor is on its way.
        let late = feedback.advance(first.id, place, RENEWED_AT + 1);
        assert_eq!(late, progress(false, false));
        assert!(open(&mut feedback, &first));
        feedback.doubt(place);
        assert_eq!(feedback.advance(second.id, place, 0), progress(true, false));
        assert!(!open(&mut feedback, &first) && open(&mut feedback, &second));
    }

    /// Noise with the form of feedback packets is recognized by its ID alone.
    #[test]
    fn ids_of_this_source_are_recognized() {
        let mut feedback = feedback();
        let own = feedback.issue((1, 0), FLOW, AES).unwrap().id;
        let ids = feedback.issuer.as_ref().unwrap().ids.clone();
        let elsewhere = FeedbackIds::new(&FlowSecret::from([8; 32]), own.0[0]).unwrap();
        let datagram = |id: &FlowId| [&[0x43][..], &id.0, &[0; 40]].concat();
        assert!(is_feedback(&datagram(&own)) && ids.is_own(&datagram(&own)));
        assert!(!ids.is_own(&datagram(&elsewhere.make(1).unwrap())));
        feedback.forget_session(1);
        assert!(ids.is_own(&datagram(&own)), "in use or not");
        for bit in 0..FlowId::LEN * 8 {
            let mut id = own;
            id.0[bit / 8] ^= 1 << (bit % 8);
            assert!(!ids.is_own(&datagram(&id)), "bit {bit}");
        }
        let passed = (0..1u64 << 20).filter(|number| {
            let mut id = FlowId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            id.0[0] = own.0[0];
            ids.is_own(&datagram(&id))
        });
        assert!(passed.count() <= 2, "of a million");
        assert!(!ids.is_own(&[0x43]) && !ids.is_own(&[]));
    }

    #[test]
    fn without_a_secret_there_are_no_keys() {
        assert_eq!(Feedback::default().issue((1, 0), FLOW, AES), None);
    }
}
