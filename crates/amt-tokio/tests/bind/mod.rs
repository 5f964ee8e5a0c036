//! A real name server: `named` of bind9, on a port of the loopback interface, with zones that the
//! test writes. If it is not installed, the test says so and passes; with the variable
//! `FLEXFEED_REQUIRE_PEERS` it fails.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Folders of the program that are not on the PATH of ordinary users.
const NAMED: [&str; 3] = ["named", "/usr/sbin/named", "/usr/local/sbin/named"];

/// Variable that forbids skipping.
const REQUIRED: &str = "FLEXFEED_REQUIRE_PEERS";

/// A running server, which ends when dropped.
pub struct Named {
    child: Child,
    pub address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the server with zones of (name, records). For a zone without records, the file is
/// missing, and the server answers with SERVFAIL. `None` without `named`.
pub fn start(zones: &[(&str, &str)]) -> Option<Named> {
    let program = NAMED.into_iter().find(|named| {
        let mut command = Command::new(named);
        command
            .arg("-v")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    });
    let Some(program) = program else {
        let why = "no named (install bind9): no real name server was asked";
        assert!(std::env::var_os(REQUIRED).is_none(), "{why}");
        // Not by a macro: what those print is not shown when a test passes.
        let line = format!("\n*** SKIPPED: {why} ***\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let port = kit::ports::free().port();
    let mut config = format!(
        "options {{
            directory \"{}\";
            pid-file none;
            session-keyfile none;
            listen-on port {port} {{ 127.0.0.1; }};
            listen-on-v6 {{ none; }};
            recursion no;
            max-udp-size 512;
            minimal-responses yes;
            dnssec-validation no;
            empty-zones-enable no;
        }};
        controls {{ }};\n",
        folder.path().display()
    );
    for (name, records) in zones {
        let file = format!("{name}.zone");
        config += &format!("zone \"{name}\" {{ type primary; file \"{file}\"; }};\n");
        if !records.is_empty() {
            let text = format!(
                "$TTL 300\n@ IN SOA ns.{name}. admin.{name}. 1 3600 600 86400 77\n\
                 @ IN NS ns.{name}.\nns IN A 127.0.0.1\n{records}\n"
            );
            fs::write(folder.path().join(file), text).unwrap();
        }
    }
    fs::write(folder.path().join("named.conf"), config).unwrap();
    let log = fs::File::create(folder.path().join("log")).unwrap();
    let child = Command::new(program)
        .args(["-g", "-n", "1", "-c", "named.conf"])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut named = Named {
        child,
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        _folder: folder,
    };
    for (name, records) in zones {
        if !records.is_empty() {
            named.wait(name);
        }
    }
    Some(named)
}

impl Named {
    /// Waits until the zone is served: the server accepts queries before it has loaded its zones.
    fn wait(&mut self, zone: &str) {
        let started = Instant::now();
        let served = |answer: Vec<u8>| {
            let [_, _, flags, code, ..] = answer[..] else {
                return false;
            };
            // An authoritative answer, and no error.
            flags & 0x04 != 0 && code & 0x0f == 0
        };
        // Its SOA.
        while !self.ask(zone, 6, 1).is_some_and(served) {
            let ended = self.child.try_wait().unwrap();
            let path: &Path = self._folder.path();
            let log = || fs::read_to_string(path.join("log")).unwrap_or_default();
            assert!(ended.is_none(), "named ended: {}", log());
            let patience = Duration::from_secs(60);
            assert!(
                started.elapsed() < patience,
                "named does not serve {zone}: {}",
                log()
            );
            // What it refuses for now it refuses at once.
            #[expect(
                clippy::disallowed_methods,
                reason = "nothing else goes on before it serves"
            )]
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the answer to one question over UDP, if it arrives within a short time.
    pub fn ask(&self, name: &str, kind: u16, class: u16) -> Option<Vec<u8>> {
        let mut query = vec![0x12, 0x34, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.trim_end_matches('.').split('.') {
            query.push(u8::try_from(label.len()).unwrap());
            query.extend_from_slice(label.as_bytes());
        }
        query.push(0);
        query.extend_from_slice(&kind.to_be_bytes());
        query.extend_from_slice(&class.to_be_bytes());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        socket.send_to(&query, self.address).unwrap();
        let mut answer = vec![0; 4096];
        let len = socket.recv(&mut answer).ok()?;
        answer.truncate(len);
        Some(answer)
    }
}
