//! An AMT relay that does as much as these tests need: no timers, no limits, one question for each
//! gateway.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use amt::ip::UdpTemplate;
use amt::report::{GeneralQuery, RecordKind, parse_report, write_query};
use amt::{Mac, Message};
use netio::RecvBatch;
use tokio::net::UdpSocket;

use super::any_port;

/// A relay at work; it dies when it is dropped, without a word.
pub struct Relay {
    pub addr: SocketAddr,
    /// Packets that it forwarded.
    pub forwarded: Arc<AtomicU64>,
    /// Whether it accepts no further gateways, and keeps those that it has.
    pub limited: Arc<AtomicBool>,
    /// Where its Updates came from.
    pub gateways: Arc<Mutex<Vec<SocketAddr>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    /// A relay for one group, which it joins on the loopback interface while a gateway wants it.
    pub async fn start(group: SocketAddr) -> Relay {
        Relay::start_at(any_port(), group).await
    }

    /// The same at another address of this machine: to a gateway, another relay.
    pub async fn start_at(at: SocketAddr, group: SocketAddr) -> Relay {
        let socket = UdpSocket::bind(at).await.unwrap();
        let addr = socket.local_addr().unwrap();
        let forwarded = Arc::new(AtomicU64::new(0));
        let limited = Arc::new(AtomicBool::new(false));
        let gateways = Arc::new(Mutex::new(Vec::new()));
        let own = gateways.clone();
        let task = serve(socket, group, forwarded.clone(), limited.clone(), own);
        let task = tokio::spawn(task);
        Relay {
            addr,
            forwarded,
            limited,
            gateways,
            task,
        }
    }
}

async fn serve(
    socket: UdpSocket,
    group: SocketAddr,
    forwarded: Arc<AtomicU64>,
    limited: Arc<AtomicBool>,
    gateways: Arc<Mutex<Vec<SocketAddr>>>,
) {
    let source = any_port().ip();
    let native = netio::join(group, Some(source), Some(source)).unwrap();
    // Members of the group: the last report of each gateway counts.
    let mut wanted: BTreeMap<SocketAddr, bool> = BTreeMap::new();
    let (mut batch, mut buffer) = (RecvBatch::new(), [0; 2048]);
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => {
                let Ok((len, from)) = received else { continue };
                match Message::parse(&buffer[..len]) {
                    Ok(Message::Request { nonce, mld: false }) => {
                        let query = GeneralQuery {
                            qrv: 2,
                            // Asked again soon, so that it can say that it is limited now.
                            qqic: Duration::from_secs(2),
                            max_response: Duration::from_secs(1),
                        };
                        let (mut packet, mut answer) = (Vec::new(), Vec::new());
                        write_query(false, socket.local_addr().unwrap().ip(), &query, &mut packet);
                        let message = Message::Query {
                            limited: limited.load(Ordering::Relaxed),
                            mac: Mac([7; 6]),
                            nonce,
                            packet: &packet,
                            gateway: None,
                        };
                        message.encode(&mut answer);
                        let _ = socket.send_to(&answer, from).await;
                    }
                    Ok(Message::Update { mac: Mac([7, 7, 7, 7, 7, 7]), packet, .. }) => {
                        for record in parse_report(packet).unwrap() {
                            if record.group == group.ip() {
                                gateways.lock().unwrap().push(from);
                                wanted.insert(from, record.kind != RecordKind::Block);
                            }
                        }
                    }
                    _ => {}
                }
            }
            ready = native.readable() => {
                ready.unwrap();
                let mut inside = Vec::new();
                let _ = native.try_recv(&mut batch, |datagram| {
                    let mut template = UdpTemplate::new(datagram.from, group).unwrap();
                    let mut packet = [0; 2048];
                    let len = template.write(datagram.data, 16, 0, &mut packet);
                    let mut out = Vec::new();
                    Message::Data { packet: &packet[..len] }.encode(&mut out);
                    inside.push(out);
                });
                for (to, _) in wanted.iter().filter(|(_, wants)| **wants) {
                    for packet in &inside {
                        forwarded.fetch_add(1, Ordering::Relaxed);
                        let _ = socket.send_to(packet, *to).await;
                    }
                }
            }
        }
    }
}
