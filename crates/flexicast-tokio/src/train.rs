//! Datagrams of one size to one address in one system call.

use std::net::{IpAddr, SocketAddr};

use netio::UdpSocket;

/// Packets that lie one after the other, to be cut into trains of equal packets, the last of which
/// may be shorter.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl Packets {
    pub(crate) fn push(&mut self, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.lengths.push(packet.len());
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.lengths.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }

    /// The trains in order: their bytes, and the size of a packet where there is more than one.
    pub(crate) fn trains(&self) -> impl Iterator<Item = (&[u8], Option<usize>)> {
        let (mut bytes, mut lengths) = (self.bytes.as_slice(), self.lengths.as_slice());
        std::iter::from_fn(move || {
            let size = *lengths.first()?;
            let equal = lengths.iter().take_while(|len| **len == size).count();
            let shorter = lengths.get(equal).is_some_and(|len| *len < size);
            let packets = equal + usize::from(shorter);
            let (taken, rest) = lengths.split_at(packets);
            let (train, after) = bytes.split_at(taken.iter().sum());
            (bytes, lengths) = (after, rest);
            Some((train, (packets > 1).then_some(size)))
        })
    }
}

/// Sends a datagram or a train, waiting for room, from the local address `from` if one is given.
/// Returns whether the kernel took it: `false` when it refused this destination.
///
/// # Errors
/// The socket is unusable.
pub(crate) async fn send_train(
    socket: &UdpSocket,
    to: SocketAddr,
    from: Option<IpAddr>,
    train: &[u8],
    segment: Option<usize>,
) -> std::io::Result<bool> {
    let refused = socket.counters().send_lost;
    let mut rest = train;
    loop {
        match socket.try_send_some(to, from, rest, segment) {
            Ok(sent) if sent >= rest.len() => {
                return Ok(socket.counters().send_lost == refused);
            }
            Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        socket.writable().await?;
    }
}

/// The address to send from: the one that the peer wrote to, on a socket that is bound to all of
/// them.
pub(crate) fn source_ip(socket: &UdpSocket, from: SocketAddr) -> Option<IpAddr> {
    let chosen = socket.local_addr().ip().is_unspecified() && !from.ip().is_unspecified();
    chosen.then_some(from.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_packets_ride_together_and_a_shorter_one_ends_a_train() {
        let mut packets = Packets::default();
        for len in [5usize, 5, 3, 5, 7, 7, 2] {
            packets.push(&vec![len as u8; len]);
        }
        let cut: Vec<_> = packets
            .trains()
            .map(|(bytes, size)| (bytes.len(), size))
            .collect();
        assert_eq!(
            cut,
            [(13, Some(5)), (5, None), (16, Some(7))],
            "a longer packet begins a train of its own"
        );
        packets.clear();
        assert_eq!((packets.len(), packets.trains().count()), (0, 0));
    }
}
