//! Packets of no connection: new receivers, receivers of an earlier life, noise. One gate for all
//! shards of a source, so that its limits are the source's.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use quiche::{ConnectionId, Header};
use tracing::warn;

use crate::Error;
use crate::config::CID_LEN;
use crate::reset::{ConnectionIds, ResetDecision, Resets};
use crate::retry::Retries;
use crate::source::Counters;

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

/// A packet of no connection.
pub(super) struct Stranger<'p> {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) header: &'p Header<'p>,
    pub(super) data: &'p [u8],
}

/// A connection that was accepted.
pub(super) struct Newcomer {
    pub(super) session: u64,
    pub(super) conn: quiche::Connection,
    pub(super) id: [u8; CID_LEN],
    /// Whether its address is validated.
    pub(super) proved: bool,
}

/// Decision about a stranger.
pub(super) enum Verdict {
    Accept(Box<Newcomer>),
    /// An answer without a connection.
    Answer(Vec<u8>),
    /// Another shard gave the connection ID that it uses.
    Elsewhere(u8),
    Drop,
}

/// Admission of connections, shared by the shards. It is asked about strangers only.
pub(in crate::source) struct Gate(Mutex<State>);

struct State {
    quic: quiche::Config,
    resets: Resets,
    retries: Retries,
    last_session: u64,
    places: HashMap<u64, Place>,
    /// Admitted connections: WELCOME is sent.
    served: usize,
    /// Connections that are not admitted yet, by network.
    unserved_by: HashMap<IpAddr, usize>,
}

/// A connection at the gate.
struct Place {
    shard: u8,
    network: IpAddr,
    served: bool,
}

impl Gate {
    pub(in crate::source) fn new(quic: quiche::Config, now: Instant) -> Result<Self, Error> {
        Ok(Gate(Mutex::new(State {
            quic,
            resets: Resets::new(),
            retries: Retries::new(now)?,
            last_session: 0,
            places: HashMap::new(),
            served: 0,
            unserved_by: HashMap::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What a shard that panicked left is whole: nothing in here calls out while it changes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows another certificate from now on.
    pub(in crate::source) fn set_config(&self, quic: quiche::Config) {
        self.state().quic = quic;
    }

    /// Refuses all versions of the protocol that receivers speak.
    #[cfg(feature = "fault-injection")]
    pub(in crate::source) fn speak_another_version(&self) -> Result<(), Error> {
        let other = [&b"flexfeed/none"[..]];
        let mut state = self.state();
        state
            .quic
            .set_application_protos(&other)
            .map_err(Error::quic)
    }

    /// Counts a connection as served.
    pub(in crate::source) fn serve(&self, session: u64) {
        let mut state = self.state();
        let state = &mut *state;
        if let Some(place) = state.places.get_mut(&session)
            && !std::mem::replace(&mut place.served, true)
        {
            state.served += 1;
            leave_unserved(&mut state.unserved_by, place.network);
        }
    }

    /// Stops counting a connection that has ended.
    pub(super) fn leave(&self, session: u64) {
        self.state().leave(session);
    }

    /// Stops counting the connections of a shard that has ended.
    pub(in crate::source) fn clear(&self, shard: u8) {
        let mut state = self.state();
        let its = state
            .places
            .iter()
            .filter(|(_, place)| place.shard == shard);
        let its: Vec<_> = its.map(|(session, _)| *session).collect();
        its.into_iter().for_each(|session| state.leave(session));
    }

    /// Decides about a packet of a connection that the shard does not know: a new receiver, one of
    /// an earlier life, or noise.
    pub(super) fn judge(
        &self,
        ids: &ConnectionIds,
        stranger: &Stranger<'_>,
        counts: &mut Counters,
        now: Instant,
    ) -> Verdict {
        let Stranger { header, data, .. } = stranger;
        let mut state = self.state();
        if header.ty == quiche::Type::Short {
            counts.stray_datagrams += 1;
            return match state.resets.answer(ids, data, now) {
                ResetDecision::Reset(reset) => {
                    counts.resets += 1;
                    Verdict::Answer(reset)
                }
                ResetDecision::TooMany => {
                    counts.resets_withheld += 1;
                    Verdict::Drop
                }
                ResetDecision::NotAPacket => Verdict::Drop,
            };
        }
        if header.ty != quiche::Type::Initial || data.len() < 1200 {
            counts.stray_datagrams += 1;
            return Verdict::Drop;
        }
        if !quiche::version_is_supported(header.version) {
            let mut out = [0; 256];
            let made = quiche::negotiate_version(&header.scid, &header.dcid, &mut out);
            return match made.ok().and_then(|len| out.get(..len)) {
                Some(answer) if state.resets.may_negotiate(now) => Verdict::Answer(answer.to_vec()),
                _ => {
                    counts.stray_datagrams += 1;
                    Verdict::Drop
                }
            };
        }
        state.judge_initial(ids, stranger, counts, now)
    }
}

impl State {
    fn judge_initial(
        &mut self,
        ids: &ConnectionIds,
        stranger: &Stranger<'_>,
        counts: &mut Counters,
        now: Instant,
    ) -> Verdict {
        let Stranger {
            from, to, header, ..
        } = *stranger;
        let token = header.token.as_deref().unwrap_or_default();
        let network = network(from.ip());
        let original = self.retries.check(token, &header.dcid, from, now);
        let unserved = self.places.len() - self.served;
        if original.is_none() && unserved >= RETRY_FROM {
            return match self.retry(ids, stranger, now) {
                Some(retry) => {
                    counts.retries += 1;
                    Verdict::Answer(retry)
                }
                None => Verdict::Drop,
            };
        }
        let of_network = self.unserved_by.get(&network).copied().unwrap_or(0);
        if self.places.len() >= MAX_PEERS
            || unserved >= MAX_UNSERVED
            || of_network >= MAX_UNSERVED_PER_ADDRESS
        {
            counts.over_limit += 1;
            return Verdict::Drop;
        }
        // A client that was given an ID by a Retry continues with it.
        let id = match original {
            Some(_) => <[u8; CID_LEN]>::try_from(header.dcid.as_ref()).ok(),
            None => ids.make().ok(),
        };
        let Some(id) = id else {
            return Verdict::Drop;
        };
        if id[0] != ids.shard() {
            return Verdict::Elsewhere(id[0]);
        }
        // A Retry's token validates the address.
        let proved = original.is_some();
        let token = u128::from_be_bytes(ids.token(&id));
        self.quic.set_stateless_reset_token(Some(token));
        let (scid, original) = (
            ConnectionId::from_ref(&id),
            original.map(ConnectionId::from_ref),
        );
        let conn = match quiche::accept(&scid, original.as_ref(), to, from, &mut self.quic) {
            Ok(conn) => conn,
            Err(error) => {
                warn!(%from, %error, "cannot accept a connection");
                return Verdict::Drop;
            }
        };
        counts.handshakes += 1;
        Verdict::Accept(Box::new(Newcomer {
            session: self.enter(ids.shard(), network),
            conn,
            id,
            proved,
        }))
    }

    /// Makes a packet that asks a receiver to show that it receives at the address that it writes
    /// from.
    fn retry(&self, ids: &ConnectionIds, stranger: &Stranger<'_>, now: Instant) -> Option<Vec<u8>> {
        let Stranger { from, header, .. } = *stranger;
        let id = ids.make().ok()?;
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
        Some(out.get(..retry.ok()?)?.to_vec())
    }

    fn enter(&mut self, shard: u8, network: IpAddr) -> u64 {
        self.last_session += 1;
        *self.unserved_by.entry(network).or_default() += 1;
        let place = Place {
            shard,
            network,
            served: false,
        };
        self.places.insert(self.last_session, place);
        self.last_session
    }

    fn leave(&mut self, session: u64) {
        let Some(place) = self.places.remove(&session) else {
            return;
        };
        if place.served {
            self.served -= 1;
        } else {
            leave_unserved(&mut self.unserved_by, place.network);
        }
    }
}

/// Stops counting a connection among those of its network that are not served yet.
fn leave_unserved(unserved_by: &mut HashMap<IpAddr, usize>, network: IpAddr) {
    if let Some(count) = unserved_by.get_mut(&network) {
        *count -= 1;
        if *count == 0 {
            unserved_by.remove(&network);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::config::UDP_PAYLOAD;
    use crate::tls;

    /// A client, and where it is.
    struct Client(quiche::Connection, SocketAddr);

    impl Client {
        fn new(number: u16) -> Self {
            let at = SocketAddr::from(([127, 0, 0, 1], 1000 + number));
            let id = ConnectionId::from_vec(number.to_be_bytes().repeat(8));
            let mut config = tls::unverified().unwrap();
            Client(
                quiche::connect(None, &id, at, server(), &mut config).unwrap(),
                at,
            )
        }

        fn knock(&mut self, gate: &Gate, ids: &ConnectionIds, counts: &mut Counters) -> Verdict {
            let mut packet = [0; UDP_PAYLOAD];
            let (len, _) = self.0.send(&mut packet).unwrap();
            let data = &mut packet[..len];
            let header = Header::from_slice(data, CID_LEN).unwrap();
            let stranger = Stranger {
                from: self.1,
                to: server(),
                header: &header,
                data,
            };
            gate.judge(ids, &stranger, counts, Instant::now())
        }
    }

    fn server() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 999))
    }

    #[test]
    fn limits_are_those_of_all_shards_together() {
        let gate = Gate::new(tls::source_with_some_certificate(), Instant::now()).unwrap();
        let shards = [0, 1].map(|shard| ConnectionIds::new(&[7; 32], shard));
        let mut counts = Counters::default();
        let mut sessions = Vec::new();
        for number in 0..RETRY_FROM as u16 {
            let ids = &shards[usize::from(number % 2)];
            match Client::new(number).knock(&gate, ids, &mut counts) {
                Verdict::Accept(newcomer) => {
                    assert_eq!(newcomer.id[0], ids.shard());
                    sessions.push(newcomer.session);
                }
                _ => panic!("client {number} was not accepted"),
            }
        }
        sessions.dedup();
        assert_eq!(sessions.len(), RETRY_FROM, "each has a number of its own");
        let mut late = Client::new(500);
        let Verdict::Answer(mut retry) = late.knock(&gate, &shards[0], &mut counts) else {
            panic!("no Retry");
        };
        let info = quiche::RecvInfo {
            from: server(),
            to: late.1,
        };
        late.0.recv(&mut retry, info).unwrap();
        // It goes on with the ID that the first shard gave it, wherever it arrives.
        let again = late.knock(&gate, &shards[1], &mut counts);
        assert!(matches!(again, Verdict::Elsewhere(0)));
        assert_eq!((counts.handshakes, counts.retries), (RETRY_FROM as u64, 1));
        // The receivers of a shard that has ended count no more, nor do those that are served.
        gate.clear(1);
        gate.serve(sessions[0]);
        gate.serve(sessions[0]);
        for number in 0..=RETRY_FROM as u16 / 2 {
            let verdict = Client::new(600 + number).knock(&gate, &shards[1], &mut counts);
            assert!(matches!(verdict, Verdict::Accept(_)), "client {number}");
        }
        let verdict = Client::new(700).knock(&gate, &shards[1], &mut counts);
        assert!(matches!(verdict, Verdict::Answer(_)));
        gate.leave(sessions[0]);
        gate.leave(sessions[2]);
        let verdict = Client::new(700).knock(&gate, &shards[0], &mut counts);
        assert!(matches!(verdict, Verdict::Accept(_)));
    }
}
