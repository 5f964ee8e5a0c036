//! Bound on the log lines that peers cause.
//!
//! A line that a peer can cause once, it can cause again and again. Lines that name a peer, by one
//! of [`FIELDS`], are therefore limited, each place in the code by itself: those of one peer, and
//! those of all peers together. Suppressed lines are summed up every [`SUM_UP`], and when the
//! program stops. Lines below the level info are for debugging, and lines that name no peer are not
//! caused by one: both pass.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::peer_text::plain;

/// Fields whose value names a peer, or something that a peer chooses. Of several, the first counts.
const FIELDS: [&str; 6] = ["gateway", "receiver", "from", "channel", "flow", "group"];
/// Number of [`FIELDS`] that name a peer in every module.
const PEERS: usize = 3;
/// Modules that log what peers send. Elsewhere a channel, flow or group is the operator's, not a
/// peer's.
const PEER_MODULES: [&str; 4] = [
    "flexicast_tokio",
    "flexfeed_receiver::connection_log",
    "flexfeed_receiver::http",
    "flexfeed_relay",
];

/// Lines that one peer may cause at one place.
const PER_PEER: Rate = Rate {
    burst: 20,
    every: Duration::from_secs(10),
};
/// Lines that all peers together may cause at one place.
const PER_LINE: Rate = Rate {
    burst: 200,
    every: Duration::from_millis(500),
};
/// Peers with a share of their own at one place.
const MAX_PEERS: usize = 1024;
/// Longest text of a peer in a summary, in characters.
const MAX_TEXT: usize = 200;
/// Pause between two summaries.
const SUM_UP: Duration = Duration::from_secs(10);

/// A number of lines at once, and then one in each interval.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    every: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    rate: Rate,
    left: u32,
    /// Time of the last refill.
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            left: rate.burst,
            at: now,
        }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_millis();
        let earned = passed / self.rate.every.as_millis().max(1);
        let room = self.rate.burst - self.left;
        match u32::try_from(earned) {
            Ok(earned) if earned < room => {
                self.left += earned;
                self.at += self.rate.every * earned;
            }
            _ => *self = Self::full(self.rate, now),
        }
    }

    fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left == self.rate.burst
    }

    fn has_any(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left > 0
    }
}

/// Place in the code that logs.
#[derive(Debug)]
struct Line {
    all: Bucket,
    /// Shares by a hash of the peer.
    peers: HashMap<u64, Bucket>,
    suppressed: u64,
    suppressed_peers: HashSet<u64>,
    /// First line suppressed since the last summary: its peer and its text.
    first: Option<(String, String)>,
}

impl Line {
    fn new(now: Instant) -> Self {
        Self {
            all: Bucket::full(PER_LINE, now),
            peers: HashMap::new(),
            suppressed: 0,
            suppressed_peers: HashSet::new(),
            first: None,
        }
    }

    /// Whether a line of this peer passes; counts it.
    fn admit(&mut self, peer: u64, now: Instant) -> bool {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&peer) {
            self.peers.retain(|_, bucket| !bucket.is_full(now));
        }
        let all = self.all.has_any(now);
        let admitted = if self.peers.len() < MAX_PEERS || self.peers.contains_key(&peer) {
            let full = Bucket::full(PER_PEER, now);
            let own = self.peers.entry(peer).or_insert(full);
            let admitted = own.has_any(now) && all;
            own.left -= u32::from(admitted);
            admitted
        } else {
            // With so many peers at once, the rest share the common limit.
            all
        };
        self.all.left -= u32::from(admitted);
        if !admitted {
            self.suppressed += 1;
            if self.suppressed_peers.len() < MAX_PEERS {
                self.suppressed_peers.insert(peer);
            }
        }
        admitted
    }
}

/// Lines suppressed at one place.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    suppressed: u64,
    /// Lower bound on the number of peers.
    peers: usize,
    peer: String,
    text: String,
}

/// Limit of a program's log.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogLimit(Arc<Mutex<HashMap<Identifier, Line>>>);

impl LogLimit {
    fn lines(&self) -> MutexGuard<'_, HashMap<Identifier, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, event: &Event<'_>, now: Instant) -> bool {
        // Trace is the greatest.
        if *event.metadata().level() > Level::INFO {
            return true;
        }
        let mut named = PeerFields::default();
        event.record(&mut named);
        let Some((rank, peer)) = named.peer else {
            return true;
        };
        let module = event.metadata().module_path().unwrap_or_default();
        if rank >= PEERS && !PEER_MODULES.iter().any(|m| module.starts_with(m)) {
            return true;
        }
        let mut lines = self.lines();
        let line = lines.entry(event.metadata().callsite());
        let line = line.or_insert_with(|| Line::new(now));
        let admitted = line.admit(hash(&peer), now);
        if !admitted && line.first.is_none() {
            let short = |text: &str| plain(text).chars().take(MAX_TEXT).collect::<String>();
            line.first = Some((short(&peer), short(&named.text)));
        }
        admitted
    }

    fn take_summaries(&self) -> Vec<Summary> {
        let mut lines = self.lines();
        let suppressing = lines.values_mut().filter(|line| line.suppressed > 0);
        let summaries = suppressing.map(|line| {
            let (peer, text) = line.first.take().unwrap_or_default();
            Summary {
                suppressed: std::mem::take(&mut line.suppressed),
                peers: std::mem::take(&mut line.suppressed_peers).len(),
                peer,
                text,
            }
        });
        summaries.collect()
    }

    /// Sums up periodically, for as long as the program runs.
    pub(crate) fn keep_summed_up(&self) {
        loop {
            #[expect(clippy::disallowed_methods, reason = "a thread of its own")]
            std::thread::sleep(SUM_UP);
            self.sum_up();
        }
    }

    /// Logs the number of lines suppressed since the last summary, if any.
    pub(crate) fn sum_up(&self) {
        for summary in self.take_summaries() {
            let Summary {
                suppressed,
                peers,
                peer,
                text,
            } = summary;
            warn!(suppressed, peers, peer, like = text, "log lines suppressed");
        }
    }
}

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.admit(event, Instant::now())
    }
}

/// Peer that an event names, and its message.
#[derive(Debug, Default)]
struct PeerFields {
    /// Peer, with the position of its field in [`FIELDS`].
    peer: Option<(usize, String)>,
    text: String,
}

impl PeerFields {
    fn take(&mut self, field: &Field, value: impl FnOnce() -> String) {
        if field.name() == "message" {
            self.text = value();
        } else if let Some(rank) = FIELDS.iter().position(|name| *name == field.name())
            && self.peer.as_ref().is_none_or(|(known, _)| rank < *known)
        {
            self.peer = Some((rank, value()));
        }
    }
}

impl Visit for PeerFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, || value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, || {
            let mut text = String::new();
            // Writing to a string does not fail.
            let _ = write!(text, "{value:?}");
            text
        });
    }
}

/// Returns one number for all ports of an address, and for all addresses of an IPv6 /64.
fn hash(peer: &str) -> u64 {
    let ip = peer.parse::<SocketAddr>().map(|address| address.ip());
    let ip = ip.or_else(|_| peer.parse::<IpAddr>());
    let mut hasher = DefaultHasher::new();
    match ip.map(|ip| ip.to_canonical()) {
        Ok(IpAddr::V6(ip)) => Ipv6Addr::from(u128::from(ip) >> 64 << 64).hash(&mut hasher),
        Ok(ip) => ip.hash(&mut hasher),
        Err(_) => peer.hash(&mut hasher),
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io;

    use tracing::{debug, info};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn a_peer_cannot_use_the_shares_of_others() {
        let mut now = Instant::now();
        let mut line = Line::new(now);
        let passed = (0..5000).filter(|_| line.admit(1, now)).count();
        assert_eq!(passed, 20);
        assert!(line.admit(2, now), "another one");
        now += Duration::from_secs(35);
        let passed = (0..5000).filter(|_| line.admit(1, now)).count();
        assert_eq!(passed, 3);
        now += Duration::from_secs(3600);
        let passed = (0..5000).filter(|_| line.admit(1, now)).count();
        assert_eq!(passed, 20);
        assert_eq!(line.suppressed, 4980 + 4997 + 4980);
        assert_eq!(line.suppressed_peers.len(), 1);
    }

    #[test]
    fn all_peers_together_are_limited_in_lines_and_memory() {
        let mut now = Instant::now();
        let mut line = Line::new(now);
        let passed = (0..100_000).filter(|peer| line.admit(*peer, now)).count();
        assert_eq!(passed, 200);
        now += Duration::from_secs(10);
        let passed = (0..100_000).filter(|peer| line.admit(*peer, now)).count();
        assert_eq!(passed, 20);
        assert!(line.peers.len() <= MAX_PEERS && line.suppressed_peers.len() <= MAX_PEERS);
    }

    #[test]
    fn ports_of_an_address_are_one_peer() {
        for (one, other) in [
            ("192.0.2.1:1", "192.0.2.1:2"),
            ("192.0.2.1", "[::ffff:192.0.2.1]:2"),
            ("[2001:db8::1]:1", "2001:db8::2"),
        ] {
            assert_eq!(hash(one), hash(other));
        }
        for (one, other) in [
            ("192.0.2.1:1", "192.0.2.2:1"),
            ("2001:db8::1", "2001:db8:0:1::1"),
            ("reader-1", "reader-2"),
        ] {
            assert_ne!(hash(one), hash(other));
        }
    }

    /// A log in memory.
    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Memory {
        fn lines(&self, with: &str) -> usize {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            text.lines().filter(|line| line.contains(with)).count()
        }
    }

    fn log(limit: &LogLimit, memory: &Memory) -> impl Subscriber + Send + Sync + use<> {
        let memory = memory.clone();
        let text = tracing_subscriber::fmt::layer().with_writer(move || memory.clone());
        tracing_subscriber::registry()
            .with(limit.clone())
            .with(text)
    }

    #[test]
    fn lines_that_name_a_peer_are_limited_and_others_are_not() {
        let (limit, memory) = (LogLimit::default(), Memory::default());
        let begun = Instant::now();
        tracing::subscriber::with_default(log(&limit, &memory), || {
            for n in 0..3000 {
                info!(gateway = %"192.0.2.1:4000", "joined {n}");
                info!(number = n, "of no peer {n}");
                info!(channel = "lore", "of the operator {n}");
                debug!(gateway = %"192.0.2.1:4000", "in detail {n}");
            }
            for receiver in ["one", "two"] {
                info!(receiver, from = "192.0.2.1:4000", "moved");
            }
        });
        let earned = begun.elapsed().as_secs() as usize / 10;
        let joined = memory.lines("joined ");
        assert!((20..=20 + earned).contains(&joined), "{joined}");
        assert_eq!(memory.lines("of no peer "), 3000);
        assert_eq!(memory.lines("of the operator "), 3000);
        assert_eq!(memory.lines("in detail "), 3000);
        assert_eq!(memory.lines("moved"), 2);
        let summaries = limit.take_summaries();
        let [summary] = summaries.as_slice() else {
            panic!("{summaries:?}");
        };
        assert_eq!(summary.suppressed as usize, 3000 - joined);
        assert_eq!(
            (summary.peers, summary.peer.as_str()),
            (1, "192.0.2.1:4000")
        );
        assert_eq!(summary.text, "joined 20");
        assert_eq!(limit.take_summaries(), [], "once");
    }
}
