//! Plain datagrams that prove a lab: multicast that is sent and counted, and questions that tell
//! how a node is seen from outside.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use netio::{BindOptions, MulticastSender, RecvBatch};

use crate::until::StopCondition;
use crate::waiting::pause;

/// Interval at which the end condition is checked.
const SLICE: Duration = Duration::from_millis(20);
/// Time after the last packet for which late ones are counted.
const AFTER: Duration = Duration::from_millis(500);

/// Sends numbered datagrams of `size` bytes (4 at least) to a group, from an address or by the
/// default multicast route; fewer if the end comes first.
///
/// # Errors
/// When there is no way to the group or a datagram cannot be sent.
pub fn send_numbered(
    group: SocketAddr,
    from: Option<IpAddr>,
    count: u32,
    size: usize,
    interval: Duration,
    until: &StopCondition,
) -> Result<()> {
    with_runtime(async {
        let mut datagram = vec![0; size.max(4)];
        let from = from.map_or_else(|| netio::route_source(group.ip()), Ok)?;
        let sender = MulticastSender::bind(from, 4, false)?;
        for number in 0..count {
            if until.is_over() {
                break;
            }
            for (place, byte) in datagram.iter_mut().zip(number.to_be_bytes()) {
                *place = byte;
            }
            sender
                .send(group, &datagram, None)
                .await
                .with_context(|| format!("sending to {group}"))?;
            tokio::time::sleep(interval).await;
        }
        let lost = sender.counters();
        match lost.last_send_error() {
            Some(error) => Err(error).context(format!("{} datagrams to {group}", lost.send_lost)),
            None => Ok(()),
        }
    })
}

/// Joins a group (from one source, or from any) on an interface, says so by `joined`, and counts
/// the datagrams that arrive until the end or, if that is sooner, until there are `enough`; without
/// `join` it only listens on the port.
///
/// # Errors
/// When the socket cannot be made or the join is refused.
pub fn count_arrivals(
    group: SocketAddr,
    source: Option<IpAddr>,
    interface: IpAddr,
    join: bool,
    until: &StopCondition,
    enough: Option<u64>,
    joined: impl FnOnce(),
) -> Result<u64> {
    with_runtime(async {
        let socket = if join {
            netio::join(group, source, Some(interface))?
        } else {
            let options = BindOptions {
                reuse_address: true,
                ..BindOptions::default()
            };
            netio::UdpSocket::bind_with(group, options)?
        };
        joined();
        let mut arrived = 0;
        receive(&socket, until, |_| {
            arrived += 1;
            enough.is_some_and(|enough| arrived >= enough)
        })
        .await?;
        Ok(arrived)
    })
}

/// Joins a group, says so by `joined`, and returns a digest of each datagram that arrives until the
/// end, in order: the same for the same bytes, of fixed length.
///
/// # Errors
/// When the join is refused.
pub fn record(
    group: SocketAddr,
    source: Option<IpAddr>,
    interface: IpAddr,
    until: &StopCondition,
    joined: impl FnOnce(),
) -> Result<Vec<String>> {
    with_runtime(async {
        let socket = netio::join(group, source, Some(interface))?;
        joined();
        let mut digests = Vec::new();
        receive(&socket, until, |data| {
            let digest = ring::digest::digest(&ring::digest::SHA256, data);
            let short = digest.as_ref().iter().take(16);
            digests.push(short.map(|byte| format!("{byte:02x}")).collect());
            false
        })
        .await?;
        Ok(digests)
    })
}

/// Receives until the end, or until `each` says that this datagram was the last one wanted. What is
/// there already is read before the end is looked at.
async fn receive(
    socket: &netio::UdpSocket,
    until: &StopCondition,
    mut each: impl FnMut(&[u8]) -> bool,
) -> Result<()> {
    let mut batch = RecvBatch::new();
    let mut enough = false;
    // Time of the last packet, or of the request to end, whichever is later.
    let mut closed_at: Option<Instant> = None;
    while !enough {
        if closed_at.is_none() && until.is_closed() {
            closed_at = Some(Instant::now());
        }
        let end = closed_at.map_or(until.end(), |closed_at| until.end().min(closed_at + AFTER));
        let wake = end.min(Instant::now() + SLICE);
        match tokio::time::timeout_at(wake.into(), socket.readable()).await {
            Ok(readable) => readable?,
            Err(_) if Instant::now() >= end => break,
            Err(_) => continue,
        }
        match socket.try_recv(&mut batch, |datagram| enough |= each(datagram.data)) {
            Ok(_) => closed_at = closed_at.map(|_| Instant::now()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("receiving"),
        }
    }
    Ok(())
}

/// Answers each datagram with the address that it came from, in words, until the end.
///
/// # Errors
/// When the socket cannot be made.
pub fn echo_origins(listen: SocketAddr, until: &StopCondition) -> Result<()> {
    let socket = UdpSocket::bind(listen).with_context(|| format!("listening on {listen}"))?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut buffer = [0; 64];
    while !until.is_over() {
        // No answer to one question is no reason to give up the others.
        if let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(from.to_string().as_bytes(), from);
        }
    }
    Ok(())
}

/// Asks again and again from one socket how it is seen from outside, and reports each answer that
/// differs from the one before.
///
/// # Errors
/// When the socket cannot be made.
pub fn ask_origin(
    to: SocketAddr,
    until: &StopCondition,
    mut report: impl FnMut(&str),
) -> Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).context("opening a UDP socket")?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut buffer = [0; 64];
    let mut last = String::new();
    while !until.is_over() {
        // The network may be away for a moment; that is what this watches.
        let _ = socket.send_to(b"?", to);
        if let Ok(length) = socket.recv(&mut buffer) {
            let answer = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
            if answer != last {
                report(&answer);
                last = answer.into_owned();
            }
        }
        pause(Duration::from_millis(10));
    }
    Ok(())
}

fn with_runtime<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?
        .block_on(work)
}
