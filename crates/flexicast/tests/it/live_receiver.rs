//! A receiver's deadlines, with a source that tests play (protocol.md section 7.6).

use std::time::{Duration, Instant};

use flexicast::WireError;
use flexicast::control::{
    Clock, Control, ControlReader, Credential, Expired, SOURCE_ANSWERS_NEED, SOURCE_KEEPS_TIME,
    Welcome, WelcomeChannel,
};
use flexicast::receiver::{Output, Receiver, ReceiverConfig};
use flexicast::unicast::RangeHeader;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use crate::lab::{CHANNEL, INCARNATION, Lab, UNIX, signed_until};
use crate::signed::{KEY, MS, signer};

const LEN: usize = 900;

/// A receiver alone, with a source that a test plays.
struct Probe {
    core: Receiver,
    now: Instant,
    stream: u64,
    expired: Vec<u64>,
}

impl Probe {
    fn new(keeps_time: bool) -> Self {
        let mut config = ReceiverConfig::new(
            Uuid::from_u128(1),
            Credential::None,
            vec![(CHANNEL.into(), None)],
        );
        config.deadlines = keeps_time;
        let mut probe = Probe {
            core: Receiver::new(config),
            now: Instant::now(),
            stream: 3,
            expired: Vec::new(),
        };
        probe.core.connected();
        let welcome = Control::Welcome(Welcome {
            channels: vec![WelcomeChannel {
                channel: 1,
                name: CHANNEL.into(),
                incarnation: INCARNATION,
                head: 0,
                first: 1,
            }],
            capabilities: vec![SOURCE_ANSWERS_NEED, SOURCE_KEEPS_TIME],
        });
        probe.say(&welcome).unwrap();
        probe
    }

    fn say(&mut self, frame: &Control) -> Result<(), WireError> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let taken = self.core.on_control(&bytes, self.now);
        self.core.handle_timeout(self.now);
        taken
    }

    /// The receiver's question for the time, if it asks now.
    fn question(&mut self) -> Option<Clock> {
        let mut reader = ControlReader::new();
        reader.push(&self.core.take_control());
        let mut asked = None;
        while let Some(frame) = reader.next_frame().unwrap() {
            if let Control::Clock(question) = frame {
                assert_eq!((question.time_us, asked), (None, None));
                asked = Some(question);
            }
        }
        asked
    }

    fn reply(&mut self, question: Clock, unix: Duration) {
        let time_us = Some(unix.as_micros() as u64);
        let answer = Clock {
            time_us,
            ..question
        };
        self.say(&Control::Clock(answer)).unwrap();
    }

    /// Answers the receiver's question for the time at once; returns whether there is one.
    fn answer(&mut self, unix: Duration) -> bool {
        let question = self.question();
        if let Some(question) = question {
            self.reply(question, unix);
        }
        question.is_some()
    }

    fn expire(&mut self, channel: u64, first: u64, last: u64) -> Result<(), WireError> {
        self.say(&Control::Expired(Expired {
            channel,
            first,
            last,
            offset: None,
        }))
    }

    /// An update that expires after this time since [`UNIX`].
    fn update(&self, seq: u64, lifetime_ms: u64) -> Vec<u8> {
        let deadline_ms = UNIX.as_millis() as u64 + lifetime_ms;
        signed_until(&signer(KEY), seq, &Lab::content(seq, LEN), deadline_ms)
    }

    fn unicast(&mut self, seq: u64, lifetime_ms: u64) {
        let update = self.update(seq, lifetime_ms);
        self.range(seq, &update, update.len(), 0);
    }

    fn range(&mut self, seq: u64, bytes: &[u8], total: usize, offset: u64) {
        let header = RangeHeader {
            channel: 1,
            seq,
            encoding: 2,
            total: total as u64,
            offset,
        };
        let mut stream = Vec::new();
        header.encode(&mut stream);
        stream.extend_from_slice(bytes);
        self.stream += 4;
        self.core.on_unicast(self.stream, &stream, true).unwrap();
        self.core.handle_timeout(self.now);
    }

    fn advance(&mut self, span: Duration) {
        self.now += span;
        self.core.handle_timeout(self.now);
    }

    fn live(&mut self) -> Option<u64> {
        self.core.poll_live(self.now).map(|(.., update)| update.seq)
    }

    /// The updates that come in order; those that expired are kept apart.
    fn outputs(&mut self) -> Vec<u64> {
        let mut got = Vec::new();
        while let Some((.., output)) = self.core.poll_update() {
            match output {
                Output::Update(update) => got.push(update.seq),
                Output::Expired { from, to, .. } => self.expired.extend(from..=to),
                Output::Gap { .. } => panic!("{output:?}"),
            }
        }
        got
    }
}

/// Until the source's time is known, nothing with a deadline is handed on.
#[test]
fn updates_wait_for_the_time() {
    let mut node = Probe::new(true);
    node.unicast(1, 100);
    node.unicast(2, 5000);
    assert_eq!((node.live(), node.outputs()), (None, vec![]));
    assert!(node.answer(UNIX + 200 * MS));
    assert_eq!(node.live(), Some(2));
    assert_eq!((node.outputs(), &node.expired[..]), (vec![2], &[1][..]));
    // It is asked for again while updates have deadlines: at once until there were four answers,
    // and then later and later.
    assert!(node.answer(UNIX + 200 * MS));
    for seq in 3..=4 {
        assert!(!node.answer(UNIX), "no new update with a deadline");
        node.unicast(seq, 500_000);
        assert!(node.answer(UNIX + 200 * MS));
    }
    let mut passed = 0;
    for (seq, pause) in (5..).zip([1, 2, 4, 8, 16, 30, 30]) {
        node.unicast(seq, 500_000);
        node.advance(pause * 1000 * MS - MS);
        assert!(!node.answer(UNIX), "too soon");
        node.advance(MS);
        passed += pause;
        assert!(node.answer(UNIX + (200 + passed * 1000) * MS));
    }
    node.advance(60_000 * MS);
    assert!(!node.answer(UNIX), "no update had a deadline");
}

/// However long a round trip takes, the first answer counts: no other question replaces it.
#[test]
fn the_time_is_known_after_one_round_trip() {
    let mut node = Probe::new(true);
    let question = node.question().unwrap();
    for seq in 1..=15 {
        node.unicast(seq, 5000);
        node.advance(100 * MS);
        assert_eq!((node.question(), node.live()), (None, None));
    }
    node.reply(question, UNIX + 750 * MS);
    assert_eq!(node.live(), Some(15));
    node.advance(MS);
    assert!(node.question().is_some(), "the next one is due");
}

/// Without the owner's taking updates out of order, they come in order, and late ones do not.
#[test]
fn updates_in_order_are_in_time_too() {
    let mut node = Probe::new(true);
    node.answer(UNIX);
    node.unicast(1, 100);
    assert_eq!(node.outputs(), [1]);
    assert_eq!(node.live(), None, "handed on already");
    node.unicast(2, 100);
    node.advance(101 * MS);
    assert_eq!((node.outputs(), &node.expired[..]), (vec![], &[2][..]));
    assert_eq!(node.live(), None);
    assert_eq!(node.core.buffered(), 0);
}

#[test]
fn a_whole_update_outlasts_expired() {
    let mut node = Probe::new(true);
    node.answer(UNIX);
    node.unicast(2, 5000);
    let part = node.update(3, 5000);
    node.range(3, &part[..100], part.len(), 0);
    assert_eq!(node.live(), Some(2));
    node.expire(1, 1, 4).unwrap();
    assert_eq!(
        (node.outputs(), &node.expired[..]),
        (vec![2], &[1, 3, 4][..])
    );
    assert_eq!(node.core.buffered(), 0);
    // Twice, and of what is long over.
    node.expire(1, 1, 4).unwrap();
    assert_eq!(node.outputs(), [] as [u64; 0]);
    node.unicast(5, 5000);
    assert_eq!((node.live(), node.outputs()), (Some(5), vec![5]));
}

#[test]
fn hostile_notices_are_violations() {
    let mut node = Probe::new(true);
    assert!(node.expire(2, 1, 1).is_err(), "an unknown channel");
    let mut node = Probe::new(false);
    assert!(node.expire(1, 1, 1).is_err(), "not asked for");
    let encoded = |first: u8, last: u8| [0x0a, 4, 1, first, last, 0];
    for (first, last) in [(0, 5), (7, 6)] {
        let mut node = Probe::new(true);
        let taken = node.core.on_control(&encoded(first, last), node.now);
        assert!(taken.is_err(), "{first} to {last}");
    }
    // As many separate ranges as are remembered, and one more.
    let mut node = Probe::new(true);
    for at in 1..=4096 {
        node.expire(1, at * 2, at * 2).unwrap();
    }
    assert!(node.expire(1, 10_000, 10_000).is_err());
    // All that can be numbered.
    let mut node = Probe::new(true);
    let last = (1 << 62) - 1;
    node.expire(1, 1, last).unwrap();
    let output = node.core.poll_update().map(|(.., output)| output);
    let all = Output::Expired {
        from: 1,
        to: last,
        bytes: 0,
    };
    assert_eq!(output, Some(all));
    node.unicast(5, 5000);
    assert_eq!((node.live(), node.outputs()), (None, vec![]));
}

/// Whatever a source says in whatever order, each update comes once and in order or is passed over,
/// and nothing is handed on late.
#[test]
fn whatever_a_source_says() {
    for seed in 0..200 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut node = Probe::new(true);
        let start = node.now;
        node.answer(UNIX);
        let (mut next, mut live) = (1, Vec::new());
        for _ in 0..300 {
            let seq = next + rng.random_range(0..20);
            match rng.random_range(0..6) {
                0 => node.expire(1, seq, seq + rng.random_range(0..4)).unwrap(),
                1 => {
                    let update = node.update(seq, rng.random_range(0..3000));
                    node.range(seq, &update[..300], update.len(), 0);
                }
                2 | 3 => node.unicast(seq, rng.random_range(0..3000)),
                4 => node.advance(MS * rng.random_range(0..40)),
                _ => {
                    node.unicast(next, rng.random_range(0..3000));
                    node.expire(1, next, next).unwrap();
                }
            }
            if rng.random_range(0..3) > 0 {
                while let Some((.., update)) = node.core.poll_live(node.now) {
                    let deadline = update.deadline_ms.unwrap();
                    let now = UNIX + (node.now - start);
                    assert!(now.as_millis() as u64 <= deadline, "late by seed {seed}");
                    assert!(!live.contains(&update.seq), "twice by seed {seed}");
                    live.push(update.seq);
                }
            }
            while let Some((.., output)) = node.core.poll_update() {
                let first = match &output {
                    Output::Update(update) => update.seq,
                    Output::Expired { from, .. } | Output::Gap { from, .. } => *from,
                };
                assert_eq!(first, next, "in order by seed {seed}");
                next = output.last() + 1;
            }
        }
        assert!(node.core.buffered() < 1 << 20);
    }
}

/// Of several updates that wait to be handed on, the newest one goes first.
#[test]
fn the_newest_goes_first() {
    let mut node = Probe::new(true);
    node.answer(UNIX);
    (1..=3).for_each(|seq| node.unicast(seq, 5000));
    node.unicast(5, 5000);
    let live = std::iter::from_fn(|| node.live());
    assert_eq!(live.collect::<Vec<_>>(), [5, 3, 2, 1]);
    assert_eq!(node.outputs(), [1, 2, 3]);
}

/// Two parts of a large update, of which the second one is late: its deadline is known by the
/// header, and no frame has to say that it has passed.
#[test]
fn a_part_expires_by_the_receivers_own_clock() {
    let mut node = Probe::new(true);
    node.answer(UNIX);
    let update = node.update(1, 300);
    node.range(1, &update[..200], update.len(), 0);
    node.unicast(2, 5000);
    assert_eq!(node.live(), Some(2));
    node.advance(300 * MS);
    assert_eq!(node.outputs(), [] as [u64; 0]);
    let at = node.core.poll_timeout().unwrap();
    assert_eq!(at - node.now, Duration::from_micros(1));
    node.advance(MS);
    assert_eq!(node.outputs(), [2]);
    assert_eq!(node.expired, [1]);
    node.range(1, &update[200..], update.len(), 200);
    assert_eq!((node.live(), node.core.buffered()), (None, 0));
}
