//! A TCP transfer that goes as fast as the kernel lets it, beside a stream.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use socket2::SockRef;

use super::now_ns;

/// Bytes of one read or write.
const CHUNK: usize = 1 << 14;
/// Interval of the lines in a sink's report.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// Time within which the sink listens.
const PATIENCE: Duration = Duration::from_secs(20);

/// Congestion control of a transfer (RFC 5681): the one that every kernel has and lets everybody
/// use. A machine's default can be another kind, such as BBR, that gives way to flows like these in
/// a deep queue.
const CONGESTION: &str = "reno";

/// Sends to a sink until the connection ends.
///
/// # Errors
/// The sink does not listen in time, or closes the connection.
pub fn send(to: SocketAddr) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut stream = loop {
        match TcpStream::connect(to) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("connecting to {to}"));
            }
            Err(_) => crate::waiting::pause(REPORT_EVERY),
        }
    };
    SockRef::from(&stream)
        .set_tcp_congestion(CONGESTION.as_bytes())
        .with_context(|| format!("choosing {CONGESTION} as congestion control"))?;
    let chunk = [0; CHUNK];
    loop {
        stream.write_all(&chunk)?;
    }
}

/// Accepts one connection and reads it to its end. Writes lines to `report`: the time by
/// [`now_ns`], and the bytes that had arrived by then.
///
/// # Errors
/// The address is in use, or the disk refuses.
pub fn sink(listen: SocketAddr, report: &Path) -> Result<()> {
    let mut report = File::create(report)?;
    let (mut stream, _) = TcpListener::bind(listen)?.accept()?;
    let (mut chunk, mut total, mut due) = ([0; CHUNK], 0_u64, Instant::now());
    loop {
        let read = stream.read(&mut chunk)?;
        if read == 0 {
            return Ok(());
        }
        total += read as u64;
        if due.elapsed() >= REPORT_EVERY {
            due = Instant::now();
            writeln!(report, "{} {total}", now_ns())?;
        }
    }
}

/// Returns the bytes that a sink received between two times, by the lines of its report.
///
/// # Errors
/// The report cannot be read.
pub fn received_between(report: &Path, from_ns: u64, until_ns: u64) -> Result<u64> {
    let text =
        std::fs::read_to_string(report).with_context(|| format!("reading {}", report.display()))?;
    Ok(between(&text, from_ns, until_ns))
}

fn between(text: &str, from_ns: u64, until_ns: u64) -> u64 {
    let lines = text.lines().filter_map(|line| {
        let (at, bytes) = line.split_once(' ')?;
        Some((at.parse::<u64>().ok()?, bytes.parse::<u64>().ok()?))
    });
    let (mut before, mut after) = (0, 0);
    for (at, bytes) in lines {
        if at <= from_ns {
            before = bytes;
        }
        if at <= until_ns {
            after = bytes;
        }
    }
    after - before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_between_two_times() {
        let text = "100 5\n200 12\n300 20\n400 21\n50";
        assert_eq!(between(text, 0, 250), 12);
        assert_eq!(between(text, 200, 1000), 9);
        assert_eq!(between(text, 450, 500), 0);
    }
}
