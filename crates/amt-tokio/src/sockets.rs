//! Sockets of a gateway: one for each outer address family, opened when it is needed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netio::{BindOptions, Datagram, RecvBatch, UdpSocket};
use tracing::{debug, info};

/// The sockets, at most one for each family.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    /// Preferred ports of IPv4 and of IPv6, before the kernel chooses.
    preferred: [Vec<u16>; 2],
}

/// Result of sending a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The kernel took it.
    Sent,
    /// There is no route to its destination.
    NoRoute,
    /// The socket's buffer is full.
    Full,
    /// The socket failed; the next message of that family uses a new one, on another port.
    Broken,
}

impl Sockets {
    pub(crate) fn new(preferred: [Vec<u16>; 2]) -> Self {
        Self {
            preferred,
            ..Self::default()
        }
    }

    /// Returns the local ports of IPv4 and of IPv6.
    pub(crate) fn ports(&self) -> [Option<u16>; 2] {
        [&self.v4, &self.v6].map(|socket| Some(socket.as_ref()?.local_addr().port()))
    }

    /// Opens the socket for messages to `to`, unless it is open; returns its port.
    pub(crate) fn open(&mut self, to: SocketAddr) -> io::Result<u16> {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let [v4, v6] = &self.preferred;
        let preferred = if to.is_ipv4() { v4 } else { v6 }.clone();
        let place = self.place(to);
        if let Some(open) = place {
            return Ok(open.local_addr().port());
        }
        // Both families may have the same port.
        let options = BindOptions {
            only_v6: true,
            ..BindOptions::default()
        };
        let bind = |port| UdpSocket::bind_with((any, port).into(), options);
        let mut bound = None;
        for port in preferred {
            match bind(port) {
                Ok(socket) => {
                    bound = Some(socket);
                    break;
                }
                Err(error) => info!(port, %error, "local UDP port for AMT not free"),
            }
        }
        let socket = match bound {
            Some(socket) => socket,
            None => bind(0)?,
        };
        Ok(place.insert(socket).local_addr().port())
    }

    fn place(&mut self, to: SocketAddr) -> &mut Option<UdpSocket> {
        match to {
            SocketAddr::V4(_) => &mut self.v4,
            SocketAddr::V6(_) => &mut self.v6,
        }
    }

    pub(crate) fn send(&mut self, to: SocketAddr, bytes: &[u8]) -> SendOutcome {
        if let Err(error) = self.open(to) {
            debug!(%error, %to, "no socket towards AMT relay");
            return SendOutcome::NoRoute;
        }
        let place = self.place(to);
        let Some(socket) = place else {
            return SendOutcome::NoRoute;
        };
        let before = socket.counters().send_lost;
        match socket.try_send(to, bytes, None) {
            Ok(()) if socket.counters().send_lost == before => SendOutcome::Sent,
            Ok(()) => {
                let error = socket.counters().last_send_error();
                debug!(?error, %to, "message to AMT relay refused");
                SendOutcome::NoRoute
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => SendOutcome::Full,
            Err(error) => {
                debug!(%error, %to, "socket towards AMT relay failed");
                *place = None;
                SendOutcome::Broken
            }
        }
    }

    /// Receives what one system call on each socket returns.
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

    /// Waits until one of the sockets is readable; for ever if there is none.
    pub(crate) async fn readable(&self) {
        // The next attempt to read returns the same error.
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
            // The next attempt to send returns the same error.
            let _ = socket.writable().await;
        }
    }

    /// Makes sending to `to` fail.
    #[cfg(test)]
    pub(crate) fn break_socket(&mut self, to: SocketAddr) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0");
        let broken = socket.and_then(|socket| {
            // Returns an error (not connected), and works nevertheless.
            let _ = socket2::SockRef::from(&socket).shutdown(std::net::Shutdown::Write);
            UdpSocket::from_std(socket)
        });
        *self.place(to) = broken.ok();
    }
}
