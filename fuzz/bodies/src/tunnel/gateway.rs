//! The gateway's state machine, driven by arbitrary, mostly sensible relays, and by strangers that
//! send to it.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use amt::gateway::{
    Candidate, Counters, Event, Gateway, Input, MAX_CANDIDATES, MAX_SUBSCRIPTIONS, Origin,
    Subscription, SubscriptionId, Timing,
};
use amt::ip::{self, Udp};
use amt::report::{self, GeneralQuery};
use amt::{Mac, Message};
use arbitrary::{Arbitrary, Unstructured};

/// More messages than a step ever needs: one to each candidate, Teardowns, and what a report takes
/// in pieces.
const MOST_MESSAGES: usize = 128;

/// Relays, and one that is none; the third is anycast and sends others to the first.
const RELAYS: [&str; 5] = [
    "192.0.2.1:2268",
    "[2001:db8::1]:2268",
    "192.52.193.1:2268",
    "192.0.2.2:7000",
    "203.0.113.66:2268",
];

const SOURCES: [&str; 4] = ["198.51.100.7", "198.51.100.8", "2001:db8::7", "2001:db8::8"];
const GROUPS: [&str; 4] = ["232.1.1.1", "239.1.1.1", "ff3e::1", "ff1e::2"];

#[derive(Debug, Arbitrary)]
enum Step<'a> {
    Subscribe {
        source: Option<u8>,
        group: u8,
        port: u8,
    },
    Unsubscribe(u8),
    Candidates {
        which: u8,
        discover: u8,
        anycast: bool,
    },
    /// Answers the message that was sent `back` messages ago.
    Answer {
        back: u8,
        limited: bool,
        gateway: Option<(bool, u16)>,
        qqic: u16,
        qrv: u8,
        max_response: u16,
        other_mac: u8,
        /// From another relay, with another nonce, or with the other family inside.
        wrong: u8,
    },
    /// A packet of a flow.
    Data {
        relay: u8,
        source: u8,
        group: u8,
        port: u8,
        payload: &'a [u8],
        damage: Option<(u16, u8)>,
    },
    Raw(u8, &'a [u8]),
    Pass(u16),
    PassLong(u8),
    Suspect,
    NetworkChanged,
    Unreachable(u8),
    Stop,
}

/// Data is delivered only from the chosen relay, for subscribed channels, and unchanged; only a
/// gateway's messages are sent, to candidates or addresses that they advertised, at a bounded rate;
/// the timer always advances.
pub fn amt_gateway(data: &[u8]) {
    play_amt_gateway(data);
}

/// The same; returns what the state machine counted, and how often a relay was selected.
pub fn play_amt_gateway(data: &[u8]) -> (Counters, u64) {
    let mut u = Unstructured::new(data);
    let mut model = Model::new(u.arbitrary().unwrap_or(0));
    while let Ok(step) = u.arbitrary::<Step<'_>>() {
        if std::env::var_os("DBG").is_some() {
            eprintln!("{step:?}");
        }
        model.step(&step);
        model.settle();
        if u.is_empty() {
            break;
        }
    }
    (*model.gateway.counters(), model.connected)
}

fn pick<T: std::str::FromStr>(list: &[&str], index: u8) -> T {
    let text = list[usize::from(index) % list.len()];
    text.parse().ok().unwrap()
}

struct Model {
    gateway: Gateway,
    now: Instant,
    subscriptions: Vec<(SubscriptionId, Subscription)>,
    /// Sent messages, the newest last.
    sent: Vec<(SocketAddr, Vec<u8>)>,
    /// Destinations of messages: only these may become the relay.
    asked: Vec<SocketAddr>,
    allowed: Vec<SocketAddr>,
    /// When something was subscribed last.
    wanted: Instant,
    connected: u64,
}

impl Model {
    fn new(seed: u8) -> Self {
        let now = Instant::now();
        let mut model = Model {
            gateway: Gateway::new(Timing::default(), [seed; 32]),
            now,
            subscriptions: Vec::new(),
            sent: Vec::new(),
            asked: Vec::new(),
            allowed: RELAYS[..4]
                .iter()
                .map(|relay| relay.parse().unwrap())
                .collect(),
            wanted: now,
            connected: 0,
        };
        // Most inputs are about what comes after.
        if seed & 1 == 0 {
            model.candidates(0x0f, 0x04, false);
            model.subscribe(Some(0), 0, 0);
            model.settle();
        }
        model
    }

    fn candidates(&mut self, which: u8, discover: u8, anycast: bool) {
        let all = RELAYS[..4].iter().enumerate();
        let chosen = all.filter(|(at, _)| which >> at & 1 != 0);
        let candidates = chosen.map(|(at, relay)| Candidate {
            addr: relay.parse().unwrap(),
            discover: discover >> at & 1 != 0,
            origin: if anycast {
                Origin::Anycast
            } else {
                Origin::Hint
            },
        });
        self.gateway.set_candidates(candidates, self.now);
    }

    fn subscribe(&mut self, source: Option<u8>, group: u8, port: u8) {
        let subscription = Subscription {
            source: source.map(|source| pick(&SOURCES, source)),
            group: pick(&GROUPS, group),
            port: 5000 + u16::from(port % 2),
        };
        let source = subscription.source;
        // The first of each family is one of a single source.
        let fits = match source {
            Some(source) => source.is_ipv4() == subscription.group.is_ipv4(),
            None => !group.is_multiple_of(2),
        };
        match self.gateway.subscribe(subscription, self.now) {
            Ok(id) => {
                assert!(fits);
                self.subscriptions.push((id, subscription));
            }
            Err(error) => assert!(!fits, "{error}"),
        }
    }

    fn step(&mut self, step: &Step<'_>) {
        match *step {
            Step::Subscribe {
                source,
                group,
                port,
            } => {
                if self.subscriptions.len() < 40 {
                    self.subscribe(source, group, port);
                }
            }
            Step::Unsubscribe(which) => {
                if !self.subscriptions.is_empty() {
                    let at = usize::from(which) % self.subscriptions.len();
                    let (id, _) = self.subscriptions.swap_remove(at);
                    self.gateway.unsubscribe(id, self.now);
                }
            }
            Step::Candidates {
                which,
                discover,
                anycast,
            } => self.candidates(which, discover, anycast),
            Step::Answer { .. } => self.answer(step),
            Step::Data {
                relay,
                source,
                group,
                port,
                payload,
                damage,
            } => {
                let from = SocketAddr::new(pick(&SOURCES, source), 4000);
                let to = SocketAddr::new(pick(&GROUPS, group), 5000 + u16::from(port % 3));
                let ttl = 9;
                let udp = Udp {
                    from,
                    to,
                    ttl,
                    payload,
                };
                let (mut packet, mut message) = (Vec::new(), Vec::new());
                ip::write_udp(&udp, 0, &mut packet);
                if let (Some((at, xor)), false) = (damage, packet.is_empty()) {
                    let at = usize::from(at) % packet.len();
                    packet[at] ^= xor;
                }
                Message::Data { packet: &packet }.encode(&mut message);
                self.handle(pick(&RELAYS, relay), &message);
            }
            Step::Raw(from, bytes) => self.handle(pick(&RELAYS, from), bytes),
            Step::Pass(millis) => self.pass(Duration::from_millis(u64::from(millis))),
            Step::PassLong(seconds) => self.pass(Duration::from_secs(4 * u64::from(seconds))),
            Step::Suspect => self.gateway.suspect(self.now),
            Step::NetworkChanged => self.gateway.network_changed(self.now),
            Step::Unreachable(which) => self.gateway.unreachable(pick(&RELAYS, which), self.now),
            Step::Stop => {
                self.gateway.stop();
                self.subscriptions.clear();
            }
        }
    }

    fn answer(&mut self, step: &Step<'_>) {
        let Step::Answer {
            back,
            limited,
            gateway,
            qqic,
            qrv,
            max_response,
            other_mac,
            wrong,
        } = *step
        else {
            return;
        };
        let Some(at) = self.sent.len().checked_sub(1 + usize::from(back)) else {
            return;
        };
        let (mut from, question) = self.sent[at].clone();
        if wrong & 1 != 0 {
            from = pick(&RELAYS, wrong >> 1);
        }
        let nonce_xor = u32::from(wrong & 0x40 != 0);
        let mut answer = Vec::new();
        match Message::parse(&question).unwrap() {
            Message::Discovery { nonce } => {
                let relay: SocketAddr = pick(&RELAYS[..4], other_mac);
                let same = relay.is_ipv4() == from.is_ipv4();
                let relay = if same { relay.ip() } else { from.ip() };
                // On the port that was asked.
                self.allowed
                    .push(SocketAddr::new(relay, self.sent[at].0.port()));
                let nonce = nonce ^ nonce_xor;
                Message::Advertisement { nonce, relay }.encode(&mut answer);
            }
            Message::Request { nonce, mld } => {
                let mut packet = Vec::new();
                let query = GeneralQuery {
                    qrv,
                    qqic: Duration::from_secs(u64::from(qqic)),
                    max_response: Duration::from_millis(u64::from(max_response)),
                };
                let mld = mld ^ (wrong & 0x80 != 0);
                let asker = if mld { "fe80::1" } else { "0.0.0.0" };
                report::write_query(mld, asker.parse().unwrap(), &query, &mut packet);
                let gateway = gateway.map(|(v6, port)| {
                    let ip: IpAddr = if v6 { "2001:db8::99" } else { "192.0.2.99" }
                        .parse()
                        .unwrap();
                    SocketAddr::new(ip, port)
                });
                Message::Query {
                    limited,
                    mac: Mac([other_mac; 6]),
                    nonce: nonce ^ nonce_xor,
                    packet: &packet,
                    gateway,
                }
                .encode(&mut answer);
            }
            _ => return,
        }
        self.handle(from, &answer);
    }

    fn handle(&mut self, from: SocketAddr, bytes: &[u8]) {
        let (subscription, sender, payload) = match self.gateway.handle(from, bytes, self.now) {
            Input::Data {
                subscription,
                from,
                payload,
            } => (subscription, from, Some(payload)),
            Input::Assembled {
                subscription, from, ..
            } => (subscription, from, None),
            Input::Fragment | Input::Control | Input::Dropped(_) => return,
        };
        // Only from a destination of a message, and as the packet says.
        assert!(
            self.asked.contains(&from),
            "data of {from}, which was never asked"
        );
        let Ok(Message::Data { packet }) = Message::parse(bytes) else {
            panic!("data out of another message");
        };
        let (_, wanted) = self
            .subscriptions
            .iter()
            .find(|(id, _)| *id == subscription)
            .unwrap();
        assert!(wanted.source.is_none_or(|source| source == sender.ip()));
        let Some(payload) = payload else {
            // The last of several; what came before it has the rest.
            let (source, group, _) = ip::addresses(packet).expect("a fragment of nothing");
            assert_eq!((source, group), (sender.ip(), wanted.group));
            return;
        };
        let inner = ip::parse_udp(packet).expect("data out of a packet that is damaged");
        assert_eq!((inner.from, inner.payload), (sender, &bytes[payload]));
        assert_eq!(
            (wanted.group, wanted.port),
            (inner.to.ip(), inner.to.port())
        );
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        // At most so often: a timer that does not move on would never end.
        for _ in 0..20_000 {
            let Some(at) = self.gateway.poll_timeout().filter(|at| *at <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(at);
            self.gateway.handle_timeout(self.now);
            let next = self.gateway.poll_timeout();
            assert!(
                next.is_none_or(|next| next > self.now),
                "the timer does not move on"
            );
            self.settle();
        }
        panic!("too many timeouts within {time:?}");
    }

    /// Drains outputs and checks the invariants between two calls.
    fn settle(&mut self) {
        let mut out = Vec::new();
        let mut messages = 0;
        while let Some(to) = self.gateway.poll_transmit(&mut out) {
            messages += 1;
            assert!(self.allowed.contains(&to), "a message to {to}");
            match Message::parse(&out).expect("what is sent is a message") {
                Message::Discovery { .. } | Message::Request { .. } | Message::Teardown { .. } => {}
                Message::Update { packet, .. } => {
                    let records = report::parse_report(packet).expect("a report");
                    assert!(!records.is_empty());
                }
                other => panic!("a gateway sends no {}", other.name()),
            }
            assert!(out.len() <= 1280);
            self.asked.push(to);
            self.sent.push((to, out.clone()));
        }
        self.asked.sort();
        self.asked.dedup();
        self.sent.drain(..self.sent.len().saturating_sub(300));
        assert!(messages <= MOST_MESSAGES, "{messages} messages at once");
        while let Some(event) = self.gateway.poll_event() {
            assert!(!event.to_string().is_empty());
            if let Event::Connected { relay, .. } = event {
                assert!(self.asked.contains(&relay));
                self.connected += 1;
            }
        }
        let status = self.gateway.status();
        assert!(status.candidates.len() <= MAX_CANDIDATES);
        assert!(status.subscriptions <= MAX_SUBSCRIPTIONS.min(self.subscriptions.len()));
        if !self.subscriptions.is_empty() {
            self.wanted = self.now;
        }
        // A leave is sent more than once.
        let idle = self.now - self.wanted > Duration::from_secs(20);
        assert!(!idle || status.relay.is_none(), "a relay for nothing");
    }
}
