//! Notifications to systemd.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use kit::wait;

use crate::running::{Feed, Running, source};

/// Notifications at a socket, read continuously on a thread of its own as systemd does.
fn notifications(socket: UnixDatagram) -> Arc<Mutex<String>> {
    let all = Arc::new(Mutex::new(String::new()));
    let keep = Arc::clone(&all);
    thread::spawn(move || {
        let mut datagram = [0; 4096];
        while let Ok(length) = socket.recv(&mut datagram) {
            let text = String::from_utf8_lossy(&datagram[..length]);
            keep.lock().unwrap().push_str(&text);
        }
    });
    all
}

/// A source with a short watchdog interval.
fn telling(folder: &Path, place: &Path) -> Command {
    let mut command = source(&folder.join("data"), &Feed::with(1));
    command
        .env("NOTIFY_SOCKET", place)
        .env("WATCHDOG_USEC", "600000");
    command
}

#[test]
fn systemd_is_notified_of_the_status() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("notify");
    let said = notifications(UnixDatagram::bind(&place).unwrap());
    let mut running = Running::start(telling(folder.path(), &place));
    let until = |running: &mut Running, what: &str| {
        running.until(what, |_| said.lock().unwrap().contains(what));
    };
    until(&mut running, "READY=1");
    until(&mut running, "STATUS=publishing 1 channels");
    until(&mut running, "WATCHDOG=1");
    running.signal(rustix::process::Signal::HUP);
    until(&mut running, "RELOADING=1");
    until(&mut running, "MONOTONIC_USEC=");
    let (code, log, _) = running.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
    // Sent before the end; the thread reads it soon.
    wait::until("STOPPING=1", || said.lock().unwrap().contains("STOPPING=1"));
}

/// The source serves and ends all the same, and so soon.
#[test]
fn a_stuck_notify_socket_never_blocks_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("notify");
    let _unread = UnixDatagram::bind(&place).unwrap();
    // One message by each socket, for those have bounds of their own.
    let has_room = || {
        let socket = UnixDatagram::unbound().unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.connect(&place).unwrap();
        socket.send(b"X=1\n").is_ok()
    };
    while has_room() {}
    let mut running = Running::start(telling(folder.path(), &place));
    running.until("ready", |running| running.page("/readyz").0 == 200);
    let (code, log, _) = running.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
    assert!(!log.contains("not everything was closed"), "{log}");
}
