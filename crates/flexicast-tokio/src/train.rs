//! Datagrams of one size to one address in one system call.

use std::net::{IpAddr, SocketAddr};

use netio::UdpSocket;

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
pub(crate) fn source_ip(bound: SocketAddr, from: SocketAddr) -> Option<IpAddr> {
    let chosen = bound.ip().is_unspecified() && !from.ip().is_unspecified();
    chosen.then_some(from.ip())
}
