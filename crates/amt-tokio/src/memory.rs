//! State of a gateway for its next run: its local ports and its tunnel.
//!
//! A relay of Linux serves one port of each address until the tunnel there has expired, and any
//! relay sends to an abandoned tunnel until then. So the run after a kill continues from the same
//! port or, if that is taken, sends a Teardown.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use amt::Mac;
use amt::gateway::TunnelProof;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::warn;

/// Most gateways in a file.
const MAX_GATEWAYS: usize = 64;
/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 64 << 10;
/// Shortest interval between writes of newer proofs of the same tunnel. Relays accept a proof for
/// some minutes.
const RENEW_EVERY: Duration = Duration::from_secs(30);

/// State of one gateway for its next run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Entry {
    /// Local UDP port towards relays over IPv4.
    port_v4: Option<u16>,
    /// The same over IPv6.
    port_v6: Option<u16>,
    /// Tunnel that was not torn down.
    tunnel: Option<Tunnel>,
}

/// Serialized form of [`TunnelProof`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Tunnel {
    relay: SocketAddr,
    nonce: u32,
    mac: [u8; 6],
    gateway: SocketAddr,
}

impl From<TunnelProof> for Tunnel {
    fn from(proof: TunnelProof) -> Self {
        Self {
            relay: proof.relay,
            nonce: proof.nonce,
            mac: proof.mac.0,
            gateway: proof.gateway,
        }
    }
}

impl Tunnel {
    /// Returns the proof, unless the relay's address is impossible: the file may hold anything.
    fn proof(self) -> Option<TunnelProof> {
        let ip = self.relay.ip().to_canonical();
        let impossible = ip.is_unspecified() || ip.is_multicast() || self.relay.port() == 0;
        (!impossible && ip != IpAddr::V4(Ipv4Addr::BROADCAST)).then_some(TunnelProof {
            relay: self.relay,
            nonce: self.nonce,
            mac: Mac(self.mac),
            gateway: self.gateway,
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Content {
    gateways: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct State {
    content: Content,
    /// Whether the content differs from the file.
    dirty: bool,
    /// Whether a thread is writing.
    writing: bool,
    /// Whether the last write failed.
    failed: bool,
}

/// State file of all gateways of a program. It is optional: a file that is missing, damaged or not
/// writable only costs what it would have saved.
#[derive(Debug)]
pub struct MemoryFile {
    path: PathBuf,
    state: Mutex<State>,
    /// Whether everything is written.
    written: watch::Sender<bool>,
}

impl MemoryFile {
    /// Reads the file, if it exists.
    #[must_use]
    pub fn open(path: PathBuf) -> Arc<Self> {
        let content = read(&path).unwrap_or_else(|error| {
            warn!(path = %path.display(), %error, "AMT state file ignored");
            Content::default()
        });
        Arc::new(Self {
            path,
            state: Mutex::new(State {
                content,
                dirty: false,
                writing: false,
                failed: false,
            }),
            written: watch::Sender::new(true),
        })
    }

    /// Returns the part of one gateway, whose name must be the same in each run.
    #[must_use]
    pub fn of(self: &Arc<Self>, name: impl Into<String>) -> Memory {
        Memory {
            file: Arc::clone(self),
            name: name.into(),
            renewed: None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves a valid content, at worst an older one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(self: &Arc<Self>, name: &str, entry: Entry) {
        let mut state = self.state();
        let gateways = &mut state.content.gateways;
        if gateways.get(name) == Some(&entry) {
            return;
        }
        if gateways.len() >= MAX_GATEWAYS && !gateways.contains_key(name) {
            // Most likely one of an earlier run.
            gateways.pop_first();
        }
        gateways.insert(name.to_owned(), entry);
        state.dirty = true;
        self.written.send_replace(false);
        if !state.writing {
            state.writing = true;
            let file = Arc::clone(self);
            tokio::task::spawn_blocking(move || file.write());
        }
    }

    /// Writes until nothing is dirty. The disk may be slow: not for an asynchronous task.
    fn write(&self) {
        loop {
            let content = {
                let mut state = self.state();
                if !std::mem::take(&mut state.dirty) {
                    state.writing = false;
                    self.written.send_replace(true);
                    return;
                }
                state.content.clone()
            };
            let result = replace(&self.path, &content);
            let failed = result.is_err();
            let before = std::mem::replace(&mut self.state().failed, failed);
            if let Err(error) = result
                && !before
            {
                warn!(path = %self.path.display(), %error, "AMT state file not written");
            }
        }
    }
}

/// One gateway's part of a [`MemoryFile`].
#[derive(Clone, Debug)]
pub struct Memory {
    file: Arc<MemoryFile>,
    name: String,
    /// Time of the last write of the tunnel.
    renewed: Option<Instant>,
}

impl Memory {
    fn entry(&self) -> Entry {
        let state = self.file.state();
        let entry = state.content.gateways.get(&self.name);
        entry.copied().unwrap_or_default()
    }

    /// Returns the local ports of IPv4 and of IPv6.
    pub(crate) fn ports(&self) -> [Option<u16>; 2] {
        let entry = self.entry();
        // 0 would be any port.
        [entry.port_v4, entry.port_v6].map(|port| port.filter(|port| *port > 0))
    }

    /// Returns the tunnel that the previous run did not tear down.
    pub(crate) fn tunnel(&self) -> Option<TunnelProof> {
        self.entry().tunnel.and_then(Tunnel::proof)
    }

    /// Stores the gateway's current state. May be called at any rate.
    pub(crate) fn keep(
        &mut self,
        ports: [Option<u16>; 2],
        tunnel: Option<TunnelProof>,
        now: Instant,
    ) {
        let before = self.entry();
        let [port_v4, port_v6] = ports;
        let mut entry = Entry {
            port_v4: port_v4.or(before.port_v4),
            port_v6: port_v6.or(before.port_v6),
            tunnel: tunnel.map(Tunnel::from),
        };
        let ends = |tunnel: Option<Tunnel>| tunnel.map(|t| (t.relay, t.gateway));
        let recently = self.renewed.is_some_and(|at| now < at + RENEW_EVERY);
        if ends(entry.tunnel) == ends(before.tunnel) && recently {
            entry.tunnel = before.tunnel;
        }
        if entry.tunnel != before.tunnel {
            self.renewed = Some(now);
        }
        self.file.set(&self.name, entry);
    }

    /// Waits until everything is written.
    pub(crate) async fn written(&self) {
        let mut written = self.file.written.subscribe();
        // The sender lives as long as the file.
        let _ = written.wait_for(|written| *written).await;
    }
}

fn read(path: &Path) -> io::Result<Content> {
    match fs::metadata(path) {
        // Reading a pipe would never end.
        Ok(found) if !found.is_file() => return Err(io::Error::other("not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::default()),
        found => found?,
    };
    let file = File::open(path)?;
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("longer than {MAX_FILE} bytes")));
    }
    let mut content: Content = serde_json::from_str(&text)?;
    while content.gateways.len() > MAX_GATEWAYS {
        content.gateways.pop_first();
    }
    Ok(content)
}

/// Replaces the file atomically; after a power cut, it may be an older one.
fn replace(path: &Path, content: &Content) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(content)?;
    text.push(b'\n');
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let write = || {
        // A reader of the file could end the tunnel.
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(&text)?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}
