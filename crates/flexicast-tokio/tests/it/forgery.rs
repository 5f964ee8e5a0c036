//! A member that has the flow's key sends packets in the source's name, over real sockets.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use flexicast::control::{
    Action, Control, ControlReader, Credential, Hello, Key, Need, NeedReason, State,
};
use flexicast::frame::put_stream;
use flexicast::protect::{Algorithm, HEADER_LEN, OVERHEAD, PacketKey};
use flexicast::signing::{Era, Lineage, Signer};
use flexicast::{PathId, Via};
use flexicast_tokio::Rung;
use flexicast_tokio::receiver::{Event, Validity};
use flexicast_tokio::source::{HistoryEventKind, UNVERIFIED};
use netio::MulticastSender;

use uuid::Uuid;

use crate::site::{LIMIT, Site, body};

fn is_body(seq: u64, encoded: &[u8]) -> Validity {
    (body("lore", seq) == encoded).into()
}

/// A connection of its own, by which it is given the key.
struct Member {
    socket: UdpSocket,
    conn: quiche::Connection,
    control: ControlReader,
    key: Option<Key>,
    said: bool,
}

impl Member {
    fn connect(server: SocketAddr) -> Self {
        let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION).unwrap();
        config.set_application_protos(&[b"flexfeed/1"]).unwrap();
        config.verify_peer(false);
        config.enable_dgram(true, 10, 10);
        config.set_initial_max_data(1 << 20);
        config.set_initial_max_stream_data_bidi_local(1 << 20);
        config.set_initial_max_stream_data_uni(1 << 20);
        config.set_initial_max_streams_uni(1000);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let wait = Duration::from_millis(5);
        socket.set_read_timeout(Some(wait)).unwrap();
        let id = quiche::ConnectionId::from_ref(&[0x66; 16]);
        let local = socket.local_addr().unwrap();
        let conn = quiche::connect(None, &id, local, server, &mut config).unwrap();
        Member {
            socket,
            conn,
            control: ControlReader::new(),
            key: None,
            said: false,
        }
    }

    fn say(&mut self, frame: &Control) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        assert_eq!(self.conn.stream_send(0, &bytes, false), Ok(bytes.len()));
    }

    /// Keeps the connection alive: a member that goes makes the source change the key.
    fn pump(&mut self) {
        let mut buffer = [0; 2000];
        let to = self.socket.local_addr().unwrap();
        while let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            let info = quiche::RecvInfo { from, to };
            let _ = self.conn.recv(&mut buffer[..len], info);
        }
        self.conn.on_timeout();
        if self.conn.is_established() && !std::mem::replace(&mut self.said, true) {
            self.say(&Control::Hello(Hello {
                receiver: Uuid::new_v4(),
                name: "forger".into(),
                software: "test".into(),
                credential: Credential::Enrol {
                    token: b"good".to_vec(),
                    secret: [6; 32],
                    instance: [6; 8],
                },
                channels: vec![("lore".into(), None)],
                capabilities: Vec::new(),
            }));
        }
        while let Ok((len, _)) = self.conn.stream_recv(0, &mut buffer) {
            self.control.push(&buffer[..len]);
        }
        while let Some(frame) = self.control.next_frame().unwrap() {
            match frame {
                Control::Announce(announce) => self.say(&Control::State(State {
                    flow: announce.flow,
                    sequence: 1,
                    action: Action::Join,
                    path: PathId::UNICAST,
                    key_sequence: 0,
                    cause: None,
                    largest: None,
                })),
                Control::Key(key) => self.key = Some(key),
                _ => {}
            }
        }
        while let Some(stream) = self.conn.stream_readable_next() {
            while self.conn.stream_recv(stream, &mut buffer).is_ok() {}
        }
        while let Ok((len, info)) = self.conn.send(&mut buffer) {
            self.socket.send_to(&buffer[..len], info.to).unwrap();
        }
    }

    /// A packet with a number that was used before: receivers take its bytes all the same.
    fn forge(&self, frames: &[u8]) -> Vec<u8> {
        let key = self.key.as_ref().unwrap();
        let algorithm = Algorithm::from_suite(key.algorithm).unwrap();
        let mut sealer = PacketKey::new(algorithm, &key.secret).unwrap();
        let mut packet = vec![0; frames.len() + OVERHEAD];
        let end = HEADER_LEN + frames.len();
        packet[HEADER_LEN..end].copy_from_slice(frames);
        let phase = key.sequence & 1 == 1;
        let pn = key.first_pn;
        sealer.seal(key.flow, pn, phase, &mut packet, end).unwrap();
        packet
    }
}

/// Ten forged bytes at the beginning of every third update: none is lost, and the member
/// stays on the flow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_bytes_are_fetched_again_by_unicast() {
    let site = Site::new();
    let source = site.source().await;
    let mut probe = site.start_receiver(flexicast_tokio::receiver::ReceiverConfig {
        check: Some(is_body),
        ..site.receiver_config(source.addr)
    });
    probe.until_rung(Rung::Multicast).await;
    let mut member = Member::connect(source.addr);
    let begun = Instant::now();
    while member.key.is_none() {
        tokio::task::block_in_place(|| member.pump());
        assert!(begun.elapsed() < LIMIT, "no key");
    }
    let sender = MulticastSender::bind(Ipv4Addr::LOCALHOST.into(), 1, true).unwrap();
    let mut doubted = Vec::new();
    while doubted.len() < 3 {
        assert!(begun.elapsed() < LIMIT, "nothing is doubted");
        let seq = site.store.head("lore") + 1;
        if seq % 3 == 1 {
            let mut frames = Vec::new();
            put_stream(&mut frames, 1100, seq, 0, &[0xee; 10], false).unwrap();
            let packet = member.forge(&frames);
            sender.send(site.group(0), &packet, None).await.unwrap();
        }
        tokio::task::block_in_place(|| member.pump());
        site.publish(&source.handle, 1).await;
        // The probe checks that each update is the source's.
        loop {
            match probe.event().await {
                Event::Distrusted { found, .. } => doubted.push(found.seq),
                Event::Update { seq: got, via, .. } if got == seq => {
                    if doubted.contains(&seq) {
                        assert_eq!(via, Via::Unicast, "update {seq}");
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    assert!(doubted.iter().all(|seq| seq % 3 == 1), "{doubted:?}");
    assert_eq!(probe.disconnected, [] as [String; 0]);
    assert_eq!(probe.rung_of("lore"), Rung::Multicast);
    let counters = source.status().await.counters;
    assert_eq!((counters.protocol.needs, counters.violations), (3, 0));
}

/// A receiver of a version before signatures asks for a forged update: the source keeps it on
/// unicast, knows why, and reports who asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_of_forged_updates_name_the_receiver() {
    let site = Site::new();
    let mut config = site.config(crate::site::any_port());
    let era = Era {
        first: 1,
        last: None,
        incarnation: site.incarnation,
        key: Signer::from_seed(&[1; 32]).unwrap().key(),
    };
    config.channels[0].lineage = Lineage::new(vec![era]).unwrap();
    let source = site.start(config).await;
    let mut member = Member::connect(source.addr);
    let begun = Instant::now();
    let cause = loop {
        tokio::task::block_in_place(|| member.pump());
        let status = source.status().await;
        if let Some(receiver) = status.receivers.first() {
            break receiver.channels[0].cause.clone();
        }
        assert!(begun.elapsed() < LIMIT, "not connected");
    };
    assert_eq!(cause.as_deref(), Some(UNVERIFIED));
    for _ in 0..3 {
        member.say(&Control::Need(Need {
            channel: 1,
            seq: 1,
            offset: 0,
            length: None,
            reason: NeedReason::Forged as u64,
        }));
    }
    while source.status().await.counters.protocol.forged_reports < 3 {
        tokio::task::block_in_place(|| member.pump());
        assert!(begun.elapsed() < LIMIT, "not reported");
    }
    let history = source.handle.history(0).await.unwrap();
    let reports: Vec<_> = history
        .events
        .iter()
        .filter_map(|event| match &event.what {
            HistoryEventKind::Reported(step) => Some(step),
            _ => None,
        })
        .collect();
    let [report] = reports[..] else {
        panic!("one in five minutes: {reports:?}");
    };
    let rungs = (report.from.as_str(), report.to.as_str());
    assert_eq!(rungs, ("unicast", "unicast"));
    let what = (report.channel.as_str(), report.cause.as_str());
    assert_eq!(what, ("lore", "forged"));
    assert_eq!(report.name, "forger");
}
