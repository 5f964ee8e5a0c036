//! The receivers' sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netio::direct::{Inbox, UdpPort, raise_descriptor_limit};

/// Time limit for the arrival of packets, which cross the loopback interface at once.
const PATIENCE: Duration = Duration::from_secs(5);

pub struct Receivers {
    ports: Vec<UdpPort>,
    inbox: Inbox,
}

impl Receivers {
    /// Binds a socket for each receiver.
    ///
    /// # Errors
    /// When the system refuses so many.
    pub fn bind(count: usize) -> Result<Self> {
        raise_descriptor_limit()?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let ports: std::io::Result<_> = (0..count).map(|_| UdpPort::bind(any)).collect();
        Ok(Receivers {
            ports: ports.context("binding the receivers' sockets")?,
            inbox: Inbox::new(4),
        })
    }

    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Returns the address of a receiver.
    pub fn at(&self, number: usize) -> Result<SocketAddr> {
        let port = self.ports.get(number).context("no such receiver")?;
        Ok(port.local_addr())
    }

    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.ports.iter().map(UdpPort::local_addr)
    }

    /// Takes `bytes` bytes of datagrams that were sent to a receiver.
    ///
    /// # Errors
    /// When they are not there, or more of them.
    pub fn take(
        &mut self,
        number: usize,
        bytes: usize,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let port = self.ports.get(number).context("no such receiver")?;
        let (mut taken, begun) = (0, Instant::now());
        while taken < bytes {
            let mut outcome = Ok(());
            self.inbox.receive(port, 4, |message| {
                for datagram in message.datagrams() {
                    taken += datagram.len();
                    if outcome.is_ok() {
                        outcome = each(datagram);
                    }
                }
            })?;
            outcome?;
            ensure!(
                begun.elapsed() < PATIENCE,
                "{taken} of {bytes} bytes arrived"
            );
        }
        ensure!(
            taken == bytes,
            "{taken} bytes arrived and {bytes} were sent"
        );
        Ok(())
    }

    /// Takes what each of these receivers must have got.
    ///
    /// # Errors
    /// When one of them got something else.
    pub fn take_from(&mut self, receivers: Range<usize>, sent: &[u8]) -> Result<()> {
        for number in receivers {
            let mut rest = sent;
            self.take(number, sent.len(), |datagram| {
                let after = rest.strip_prefix(datagram);
                rest = after.context("a receiver got something that was not sent")?;
                Ok(())
            })?;
        }
        Ok(())
    }
}
