//! Real QUIC and real multicast on the loopback interface.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::receiver::{Event, Receiver, ReceiverConfig, ReceiverHandle, Verify};
use flexicast_tokio::source::{
    Backlog, BoxError, Denied, FlowEndpoint, Sabotage, Source, SourceConfig, SourceHandle,
};
use flexicast_tokio::{Cursor, Rung, Via, spki_pin};
use tokio::sync::mpsc;
use tokio::time::timeout;
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Store {
    updates: Mutex<BTreeMap<u64, Bytes>>,
    /// Asked so often.
    reads: AtomicU64,
}

#[async_trait]
impl Backlog for Store {
    async fn updates(
        &self,
        from: u64,
        limit: usize,
        _max_bytes: usize,
    ) -> Result<Vec<(u64, Bytes)>, BoxError> {
        // The first read fails: the source has to ask again.
        if self.reads.fetch_add(1, Ordering::Relaxed) == 0 {
            return Err("the disk is on holiday".into());
        }
        Ok(self
            .updates
            .lock()
            .unwrap()
            .range(from..)
            .take(limit)
            .map(|(seq, b)| (*seq, b.clone()))
            .collect())
    }

    async fn authorise(&self, token: &[u8], _receiver: Uuid, _name: &str) -> Result<(), Denied> {
        if token == b"good" {
            Ok(())
        } else {
            Err(Denied::Token("this token is not valid".into()))
        }
    }
}

struct Site {
    folder: tempfile::TempDir,
    pin: [u8; 32],
    store: Arc<Store>,
    incarnation: Uuid,
    group: SocketAddrV4,
}

fn body(seq: u64) -> Bytes {
    (0..seq as usize * 211 % 9000 + 1)
        .map(|i| (i as u64 + seq) as u8)
        .collect::<Vec<_>>()
        .into()
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = rcgen::CertificateParams::new(vec!["localhost".into()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        std::fs::write(folder.path().join("cert.pem"), cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        let pin = spki_pin(cert.der()).unwrap();
        let incarnation = Uuid::new_v4();
        let host = incarnation.as_bytes();
        // Tests of one process run side by side: each has a group of its own.
        let group = SocketAddrV4::new(
            Ipv4Addr::new(232, 70, host[0], host[1]),
            20_000 + u16::from(host[2]),
        );
        Site {
            folder,
            pin,
            store: Arc::default(),
            incarnation,
            group,
        }
    }

    async fn source(
        &self,
        listen: SocketAddr,
        asm: bool,
    ) -> (SourceHandle, SocketAddr, tokio::task::JoinHandle<()>) {
        let head = self
            .store
            .updates
            .lock()
            .unwrap()
            .keys()
            .next_back()
            .copied()
            .unwrap_or(0);
        let config = SourceConfig {
            listen,
            cert: self.folder.path().join("cert.pem"),
            key: self.folder.path().join("key.pem"),
            reset_key: [5; 32],
            channel: "lore".into(),
            incarnation: self.incarnation,
            head,
            first: 1,
            flow: Some(FlowEndpoint {
                group: self.group,
                interface: Ipv4Addr::LOCALHOST,
                asm,
                ttl: 1,
            }),
            rate_bps: 50_000_000,
            ack_delay: Duration::from_millis(25),
            fall_back: Duration::from_millis(150),
            heartbeat: Duration::from_millis(300),
            sabotage: Sabotage::default(),
        };
        let source = Source::bind(config, self.store.clone()).await.unwrap();
        let (handle, addr) = (source.handle(), source.local_addr());
        (
            handle,
            addr,
            tokio::spawn(async move { source.run().await.unwrap() }),
        )
    }

    async fn publish(&self, handle: &SourceHandle, count: u64) {
        for _ in 0..count {
            let seq = self.store.updates.lock().unwrap().len() as u64 + 1;
            self.store.updates.lock().unwrap().insert(seq, body(seq));
            handle.publish(seq, body(seq)).await;
        }
    }

    fn receiver(&self, server: SocketAddr, cursor: Option<u64>) -> Probe {
        self.receiver_with(
            server,
            cursor,
            b"good",
            Verify::Pins(vec![[0; 32], self.pin]),
            true,
        )
    }

    fn receiver_with(
        &self,
        server: SocketAddr,
        cursor: Option<u64>,
        token: &[u8],
        verify: Verify,
        multicast: bool,
    ) -> Probe {
        let cursor = cursor.map(|seq| Cursor {
            incarnation: self.incarnation,
            seq,
        });
        let (handle, events) = Receiver::start(ReceiverConfig {
            server: server.to_string(),
            verify,
            token: token.to_vec(),
            receiver_id: Uuid::new_v4(),
            name: "probe".into(),
            software: "test".into(),
            channels: vec![("lore".into(), cursor)],
            interface: Some(Ipv4Addr::LOCALHOST),
            multicast,
            sabotage_dedupe_off: false,
        });
        Probe {
            handle,
            events,
            next: cursor.map_or(1, |c| c.seq + 1),
            via: Vec::new(),
            rung: Rung::Unicast,
            incarnation: self.incarnation,
        }
    }
}

struct Probe {
    handle: ReceiverHandle,
    events: mpsc::Receiver<Event>,
    next: u64,
    via: Vec<Via>,
    rung: Rung,
    incarnation: Uuid,
}

impl Probe {
    async fn event(&mut self) -> Event {
        let event = timeout(LIMIT, self.events.recv())
            .await
            .expect("an event in time")
            .expect("a running receiver");
        if let Event::Update {
            seq,
            encoded,
            via,
            incarnation,
            ..
        } = &event
        {
            assert_eq!(
                (*seq, *incarnation),
                (self.next, self.incarnation),
                "each once and in order"
            );
            assert_eq!(*encoded, body(*seq));
            self.next += 1;
            self.via.push(*via);
            self.handle.confirm(
                "lore",
                Cursor {
                    incarnation: *incarnation,
                    seq: *seq,
                },
            );
        }
        match &event {
            Event::Rung { rung, .. } => self.rung = *rung,
            Event::Disconnected { .. } => self.rung = Rung::Unicast,
            _ => {}
        }
        event
    }

    async fn until_rung(&mut self, wanted: Rung) {
        while self.rung != wanted {
            self.event().await;
        }
    }

    async fn until_seq(&mut self, seq: u64) {
        while self.next <= seq {
            self.event().await;
        }
    }

    async fn until_reason(&mut self) -> String {
        loop {
            if let Event::Disconnected { reason, .. }
            | Event::Refused {
                reason,
                fatal: true,
                ..
            } = self.event().await
            {
                return reason;
            }
        }
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_get_updates_by_the_flow_and_catch_up_from_the_store() {
    for asm in [false, true] {
        let site = Site::new();
        let (handle, addr, _) = site.source(any_port(), asm).await;
        let mut first = site.receiver(addr, None);
        first.until_rung(Rung::Multicast).await;
        site.publish(&handle, 300).await;
        first.until_seq(300).await;
        let by_flow = first.via.iter().filter(|v| **v == Via::Flow).count();
        assert!(by_flow >= 280, "{by_flow} of 300 by the flow (asm {asm})");
        // One that was away for long: everything from the store, then the flow.
        site.publish(&handle, 2000).await;
        let mut late = site.receiver(addr, Some(5));
        late.until_seq(2300).await;
        late.until_rung(Rung::Multicast).await;
        first.until_seq(2300).await;
        let cursor = loop {
            let status = handle.status().await.unwrap();
            assert_eq!((status.head, status.receivers.len()), (2300, 2));
            let cursors: Vec<_> = status.receivers.iter().filter_map(|r| r.cursor).collect();
            if cursors == [2300, 2300] {
                break cursors;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!(cursor.len(), 2, "cursors arrive");
        first.handle.shutdown().await;
        late.handle.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_source_is_noticed_by_its_reset_and_nothing_is_lost() {
    let site = Site::new();
    let (handle, addr, task) = site.source(any_port(), false).await;
    let mut probe = site.receiver(addr, None);
    probe.until_rung(Rung::Multicast).await;
    site.publish(&handle, 50).await;
    probe.until_seq(50).await;
    // As by kill -9: no goodbye.
    task.abort();
    let _ = task.await;
    let (handle, _, _) = site.source(addr, false).await;
    site.publish(&handle, 50).await;
    let reason = probe.until_reason().await;
    assert!(reason.contains("restarted"), "{reason}");
    probe.until_seq(100).await;
    probe.until_rung(Rung::Multicast).await;
    handle.shutdown().await;
    let reason = probe.until_reason().await;
    assert!(reason.contains("shuts down"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_token_and_a_wrong_pin_are_named() {
    let site = Site::new();
    let (handle, addr, _) = site.source(any_port(), false).await;
    let mut wrong = site.receiver_with(addr, None, b"bad", Verify::Pins(vec![site.pin]), true);
    let reason = wrong.until_reason().await;
    assert!(reason.contains("this token is not valid"), "{reason}");
    let mut wrong = site.receiver_with(addr, None, b"good", Verify::Pins(vec![[1; 32]]), true);
    let reason = wrong.until_reason().await;
    assert!(reason.contains("wrong pin"), "{reason}");
    let mut wrong = site.receiver_with(addr, None, b"good", Verify::Roots, true);
    let reason = wrong.until_reason().await;
    assert!(!reason.is_empty());
    let status = handle.status().await.unwrap();
    assert_eq!(
        (status.receivers.len(), status.counters.refused),
        (0, 1),
        "no token was shown to a source with another key"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_disturbs_nobody_and_unicast_alone_is_enough() {
    let site = Site::new();
    let (handle, addr, _) = site.source(any_port(), false).await;
    let mut member = site.receiver(addr, None);
    let mut unicast = site.receiver_with(addr, None, b"good", Verify::Insecure, false);
    member.until_rung(Rung::Multicast).await;
    let flow = handle.status().await.unwrap().flow.unwrap();
    let id: Vec<u8> = (0..8)
        .map(|i| u8::from_str_radix(&flow.id[i * 2..i * 2 + 2], 16).unwrap())
        .collect();
    let noise = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut seed = 1u32;
    for round in 0..500 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut junk: Vec<u8> = (0..(seed >> 20) as usize % 1300)
            .map(|i| (seed >> (i % 24)) as u8 ^ i as u8)
            .collect();
        noise.send_to(&junk, addr).unwrap();
        if junk.len() > 20 {
            junk[0] = 0x40;
            junk[1..9].copy_from_slice(&id);
        }
        let _ = noise.send_to(&junk, site.group);
        if round % 50 == 0 {
            site.publish(&handle, 5).await;
        }
    }
    member.until_seq(50).await;
    unicast.until_seq(50).await;
    assert!(unicast.via.iter().all(|v| *v == Via::Unicast));
    assert!(member.via.iter().filter(|v| **v == Via::Flow).count() >= 40);
    let status = handle.status().await.unwrap();
    assert_eq!(status.receivers.len(), 2);
    assert!(status.counters.stray_datagrams > 0);
}

/// An application that does not read events stops the transport, and loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_application_loses_nothing() {
    let site = Site::new();
    let (handle, addr, _) = site.source(any_port(), false).await;
    let mut probe = site.receiver(addr, None);
    probe.until_rung(Rung::Multicast).await;
    site.publish(&handle, 1500).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    probe.until_seq(1500).await;
}
