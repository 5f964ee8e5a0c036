//! Secrets of key epochs are erased from this process's memory once their time is over.
//!
//! The search covers all of the heap, as a reader of the process's memory would. The test runs in a
//! process of its own, since other tests would leave traces of theirs.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use flexicast::control::{Credential, Endpoint};
use flexicast::flow::FlowConfig;
use flexicast::protect::FlowSecret;
use flexicast::receiver::{Receiver, ReceiverConfig};
use flexicast::source::{ChannelConfig, Limits, Source, SourceConfig, SourceEvent};
use flexicast::{FlowId, Rung};
use uuid::Uuid;

/// Mask of the secrets kept here, so that the search does not find its own pattern.
const MASK: u8 = 0x5a;

fn masked(n: u8) -> [u8; 32] {
    std::array::from_fn(|i| (i as u8).wrapping_mul(37).wrapping_add(n) ^ 0xc3)
}

fn secret(n: u8) -> FlowSecret {
    let mut secret = FlowSecret::default();
    secret
        .as_mut_bytes()
        .iter_mut()
        .zip(masked(n))
        .for_each(|(s, m)| *s = m ^ MASK);
    secret
}

/// Returns the number of copies of a secret in the heap. Half of one is enough to count.
fn copies(n: u8) -> usize {
    let wanted = masked(n);
    let maps = BufReader::new(File::open("/proc/self/maps").unwrap());
    let mut memory = File::open("/proc/self/mem").unwrap();
    let mut found = 0;
    for line in maps.lines() {
        let line = line.unwrap();
        let mut fields = line.split_whitespace();
        let (range, rights) = (fields.next().unwrap(), fields.next().unwrap());
        let name = fields.nth(3).unwrap_or("");
        // Anonymous memory and the heap; stacks are written over all the time.
        if !rights.starts_with("rw") || !(name.is_empty() || name == "[heap]") {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let end = u64::from_str_radix(end, 16).unwrap();
        if memory.seek(SeekFrom::Start(start)).is_err() {
            continue;
        }
        // A thread's stack is anonymous memory, too: the one that this runs on is left out.
        let here = &raw const found as u64;
        if (start..end).contains(&here) {
            continue;
        }
        let mut bytes = vec![0; (end - start) as usize];
        if memory.read_exact(&mut bytes).is_ok() {
            bytes.iter_mut().for_each(|b| *b ^= MASK);
            found += bytes.windows(16).filter(|w| *w == &wanted[..16]).count();
        }
        // The read buffer must not be found by the next search, nor a part of one: a mapping may
        // have changed since it was listed.
        bytes.fill(0);
        std::hint::black_box(&bytes);
    }
    found
}

struct Ends {
    source: Source,
    receiver: Receiver,
    now: Instant,
    next_secret: u8,
}

impl Ends {
    /// Lets both talk until they have nothing to say.
    fn settle(&mut self, span: Duration) {
        let end = self.now + span;
        let mut packet = Vec::new();
        while self.now < end {
            self.now += Duration::from_millis(5);
            let now = self.now;
            self.source.handle_timeout(now);
            self.receiver.handle_timeout(now);
            while let Some(event) = self.source.poll_event() {
                match event {
                    SourceEvent::Authorise { session, .. } => {
                        self.source.authorised(session, Ok(()), now)
                    }
                    SourceEvent::SecretWanted { channel } => {
                        self.next_secret += 1;
                        self.source.rekey(channel, secret(self.next_secret), now);
                    }
                    _ => {}
                }
            }
            let up = self.receiver.take_control();
            self.source.on_control(1, &up, now).unwrap();
            let down = self.source.take_control(1);
            self.receiver.on_control(&down, now).unwrap();
            while self.source.poll_transmit(now, &mut packet).is_some() {
                self.receiver
                    .on_flow_datagram(Rung::Multicast, &mut packet, now);
            }
            while let Some((_, ack)) = self.receiver.poll_datagram(now) {
                self.source.on_datagram(1, &ack, now).unwrap();
            }
            while self.receiver.poll_event().is_some() {}
        }
    }
}

#[test]
fn old_secrets_are_nowhere_in_memory() {
    if !kit::alone!() {
        return;
    }
    let now = Instant::now();
    let endpoint = Endpoint {
        group: "232.70.70.1:4434".parse().unwrap(),
        source: None,
    };
    let channel = ChannelConfig {
        name: "lore".into(),
        incarnation: Uuid::from_u128(1),
        head: 0,
        first: 1,
        private: false,
        endpoints: vec![endpoint],
        replicate: true,
        flow: Some(FlowConfig::new(FlowId([7; 8]), secret(1))),
    };
    let source = Source::new(SourceConfig {
        channels: vec![channel],
        unicast_rate: None,
        limits: Limits::default(),
        seed: 1,
    });
    let mut config = ReceiverConfig::new(
        Uuid::from_u128(2),
        Credential::None,
        vec![("lore".into(), None)],
    );
    config.name = "r".into();
    config.software = "test".into();
    config.seed = 1;
    let receiver = Receiver::new(config);
    let mut ends = Ends {
        source: source.unwrap(),
        receiver,
        now,
        next_secret: 1,
    };
    ends.source.accept(1, now);
    ends.receiver.connected();
    ends.settle(Duration::from_secs(2));
    assert!(
        copies(1) >= 1,
        "both ends hold the first secret: the search works"
    );
    for n in 2..=4 {
        ends.source.request_rekey(0, ends.now);
        ends.settle(Duration::from_secs(6));
        assert_eq!(ends.next_secret, n);
        let status = ends.source.sessions().next().unwrap();
        assert_eq!(status.channels[0].rung, Rung::Multicast);
        assert_eq!(copies(n - 1), 0, "epoch {} is over", n - 1);
        assert!(copies(n) >= 1, "epoch {n} is in use");
    }
    ends.receiver.disconnected();
    ends.source.closed(1, ends.now);
    ends.source.withdraw(0, ends.now);
    assert_eq!(copies(4), 0, "the flow is gone at both ends");
}
