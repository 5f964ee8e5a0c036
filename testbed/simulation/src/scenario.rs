//! Random scenarios: most of them small, some large, each from one seed.

use std::time::Duration;

use flexicast::authentication::PacketAuthentication;
use flexicast::fec::{FecConfig, FecPolicy, FecScheme, SymbolPath};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::gilbert_elliott::GilbertElliott;
use crate::link::{Loss, Quality};
use crate::script::{Act, ChannelPlan, ReceiverPlan, Script};
use crate::store::Store;

const MS: Duration = Duration::from_millis(1);
/// Copies of flow packets that a run is worth, about.
const BUDGET: usize = 16_000;

impl Script {
    /// The scenario of a seed.
    pub fn random(seed: u64) -> Script {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let count = match rng.random_range(0..1000) {
            0..720 => rng.random_range(2..6),
            720..945 => rng.random_range(6..17),
            945..996 => rng.random_range(17..61),
            _ => rng.random_range(100..201),
        };
        let seconds = match count {
            0..6 => rng.random_range(8..32),
            6..17 => rng.random_range(8..20),
            _ => rng.random_range(5..10),
        };
        let duration = Duration::from_secs(seconds);
        let channels = match rng.random_range(0..10) {
            0..6 => 1,
            6..9 => 2,
            _ => 3,
        };
        let mut channels: Vec<_> = (0..channels).map(|_| channel(rng)).collect();
        let rough = [0.0, 0.5, 1.0][rng.random_range(0..3)];
        let mut receivers: Vec<_> = (0..count)
            .map(|_| receiver(rng, channels.len(), duration, rough))
            .collect();
        let mut acts = traffic(rng, &channels, count, duration);
        if count < 6 && rng.random_bool(0.02) {
            flood(rng, &mut channels, count, duration, &mut acts);
        }
        let disturbances = match rng.random_range(0..20) {
            0 => 0,
            1..11 => rng.random_range(1..6),
            11..19 => rng.random_range(6..20),
            _ => rng.random_range(20..90),
        };
        // Sometimes spread over the run, sometimes all at the same time, where they meet each other
        // half done.
        let (from, to) = match rng.random_range(0..3) {
            0 => (0.02, 0.98),
            _ => {
                let from = rng.random_range(0.02..0.8);
                (from, from + rng.random_range(0.01..0.18))
            }
        };
        let mut victim = rng.random_range(0..count);
        for _ in 0..disturbances {
            let at = duration.mul_f64(rng.random_range(from..to));
            // Trouble seldom comes alone.
            if rng.random_bool(0.5) {
                victim = rng.random_range(0..count);
            }
            acts.push((at, disturbance(rng, channels.len(), victim)));
        }
        if rng.random_bool(0.1) {
            flapping(rng, count, duration, &mut acts);
        }
        let relays = relays(seed, &mut receivers, duration, rough, &mut acts);
        let mut forger = forger(seed, channels.len(), duration, &mut acts);
        let is_authenticated = is_authenticated(seed);
        if is_authenticated {
            forger = authentication(seed, &mut channels, count, duration, &mut acts);
        }
        // By the seed alone: all that was drawn before stays as it was.
        if matches!(seed % 16, 5 | 7) {
            for channel in &mut channels {
                channel.authentication = Some(PacketAuthentication::Stream);
            }
        }
        erasure(seed, &mut channels);
        acts.sort_by_key(|(at, _)| *at);
        let patience = rng.random_range(1500..5000);
        Script {
            seed,
            duration,
            channels,
            receivers,
            acts,
            timer_slack: [Duration::ZERO, MS / 4, MS, MS * 25][rng.random_range(0..4)],
            source_patience: MS * rng.random_range(1500..15_000),
            receiver_patience: MS * patience,
            unicast_rate: rng
                .random_bool(0.3)
                .then(|| rng.random_range(2..50) * 1_000_000),
            relays,
            copies: [1, 3, 2000][rng.random_range(0..3)],
            forger,
            // A receiver of too many forgeries has left the flow for good.
            patient: count < 8 && (is_authenticated || rng.random_bool(0.1) && !forger),
        }
    }
}

/// Forged packets in one scenario of eight, from a generator of their own, so that the others do
/// not change.
fn forger(seed: u64, channels: usize, duration: Duration, acts: &mut Vec<(Duration, Act)>) -> bool {
    if seed % 8 != 5 {
        return false;
    }
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0xf0_76e5);
    for act in acts.iter_mut() {
        if let (_, Act::Publish { len, .. }) = act {
            *len = (*len).max(Store::LEAST_CHECKED);
        }
    }
    for _ in 0..rng.random_range(1..60) {
        let at = duration.mul_f64(rng.random_range(0.05..0.98));
        let act = Act::Forge {
            channel: rng.random_range(0..channels),
            ahead: [0, 1, 1, 1, 2, 4, 90][rng.random_range(0..7)],
            offset: [0, 0, 5, 700, 20_000][rng.random_range(0..5)],
            len: rng.random_range(1..1000),
            fin: rng.random_bool(0.4),
        };
        acts.push((at, act));
    }
    true
}

/// Whether the packets of all flows of a scenario are authenticated: those of one in eight.
fn is_authenticated(seed: u64) -> bool {
    seed % 8 == 3
}

/// Chooses types of authentication, with receivers that come and go across the number at which the
/// type changes, further epochs, and in half of the scenarios forged and replayed packets. Returns
/// whether there are such.
fn authentication(
    seed: u64,
    channels: &mut [ChannelPlan],
    receivers: usize,
    duration: Duration,
    acts: &mut Vec<(Duration, Act)>,
) -> bool {
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0x51_67ed);
    for channel in channels.iter_mut() {
        channel.authentication = Some(match rng.random_range(0..6) {
            0 => PacketAuthentication::Signature,
            1 | 2 => PacketAuthentication::Tags,
            _ => PacketAuthentication::Auto {
                tags_up_to: rng.random_range(1..receivers.max(2)),
            },
        });
    }
    let mut at = || duration.mul_f64(rng.random_range(0.05..0.98));
    let times: Vec<_> = std::iter::repeat_with(&mut at).take(80).collect();
    let (restarts, rekeys) = (rng.random_range(0..12), rng.random_range(0..6));
    let forgeries = [0, 60][rng.random_range(0..2)];
    for (n, at) in times.into_iter().enumerate() {
        let (channel, receiver) = (
            rng.random_range(0..channels.len()),
            rng.random_range(0..receivers),
        );
        let act = match n {
            n if n < restarts => Act::RestartReceiver {
                receiver,
                down: span(rng, 0.1, 4.0),
                politely: rng.random_bool(0.7),
            },
            n if n < restarts + rekeys => Act::Rekey { channel },
            n if n >= restarts + rekeys + forgeries => break,
            n if n % 3 == 0 => Act::Forge {
                channel,
                ahead: [0, 1, 1, 2][rng.random_range(0..4)],
                offset: [0, 0, 700][rng.random_range(0..3)],
                len: rng.random_range(1..1000),
                fin: rng.random_bool(0.4),
            },
            n if n % 3 == 1 => Act::ForgeTags {
                channel,
                ahead: [0, 0, 1, 5, 1 << 30][rng.random_range(0..5)],
            },
            _ => Act::Replay {
                channel,
                back: [0, 1, 2, 8, 40][rng.random_range(0..5)],
            },
        };
        acts.push((at, act));
    }
    forgeries > 0
}

/// Repair symbols in one scenario of three, from a generator of their own.
fn erasure(seed: u64, channels: &mut [ChannelPlan]) {
    if seed % 3 != 1 {
        return;
    }
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0xfec);
    for channel in channels {
        let packets = rng.random_range(1..30);
        let policies = [
            FecPolicy::Adaptive,
            FecPolicy::Tail,
            FecPolicy::Reactive,
            FecPolicy::Proactive {
                symbols: rng.random_range(1..packets.min(4) + 1),
                packets,
            },
        ];
        channel.fec = Some(FecConfig {
            policy: policies[rng.random_range(0..4)],
            scheme: FecScheme::ALL[rng.random_range(0..3)],
            path: [SymbolPath::Flow, SymbolPath::Unicast][usize::from(rng.random_bool(0.25))],
        });
    }
}

fn channel(rng: &mut SmallRng) -> ChannelPlan {
    let (v4, v6) = [
        (true, false),
        (true, false),
        (true, true),
        (false, true),
        (false, false),
    ][rng.random_range(0..5)];
    ChannelPlan {
        private: rng.random_bool(0.4),
        flow: rng.random_bool(0.95),
        chacha: rng.random_bool(0.2),
        v4,
        v6,
        copies: rng.random_bool(if v4 || v6 { 0.4 } else { 0.9 }),
        rate: (rng.random_bool(0.9)).then(|| rng.random_range(1..20) * 1_000_000),
        ack_delay: MS * rng.random_range(5..50),
        fall_back: MS * rng.random_range(100..400),
        // Long enough for the flow to have nothing under way between two of them.
        heartbeat: MS * rng.random_range(400..1200),
        authentication: None,
        fec: None,
        epoch_packets: rng.random_bool(0.2).then(|| rng.random_range(100..2_000)),
        stored: [0, 0, 50, 150, 700][rng.random_range(0..5)],
        max_len: match rng.random_range(0..100) {
            0..96 => [200, 900, 3_000, 12_000, 60_000][rng.random_range(0..5)],
            _ => 400_000,
        },
    }
}

/// `rough` is how bad the networks of this scenario are, from 0 to 1.
fn quality(rng: &mut SmallRng, rough: f64) -> Quality {
    let loss = match rng.random_range(0..10) {
        0..4 => Loss::NONE,
        4..8 => Loss::Uniform(rng.random_range(0.001..0.2) * rough),
        _ => Loss::GilbertElliott(GilbertElliott {
            p: rng.random_range(0.002..0.05) * rough,
            r: rng.random_range(0.05..0.5),
            k: 1.0,
            h: 1.0 - rng.random_range(0.5..1.0),
        }),
    };
    Quality {
        delay: match rng.random_range(0..8) {
            0 => MS / 20,
            _ => MS * rng.random_range(1..60),
        },
        jitter: [MS / 5, MS, MS, MS * 5, MS * 5, MS * 30, MS * 150][rng.random_range(0..7)],
        loss,
        duplicates: if rng.random_bool(0.3) {
            0.05 * rough
        } else {
            0.0
        },
    }
}

fn receiver(rng: &mut SmallRng, channels: usize, duration: Duration, rough: f64) -> ReceiverPlan {
    let mut wanted: Vec<_> = (0..channels).filter(|_| rng.random_bool(0.7)).collect();
    if wanted.is_empty() {
        wanted.push(rng.random_range(0..channels));
    }
    let (v4, v6) = [
        (true, true),
        (true, true),
        (true, false),
        (false, true),
        (false, false),
    ][rng.random_range(0..5)];
    let joins_at = match rng.random_range(0..10) {
        0..6 => MS * rng.random_range(0..50),
        6..8 => duration.mul_f64(rng.random_range(0.0..0.3)),
        _ => duration.mul_f64(rng.random_range(0.0..0.9)),
    };
    ReceiverPlan {
        joins_at,
        channels: wanted,
        v4,
        v6,
        amt_v4: false,
        amt_v6: false,
        copies: rng.random_bool(0.6),
        multicast: quality(rng, rough),
        copied: quality(rng, rough),
        unicast: quality(rng, rough),
        relayed: Quality {
            delay: MS,
            jitter: MS,
            loss: Loss::NONE,
            duplicates: 0.0,
        },
        bandwidth: [2, 10, 50, 1000][rng.random_range(0..4)] * 1_000_000,
        confirms_after: MS * rng.random_range(0..1500),
        reads_per_second: rng.random_bool(0.1).then(|| rng.random_range(20..200)),
    }
}

/// Makes the feeds' updates: steady traffic, pauses and bursts, within the budget.
fn traffic(
    rng: &mut SmallRng,
    channels: &[ChannelPlan],
    receivers: usize,
    duration: Duration,
) -> Vec<(Duration, Act)> {
    let mut acts = Vec::new();
    for (channel, plan) in channels.iter().enumerate() {
        let packets = plan.max_len / 2 / 1100 + 1;
        let most = (BUDGET / channels.len() / receivers / packets).clamp(5, 1500);
        let updates = rng.random_range(most / 4..most + 1).max(1);
        let mut at = Duration::ZERO;
        let mean = duration.as_secs_f64() / updates as f64;
        while at < duration {
            let len = match rng.random_range(0..20) {
                0 => 0,
                1 => plan.max_len,
                _ => rng.random_range(0..plan.max_len),
            };
            let burst = match rng.random_range(0..40) {
                0 => rng.random_range(2..30),
                _ => 1,
            };
            for _ in 0..burst {
                acts.push((at, Act::Publish { channel, len }));
            }
            if rng.random_bool(0.02) {
                let len = rng.random_range(0..1000);
                acts.push((at, Act::Message { channel, len }));
            }
            // Exponential, and now and then a long pause.
            let wait = -rng.random_range(1e-6f64..1.0).ln() * mean * burst as f64;
            at += Duration::from_secs_f64(wait.min(20.0));
            if rng.random_bool(0.005) {
                at += MS * rng.random_range(500..4000);
            }
        }
    }
    acts
}

/// Makes relays, their users and failures, from a random stream of their own, so that the rest of a
/// scenario is the same without them.
fn relays(
    seed: u64,
    receivers: &mut [ReceiverPlan],
    duration: Duration,
    rough: f64,
    acts: &mut Vec<(Duration, Act)>,
) -> usize {
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0x2268);
    let relays = [0, 0, 1, 2, 3][rng.random_range(0..5)];
    if relays == 0 {
        return 0;
    }
    for receiver in receivers.iter_mut() {
        receiver.relayed = quality(rng, rough);
        (receiver.amt_v4, receiver.amt_v6) = [
            (true, true),
            (true, true),
            (true, false),
            (false, true),
            (false, false),
        ][rng.random_range(0..5)];
    }
    let failures = [0, 1, 3, 10][rng.random_range(0..4)];
    for _ in 0..failures {
        let at = duration.mul_f64(rng.random_range(0.05..0.98));
        let relay = rng.random_range(0..relays);
        let span = span(rng, 0.05, 8.0);
        let notified = rng.random_bool(0.5);
        acts.push((
            at,
            Act::RelayFails {
                relay,
                span,
                notified,
            },
        ));
    }
    for _ in 0..rng.random_range(0..4) {
        let at = duration.mul_f64(rng.random_range(0.05..0.98));
        let receiver = rng.random_range(0..receivers.len());
        let span = span(rng, 0.05, 6.0);
        acts.push((at, Act::CutRelay { receiver, span }));
    }
    relays
}

fn span(rng: &mut SmallRng, from: f64, to: f64) -> Duration {
    Duration::from_secs_f64(from * (to / from).powf(rng.random_range(0.0..1.0)))
}

/// More than fits into a receiver's window while its application does not read.
fn flood(
    rng: &mut SmallRng,
    channels: &mut [ChannelPlan],
    receivers: usize,
    duration: Duration,
    acts: &mut Vec<(Duration, Act)>,
) {
    let channel = rng.random_range(0..channels.len());
    channels[channel].rate = [None, Some(50_000_000), Some(100_000_000)][rng.random_range(0..3)];
    let at = duration.mul_f64(rng.random_range(0.1..0.5));
    for receiver in 0..receivers {
        if rng.random_bool(0.5) {
            let span = span(rng, 4.0, 20.0);
            acts.push((at, Act::Stall { receiver, span }));
        }
    }
    for _ in 0..rng.random_range(8..24) {
        let len = rng.random_range(1_000_000..1_700_000);
        acts.push((at, Act::Publish { channel, len }));
    }
    for n in 0..rng.random_range(0..4) {
        let later = MS * rng.random_range(1..300) * n;
        acts.push((at + later, Act::Abandon { channel }));
    }
}

/// The flow comes and goes for one receiver after the other.
fn flapping(
    rng: &mut SmallRng,
    receivers: usize,
    duration: Duration,
    acts: &mut Vec<(Duration, Act)>,
) {
    let (every, span) = (span(rng, 0.3, 4.0), span(rng, 0.1, 4.0));
    let mut at = duration / 10;
    while at < duration {
        let receiver = rng.random_range(0..receivers);
        let copies = rng.random_bool(0.3);
        acts.push((
            at,
            Act::Cut {
                receiver,
                copies,
                span,
            },
        ));
        at += every;
    }
}

fn disturbance(rng: &mut SmallRng, channels: usize, receiver: usize) -> Act {
    let channel = rng.random_range(0..channels);
    match rng.random_range(0..100) {
        0..4 => Act::Distance {
            receiver,
            flow: span(rng, 0.0001, 0.3),
            unicast: span(rng, 0.0001, 0.3),
        },
        4..10 => Act::Weather {
            receiver,
            multicast: rng.random_bool(0.7),
            loss: quality(rng, 2.0).loss,
        },
        10..20 => Act::Cut {
            receiver,
            copies: rng.random_bool(0.4),
            span: span(rng, 0.02, 8.0),
        },
        20..24 => Act::CutAll {
            span: span(rng, 0.05, 6.0),
        },
        24..34 => Act::Partition {
            receiver,
            span: span(rng, 0.05, 12.0),
        },
        34..37 => Act::ForgetJoin { receiver },
        37..42 => Act::RestartSource {
            down: span(rng, 0.01, 3.0),
            new_store: rng.random_bool(0.15),
        },
        42..49 => Act::RestartReceiver {
            receiver,
            down: span(rng, 0.01, 5.0),
            politely: rng.random_bool(0.5),
        },
        49..53 => Act::Leave {
            receiver,
            politely: rng.random_bool(0.7),
        },
        53..56 => Act::Eject { receiver },
        56..62 => Act::Rekey { channel },
        62..65 => Act::Withdraw {
            channel,
            span: span(rng, 0.001, 4.0),
        },
        65..68 => Act::ReplaceFlow { channel },
        68..71 => Act::Endpoints {
            channel,
            v4: rng.random_bool(0.7),
            v6: rng.random_bool(0.5),
        },
        71..75 => Act::Store {
            span: span(rng, 0.1, 6.0),
            delay: span(rng, 0.001, 2.0),
            fails: rng.random_bool(0.5),
        },
        75..78 => Act::Retain {
            channel,
            keep: [1, 5, 30, 200][rng.random_range(0..4)],
        },
        78..83 => Act::Stall {
            receiver,
            span: span(rng, 0.1, 10.0),
        },
        83..86 => Act::SuspendSource {
            span: span(rng, 0.05, 10.0),
        },
        86..91 => Act::Suspend {
            receiver,
            span: span(rng, 0.05, 10.0),
        },
        91..95 => Act::Moves {
            receiver,
            validated_after: span(rng, 0.01, 5.0),
        },
        95..97 => Act::NetworkChanged { receiver },
        97 => Act::Abandon { channel },
        98 => Act::Leap {
            span: span(rng, 0.1, 30.0),
        },
        _ => Act::CopyFails { receiver },
    }
}
