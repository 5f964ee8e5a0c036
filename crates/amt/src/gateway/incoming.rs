//! Messages from relays.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::association::{Grant, Proof};
use super::types::{DropReason, Event, Input, RelayFailure};
use super::{Gateway, canonical};
use crate::ip::{Fragment, IpError, addresses, parse_udp};
use crate::report::{GeneralQuery, parse_query};
use crate::{Mac, Message};

/// A Query whose inner packet is valid.
struct Query {
    limited: bool,
    mac: Mac,
    nonce: u32,
    general: GeneralQuery,
    mld: bool,
    gateway: Option<SocketAddr>,
}

impl Gateway {
    /// Handles the payload of a UDP datagram from `from`. Any bytes may be passed in.
    pub fn handle(&mut self, from: SocketAddr, payload: &[u8], now: Instant) -> Input {
        let taken = match Message::parse(payload) {
            Ok(Message::Data { packet }) => self.data(from, payload, packet, now),
            Ok(Message::Query {
                limited,
                mac,
                nonce,
                packet,
                gateway,
            }) => match parse_query(packet) {
                Ok(general) => {
                    let query = Query {
                        limited,
                        mac,
                        nonce,
                        general,
                        mld: packet.first().is_some_and(|first| first >> 4 == 6),
                        gateway,
                    };
                    self.query(from, &query, now).map(|()| Input::Control)
                }
                Err(_) => Err(DropReason::BadQuery),
            },
            Ok(Message::Advertisement { nonce, relay }) => {
                let taken = self.advertisement(from, nonce, relay, now);
                taken.map(|()| Input::Control)
            }
            Ok(
                Message::Discovery { .. }
                | Message::Request { .. }
                | Message::Update { .. }
                | Message::Teardown { .. },
            ) => Err(DropReason::WrongDirection),
            Err(error) => Err(DropReason::Malformed(error)),
        };
        match taken {
            Ok(Input::Control) => {
                self.handle_timeout(now);
                Input::Control
            }
            Ok(input) => input,
            Err(dropped) => {
                if let Some(counter) = self.counters.dropped.get_mut(dropped.index()) {
                    *counter += 1;
                }
                Input::Dropped(dropped)
            }
        }
    }

    fn data(
        &mut self,
        from: SocketAddr,
        whole: &[u8],
        packet: &[u8],
        now: Instant,
    ) -> Result<Input, DropReason> {
        let of_current = self.current.as_ref().is_some_and(|a| a.relay == from);
        let of_retiring = self
            .retiring
            .as_ref()
            .is_some_and(|r| r.association.relay == from);
        if !of_current && !of_retiring {
            return Err(DropReason::NotTheRelay);
        }
        let udp = match parse_udp(packet) {
            Ok(udp) => udp,
            Err(IpError::Fragment) => return self.fragment(packet, of_current, now),
            Err(error) => return Err(DropReason::BadPacket(error)),
        };
        let subscription = self
            .membership
            .find(udp.from.ip(), udp.to)
            .ok_or(DropReason::NotSubscribed)?;
        self.brought(of_current, subscription, now)?;
        let begin = udp.payload.as_ptr() as usize - whole.as_ptr() as usize;
        self.counters.data += 1;
        self.counters.data_bytes += udp.payload.len() as u64;
        Ok(Input::Data {
            subscription,
            from: udp.from,
            payload: begin..begin + udp.payload.len(),
        })
    }

    /// Collects a fragment of a packet that was too large for the path from the relay. Fragments of
    /// groups without a subscription are dropped.
    fn fragment(
        &mut self,
        packet: &[u8],
        of_current: bool,
        now: Instant,
    ) -> Result<Input, DropReason> {
        let (source, group, _) = addresses(packet).map_err(DropReason::BadPacket)?;
        if !self.membership.wants_from(source, group) {
            return Err(DropReason::NotSubscribed);
        }
        let taken = self.fragments.take(packet, now);
        let Fragment::Whole(whole) = taken.map_err(DropReason::BadPacket)? else {
            return Ok(Input::Fragment);
        };
        let udp = parse_udp(whole).map_err(DropReason::BadPacket)?;
        let subscription = self
            .membership
            .find(udp.from.ip(), udp.to)
            .ok_or(DropReason::NotSubscribed)?;
        let (from, payload) = (udp.from, udp.payload.to_vec());
        self.brought(of_current, subscription, now)?;
        self.counters.data += 1;
        self.counters.data_bytes += payload.len() as u64;
        Ok(Input::Assembled {
            subscription,
            from,
            payload,
        })
    }

    fn advertisement(
        &mut self,
        from: SocketAddr,
        nonce: u32,
        relay: IpAddr,
        now: Instant,
    ) -> Result<(), DropReason> {
        let Some(race) = &mut self.race else {
            return Err(DropReason::NotTheRelay);
        };
        let relay = race.advertised(from, nonce, relay, &self.timing, now)?;
        // The advertised relay is the one in use, for which a replacement is sought.
        if let Some(current) = self.current.as_ref().filter(|a| a.relay == relay) {
            let why = match race.why {
                RelayFailure::NoTraffic => RelayFailure::NoTraffic,
                _ if current.limited => RelayFailure::Limited,
                _ => RelayFailure::Timeout,
            };
            race.give_up(from, now);
            self.candidates
                .failed(from, why, &self.timing, &mut self.entropy, now);
        } else if self.candidates.is_excluded(relay) {
            race.give_up(from, now);
            let why = RelayFailure::Excluded;
            self.candidates
                .failed(from, why, &self.timing, &mut self.entropy, now);
        }
        Ok(())
    }

    fn query(&mut self, from: SocketAddr, query: &Query, now: Instant) -> Result<(), DropReason> {
        let of_current = self.current.as_ref().is_some_and(|a| a.relay == from);
        if of_current {
            return self.query_of_current(query, now);
        }
        let Some(race) = &mut self.race else {
            return Err(DropReason::NotTheRelay);
        };
        let winner = race.answered(from, query.nonce, now)?;
        if query.mld != race.mld {
            return Err(DropReason::BadQuery);
        }
        self.counters.queries += 1;
        if query.mld
            && let Some(p) = winner.question.p_of(query.nonce)
        {
            self.p_flags.set(from, p);
        }
        if query.limited {
            let addr = winner.candidate.addr;
            race.give_up(addr, now);
            self.candidates.failed(
                addr,
                RelayFailure::Limited,
                &self.timing,
                &mut self.entropy,
                now,
            );
            return Ok(());
        }
        self.select(&winner, now);
        self.granted(query, winner.asked, now);
        Ok(())
    }

    fn query_of_current(&mut self, query: &Query, now: Instant) -> Result<(), DropReason> {
        let Some(association) = &mut self.current else {
            return Err(DropReason::NotTheRelay);
        };
        let Some(at) = association.asked(query.mld, query.nonce) else {
            return Err(match association.asked(!query.mld, query.nonce) {
                // The relay answers with the query of the other family.
                Some(_) => DropReason::BadQuery,
                None => DropReason::UnknownNonce,
            });
        };
        association.rtt = now.saturating_duration_since(at);
        association.heard = now;
        association.limited = query.limited;
        if query.mld
            && let Some(p) = association.p_of(query.nonce)
        {
            self.p_flags.set(association.relay, p);
        }
        self.counters.queries += 1;
        // The relay is alive after all; whether it brings packets is another question.
        if !query.limited {
            self.race
                .take_if(|race| race.why != RelayFailure::NoTraffic);
        }
        self.granted(query, at, now);
        if query.limited {
            self.limited(now);
        }
        Ok(())
    }

    /// Answers a query of the relay in use with the whole state of its family, and of the other one
    /// if the relay may not know that. `asked` is the send time of the Request.
    fn granted(&mut self, query: &Query, asked: Instant, now: Instant) {
        let Some(association) = &mut self.current else {
            return;
        };
        let grant = Grant {
            mac: query.mac,
            nonce: query.nonce,
            asked,
        };
        let newest = association.grant.is_none_or(|known| known.asked <= asked);
        let before = association.proof;
        if newest {
            association.grant = Some(grant);
            if let Some(gateway) = query.gateway {
                association.proof = Some(Proof { grant, gateway });
            }
        }
        let moved = match (before, query.gateway) {
            (Some(before), Some(to)) if newest && canonical(before.gateway) != canonical(to) => {
                Some((before, to))
            }
            _ => None,
        };
        let relay = association.relay;
        let mut whole = [false; 2];
        let mut again = [false; 2];
        let families = [false, true].into_iter().zip(&mut association.cycles);
        for ((mld, cycle), (whole, again)) in families.zip(whole.iter_mut().zip(&mut again)) {
            let Some(cycle) = cycle else {
                continue;
            };
            let mut is_new = moved.is_some();
            if mld == query.mld {
                is_new |= !cycle.granted;
                cycle.granted(&query.general, &self.timing, &mut self.entropy, now);
                *whole = true;
            }
            if !cycle.granted {
                continue;
            }
            if is_new {
                // For the relay this is a new gateway, which reports for the first time.
                cycle.repeats = cycle.robustness.saturating_sub(1);
                self.membership.forget_changes(mld);
                *whole = true;
            }
            // Reports after this Request used a nonce that a relay which knows only the last one
            // no longer accepts.
            let late = |(at, nonce)| at >= asked && nonce != grant.nonce;
            *again = newest && cycle.reported.is_some_and(late);
            if cycle.repeats > 0 {
                cycle.repeat_soon(&mut self.entropy, now);
            }
        }
        if let Some((before, to)) = moved {
            self.teardown(before.of(relay));
            self.emit(Event::AddressChanged {
                from: canonical(before.gateway),
                to: canonical(to),
            });
        }
        for (mld, (whole, again)) in [false, true].into_iter().zip(whole.into_iter().zip(again)) {
            if whole || again {
                let records = self.membership.current(mld);
                self.report_to_relay(mld, &records, now);
            }
            if again {
                self.report_changes(mld, now);
            }
        }
    }
}
