//! Counts and checks what arrives, by a tunnel or without one.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use amt::gateway::Subscription;
use amt::report::{Record, RecordKind, write_report};
use amt::{Message, ip};
use amt_tokio::{Config, Gateway, RelayName};
use anyhow::{Context, Result};
use netio::{RecvBatch, UdpSocket};
use tokio::time::Instant;

use super::{Address, Cargo, DrainReport, nanoseconds, now_ns, thread_time};

/// By what way packets come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ingress {
    /// Over so many tunnels of a relay, each with a socket of its own that only counts.
    Tunnels {
        /// Address of the relay.
        relay: SocketAddr,
        /// Number.
        count: u16,
    },
    /// Over a tunnel of the gateway that receivers have.
    Gateway {
        /// Address of the relay.
        relay: SocketAddr,
    },
    /// By a join.
    Direct,
    /// To so many ports, from the address's on.
    Ports {
        /// Number.
        count: u16,
    },
}

/// Parameters of the receiver.
#[derive(Debug, Clone, Copy)]
pub struct SinkPlan {
    /// Method of reception.
    pub how: Ingress,
    /// The group and its source, or this machine's first port.
    pub address: Address,
    /// Bytes in each packet.
    pub size: usize,
    /// Duration.
    pub time: Duration,
    /// Whether the time on the way is of interest.
    pub latency: bool,
}

/// Packets received so far.
struct Tally {
    cargo: Cargo,
    packets: Vec<u64>,
    /// The number that each socket has to see next, at least.
    next: Vec<u64>,
    wrong: u64,
    /// CPU time when the first packet came.
    begun: Option<Duration>,
    latency: Option<Vec<u64>>,
}

impl Tally {
    fn new(plan: &SinkPlan, sockets: u16) -> Tally {
        Tally {
            cargo: Cargo::new(plan.size),
            packets: vec![0; usize::from(sockets)],
            next: vec![0; usize::from(sockets)],
            wrong: 0,
            begun: None,
            latency: plan.latency.then(Vec::new),
        }
    }

    fn take(&mut self, socket: usize, payload: &[u8]) {
        if self.begun.is_none() {
            self.begun = Some(thread_time());
        }
        let (Some(next), Some(packets)) = (self.next.get_mut(socket), self.packets.get_mut(socket))
        else {
            return;
        };
        match self.cargo.check(payload) {
            Some(checked) if checked.number >= *next => {
                *next = checked.number + 1;
                *packets += 1;
                if let Some(latency) = &mut self.latency {
                    latency.push(now_ns().saturating_sub(checked.sent_ns));
                }
            }
            _ => self.wrong += 1,
        }
    }

    fn done(mut self) -> DrainReport {
        let spent = self
            .begun
            .map_or(Duration::ZERO, |begun| thread_time().saturating_sub(begun));
        let mut latency = self.latency.take().unwrap_or_default();
        latency.sort_unstable();
        let quantile = |share: usize| latency.get(latency.len() * share / 100).copied();
        DrainReport {
            packets: self.packets,
            wrong: self.wrong,
            cpu_ns: nanoseconds(spent),
            p50_ns: quantile(50),
            p99_ns: quantile(99),
        }
    }
}

/// Receives as planned, on one thread.
///
/// # Errors
/// When a socket cannot be made, or fails.
pub fn drain(plan: &SinkPlan) -> Result<DrainReport> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?;
    let end = Instant::now() + plan.time;
    let local = tokio::task::LocalSet::new();
    runtime.block_on(local.run_until(async {
        match plan.how {
            Ingress::Tunnels { relay, count } => tunnels(plan, relay, count, end).await,
            Ingress::Gateway { relay } => gateway(plan, relay, end).await,
            Ingress::Direct => {
                let Address { to, from } = plan.address;
                let sockets = vec![netio::join(to, Some(from), Some(from))?];
                plain(plan, sockets, end).await
            }
            Ingress::Ports { count } => {
                let first = plan.address.to;
                let sockets = (0..count)
                    .map(|n| UdpSocket::bind(SocketAddr::new(first.ip(), first.port() + n)))
                    .collect::<std::io::Result<_>>()?;
                plain(plan, sockets, end).await
            }
        }
    }))
}

/// Reads all sockets until the end, and lets `each` have what came, with the socket's number.
async fn read_all(
    sockets: Vec<Rc<UdpSocket>>,
    end: Instant,
    each: impl FnMut(usize, &UdpSocket, &[u8]) + 'static,
) -> Result<()> {
    // One buffer for all: only one reads at a time.
    let shared = Rc::new(RefCell::new((RecvBatch::new(), each)));
    let tasks: Vec<_> = sockets
        .into_iter()
        .enumerate()
        .map(|(number, socket)| {
            let shared = Rc::clone(&shared);
            tokio::task::spawn_local(async move {
                while let Ok(ready) = tokio::time::timeout_at(end, socket.readable()).await {
                    ready?;
                    let (batch, each) = &mut *shared.borrow_mut();
                    match socket.try_recv(batch, |datagram| each(number, &socket, datagram.data)) {
                        Ok(_) => {}
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await?.context("receiving")?;
    }
    Ok(())
}

async fn plain(plan: &SinkPlan, sockets: Vec<UdpSocket>, end: Instant) -> Result<DrainReport> {
    let tally = Tally::new(plan, u16::try_from(sockets.len())?);
    let tally = Rc::new(RefCell::new(tally));
    let inside = Rc::clone(&tally);
    let sockets = sockets.into_iter().map(Rc::new).collect();
    read_all(sockets, end, move |number, _, data| {
        inside.borrow_mut().take(number, data);
    })
    .await?;
    finish(tally)
}

async fn tunnels(
    plan: &SinkPlan,
    relay: SocketAddr,
    count: u16,
    end: Instant,
) -> Result<DrainReport> {
    let any: IpAddr = match relay {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let Address { to: group, from } = plan.address;
    let report = |kind| {
        let mut report = Vec::new();
        let record = Record {
            kind,
            group: group.ip(),
            sources: vec![from],
        };
        write_report(group.is_ipv6(), &[record], 1200, |packet| {
            report = packet.to_vec();
        });
        report
    };
    let (join, leave) = (report(RecordKind::IsIn), report(RecordKind::Block));
    let mut sockets = Vec::new();
    for number in 0..count {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        let mut request = Vec::new();
        Message::Request {
            nonce: u32::from(number) + 1,
            mld: group.is_ipv6(),
        }
        .encode(&mut request);
        socket.send(relay, &request, None).await?;
        sockets.push(Rc::new(socket));
    }
    let answers = Rc::new(RefCell::new(vec![None; sockets.len()]));
    let shared = Rc::clone(&answers);
    // Type and reserved byte, then the headers of the packet inside.
    let inner = if group.is_ipv4() {
        ip::V4_HEADER
    } else {
        ip::V6_HEADER
    };
    let head = 2 + inner + ip::UDP_HEADER;
    let tally = Rc::new(RefCell::new(Tally::new(plan, count)));
    let inside = Rc::clone(&tally);
    let open = sockets.clone();
    read_all(sockets, end, move |number, socket, data| {
        match data.first() {
            Some(6) => {
                let payload = data.get(head..).unwrap_or_default();
                inside.borrow_mut().take(number, payload);
            }
            _ => {
                if let Ok(Message::Query { mac, nonce, .. }) = Message::parse(data) {
                    let packet = &join;
                    let mut update = Vec::new();
                    Message::Update { mac, nonce, packet }.encode(&mut update);
                    let _ = socket.try_send(relay, &update, None);
                    if let Some(answer) = shared.borrow_mut().get_mut(number) {
                        *answer = Some((mac, nonce));
                    }
                }
            }
        }
    })
    .await?;
    // The next measurement has to find a relay without these gateways.
    for (socket, answer) in open.iter().zip(answers.take()) {
        if let Some((mac, nonce)) = answer {
            let packet = &leave;
            let mut update = Vec::new();
            Message::Update { mac, nonce, packet }.encode(&mut update);
            socket.send(relay, &update, None).await?;
        }
    }
    finish(tally)
}

async fn gateway(plan: &SinkPlan, relay: SocketAddr, end: Instant) -> Result<DrainReport> {
    let mut gateway = Gateway::start(Config {
        relays: vec![RelayName::Address(relay)],
        ..Config::default()
    })?;
    let Address { to: group, from } = plan.address;
    gateway.subscribe(Subscription {
        source: Some(from),
        group: group.ip(),
        port: group.port(),
    })?;
    let mut tally = Tally::new(plan, 1);
    let mut batch = RecvBatch::new();
    while tokio::time::timeout_at(end, gateway.ready()).await.is_ok() {
        gateway.receive(&mut batch, |packet| tally.take(0, packet.data))?;
        while gateway.poll_event().is_some() {}
    }
    gateway.stop().await;
    Ok(tally.done())
}

fn finish(tally: Rc<RefCell<Tally>>) -> Result<DrainReport> {
    let tally = Rc::into_inner(tally).context("the count is still in use")?;
    Ok(tally.into_inner().done())
}
