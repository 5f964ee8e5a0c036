//! Probe of a relay, which leaves no state there.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amt::{Message, PFlag};
use rand::RngExt;
use tokio::net::UdpSocket;

use crate::RelayName;

/// Time after which an unanswered Request is repeated.
const REPEAT: Duration = Duration::from_millis(500);
/// Most addresses of one name.
const MAX_ADDRESSES: usize = 8;
/// Longest answer: a Query with its packet and address.
const MAX_ANSWER: usize = 2048;

/// ProbeReply of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeReply {
    /// Address of the relay.
    pub relay: SocketAddr,
    /// Time from the answered Request to the answer.
    pub took: Duration,
    /// Whether the relay accepts no further gateways.
    pub limited: bool,
    /// Address at which the relay sees this machine, if it reports that.
    pub seen_at: Option<SocketAddr>,
}

/// Error of a probe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The name was not found.
    #[error("the relay's name {name} was not found: {error}; check the name, or give an address")]
    Name {
        /// Name of the relay.
        name: RelayName,
        /// Error of the name service.
        error: io::Error,
    },
    /// Sending failed.
    #[error("cannot ask the relay {relay}: {error}")]
    Socket {
        /// Address of the relay.
        relay: SocketAddr,
        /// Error of the kernel.
        error: io::Error,
    },
    /// No answer arrived in time.
    #[error(
        "the relay {name} did not answer within {within:?}: see that it runs, and that UDP port \
         {port} is open on the way"
    )]
    Silence {
        /// Name of the relay.
        name: RelayName,
        /// Time waited.
        within: Duration,
        /// Port that was asked.
        port: u16,
    },
}

/// Probes a relay once, like [`Prober::ask`].
///
/// # Errors
/// There is no answer; see [`ProbeError`].
pub async fn probe(
    name: &RelayName,
    mld: bool,
    within: Duration,
) -> Result<ProbeReply, ProbeError> {
    Prober::new(name.clone(), mld).ask(within).await
}

/// Repeated probes of one relay, always from the same local ports and, if they are free, also in
/// the next run of the program: a Linux relay answers each address of this machine only on the port
/// that asked first, for minutes.
#[derive(Debug)]
pub struct Prober {
    name: RelayName,
    mld: bool,
    /// Socket for each address of the relay.
    sockets: BTreeMap<SocketAddr, Arc<UdpSocket>>,
    /// Position of the P flag that each address has answered.
    p_flags: BTreeMap<SocketAddr, PFlag>,
}

impl Prober {
    /// Creates a prober; `mld` asks for IPv6 groups.
    pub fn new(name: RelayName, mld: bool) -> Self {
        Self {
            name,
            mld,
            sockets: BTreeMap::new(),
            p_flags: BTreeMap::new(),
        }
    }

    /// Sends Requests to all addresses of the relay until one is answered with a Query, or until
    /// `within` is over. The relay keeps no state of it (RFC 7450, section 5.3.3).
    ///
    /// # Errors
    /// There was no answer; see [`ProbeError`].
    /// There is no answer; see [`ProbeError`].
    pub async fn ask(&mut self, within: Duration) -> Result<ProbeReply, ProbeError> {
        let end = tokio::time::Instant::now() + within;
        let silence = |port| ProbeError::Silence {
            name: self.name.clone(),
            within,
            port,
        };
        let addresses: Vec<SocketAddr> = match &self.name {
            RelayName::Address(address) => vec![*address],
            RelayName::Anycast => vec![
                SocketAddr::from((amt::ANYCAST_V4, amt::PORT)),
                SocketAddr::from((amt::ANYCAST_V6, amt::PORT)),
            ],
            RelayName::Host { host, port } => {
                let found = tokio::net::lookup_host((host.as_str(), *port));
                match tokio::time::timeout_at(end, found).await {
                    Ok(Ok(found)) => found.take(MAX_ADDRESSES).collect(),
                    Ok(Err(error)) => {
                        let name = self.name.clone();
                        return Err(ProbeError::Name { name, error });
                    }
                    Err(_) => return Err(silence(*port)),
                }
            }
        };
        self.sockets.retain(|relay, _| addresses.contains(relay));
        self.p_flags.retain(|relay, _| addresses.contains(relay));
        let discover = self.name == RelayName::Anycast;
        let mut asking = tokio::task::JoinSet::new();
        let mut failure = None;
        for relay in &addresses {
            match open(&mut self.sockets, *relay).await {
                Ok(socket) => {
                    let p = self.p_flags.get(relay).copied().unwrap_or_default();
                    asking.spawn(ask(socket, *relay, discover, self.mld, p));
                }
                Err(error) => failure = Some(error),
            }
        }
        let port = addresses.first().map_or(amt::PORT, SocketAddr::port);
        loop {
            match tokio::time::timeout_at(end, asking.join_next()).await {
                Ok(Some(Ok(Ok((asked, p, answer))))) => {
                    self.p_flags.insert(asked, p);
                    return Ok(answer);
                }
                Ok(Some(Ok(Err(error)))) => {
                    if let ProbeError::Socket { relay, .. } = &error {
                        // The next attempt opens another socket.
                        self.sockets.remove(relay);
                    }
                    failure = Some(error);
                }
                Ok(Some(Err(_))) => {}
                Ok(None) => return Err(failure.unwrap_or_else(|| silence(port))),
                Err(_) => return Err(silence(port)),
            }
        }
    }
}

/// First preferred local port of probers, and the number of such ports: above those that Linux
/// gives to sockets without a port of their own.
const FIRST_PORT: u16 = 61_000;
const PORTS: u64 = 4536;

/// Returns the local port for probes of this relay, the same in each run of the program: a Linux
/// relay would answer another one only after minutes.
fn usual_port(relay: SocketAddr) -> u16 {
    // Stability between versions of the program is not needed.
    let mut hasher = std::hash::DefaultHasher::new();
    relay.hash(&mut hasher);
    let place = hasher.finish() % PORTS;
    u16::try_from(place).map_or(FIRST_PORT, |place| FIRST_PORT + place)
}

/// Returns the socket for this address of the relay.
async fn open(
    sockets: &mut BTreeMap<SocketAddr, Arc<UdpSocket>>,
    relay: SocketAddr,
) -> Result<Arc<UdpSocket>, ProbeError> {
    if let Some(socket) = sockets.get(&relay) {
        return Ok(socket.clone());
    }
    let any: IpAddr = match relay {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let opened = match UdpSocket::bind((any, usual_port(relay))).await {
        // Another program of this machine probes the same relay.
        Err(_) => UdpSocket::bind((any, 0)).await,
        opened => opened,
    };
    let socket = Arc::new(opened.map_err(|error| ProbeError::Socket { relay, error })?);
    sockets.insert(relay, socket.clone());
    Ok(socket)
}

/// Asks one address until it answers. The P flag of the first Request is at `first`, and alternates
/// in repetitions, since some relays read only one of the two positions. Returns the address, the
/// answered position and the answer.
async fn ask(
    socket: Arc<UdpSocket>,
    relay: SocketAddr,
    discover: bool,
    mld: bool,
    first: PFlag,
) -> Result<(SocketAddr, PFlag, ProbeReply), ProbeError> {
    let failed = |error| ProbeError::Socket { relay, error };
    let mut found = (!discover).then_some(relay);
    let mut next = first;
    let mut asked: Vec<(u32, PFlag, Instant)> = Vec::new();
    let mut buffer = [0; MAX_ANSWER];
    loop {
        let nonce = rand::rng().random();
        let (to, message) = match found {
            Some(to) => (to, Message::Request { nonce, mld }),
            None => (relay, Message::Discovery { nonce }),
        };
        let p = next;
        if mld && found.is_some() {
            next = p.other();
        }
        asked.push((nonce, p, Instant::now()));
        let mut bytes = Vec::new();
        message.encode_with(p, &mut bytes);
        socket.send_to(&bytes, to).await.map_err(failed)?;
        let repeat = tokio::time::Instant::now() + REPEAT;
        while let Ok(received) =
            tokio::time::timeout_at(repeat, socket.recv_from(&mut buffer)).await
        {
            let (len, from) = received.map_err(failed)?;
            let sent = |nonce| asked.iter().find(|(sent, ..)| *sent == nonce);
            match Message::parse(buffer.get(..len).unwrap_or_default()) {
                Ok(Message::Advertisement { nonce, relay: at })
                    if found.is_none() && from == relay && sent(nonce).is_some() =>
                {
                    found = Some(SocketAddr::new(at, relay.port()));
                    break;
                }
                Ok(Message::Query {
                    nonce,
                    limited,
                    gateway,
                    ..
                }) if found == Some(from) => {
                    if let Some((_, p, at)) = sent(nonce) {
                        let answer = ProbeReply {
                            relay: from,
                            took: at.elapsed(),
                            limited,
                            seen_at: gateway
                                .map(|g| SocketAddr::new(g.ip().to_canonical(), g.port())),
                        };
                        return Ok((relay, *p, answer));
                    }
                }
                _ => {}
            }
        }
    }
}
