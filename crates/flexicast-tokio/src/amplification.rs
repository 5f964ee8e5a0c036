//! The anti-amplification limit of a server (RFC 9000 section 8.1), counted on datagrams.
//!
//! quiche has one of its own, but charges packets to it without the padding of the datagrams that
//! carry them (docs/upstream-quiche.md): each probe of an Initial costs a hundred bytes there and
//! is 1,200 on the wire. quiche's limit suffices for later paths, where nothing is padded that way.

use std::net::SocketAddr;

use octets::Octets;

/// Bytes that may be sent for each byte received.
const FACTOR: usize = 3;

/// Bytes that a connection may send while its peer's address is not validated.
#[derive(Debug)]
pub(crate) struct Amplification {
    peer: SocketAddr,
    /// UDP payload that may still be sent.
    credit: usize,
    validated: bool,
}

impl Amplification {
    /// For a connection whose first datagram comes from `peer`.
    pub(crate) fn new(peer: SocketAddr) -> Self {
        Amplification {
            peer,
            credit: 0,
            validated: false,
        }
    }

    /// Hands a datagram to quiche, and grants credit for it. One from another address is dropped:
    /// addresses are stable until the handshake is done (RFC 9000 section 9), and quiche would take
    /// the second one for a validated path.
    ///
    /// # Errors
    /// quiche's.
    pub(crate) fn receive(
        &mut self,
        conn: &mut quiche::Connection,
        data: &mut [u8],
        info: quiche::RecvInfo,
    ) -> quiche::Result<usize> {
        if info.from != self.peer {
            return Ok(data.len());
        }
        self.credit = self.credit.saturating_add(FACTOR * data.len());
        let (initials, before) = (initials(data), conn.stats().recv);
        let received = conn.recv(data, info);
        // quiche counts what it could decrypt. A peer that has keys beyond the Initial ones has
        // received the handshake.
        self.validated |= conn.stats().recv.saturating_sub(before) > initials;
        received
    }

    /// Whether the peer has shown that it receives at its address.
    pub(crate) fn is_over(&self) -> bool {
        self.validated
    }

    /// Largest datagram that may be sent.
    pub(crate) fn room(&self) -> usize {
        self.credit
    }

    /// Takes account of a datagram sent.
    pub(crate) fn spend(&mut self, len: usize) {
        self.credit = self.credit.saturating_sub(len);
    }
}

/// Number of packets in a datagram whose keys are no secret of the handshake: Initial and 0-RTT.
fn initials(datagram: &[u8]) -> usize {
    const LONG: u8 = 0x80;
    const TYPE: u8 = 0x30;
    const INITIAL: u8 = 0x00;
    const ZERO_RTT: u8 = 0x10;
    const RETRY: u8 = 0x30;
    let mut octets = Octets::with_slice(datagram);
    let mut count = 0;
    let mut packet = || -> Result<Option<u8>, octets::BufferTooShortError> {
        let first = octets.get_u8()?;
        if first & LONG == 0 || first & TYPE == RETRY {
            // A packet without a length is the last one.
            return Ok(None);
        }
        octets.skip(4)?;
        octets.get_bytes_with_u8_length()?;
        octets.get_bytes_with_u8_length()?;
        if first & TYPE == INITIAL {
            octets.get_bytes_with_varint_length()?;
        }
        octets.get_bytes_with_varint_length()?;
        Ok(Some(first & TYPE))
    };
    // quiche stops at the same places.
    while let Ok(Some(kind)) = packet() {
        count += usize::from(matches!(kind, INITIAL | ZERO_RTT));
    }
    count
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::config::UDP_PAYLOAD;
    use crate::tls;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    pub(crate) const SERVER: u16 = 1;
    pub(crate) const CLIENT: u16 = 2;

    /// Both ends of a connection, before the handshake: the client's, and the server's.
    pub(crate) fn pair() -> (quiche::Connection, quiche::Connection) {
        let id = |byte| quiche::ConnectionId::from_vec(vec![byte; 16]);
        let (server, client) = (addr(SERVER), addr(CLIENT));
        let mut config = tls::unverified().unwrap();
        let client_end = quiche::connect(None, &id(7), client, server, &mut config).unwrap();
        let mut config = tls::source_with_some_certificate();
        let server_end = quiche::accept(&id(9), None, server, client, &mut config).unwrap();
        (client_end, server_end)
    }

    pub(crate) fn datagrams(conn: &mut quiche::Connection) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut out = [0; UDP_PAYLOAD];
        while let Ok((len, _)) = conn.send(&mut out) {
            all.push(out[..len].to_vec());
        }
        all
    }

    pub(crate) fn info(from: u16, to: u16) -> quiche::RecvInfo {
        quiche::RecvInfo {
            from: addr(from),
            to: addr(to),
        }
    }

    /// A Handshake packet in front of what is there already: of no connection, with zeros for keys.
    fn with_forged_handshake(datagram: &[u8]) -> Vec<u8> {
        let mut forged = vec![0xe0, 0, 0, 0, 1, 0, 0, 0x40, 30];
        forged.resize(9 + 30, 0);
        [&forged, datagram].concat()
    }

    #[test]
    fn a_packet_with_keys_of_the_handshake_proves_the_address() {
        let (mut client, mut server) = pair();
        let mut limit = Amplification::new(addr(CLIENT));
        let mut received = 0;
        for mut datagram in datagrams(&mut client) {
            assert_eq!(initials(&datagram), 1);
            received += datagram.len();
            limit
                .receive(&mut server, &mut datagram, info(CLIENT, SERVER))
                .unwrap();
        }
        assert_eq!((limit.room(), limit.is_over()), (3 * received, false));
        for mut datagram in datagrams(&mut server) {
            limit.spend(datagram.len());
            client.recv(&mut datagram, info(SERVER, CLIENT)).unwrap();
        }
        assert!(limit.room() < 3 * received);
        let answers = datagrams(&mut client);
        assert!(
            answers.iter().any(|answer| initials(answer) > 0),
            "an acknowledgement"
        );
        for mut datagram in answers {
            let _ = limit.receive(&mut server, &mut datagram, info(CLIENT, SERVER));
        }
        assert!(limit.is_over());
    }

    #[test]
    fn initial_packets_forged_ones_and_other_addresses_prove_nothing() {
        let (mut client, mut server) = pair();
        let mut limit = Amplification::new(addr(CLIENT));
        let first = datagrams(&mut client).remove(0);
        assert_eq!(initials(&with_forged_handshake(&first)), 1);
        let elsewhere = info(CLIENT + 1, SERVER);
        limit
            .receive(&mut server, &mut first.clone(), elsewhere)
            .unwrap();
        assert_eq!((limit.room(), server.stats().recv), (0, 0), "not taken");
        for mut datagram in [first.clone(), with_forged_handshake(&first), first] {
            let _ = limit.receive(&mut server, &mut datagram, info(CLIENT, SERVER));
            assert!(!limit.is_over());
        }
        assert_eq!(server.stats().recv, 1);
    }

    #[test]
    fn any_bytes_are_counted_without_an_error() {
        let whole = with_forged_handshake(&datagrams(&mut pair().0).remove(0));
        for len in 0..whole.len() {
            for byte in [0x00, 0x80, 0xc0, 0xd0, 0xff] {
                let mut cut = whole[..len].to_vec();
                if let Some(last) = cut.last_mut() {
                    *last = byte;
                }
                assert!(initials(&cut) <= 1);
            }
        }
        // An Initial and a 0-RTT packet, then one without a length.
        let long = |first: u8, rest: &[u8]| [&[first, 0, 0, 0, 1, 0, 0][..], rest].concat();
        let two = [long(0xc0, &[0, 1, 9]), long(0xd0, &[1, 9]), long(0xf0, &[])].concat();
        assert_eq!(initials(&two), 2);
    }
}
