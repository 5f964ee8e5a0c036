//! Datagrams there and back: what a path's round trip takes and whether it loses any.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::waiting::pause;

/// Parameters of the sender.
#[derive(Debug, Clone, Copy)]
pub struct Trip {
    /// Destination.
    pub to: SocketAddr,
    /// Number.
    pub count: u32,
    /// Bytes of payload each, at least 4.
    pub size: usize,
    /// Time between two.
    pub interval: Duration,
    /// Time limit for an answer after the previous one.
    pub patience: Duration,
}

/// Answers received.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Trips {
    /// Datagrams sent.
    pub sent: u32,
    /// Answers received.
    pub answered: u32,
    /// Answers that came after the answer to a later datagram.
    pub out_of_order: u32,
    /// The shortest round trip, in milliseconds.
    pub min_ms: f64,
    /// Of half of them the round trip took at most this long.
    pub median_ms: f64,
    /// The longest round trip.
    pub max_ms: f64,
}

/// Sends every datagram back to where it came from, for ever.
///
/// # Errors
/// When the address cannot be listened on, or the socket fails.
pub fn answer(listen: SocketAddr) -> Result<()> {
    let socket = UdpSocket::bind(listen).with_context(|| format!("listening on {listen}"))?;
    let mut buffer = [0; 65_535];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        // The client may be gone.
        let _ = socket.send_to(&buffer[..length], from);
    }
}

/// Sends numbered datagrams and waits for their answers.
///
/// # Errors
/// When there is no way to the address, or the socket fails.
pub fn send_trips(trip: Trip) -> Result<Trips> {
    let any: SocketAddr = if trip.to.is_ipv4() {
        ([0; 4], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(trip.to)?;
    let reader = socket.try_clone()?;
    reader.set_read_timeout(Some(trip.patience))?;
    let start = Instant::now();
    let listener = std::thread::spawn(move || collect(&reader, start, trip.count));
    let mut datagram = vec![0; trip.size.max(12)];
    let mut sent = 0;
    for number in 0..trip.count {
        let due = trip.interval * number;
        pause(due.saturating_sub(start.elapsed()));
        let at = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        datagram[..4].copy_from_slice(&number.to_be_bytes());
        datagram[4..12].copy_from_slice(&at.to_be_bytes());
        socket
            .send(&datagram)
            .with_context(|| format!("sending to {}", trip.to))?;
        sent += 1;
    }
    let (mut times, out_of_order) = match listener.join() {
        Ok(collected) => collected?,
        Err(_) => anyhow::bail!("the thread that collects answers has panicked"),
    };
    times.sort_unstable();
    let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    Ok(Trips {
        sent,
        answered: u32::try_from(times.len()).unwrap_or(u32::MAX),
        out_of_order,
        min_ms: ms(times.first()),
        median_ms: ms(times.get(times.len() / 2)),
        max_ms: ms(times.last()),
    })
}

/// Takes answers until all are there or none has come for a while. Returns each one's round trip,
/// and how many were overtaken.
fn collect(socket: &UdpSocket, start: Instant, count: u32) -> io::Result<(Vec<Duration>, u32)> {
    let mut times = Vec::new();
    let mut out_of_order = 0;
    let mut next = 0;
    let mut buffer = [0; 65_535];
    while times.len() < count as usize {
        match socket.recv(&mut buffer) {
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                break;
            }
            Err(error) => return Err(error),
        }
        let now = start.elapsed();
        let number = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
        let mut at = [0; 8];
        at.copy_from_slice(&buffer[4..12]);
        times.push(now.saturating_sub(Duration::from_nanos(u64::from_be_bytes(at))));
        if number < next {
            out_of_order += 1;
        }
        next = next.max(number.saturating_add(1));
    }
    Ok((times, out_of_order))
}
