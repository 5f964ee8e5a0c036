//! AMT relays announced to receivers: only while they answer.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use amt::report::{GeneralQuery, write_query};
use amt::{Mac, Message};
use flexicast_tokio::receiver::{Event, Relays};

use crate::receiving::{Listening, configuration};
use crate::running::{Feed, Running, program};

/// A relay that answers Requests while it is up, for as long as the test runs.
struct Answering {
    address: String,
    lives: Arc<AtomicBool>,
}

impl Answering {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let lives = Arc::new(AtomicBool::new(true));
        let still = Arc::clone(&lives);
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let Ok(Message::Request { nonce, mld }) = Message::parse(&buffer[..len]) else {
                    continue;
                };
                if !still.load(Ordering::Relaxed) {
                    continue;
                }
                let (mut packet, mut answer) = (Vec::new(), Vec::new());
                write_query(mld, address.ip(), &GeneralQuery::DEFAULT, &mut packet);
                let query = Message::Query {
                    limited: false,
                    mac: Mac([1; 6]),
                    nonce,
                    packet: &packet,
                    gateway: None,
                };
                query.encode(&mut answer);
                socket.send_to(&answer, from).unwrap();
            }
        });
        Self {
            address: address.to_string(),
            lives,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_live_relay_is_announced() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(1);
    let relay = Answering::start();
    let mut command = program();
    command.args(["run", "--feed", &feed.url, "--allow-private-feed"]);
    command.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.arg("--data").arg(folder.path());
    // A flow by multicast, of which nothing leaves this machine.
    command.args(["--group", "232.70.71.9:24571", "--flow-source", "127.0.0.1"]);
    command.args(["--multicast-ttl", "0", "--relay", &relay.address]);
    let mut running = Running::start(command);
    running.until("the relay lives", |running| {
        running.page("/status.json").1.contains("\"healthy\":true")
    });
    let up = |running: &Running, value: u8| {
        let line = format!(
            "flexfeed_source_relay_up{{relay=\"{}\"}} {value}\n",
            relay.address
        );
        running.page("/metrics").1.contains(&line)
    };
    assert!(up(&running, 1));
    assert!(running.log().contains("cannot reach"), "{}", running.log());

    let mut config = configuration(folder.path());
    config.amt = Some(Relays::default());
    let mut receiver = Listening::start(config);
    let expected = relay.address.clone();
    let found = |event: &Event| match event {
        Event::Relay {
            relay: Some(relay), ..
        } => Some(relay.to_string()),
        _ => None,
    };
    let found = receiver.until("the announced relay", found).await;
    assert_eq!(found, expected);

    relay.lives.store(false, Ordering::Relaxed);
    running.until("the relay is dead", |running| {
        running.page("/status.json").1.contains("\"healthy\":false")
    });
    assert!(up(&running, 0));
    let (code, page) = running.page("/readyz");
    assert!(
        code == 200 && page.contains("is not announced to receivers"),
        "{page}"
    );
    relay.lives.store(true, Ordering::Relaxed);
    running.until("it lives again", |running| up(running, 1));
    receiver.handle.shutdown().await;
    let (status, log, _) = running.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
}
