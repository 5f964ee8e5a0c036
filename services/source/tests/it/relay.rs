//! One address in front of several sources, as a load balancer has it: every new client gets the
//! next one.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The sockets that stand for clients.
type Clients = Arc<Mutex<HashMap<SocketAddr, Arc<UdpSocket>>>>;

/// A relay runs for as long as the test does.
pub struct Relay {
    pub address: SocketAddr,
}

impl Relay {
    pub fn to(sources: Vec<SocketAddr>) -> Self {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let address = socket.local_addr().unwrap();
        thread::spawn(move || {
            let clients = Clients::default();
            let mut turn = 0;
            let mut datagram = [0; 65_536];
            while let Ok((length, from)) = socket.recv_from(&mut datagram) {
                let known = clients.lock().unwrap().get(&from).cloned();
                let out = known.unwrap_or_else(|| {
                    turn += 1;
                    stand_for(from, sources[turn % sources.len()], &socket, &clients)
                });
                if out.send(&datagram[..length]).is_err() {
                    clients.lock().unwrap().remove(&from);
                }
            }
        });
        Self { address }
    }
}

/// Returns a socket towards a source; its answers go to the client. With a closed port, the
/// client's next datagram goes to the next source.
fn stand_for(
    client: SocketAddr,
    source: SocketAddr,
    front: &Arc<UdpSocket>,
    clients: &Clients,
) -> Arc<UdpSocket> {
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
    socket.connect(source).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let (front, back, all) = (Arc::clone(front), Arc::clone(&socket), Arc::clone(clients));
    all.lock().unwrap().insert(client, Arc::clone(&socket));
    thread::spawn(move || {
        let mut datagram = [0; 65_536];
        loop {
            match back.recv(&mut datagram) {
                Ok(length) => drop(front.send_to(&datagram[..length], client)),
                Err(error) => {
                    if error.kind() == ErrorKind::ConnectionRefused {
                        all.lock().unwrap().remove(&client);
                    }
                    return;
                }
            }
        }
    });
    socket
}
