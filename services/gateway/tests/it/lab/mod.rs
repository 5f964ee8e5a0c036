//! Emulated relay, the program, and namespaces.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use amt::ip::{Udp, write_udp};
use amt::report::{GeneralQuery, RecordKind, parse_report, write_query};
use amt::{Mac, Message};

pub const PATIENCE: Duration = Duration::from_secs(30);

/// Program that is stopped with the test.
pub struct Program(pub Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Relay for one gateway, on loopback: reports the gateway's address and requests.
pub struct Relay {
    pub socket: UdpSocket,
    pub addr: SocketAddr,
}

pub enum RelayEvent {
    Wants(SocketAddr, Vec<(RecordKind, String)>),
    Teardown,
}

impl Relay {
    pub fn new() -> Self {
        Self::at("127.0.0.1:0")
    }

    pub fn at(address: &str) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let addr = socket.local_addr().unwrap();
        Relay { socket, addr }
    }

    /// Answers Requests until another message arrives.
    pub fn next_event(&self) -> RelayEvent {
        let mut buffer = [0; 2048];
        loop {
            let (len, from) = self.socket.recv_from(&mut buffer).expect("nothing came");
            match Message::parse(&buffer[..len]).unwrap() {
                Message::Request { nonce, mld } => {
                    let (mut packet, mut out) = (Vec::new(), Vec::new());
                    let own = if mld { "fe80::1" } else { "192.0.2.1" };
                    write_query(
                        mld,
                        own.parse().unwrap(),
                        &GeneralQuery::DEFAULT,
                        &mut packet,
                    );
                    Message::Query {
                        limited: false,
                        mac: Mac([5; 6]),
                        nonce,
                        packet: &packet,
                        gateway: Some(from),
                    }
                    .encode(&mut out);
                    self.socket.send_to(&out, from).unwrap();
                }
                Message::Update { packet, .. } => {
                    let records = parse_report(packet).unwrap();
                    let wants = records.into_iter().map(|r| {
                        let sources: Vec<_> = r.sources.iter().map(ToString::to_string).collect();
                        (r.kind, format!("{} {}", sources.join(","), r.group))
                    });
                    return RelayEvent::Wants(from, wants.collect());
                }
                Message::Teardown { .. } => return RelayEvent::Teardown,
                other => panic!("a relay got {other:?}"),
            }
        }
    }

    /// Waits for a Request, and leaves it unanswered.
    pub fn is_asked(&self) {
        let mut buffer = [0; 2048];
        loop {
            let (len, _) = self.socket.recv_from(&mut buffer).expect("nothing came");
            if let Ok(Message::Request { .. }) = Message::parse(&buffer[..len]) {
                return;
            }
        }
    }

    pub fn send(&self, to: SocketAddr, from: &str, group: &str, payload: &[u8]) {
        let (mut packet, mut out) = (Vec::new(), Vec::new());
        let udp = Udp {
            from: from.parse().unwrap(),
            to: group.parse().unwrap(),
            ttl: 9,
            payload,
        };
        assert!(write_udp(&udp, 0, &mut packet));
        Message::Data { packet: &packet }.encode(&mut out);
        self.socket.send_to(&out, to).unwrap();
    }
}

/// Starts the program, with this relay.
pub fn gateway(relay: &Relay, more: &[&str]) -> Program {
    let relay = relay.addr.to_string();
    program(&[&["--relay", &relay], more].concat())
}

/// Starts the program.
pub fn program(arguments: &[&str]) -> Program {
    let child = Command::new(env!("CARGO_BIN_EXE_flexfeed-gateway"))
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Program(child)
}

/// Stops the program by SIGTERM; returns the exit code and the log.
pub fn end(mut program: Program) -> (Option<i32>, String) {
    let pid = program.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    let mut log = String::new();
    let mut stderr = program.0.stderr.take().unwrap();
    stderr.read_to_string(&mut log).unwrap();
    (program.0.wait().unwrap().code(), log)
}

/// Returns the lines of a program as they arrive.
pub fn lines(program: &mut Program) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::sync_channel(1000);
    let stdout = BufReader::new(program.0.stdout.take().unwrap());
    std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
