//! A TCP connection that can be made to hang: nothing goes through, and nothing says so.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kit::wait::pause;

/// In front of a server, for as long as the test runs.
pub struct Pipe {
    pub address: SocketAddr,
    hangs: Arc<AtomicBool>,
}

impl Pipe {
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hangs = Arc::new(AtomicBool::new(false));
        let state = Arc::clone(&hangs);
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let Ok(far) = TcpStream::connect(server) else {
                    continue;
                };
                let ends = (near.try_clone().unwrap(), far.try_clone().unwrap());
                for (from, to) in [(near, far), (ends.1, ends.0)] {
                    let state = Arc::clone(&state);
                    thread::spawn(move || carry(from, to, &state));
                }
            }
        });
        Self { address, hangs }
    }

    /// Nothing goes through from now on, in either direction, or everything that waits does.
    pub fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, hangs: &AtomicBool) {
    let mut part = [0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut part) {
        while hangs.load(Ordering::SeqCst) {
            pause(Duration::from_millis(20));
        }
        if to.write_all(&part[..length]).is_err() {
            break;
        }
    }
    while hangs.load(Ordering::SeqCst) {
        pause(Duration::from_millis(20));
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
