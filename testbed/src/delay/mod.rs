//! A slow cable in user space: frames between two interfaces take a fixed time each way.
//!
//! The kernel's own element for this, netem, is often not built where tests run. One thread reads
//! whole frames from two raw sockets, holds each for its time, and writes it to the other side, in
//! order; it sleeps in between, and each time it wakes it does all that is due in both directions.

mod echo;
mod line;
mod port;

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

pub use echo::{Trip, Trips, answer, send_trips};
pub use line::{Counts, Line};
use port::{MAX_FRAME, Port};

use crate::urgent::RealTime;

/// Report of a removed cable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// From the first interface to the second.
    pub there: Counts,
    /// From the second to the first.
    pub back: Counts,
}

/// Number of frames of one direction that are read before those of the other have their turn.
const TURN: usize = 64;

/// Carries frames between two interfaces of this network namespace, each taking `delay`, until
/// `stop` ends or has something to read. At most `limit` bytes are under way each way. Calls `up`
/// when frames begin to pass.
///
/// # Errors
/// When an interface is not there, or goes away.
pub fn carry(
    interfaces: [&str; 2],
    delay: Duration,
    limit: usize,
    stop: &mut (impl AsFd + Read),
    up: impl FnOnce() -> io::Result<()>,
) -> Result<Report> {
    let open = |name: &str| Port::open(name).with_context(|| format!("opening interface {name:?}"));
    let ports = [open(interfaces[0])?, open(interfaces[1])?];
    let mut lines = [Line::new(delay, limit), Line::new(delay, limit)];
    // A cable does not wait for a processor. Only the machine's own administrator may ask for that;
    // without it, a busy machine adds to the delay, as the report shows.
    let _urgent = RealTime::begin(RealTime::APPARATUS);
    let mut buffer = vec![0; MAX_FRAME];
    up()?;
    while !wait(&ports, &lines, stop)? {
        for (from, line) in lines.iter_mut().enumerate() {
            for _ in 0..TURN {
                let read = ports[from].read(&mut buffer);
                let Some(frame) = read.with_context(|| format!("reading {}", interfaces[from]))?
                else {
                    break;
                };
                line.take(frame, Instant::now());
            }
        }
        for (from, line) in lines.iter_mut().enumerate() {
            line.release(Instant::now(), |frame| ports[1 - from].write(frame));
        }
    }
    Ok(Report {
        there: lines[0].counts(),
        back: lines[1].counts(),
    })
}

/// Sleeps until a frame has arrived or is due; returns whether to stop.
fn wait(ports: &[Port; 2], lines: &[Line; 2], stop: &impl AsFd) -> io::Result<bool> {
    let now = Instant::now();
    let due = lines.iter().filter_map(Line::next_due).min();
    let timeout = due.map(|due| due.saturating_duration_since(now));
    let timeout = timeout.map(|time| Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let mut sources = [
        PollFd::new(&ports[0], PollFlags::IN),
        PollFd::new(&ports[1], PollFlags::IN),
        PollFd::new(stop, PollFlags::IN),
    ];
    match poll(&mut sources, timeout.as_ref()) {
        Ok(_) => Ok(!sources[2].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
