//! Measures how fast one receiver that is far behind gets what it misses, and what that costs the
//! others.
//!
//! `catch_up [--updates N] [--bytes N] [--store memory|sqlite] [--rate BIT/S] [--unicast-rate
//! BIT/S] [--rounds N]` runs a source and its receivers in this process over the loopback
//! interface. Two receivers listen live, one of them by multicast; a third one is N updates behind.
//! Prints one figure per line.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::receiver::{Event, Receiver, ReceiverConfig, Redundancy, Verify};
use flexicast_tokio::source::{
    Admission, AdmissionError, Backlog, BoxError, ChannelConfig, FlowEndpoint, FlowSettings,
    RateControl, Source, SourceConfig, SourceHandle,
};
use flexicast_tokio::{Cursor, Rung};
use store::{Draft, Kind, Store};
use uuid::Uuid;

const CHANNEL: &str = "bench";
/// Between live updates.
const EVERY: Duration = Duration::from_millis(5);
const IDLE: Duration = Duration::from_secs(3);

struct Settings {
    updates: u64,
    bytes: usize,
    sqlite: bool,
    rate: u64,
    unicast_rate: Option<u64>,
    rounds: usize,
}

impl Settings {
    fn from_arguments() -> Self {
        let given: Vec<String> = std::env::args().skip(1).collect();
        let given: BTreeMap<_, _> = given
            .chunks(2)
            .map(|pair| {
                (
                    pair[0].as_str(),
                    pair.get(1).expect("a value for each flag"),
                )
            })
            .collect();
        let number = |name: &str, default: u64| {
            given
                .get(name)
                .map_or(default, |text| text.parse().expect("a number"))
        };
        Settings {
            updates: number("--updates", 100_000),
            bytes: number("--bytes", 150) as usize,
            sqlite: given.get("--store").is_some_and(|store| *store == "sqlite"),
            rate: number("--rate", 10_000_000),
            unicast_rate: Some(number("--unicast-rate", 200_000_000)).filter(|rate| *rate > 0),
            rounds: number("--rounds", 3) as usize,
        }
    }
}

/// Where the source reads what it does not hold any more.
enum Stored {
    Memory(RwLock<Vec<Bytes>>),
    Sqlite(Store),
}

struct Shelf(Stored);

#[async_trait]
impl Backlog for Shelf {
    async fn updates(
        &self,
        channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<(u64, Bytes)>, BoxError> {
        match &self.0 {
            Stored::Memory(updates) => {
                let updates = updates.read().unwrap();
                let mut room = max_bytes;
                let all = updates
                    .iter()
                    .enumerate()
                    .skip(from as usize - 1)
                    .take(limit);
                let some = all.take_while(|(_, bytes)| {
                    let fits = room > 0;
                    room = room.saturating_sub(bytes.len());
                    fits
                });
                Ok(some
                    .map(|(at, bytes)| (at as u64 + 1, bytes.clone()))
                    .collect())
            }
            Stored::Sqlite(store) => {
                let updates = store
                    .updates()
                    .read(channel, from, limit, max_bytes)
                    .await?;
                let bytes = updates.into_iter().map(|u| (u.seq, Bytes::from(u.encoded)));
                Ok(bytes.collect())
            }
        }
    }

    async fn authorise(&self, _request: &Admission) -> Result<(), AdmissionError> {
        Ok(())
    }
}

/// An update that says when it was published.
fn encoded(seq: u64, bytes: usize, at: Duration) -> Bytes {
    let mut out = vec![0; bytes.max(17)];
    out[1..9].copy_from_slice(&seq.to_be_bytes());
    out[9..17].copy_from_slice(&(at.as_nanos() as u64).to_be_bytes());
    for (i, byte) in out.iter_mut().enumerate().skip(17) {
        *byte = (i as u64 * 31 + seq) as u8;
    }
    out.into()
}

impl Shelf {
    async fn put(&self, from: u64, updates: Vec<Bytes>) {
        match &self.0 {
            Stored::Memory(stored) => stored.write().unwrap().extend(updates),
            Stored::Sqlite(store) => {
                let drafts: Vec<_> = (0..updates.len())
                    .map(|index| Draft {
                        entry_id: format!("entry {}", from + index as u64),
                        hash: [1; 32],
                        kind: Kind::Created,
                        index,
                    })
                    .collect();
                let encode = |_: u64, draft: &Draft| updates[draft.index].to_vec();
                let url = "http://bench/";
                store
                    .updates()
                    .append(CHANNEL, url, None, &drafts, None, &encode)
                    .await
                    .unwrap();
            }
        }
    }
}

/// One of the receivers that are up to date: how long each update took.
fn listen(
    mut config: ReceiverConfig,
    multicast: bool,
    start: Instant,
    late: Arc<Mutex<Vec<Duration>>>,
) -> tokio::sync::oneshot::Receiver<()> {
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    (config.multicast, config.receiver_id) = (multicast, Uuid::new_v4());
    tokio::spawn(async move {
        let (handle, mut events) = Receiver::start(config);
        let mut ready = Some(ready);
        while let Some(event) = events.recv().await {
            let is_up = match event {
                Event::Update {
                    seq,
                    encoded,
                    incarnation,
                    ..
                } => {
                    let mut at = [0; 8];
                    at.copy_from_slice(&encoded[9..17]);
                    let published = Duration::from_nanos(u64::from_be_bytes(at));
                    late.lock()
                        .unwrap()
                        .push(start.elapsed().saturating_sub(published));
                    handle.confirm(CHANNEL, Cursor { incarnation, seq });
                    false
                }
                Event::Welcome { .. } => !multicast,
                Event::Rung { rung, .. } => rung == Rung::Multicast,
                _ => false,
            };
            if is_up && let Some(ready) = ready.take() {
                let _ = ready.send(());
            }
        }
    });
    is_ready
}

/// Publishes an update each few milliseconds until asked to stop. Returns the head.
async fn publish(
    handle: SourceHandle,
    shelf: Arc<Shelf>,
    head: u64,
    bytes: usize,
    start: Instant,
    stop: Arc<AtomicBool>,
) -> u64 {
    let (mut seq, mut next) = (head, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        next += EVERY;
        tokio::time::sleep_until(next.into()).await;
        seq += 1;
        if let Stored::Memory(_) = &shelf.0 {
            let update = encoded(seq, bytes, start.elapsed());
            shelf.put(seq, vec![update.clone()]).await;
            handle.publish(CHANNEL, seq, update).await;
        } else {
            // Stored with the time before it was stored; what is measured is the way from the
            // source to the receivers.
            shelf
                .put(seq, vec![encoded(seq, bytes, Duration::ZERO)])
                .await;
            let update = encoded(seq, bytes, start.elapsed());
            handle.publish(CHANNEL, seq, update).await;
        }
    }
    seq
}

/// The receiver that is behind: how many updates per second it gets until it has them all.
async fn follow(behind: ReceiverConfig, updates: u64) -> f64 {
    let begun = Instant::now();
    let (handle, mut events) = Receiver::start(behind);
    let mut expected = 2;
    while expected <= updates {
        match events.recv().await.expect("a running receiver") {
            Event::Update {
                seq,
                encoded,
                incarnation,
                ..
            } => {
                assert_eq!(seq, expected, "in order");
                assert_eq!(encoded[1..9], seq.to_be_bytes(), "what was stored");
                expected += 1;
                handle.confirm(CHANNEL, Cursor { incarnation, seq });
            }
            Event::Gap { from, to, .. } => panic!("{from} to {to} are gone"),
            Event::Disconnected { reason, .. } => panic!("{reason}"),
            _ => {}
        }
    }
    let rate = (updates - 1) as f64 / begun.elapsed().as_secs_f64();
    handle.shutdown().await;
    rate
}

fn percentile(late: &Mutex<Vec<Duration>>, percent: usize) -> f64 {
    let mut late = late.lock().unwrap().clone();
    late.sort_unstable();
    let at = (late.len() * percent / 100).min(late.len() - 1);
    late[at].as_secs_f64() * 1e3
}

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() {
    let settings = Settings::from_arguments();
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let stored = if settings.sqlite {
        let store = store::open_file(&folder.path().join("bench.db")).await;
        Stored::Sqlite(store.unwrap())
    } else {
        Stored::Memory(RwLock::default())
    };
    let mut incarnation = Uuid::new_v4();
    if let Stored::Sqlite(store) = &stored {
        incarnation = store.channels().open(CHANNEL).await.unwrap().incarnation;
    }
    let shelf = Arc::new(Shelf(stored));
    let mut head = 0;
    while head < settings.updates {
        let part = 1000.min(settings.updates - head);
        let bytes = settings.bytes;
        let part: Vec<_> = (1..=part)
            .map(|n| encoded(head + n, bytes, Duration::ZERO))
            .collect();
        let len = part.len() as u64;
        shelf.put(head + 1, part).await;
        head += len;
    }
    let group = SocketAddr::from((Ipv4Addr::new(232, 71, 7, 1), 24_343));
    let config = SourceConfig {
        channels: vec![ChannelConfig {
            name: CHANNEL.into(),
            incarnation,
            head,
            first: 1,
            private: false,
            lineage: Default::default(),
            endorsements: Vec::new(),
            flow: Some(FlowSettings {
                endpoints: vec![FlowEndpoint {
                    group,
                    interface: Ipv4Addr::LOCALHOST.into(),
                    asm: false,
                    ttl: 1,
                }],
                replicate: false,
                rate_bps: 10_000_000,
                authentication: None,
                fec: None,
                control: RateControl::default(),
            }),
        }],
        rate_bps: settings.rate,
        unicast_rate_bps: settings.unicast_rate,
        fall_back: Duration::from_millis(500),
        heartbeat: Duration::from_secs(1),
        ..SourceConfig::new(
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            cert,
            key,
            [5; 32],
        )
    };
    let source = Source::bind(config, shelf.clone()).await.unwrap();
    let (handle, addr) = (source.handle(), source.local_addr());
    // On a thread of its own, as the source is a program of its own.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(source.run()).unwrap();
    });
    let receiver = ReceiverConfig {
        server: addr.to_string(),
        known: Vec::new(),
        verify: Verify::Insecure,
        token: Vec::new(),
        credential: [1; 32],
        receiver_id: Uuid::new_v4(),
        name: "bench".into(),
        software: "bench".into(),
        channels: vec![(CHANNEL.into(), None)],
        interface: Some(IpAddr::from(Ipv4Addr::LOCALHOST)),
        multicast: false,
        replicated: false,
        amt: None,
        redundancy: Redundancy::One,
        qlog: None,
        check: None,
        verify_updates: true,
        pinned_keys: Vec::new(),
    };
    let (start, late) = (Instant::now(), [(); 2].map(|()| Arc::new(Mutex::default())));
    for (multicast, late) in [false, true].into_iter().zip(&late) {
        let ready = listen(receiver.clone(), multicast, start, late.clone());
        ready.await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    late.iter().for_each(|late| late.lock().unwrap().clear());
    let stop = Arc::new(AtomicBool::new(false));
    let publishing = publish(
        handle.clone(),
        shelf.clone(),
        head,
        settings.bytes,
        start,
        stop.clone(),
    );
    let publishing = tokio::spawn(publishing);
    tokio::time::sleep(IDLE).await;
    let mut idle = Vec::new();
    for (name, late) in ["unicast", "multicast"].into_iter().zip(&late) {
        let (half, most) = (percentile(late, 50), percentile(late, 99));
        println!("idle_{name}_p50 {half:.3} ms");
        println!("idle_{name}_p99 {most:.3} ms");
        idle.push((half, most));
        late.lock().unwrap().clear();
    }
    let mut rates = Vec::new();
    for _ in 0..settings.rounds {
        let mut behind = receiver.clone();
        behind.receiver_id = Uuid::new_v4();
        behind.channels[0].1 = Some(Cursor {
            incarnation,
            seq: 1,
        });
        // On a thread of its own: it is another machine's.
        let updates = settings.updates;
        let rate = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(follow(behind, updates))
        });
        let rate = tokio::task::spawn_blocking(|| rate.join().unwrap());
        let rate = rate.await.unwrap();
        println!("round {rate:.0} updates/s");
        rates.push(rate);
    }
    stop.store(true, Ordering::Relaxed);
    for ((name, late), (half, most)) in ["unicast", "multicast"].into_iter().zip(&late).zip(idle) {
        let (now_half, now_most) = (percentile(late, 50), percentile(late, 99));
        let samples = late.lock().unwrap().len();
        println!("busy_{name}_p50 {now_half:.3} ms ({samples} samples)");
        println!("busy_{name}_p99 {now_most:.3} ms");
        println!("busy_{name}_p50_to_idle {:.2} ratio", now_half / half);
        println!("busy_{name}_p99_to_idle {:.2} ratio", now_most / most);
    }
    rates.sort_by(f64::total_cmp);
    println!(
        "catchup_updates_per_s {:.0} updates/s",
        rates[rates.len() / 2]
    );
    publishing.await.unwrap();
    handle.shutdown().await;
}
