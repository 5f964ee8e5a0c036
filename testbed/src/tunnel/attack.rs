//! Attacks that try to make a relay send to others, or to stop.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use amt::{Mac, Message};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::JoinPlan;
use super::awake::RunTime;
use super::outsider::Outsider;
use crate::waiting::pause;

/// Number of MACs that are guessed.
const GUESSES: u8 = 200;

/// Data messages gained by each attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttackReport {
    /// To a gateway that did all right, before the attempts to end its tunnel.
    pub honest: u64,
    /// By reports under MACs that the relay had not issued.
    pub forged: u64,
    /// By the honest gateway's report, byte by byte, from another port.
    pub replayed: u64,
    /// By the same report under another nonce.
    pub renonced: u64,
    /// To the honest gateway after others tried to end its tunnel, by guessed MACs and from other
    /// ports.
    pub honest_after_teardowns: u64,
    /// To the honest gateway after it ended its tunnel itself, a second later.
    pub after_own_teardown: u64,
}

/// Joins honestly with one socket, and attacks with others; needs a sender to the group all the
/// time.
///
/// # Errors
/// The relay does not answer, or a socket cannot be opened.
pub fn attack(relay: SocketAddr, wanted: JoinPlan, each: Duration) -> Result<AttackReport> {
    let open = || Outsider::open(relay, None, wanted);
    let patience = Duration::from_secs(30);
    let report = wanted.state();

    let mut honest = open()?;
    let answer = honest.ask(patience).context("the relay does not answer")?;
    honest.update(answer.mac, answer.nonce, &report);

    let mut forger = open()?;
    let own = forger.ask(patience).context("the relay does not answer")?;
    let mut replayer = open()?;
    let mut renoncer = open()?;
    let other = renoncer
        .ask(patience)
        .context("the relay does not answer")?;
    let mut listened = RunTime::since(Instant::now());
    let mut number = 0_u8;
    while listened.time() < each {
        if number < GUESSES {
            number += 1;
            forger.update(changed(own.mac, number), own.nonce, &report);
            replayer.update(answer.mac, answer.nonce, &report);
            let nonce = other.nonce ^ u32::from(number);
            renoncer.update(other.mac, nonce, &report);
        }
        pause(Duration::from_millis(2));
        for outsider in [&mut honest, &mut forger, &mut replayer, &mut renoncer] {
            outsider.read();
        }
        listened.turn(Instant::now());
    }
    let before = honest.arrived.data;

    let gateway = match answer.seen_as {
        Some(seen) => seen,
        None => honest.local()?,
    };
    for number in 1..=GUESSES {
        let (mac, nonce) = (changed(answer.mac, number), answer.nonce);
        forger.send(Message::Teardown {
            mac,
            nonce,
            gateway,
        });
        // The right MAC of another gateway.
        replayer.send(Message::Teardown {
            mac: own.mac,
            nonce: own.nonce,
            gateway,
        });
    }
    listen(&mut honest, each);
    let after = honest.arrived.data;

    honest.send(Message::Teardown {
        mac: answer.mac,
        nonce: answer.nonce,
        gateway,
    });
    // Packets in flight.
    listen(&mut honest, Duration::from_secs(1));
    let ended = honest.arrived.data;
    listen(&mut honest, each);
    Ok(AttackReport {
        honest: before,
        forged: forger.arrived.data,
        replayed: replayer.arrived.data,
        renonced: renoncer.arrived.data,
        honest_after_teardowns: after - before,
        after_own_teardown: honest.arrived.data - ended,
    })
}

fn listen(outsider: &mut Outsider, time: Duration) {
    let mut listened = RunTime::since(Instant::now());
    while listened.time() < time {
        pause(Duration::from_millis(2));
        outsider.read();
        listened.turn(Instant::now());
    }
}

/// A MAC that differs, by another bit or byte for each number but 0.
fn changed(mac: Mac, number: u8) -> Mac {
    let mut bytes = mac.0;
    if let Some(byte) = bytes.get_mut(usize::from(number % 6)) {
        *byte ^= number;
    }
    Mac(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_mac_is_another() {
        let mac = Mac([1, 2, 3, 4, 5, 6]);
        assert!((1..=GUESSES).all(|number| changed(mac, number).0 != mac.0));
    }
}
