//! Bytes that a source sends to addresses that are not validated (RFC 9000 section 8.1).

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use boring::ssl::{SslContextBuilder, SslMethod};
use flexicast_tokio::spki_pin;

use crate::site::Site;
use crate::site::proxy::{Direction, lossy};

/// A client's end of a handshake whose datagrams are carried by hand.
struct Client {
    conn: quiche::Connection,
    socket: UdpSocket,
    server: SocketAddr,
    sent: usize,
    received: usize,
}

impl Client {
    fn new(server: SocketAddr) -> Self {
        // Without a post-quantum key share, the first flight is one datagram.
        let mut tls = SslContextBuilder::new(SslMethod::tls()).unwrap();
        tls.set_curves_list("X25519").unwrap();
        let version = quiche::PROTOCOL_VERSION;
        let mut config = quiche::Config::with_boring_ssl_ctx_builder(version, tls).unwrap();
        config.set_application_protos(&[b"flexfeed/1"]).unwrap();
        config.verify_peer(false);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let local = socket.local_addr().unwrap();
        let scid = quiche::ConnectionId::from_ref(&[0x77; 16]);
        let conn = quiche::connect(None, &scid, local, server, &mut config).unwrap();
        Client {
            conn,
            socket,
            server,
            sent: 0,
            received: 0,
        }
    }

    /// Sends what quiche has to send.
    fn send(&mut self) {
        let mut out = [0; 1400];
        while let Ok((len, _)) = self.conn.send(&mut out) {
            self.socket.send_to(&out[..len], self.server).unwrap();
            self.sent += len;
        }
    }

    /// Counts what arrives, and takes it to quiche where it is to be answered.
    fn receive(&mut self, until: Instant, answer: bool) {
        let mut buffer = [0; 2048];
        while Instant::now() < until {
            let Ok((len, from)) = self.socket.recv_from(&mut buffer) else {
                continue;
            };
            self.received += len;
            assert!(
                self.received <= 3 * self.sent,
                "{} bytes for {}",
                self.received,
                self.sent
            );
            if answer {
                let to = self.socket.local_addr().unwrap();
                let info = quiche::RecvInfo { from, to };
                let _ = self.conn.recv(&mut buffer[..len], info);
                return;
            }
        }
    }
}

/// Longer than a source waits for a handshake, with all the probes that it sends meanwhile.
const WHOLE: Duration = Duration::from_secs(11);

/// A first packet in another host's name brings that address three times its bytes at most,
/// however often the source repeats its answer; so does a second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_address_gets_at_most_three_times_its_bytes() {
    let site = Site::new();
    let source = site.source().await;
    let addr = source.addr;
    let once = tokio::task::spawn_blocking(move || {
        let mut client = Client::new(addr);
        client.send();
        client.receive(Instant::now() + WHOLE, false);
        client
    });
    let twice = tokio::task::spawn_blocking(move || {
        let mut client = Client::new(addr);
        let begun = Instant::now();
        client.send();
        client.receive(begun + WHOLE / 3, false);
        client.conn.on_timeout();
        client.send();
        client.receive(begun + WHOLE, false);
        client
    });
    for client in [once.await.unwrap(), twice.await.unwrap()] {
        assert!(
            client.sent == 1200 || client.sent == 2400,
            "{}",
            client.sent
        );
        assert!(client.received > 0);
        assert!(client.received <= 3 * client.sent);
    }
    source
        .until("the handshakes are given up", |s| {
            s.counters.handshakes_abandoned == 2
        })
        .await;
}

/// A certificate chain that takes several datagrams more than an unproved address may be sent.
fn with_large_chain() -> Site {
    let mut site = Site::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let name = |i: u32| format!("a-rather-long-name-to-fill-the-certificate-{i}.example");
    let cert = rcgen::CertificateParams::new((0..200).map(name).collect::<Vec<_>>())
        .unwrap()
        .self_signed(&key)
        .unwrap();
    assert!(cert.der().len() > 10_000);
    std::fs::write(site.path("cert.pem"), cert.pem()).unwrap();
    std::fs::write(site.path("key.pem"), key.serialize_pem()).unwrap();
    site.pin = spki_pin(cert.der()).unwrap();
    site
}

async fn connects(site: &Site, lose: fn(Direction, u32) -> bool) {
    let source = site.source().await;
    let path = lossy(source.addr, lose).await;
    let mut probe = site.receiver(path);
    let head = site.store.head("lore");
    site.publish(&source.handle, 5).await;
    probe.until_seq(head + 5).await;
    source.handle.shutdown().await;
}

/// Datagrams that are held back leave when the receiver is heard again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_with_losses_are_completed() {
    let site = Site::new();
    // The receiver's answer to the source's first flight; that flight; every second datagram.
    connects(&site, |way, n| {
        way == Direction::ToSource && (2..=3).contains(&n)
    })
    .await;
    connects(&site, |way, n| way == Direction::ToReceiver && n <= 2).await;
    connects(&site, |_, n| n <= 6 && n % 2 == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_certificate_chain_arrives() {
    let site = with_large_chain();
    connects(&site, |_, _| false).await;
    connects(&site, |way, n| way == Direction::ToSource && n == 2).await;
    connects(&site, |way, n| {
        way == Direction::ToReceiver && (2..=4).contains(&n)
    })
    .await;
    connects(&site, |_, n| n <= 9 && n % 3 == 0).await;
}
