//! A NAT between one receiver and the source: it can change its outer port at any time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};

pub struct Nat {
    pub addr: SocketAddr,
    rebind: mpsc::Sender<oneshot::Sender<()>>,
    /// Swallows everything.
    pub cut: Arc<AtomicBool>,
    thief: mpsc::Sender<UdpSocket>,
    loot: mpsc::Receiver<(UdpSocket, usize)>,
}

impl Nat {
    pub async fn new(server: SocketAddr) -> Self {
        let inner = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addr = inner.local_addr().unwrap();
        let (rebind, mut wanted) = mpsc::channel::<oneshot::Sender<()>>(4);
        let (loot, stolen) = mpsc::channel(1);
        let (thief, mut thieves) = mpsc::channel::<UdpSocket>(1);
        let cut = Arc::new(AtomicBool::new(false));
        let is_cut = cut.clone();
        tokio::spawn(async move {
            let outer = || async { UdpSocket::bind("127.0.0.1:0").await.unwrap() };
            let mut outside = outer().await;
            let mut client: Option<SocketAddr> = None;
            let (mut from_inside, mut from_outside) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                tokio::select! {
                    Ok((len, from)) = inner.recv_from(&mut from_inside) => {
                        client = Some(from);
                        if let Ok(thief) = thieves.try_recv() {
                            // The receiver's next packet leaves from elsewhere, and then no other
                            // leaves at all.
                            thief.send_to(&from_inside[..len], server).await.unwrap();
                            is_cut.store(true, Ordering::Relaxed);
                            let stolen = len;
                            let _ = loot.send((thief, stolen)).await;
                        } else if !is_cut.load(Ordering::Relaxed) {
                            let _ = outside.send_to(&from_inside[..len], server).await;
                        }
                    }
                    Ok((len, from)) = outside.recv_from(&mut from_outside) => {
                        if let Some(client) = client
                            && from == server
                            && !is_cut.load(Ordering::Relaxed)
                        {
                            let _ = inner.send_to(&from_outside[..len], client).await;
                        }
                    }
                    asked = wanted.recv() => match asked {
                        Some(done) => {
                            outside = outer().await;
                            let _ = done.send(());
                        }
                        None => return,
                    },
                }
            }
        });
        Nat {
            addr,
            rebind,
            cut,
            thief,
            loot: stolen,
        }
    }

    /// From now on packets leave from another port, and what comes to the old one is lost.
    pub async fn rebind(&self) {
        let (done, is_done) = oneshot::channel();
        self.rebind.send(done).await.unwrap();
        is_done.await.unwrap();
    }

    /// An attacker between the receiver and the source sends the receiver's next packet from an
    /// address of their own, and cuts the receiver off. Returns the socket at that address and the
    /// bytes that it sent.
    pub async fn steal(&mut self) -> (UdpSocket, usize) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        self.thief.send(socket).await.unwrap();
        self.loot.recv().await.unwrap()
    }
}

/// A direction through a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToSource,
    ToReceiver,
}

/// A path that loses datagrams: `lose` is asked with the number of each, from 1, in each direction.
/// Every connection of the receiver, which has a port of its own, begins with 1 again.
pub async fn lossy(server: SocketAddr, lose: fn(Direction, u32) -> bool) -> SocketAddr {
    filtering(server, move |direction, count, _| lose(direction, count)).await
}

/// The same, where `lose` is asked with the datagram as well.
pub async fn filtering(
    server: SocketAddr,
    lose: impl Fn(Direction, u32, &[u8]) -> bool + Send + 'static,
) -> SocketAddr {
    let inner = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let addr = inner.local_addr().unwrap();
    tokio::spawn(async move {
        let mut outside = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut client: Option<SocketAddr> = None;
        let (mut up, mut down) = (0, 0);
        let (mut from_inside, mut from_outside) = (vec![0; 65_536], vec![0; 65_536]);
        loop {
            tokio::select! {
                Ok((len, from)) = inner.recv_from(&mut from_inside) => {
                    if client.replace(from) != Some(from) {
                        outside = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                        (up, down) = (0, 0);
                    }
                    up += 1;
                    if !lose(Direction::ToSource, up, &from_inside[..len]) {
                        outside.send_to(&from_inside[..len], server).await.unwrap();
                    }
                }
                Ok((len, _)) = outside.recv_from(&mut from_outside) => {
                    down += 1;
                    if let Some(client) = client
                        && !lose(Direction::ToReceiver, down, &from_outside[..len])
                    {
                        let _ = inner.send_to(&from_outside[..len], client).await;
                    }
                }
            }
        }
    });
    addr
}
