//! What systemd is told.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::running::{Feed, Running, SOON, source};

struct Told {
    socket: UnixDatagram,
    all: String,
}

impl Told {
    fn until(&mut self, what: &str) {
        while !self.all.contains(what) {
            let mut datagram = [0; 4096];
            let length = match self.socket.recv(&mut datagram) {
                Ok(length) => length,
                Err(error) => panic!("no {what:?} in {}: {error}", self.all),
            };
            self.all += &String::from_utf8_lossy(&datagram[..length]);
            self.all += "\n";
        }
    }
}

#[test]
fn systemd_is_told_how_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("notify");
    let socket = UnixDatagram::bind(&place).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut told = Told {
        socket,
        all: String::new(),
    };
    let mut command = source(&folder.path().join("data"), &Feed::with(1));
    command
        .env("NOTIFY_SOCKET", &place)
        .env("WATCHDOG_USEC", "600000");
    let running = Running::start(command);
    told.until("READY=1");
    told.until("STATUS=publishing 1 channels");
    told.until("WATCHDOG=1");
    running.signal(rustix::process::Signal::HUP);
    told.until("RELOADING=1");
    told.until("MONOTONIC_USEC=");
    let (code, log, _) = running.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
    told.socket
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    told.until("STOPPING=1");
}
