//! Time from publishing an update to the receiver's application, by native multicast, beside a
//! plain UDP multicast datagram of the same size.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use flexicast_tokio::Via;
use flexicast_tokio::receiver::{Event, Receiver, ReceiverConfig, Verify};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use testbed::stream::now_ns;
use testbed::urgent::RealTime;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::figures::Figures;
use crate::site::{CHANNEL, Site};

/// All figures of this file.
pub const NAMES: [&str; 6] = [
    "latency_p50_vs_udp",
    "latency_p99_vs_udp",
    "latency_p50_us",
    "latency_p99_us",
    "latency_udp_p50_us",
    "latency_udp_p99_us",
];

/// Arrivals that wait to be compared.
const ARRIVALS: usize = 1024;
/// Messages of each kind; they take turns.
const SAMPLES: usize = 3_000;
/// Messages before that, which are not counted.
const WARM_UP: usize = 100;
/// Bytes of a message.
const SIZE: usize = 1_000;
/// Time between two messages, in µs: from, to.
const PAUSE_US: std::ops::Range<u64> = 1_000..3_000;
/// Time limit for the arrival of one.
const PATIENCE: Duration = Duration::from_secs(10);
const GROUP: Ipv4Addr = Ipv4Addr::new(232, 70, 73, 1);

/// A message that arrived.
struct Arrival {
    at_ns: u64,
    bytes: Bytes,
    by_flow: bool,
}

/// Times between sending and arrival, in µs.
struct Times(Vec<f64>);

impl Times {
    fn percentile(&self, percent: usize) -> f64 {
        let at = self.0.len() * percent / 100;
        self.0.get(at).copied().unwrap_or_default()
    }
}

/// Measures what is asked for.
///
/// # Errors
/// When a message does not arrive, or changed.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    // Both ends of both sides, as on machines that have nothing else to do.
    let urgent = RealTime::begin(RealTime::MEASURED);
    if let Err(error) = &urgent {
        eprintln!("what else this machine does will show in the latencies: {error}");
    }
    let (flow, udp) = in_task(take_turns(SAMPLES))??;
    drop(urgent);
    let values = [
        (flow.percentile(50) / udp.percentile(50), "ratio"),
        (flow.percentile(99) / udp.percentile(99), "ratio"),
        (flow.percentile(50), "us"),
        (flow.percentile(99), "us"),
        (udp.percentile(50), "us"),
        (udp.percentile(99), "us"),
    ];
    for (name, (value, unit)) in NAMES.into_iter().zip(values) {
        figures.take(name, value, unit);
    }
    Ok(())
}

/// Runs an application in a task beside its transport, in a runtime on the calling thread: there is
/// one for the source and one for the receiver.
fn in_task<T: Send + 'static>(run: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async { tokio::spawn(run).await })?)
}

/// Sends messages in turns, one at a time.
async fn take_turns(samples: usize) -> Result<(Times, Times)> {
    let site = Site::start().await?;
    let mut by_flow = receive_updates(site.address())?;
    let (group, mut by_udp) = receive_datagrams()?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket2::SockRef::from(&socket).set_multicast_if_v4(&Ipv4Addr::LOCALHOST)?;
    site.wait_rung(1, "multicast").await?;
    let mut random = SmallRng::seed_from_u64(7);
    let (mut flow, mut udp, mut unicast) = (Vec::new(), Vec::new(), 0);
    for turn in 0..WARM_UP + samples {
        let mut message = vec![0; SIZE];
        random.fill_bytes(&mut message);
        let message = Bytes::from(message);
        pause(&mut random).await;
        let sent = now_ns();
        site.publish(message.clone()).await;
        let update = next(&mut by_flow).await?;
        let update_took = update.at_ns.saturating_sub(sent);
        pause(&mut random).await;
        let sent = now_ns();
        socket.send_to(&message, group)?;
        let datagram = next(&mut by_udp).await?;
        let datagram_took = datagram.at_ns.saturating_sub(sent);
        ensure!(
            update.bytes == message && datagram.bytes == message,
            "a message changed on its way"
        );
        unicast += usize::from(!update.by_flow);
        if turn >= WARM_UP {
            flow.push(update_took as f64 / 1e3);
            udp.push(datagram_took as f64 / 1e3);
        }
    }
    ensure!(
        unicast * 100 <= samples,
        "{unicast} messages came by the unicast path"
    );
    for times in [&mut flow, &mut udp] {
        times.sort_by(f64::total_cmp);
    }
    site.stop().await;
    Ok((Times(flow), Times(udp)))
}

async fn pause(random: &mut SmallRng) {
    let pause = Duration::from_micros(random.random_range(PAUSE_US));
    tokio::time::sleep(pause).await;
}

async fn next(arrivals: &mut mpsc::Receiver<Arrival>) -> Result<Arrival> {
    let arrival = tokio::time::timeout(PATIENCE, arrivals.recv()).await;
    arrival
        .context("a message does not arrive")?
        .context("a receiver has ended")
}

/// Starts a receiver on a thread of its own. The time of an arrival is when its application has the
/// update.
fn receive_updates(source: SocketAddr) -> Result<mpsc::Receiver<Arrival>> {
    let (out, arrivals) = mpsc::channel(ARRIVALS);
    let mut config = ReceiverConfig::new(
        source.to_string(),
        Verify::Insecure,
        Uuid::new_v4(),
        rand::random(),
        vec![(CHANNEL.to_owned(), None)],
    );
    config.interface = Some(Ipv4Addr::LOCALHOST.into());
    let run = async move {
        let (_handle, mut events) = Receiver::start(config);
        while let Some(event) = events.recv().await {
            let at_ns = now_ns();
            let Event::Update { encoded, via, .. } = event else {
                continue;
            };
            let arrival = Arrival {
                at_ns,
                bytes: encoded,
                by_flow: via == Via::Flow,
            };
            if out.send(arrival).await.is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("receiver".to_owned())
        .spawn(move || in_task(run))?;
    Ok(arrivals)
}

/// Receives plain datagrams on a thread of its own, which waits in the kernel.
fn receive_datagrams() -> Result<(SocketAddr, mpsc::Receiver<Arrival>)> {
    let (out, arrivals) = mpsc::channel(ARRIVALS);
    let socket = UdpSocket::bind((GROUP, 0))?;
    let group = SocketAddr::from((GROUP, socket.local_addr()?.port()));
    let joined = socket2::SockRef::from(&socket).join_ssm_v4(
        &Ipv4Addr::LOCALHOST,
        &GROUP,
        &Ipv4Addr::LOCALHOST,
    );
    if let Err(error) = joined {
        bail!("cannot join {GROUP}: {error}");
    }
    let run = move || {
        let mut room = [0; 2 * SIZE];
        while let Ok(len) = socket.recv(&mut room) {
            let at_ns = now_ns();
            let bytes = Bytes::copy_from_slice(room.get(..len).unwrap_or_default());
            let by_flow = false;
            let arrival = Arrival {
                at_ns,
                bytes,
                by_flow,
            };
            if out.blocking_send(arrival).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("datagrams".to_owned())
        .spawn(run)?;
    Ok((group, arrivals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_by_both_ways() {
        let (flow, udp) = in_task(take_turns(20)).unwrap().unwrap();
        for times in [flow, udp] {
            assert_eq!(times.0.len(), 20);
            assert!(times.percentile(50) > 0.0 && times.percentile(50) <= times.percentile(99));
        }
    }
}
