//! Peers that do what no peer should.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use flexicast_tokio::Rung;
use quiche::{ConnectionId, PROTOCOL_VERSION, RecvInfo, Shutdown};

use crate::site::{LIMIT, Site};

/// Returns the first packets of handshakes that never continue.
fn first_packets(server: SocketAddr, count: u32) -> Vec<Vec<u8>> {
    let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION).unwrap();
    config.set_application_protos(&[b"flexfeed/1"]).unwrap();
    let local = "127.0.0.1:9".parse().unwrap();
    let first = |number: u32| {
        let mut id = [0x77; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        let scid = quiche::ConnectionId::from_ref(&id);
        let mut conn = quiche::connect(None, &scid, local, server, &mut config).unwrap();
        let mut out = vec![0; 1300];
        let (len, _) = conn.send(&mut out).unwrap();
        out.truncate(len);
        out
    };
    (0..count).map(first).collect()
}

/// Handshakes that are begun and abandoned do not fill the table: past a number of them, an address
/// has to be proved first, which a receiver does without noticing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_handshakes_exclude_no_receiver() {
    let site = Site::new();
    let source = site.source().await;
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    let packets = first_packets(source.addr, 600);
    let begun = Instant::now();
    let counters = loop {
        for (number, packet) in packets.iter().enumerate() {
            flood.send_to(packet, source.addr).unwrap();
            if number % 50 == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        // Packets beyond its socket buffer are lost.
        let counters = source.status().await.counters;
        if counters.retries >= 100 {
            break counters;
        }
        assert!(begun.elapsed() < LIMIT, "{counters:?}");
    };
    let open = counters.handshakes - counters.handshakes_abandoned;
    assert!(open <= 100, "{counters:?}");
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    site.publish(&source.handle, 50).await;
    probe.until_seq(50).await;
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
    source
        .until("abandoned handshakes end", |s| {
            s.counters.handshakes_abandoned > 0
        })
        .await;
}

/// Packets for connections that never were provoke a bounded number of resets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_are_bounded_and_counted() {
    let site = Site::new();
    let source = site.source().await;
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    let noise = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut packet = [0x41; 60];
    for number in 0..3000u32 {
        packet[5..9].copy_from_slice(&number.to_be_bytes());
        noise.send_to(&packet, source.addr).unwrap();
    }
    site.publish(&source.handle, 20).await;
    probe.until_seq(20).await;
    source
        .until("some are withheld", |s| {
            s.counters.resets > 0 && s.counters.resets_withheld > 0
        })
        .await;
}

/// Packets of unknown versions get a bounded number of answers, each smaller than its packet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_negotiations_are_bounded() {
    let site = Site::new();
    let source = site.source().await;
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut packet = first_packets(source.addr, 1).remove(0);
    packet[1..5].copy_from_slice(&0x1a2a_3a4a_u32.to_be_bytes());
    let begun = Instant::now();
    for number in 0..3000 {
        flood.send_to(&packet, source.addr).unwrap();
        if number % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    source
        .until("some are not answered", |s| s.counters.stray_datagrams > 0)
        .await;
    flood.set_nonblocking(true).unwrap();
    let (mut answers, mut buffer) = (0, [0; 2048]);
    while let Ok(len) = flood.recv(&mut buffer) {
        assert!(len < packet.len() && buffer[1..5] == [0; 4], "{len}");
        answers += 1;
    }
    assert!(answers > 0);
    let most = 200 * (begun.elapsed().as_secs() + 2);
    assert!(answers <= most, "{answers} of {most}");
}

/// An end of a connection that is driven by hand.
struct Raw {
    conn: quiche::Connection,
    socket: UdpSocket,
}

fn raw_config() -> quiche::Config {
    let mut config = quiche::Config::new(PROTOCOL_VERSION).unwrap();
    config.set_application_protos(&[b"flexfeed/1"]).unwrap();
    config.verify_peer(false);
    config.set_initial_max_data(1 << 20);
    config.set_initial_max_stream_data_bidi_local(1 << 20);
    config.set_initial_max_stream_data_bidi_remote(1 << 20);
    config.set_initial_max_stream_data_uni(1 << 20);
    config.set_initial_max_streams_bidi(1);
    config.set_initial_max_streams_uni(100);
    config.enable_dgram(true, 10, 10);
    config
}

fn raw_socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let often = Duration::from_millis(10);
    socket.set_read_timeout(Some(often)).unwrap();
    socket
}

impl Raw {
    fn client(server: SocketAddr) -> Self {
        let socket = raw_socket();
        let (id, local) = (ConnectionId::from_vec(vec![7; 16]), socket.local_addr());
        let local = local.unwrap();
        let conn = quiche::connect(None, &id, local, server, &mut raw_config()).unwrap();
        Raw { conn, socket }
    }

    /// Waits for a client.
    fn server(socket: UdpSocket, site: &Site) -> Self {
        let mut config = raw_config();
        let path = |name| site.path(name).to_str().unwrap().to_owned();
        config
            .load_cert_chain_from_pem_file(&path("cert.pem"))
            .unwrap();
        config
            .load_priv_key_from_pem_file(&path("key.pem"))
            .unwrap();
        let mut buffer = [0; 2048];
        let (len, from) = loop {
            if let Ok(received) = socket.recv_from(&mut buffer) {
                break received;
            }
        };
        let (id, to) = (ConnectionId::from_vec(vec![9; 16]), socket.local_addr());
        let to = to.unwrap();
        let mut conn = quiche::accept(&id, None, to, from, &mut config).unwrap();
        conn.recv(&mut buffer[..len], RecvInfo { from, to })
            .unwrap();
        Raw { conn, socket }
    }

    fn until(&mut self, what: &str, done: impl Fn(&quiche::Connection) -> bool) {
        let begun = Instant::now();
        let mut buffer = [0; 2048];
        while !done(&self.conn) {
            assert!(begun.elapsed() < LIMIT, "not within the time: {what}");
            while let Ok((len, info)) = self.conn.send(&mut buffer) {
                self.socket.send_to(&buffer[..len], info.to).unwrap();
            }
            if let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
                let to = self.socket.local_addr().unwrap();
                let _ = self.conn.recv(&mut buffer[..len], RecvInfo { from, to });
            }
            if self.conn.timeout().is_some_and(|left| left.is_zero()) {
                self.conn.on_timeout();
            }
        }
    }

    /// Closes a direction of the control stream; returns the peer's error code.
    fn close_control(mut self, how: Close) -> u64 {
        match how {
            Close::Fin => drop(self.conn.stream_send(0, &[], true).unwrap()),
            Close::Reset => self.conn.stream_shutdown(0, Shutdown::Write, 5).unwrap(),
            Close::Stop => self.conn.stream_shutdown(0, Shutdown::Read, 5).unwrap(),
        }
        self.until("the peer closes the connection", |conn| {
            conn.peer_error().is_some()
        });
        let error = self.conn.peer_error().unwrap();
        assert!(error.is_app, "{error:?}");
        error.error_code
    }
}

#[derive(Debug, Clone, Copy)]
enum Close {
    Fin,
    Reset,
    Stop,
}

const PROTOCOL_VIOLATION: u64 = 1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_closes_the_control_stream_is_disconnected() {
    let site = Site::new();
    let source = site.source().await;
    for (number, how) in [Close::Fin, Close::Reset, Close::Stop]
        .into_iter()
        .enumerate()
    {
        let mut raw = Raw::client(source.addr);
        let code = tokio::task::spawn_blocking(move || {
            raw.until("the handshake", quiche::Connection::is_established);
            // A frame that is skipped: the stream is open.
            raw.conn.stream_send(0, &[0x5f, 0, 0], false).unwrap();
            raw.close_control(how)
        });
        assert_eq!(code.await.unwrap(), PROTOCOL_VIOLATION, "{how:?}");
        let violations = source.status().await.counters.violations;
        assert_eq!(violations, number as u64 + 1, "once for each");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_closes_the_control_stream_is_left() {
    let site = Site::new();
    for how in [Close::Fin, Close::Reset, Close::Stop] {
        let socket = raw_socket();
        let addr = socket.local_addr().unwrap();
        let mut probe = site.receiver(addr);
        let code = std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let mut raw = Raw::server(socket, &site);
                raw.until("a HELLO", |conn| conn.stream_readable(0));
                raw.close_control(how)
            });
            server.join().unwrap()
        });
        assert_eq!(code, PROTOCOL_VIOLATION, "{how:?}");
        let reason = probe.until_reason().await;
        assert!(reason.contains("control stream"), "{reason}");
    }
}
