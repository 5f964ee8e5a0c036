//! Acknowledgements of a thousand members: how many there are, and what they cost the source.

mod paths;
mod script;

use std::time::Duration;

use anyhow::Result;

use crate::figures::Figures;
use paths::{Datagrams, FeedbackPackets, Intake};
use script::{Load, Script};

/// All figures of this file.
pub const NAMES: [&str; 5] = [
    "ack_rate_n1000",
    "ack_cpu_share_n1000",
    "ack_cpu_share_datagram_n1000",
    "ack_ns_n1000",
    "ack_datagram_ns_n1000",
];

/// A thousand members at a thousand packets a second.
const LOAD: Load = Load {
    members: 1_000,
    rate: 1_000,
    warm_up: Duration::from_secs(1),
    span: Duration::from_secs(2),
    feedback: true,
};
/// At 8,300 packets a second.
const FAST: Load = Load {
    rate: 8_300,
    warm_up: Duration::from_millis(200),
    span: Duration::from_millis(500),
    ..LOAD
};

/// Measures what is asked for.
///
/// # Errors
/// When a member left the flow, or an acknowledgement did not arrive.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let [rate, share, datagram_share, ns, datagram_ns] = NAMES;
    if figures.wants(&[rate]) {
        let acks = Script::record(LOAD)?.acks();
        figures.take(rate, acks as f64 / LOAD.span.as_secs_f64(), "/s");
    }
    if figures.wants(&[share, ns]) {
        let cost = play(FAST, FeedbackPackets::new)?;
        figures.take(share, cost.share(), "core");
        figures.take(ns, cost.ns(), "ns");
    }
    if figures.wants(&[datagram_share, datagram_ns]) {
        let load = Load {
            feedback: false,
            ..FAST
        };
        let cost = play(load, Datagrams::new)?;
        figures.take(datagram_share, cost.share(), "core");
        figures.take(datagram_ns, cost.ns(), "ns");
    }
    Ok(())
}

/// Cost of the acknowledgements of a span of virtual time.
#[derive(Debug, Clone, Copy)]
struct Cost {
    acks: usize,
    cpu: Duration,
    span: Duration,
}

impl Cost {
    fn share(self) -> f64 {
        self.cpu.as_secs_f64() / self.span.as_secs_f64()
    }

    fn ns(self) -> f64 {
        self.cpu.as_nanos() as f64 / self.acks.max(1) as f64
    }
}

/// Records a load, and plays it to a source by a path of acknowledgements.
fn play<P: Intake>(load: Load, open: impl FnOnce(usize) -> Result<P>) -> Result<Cost> {
    let script = Script::record(load)?;
    let mut path = open(load.members)?;
    let mut before = Duration::ZERO;
    script.play(|source, tick, counts, now| {
        for (member, ack) in &tick.acks {
            path.send(*member, ack)?;
        }
        path.receive(source, now)?;
        if !counts {
            before = path.cpu();
        }
        Ok(())
    })?;
    let cost = Cost {
        acks: script.acks(),
        cpu: path.cpu() - before,
        span: load.span,
    };
    eprintln!(
        "{} members, {} packets/s: {} acknowledgements, {:.0?} of CPU time in {:?}",
        load.members, load.rate, cost.acks, cost.cpu, cost.span
    );
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_paths_take_the_same_acknowledgements() {
        let load = Load {
            members: 5,
            rate: 200,
            ..FAST
        };
        let feedback = play(load, FeedbackPackets::new).unwrap();
        let load = Load {
            feedback: false,
            ..load
        };
        let datagrams = play(load, Datagrams::new).unwrap();
        assert_eq!(feedback.acks, datagrams.acks);
        assert!((80..=110).contains(&feedback.acks), "{}", feedback.acks);
        assert!(feedback.cpu > Duration::ZERO && datagrams.cpu > Duration::ZERO);
    }
}
