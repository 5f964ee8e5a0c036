//! The paths of acknowledgements: feedback packets, and DATAGRAM frames of QUIC connections.

use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as StdSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use flexicast::source::Source;
use netio::{RecvBatch, UdpSocket};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::cpu::Stopwatch;
use crate::pair::{Maker, Pair, send, to_client, to_server};
use crate::parcel::UDP_PAYLOAD;

/// Members that share a socket: a thousand files are more than some systems allow.
const PER_SOCKET: usize = 20;
/// Length of the connection IDs of [`Maker`].
const ID_LEN: usize = 8;
/// Time after which a datagram on the loopback interface is lost.
const LOST: Duration = Duration::from_secs(5);

/// Takes the acknowledgements of members to the source.
pub trait Intake {
    /// Sends what a member has to say.
    fn send(&mut self, member: usize, message: &[u8]) -> Result<()>;

    /// Lets the source receive what was sent.
    fn receive(&mut self, source: &mut Source, now: Instant) -> Result<()>;

    /// CPU time that receiving took.
    fn cpu(&self) -> Duration;
}

/// Real sockets between the members and the source.
struct Wire {
    runtime: Runtime,
    server: UdpSocket,
    batch: RecvBatch,
    /// Of the members, [`PER_SOCKET`] each.
    sockets: Vec<StdSocket>,
    addresses: Vec<SocketAddr>,
    sent: u64,
    arrived: u64,
}

impl Wire {
    fn new(members: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = runtime.block_on(async { UdpSocket::bind(local) })?;
        let sockets = (0..members.div_ceil(PER_SOCKET)).map(|_| {
            let socket = StdSocket::bind(local)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let sockets = sockets.collect::<std::io::Result<Vec<_>>>()?;
        let addresses = sockets.iter().map(StdSocket::local_addr);
        Ok(Wire {
            addresses: addresses.collect::<std::io::Result<_>>()?,
            runtime,
            server,
            batch: RecvBatch::new(),
            sockets,
            sent: 0,
            arrived: 0,
        })
    }

    fn send(&mut self, member: usize, datagram: &[u8]) -> Result<()> {
        let socket = self.sockets.get(member / PER_SOCKET).context("no socket")?;
        socket.send_to(datagram, self.server.local_addr())?;
        self.sent += 1;
        Ok(())
    }

    /// Reads as the source's engine does: batch by batch, each copied out before it is handled.
    fn receive(&mut self, mut handle: impl FnMut(SocketAddr, &mut [u8])) -> Result<()> {
        let (server, batch) = (&self.server, &mut self.batch);
        while self.arrived < self.sent {
            let ready = async { timeout(LOST, server.readable()).await };
            let ready = self.runtime.block_on(ready);
            ready.context("datagrams were lost on the loopback interface")??;
            loop {
                let mut datagrams = Vec::new();
                let read = server.try_recv(batch, |d| datagrams.push((d.from, d.data.to_vec())));
                match read {
                    Ok(count) => self.arrived += count as u64,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
                for (from, mut data) in datagrams {
                    handle(from, &mut data);
                }
            }
        }
        Ok(())
    }
}

/// Feedback packets.
pub struct FeedbackPackets {
    wire: Wire,
    watch: Stopwatch,
    /// Validated path of each session.
    paths: HashMap<u64, SocketAddr>,
}

impl FeedbackPackets {
    /// Opens the sockets.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub fn new(members: usize) -> Result<Self> {
        let wire = Wire::new(members)?;
        let paths = (0..members).map(|i| (i as u64, wire.addresses[i / PER_SOCKET]));
        Ok(FeedbackPackets {
            paths: paths.collect(),
            wire,
            watch: Stopwatch::new(),
        })
    }
}

impl Intake for FeedbackPackets {
    fn send(&mut self, member: usize, message: &[u8]) -> Result<()> {
        self.wire.send(member, message)
    }

    fn receive(&mut self, source: &mut Source, now: Instant) -> Result<()> {
        if self.wire.arrived == self.wire.sent {
            return Ok(());
        }
        let (wire, paths) = (&mut self.wire, &self.paths);
        self.watch.time(|| {
            wire.receive(|from, data| {
                if flexicast::feedback::is_feedback(data) {
                    let is_path = |id| paths.get(&id) == Some(&from);
                    source.on_feedback(data, now, is_path);
                }
            })
        })
    }

    fn cpu(&self) -> Duration {
        self.watch.total()
    }
}

/// DATAGRAM frames of a connection per member.
pub struct Datagrams {
    wire: Wire,
    watch: Stopwatch,
    pairs: Vec<Pair>,
    /// Pairs by the connection IDs of both ends.
    by_id: HashMap<Vec<u8>, usize>,
    touched: BTreeSet<usize>,
}

impl Datagrams {
    /// Opens the sockets and connects the members.
    ///
    /// # Errors
    /// When the system does not allow it, or a handshake fails.
    pub fn new(members: usize) -> Result<Self> {
        let mut maker = Maker::new()?;
        let pairs: Result<Vec<Pair>> = (0..members).map(|_| Ok(maker.connect()?.0)).collect();
        let pairs = pairs?;
        let mut by_id = HashMap::new();
        for (at, pair) in pairs.iter().enumerate() {
            by_id.insert(pair.server.source_id().to_vec(), at);
            by_id.insert(pair.client.source_id().to_vec(), at);
        }
        Ok(Datagrams {
            wire: Wire::new(members)?,
            watch: Stopwatch::new(),
            pairs,
            by_id,
            touched: BTreeSet::new(),
        })
    }

    /// Lets the members' ends read what the source's have sent.
    fn answer(&mut self) -> Result<()> {
        let mut buffer = [0; 2048];
        for socket in &self.wire.sockets {
            while let Ok(len) = socket.recv(&mut buffer) {
                let data = &mut buffer[..len];
                let id = data.get(1..=ID_LEN).context("a short packet")?;
                let at = *self.by_id.get(id).context("a packet of no connection")?;
                self.pairs[at].client.recv(data, to_client())?;
            }
        }
        Ok(())
    }
}

impl Intake for Datagrams {
    fn send(&mut self, member: usize, message: &[u8]) -> Result<()> {
        let pair = self.pairs.get_mut(member).context("no such member")?;
        pair.client.dgram_send(message)?;
        let mut packet = [0; UDP_PAYLOAD];
        // One packet: an acknowledgement of its own would not be counted.
        if let Some(len) = send(&mut pair.client, &mut packet)? {
            self.wire.send(member, &packet[..len])?;
        }
        Ok(())
    }

    fn receive(&mut self, source: &mut Source, now: Instant) -> Result<()> {
        if self.wire.arrived == self.wire.sent {
            return Ok(());
        }
        let Datagrams {
            wire,
            pairs,
            by_id,
            touched,
            ..
        } = self;
        self.watch.time(|| {
            let mut buffer = vec![0; 65_536];
            let mut failed = Ok(());
            wire.receive(|_, data| {
                let Ok(header) = quiche::Header::from_slice(data, ID_LEN) else {
                    return;
                };
                let Some(at) = by_id.get(&header.dcid[..]).copied() else {
                    return;
                };
                let conn = &mut pairs[at].server;
                if let Err(error) = conn.recv(data, to_server()) {
                    failed = Err(error).context("quiche does not take a packet");
                }
                while conn.stream_recv(0, &mut buffer).is_ok() {}
                while let Ok(len) = conn.dgram_recv(&mut buffer) {
                    if let Err(error) = source.on_datagram(at as u64, &buffer[..len], now) {
                        failed = Err(error.into());
                    }
                }
                if let Some(path) = conn.path_stats().find(|path| path.active) {
                    source.set_rtt(at as u64, path.rtt);
                }
                touched.insert(at);
            })?;
            while let Some(at) = touched.pop_first() {
                let to = wire.addresses[at / PER_SOCKET];
                while let Some(len) = send(&mut pairs[at].server, &mut buffer[..UDP_PAYLOAD])? {
                    wire.server.try_send(to, &buffer[..len], None)?;
                }
            }
            failed
        })?;
        self.answer()
    }

    fn cpu(&self) -> Duration {
        self.watch.total()
    }
}
