//! The sockets of a gateway: one for each address family outside, opened when it is needed.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use netio::{Datagram, RecvBatch, UdpSocket};
use tracing::debug;

/// At most one socket for each family, on ports that the kernel chose.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The kernel has it.
    Gone,
    /// There is no way to its destination.
    NoWay,
    /// There is no room now.
    Full,
    /// The socket failed; the next message to that family goes out by another one, on another port.
    Broken,
}

impl Sockets {
    fn place(&mut self, to: SocketAddr) -> &mut Option<UdpSocket> {
        match to {
            SocketAddr::V4(_) => &mut self.v4,
            SocketAddr::V6(_) => &mut self.v6,
        }
    }

    pub(crate) fn send(&mut self, to: SocketAddr, bytes: &[u8]) -> Sent {
        let place = self.place(to);
        if place.is_none() {
            let any = match to {
                SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            };
            match UdpSocket::bind(any) {
                Ok(socket) => *place = Some(socket),
                Err(error) => {
                    debug!(%error, %to, "no socket for an AMT relay");
                    return Sent::NoWay;
                }
            }
        }
        let Some(socket) = place else {
            return Sent::NoWay;
        };
        let before = socket.counters().send_lost;
        match socket.try_send(to, bytes, None) {
            Ok(()) if socket.counters().send_lost == before => Sent::Gone,
            Ok(()) => {
                let error = socket.counters().last_send_error();
                debug!(?error, %to, "a message to an AMT relay was refused");
                Sent::NoWay
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Full,
            Err(error) => {
                debug!(%error, %to, "the socket towards an AMT relay failed");
                *place = None;
                Sent::Broken
            }
        }
    }

    /// Reads what one system call on each socket gives.
    pub(crate) fn receive(
        &mut self,
        batch: &mut RecvBatch,
        mut each: impl FnMut(Datagram<'_>),
    ) -> io::Result<()> {
        for place in [&mut self.v4, &mut self.v6] {
            let Some(socket) = place else {
                continue;
            };
            match socket.try_recv(batch, &mut each) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    *place = None;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Waits until one of the sockets has something; for ever if there is none.
    pub(crate) async fn readable(&self) {
        // An error here is one that the next attempt to read finds, too.
        match (&self.v4, &self.v6) {
            (None, None) => std::future::pending().await,
            (Some(one), None) | (None, Some(one)) => {
                let _ = one.readable().await;
            }
            (Some(v4), Some(v6)) => {
                tokio::select! {
                    _ = v4.readable() => {}
                    _ = v6.readable() => {}
                }
            }
        }
    }

    /// Waits until there is room for a message to `to`.
    pub(crate) async fn writable(&self, to: SocketAddr) {
        let socket = match to {
            SocketAddr::V4(_) => &self.v4,
            SocketAddr::V6(_) => &self.v6,
        };
        if let Some(socket) = socket {
            // An error here is one that the next attempt to send finds, too.
            let _ = socket.writable().await;
        }
    }

    /// The socket towards `to` cannot send any more.
    #[cfg(test)]
    pub(crate) fn break_socket(&mut self, to: SocketAddr) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0");
        let broken = socket.and_then(|socket| {
            // Says that the socket is not connected, and does it nevertheless.
            let _ = socket2::SockRef::from(&socket).shutdown(std::net::Shutdown::Write);
            UdpSocket::from_std(socket)
        });
        *self.place(to) = broken.ok();
    }
}
