//! A source's state machine with very many members, in virtual time: up to a million, over as many
//! shards as are asked for.
//!
//! Real are [`flexicast::source::Source`] with everything in it (sessions, the flow's sender,
//! ledger, rate control, repairs, fall-backs), its packets and keys, and each receiver's policy of
//! acknowledgements ([`flexicast::ack::AckTracker`]). Modelled are the network (a delay for each
//! receiver, independent losses of packets and of acknowledgements) and what else a receiver does:
//! it puts updates in order, confirms them once a second and grants windows, as the real one does.
//! Left out are the QUIC connections: what a source's state machine queues for one arrives.
//!
//! A shard is a source of its own with its part of the receivers. All get the same updates at the
//! same time; their results add up.

mod meter;
mod receiver;
mod shard;

use std::ops::{AddAssign, Sub};
use std::time::Duration;

use bytes::Bytes;

pub use meter::{Meter, NoMeter, Part};
use shard::Shard;

/// Bytes of an update, which is one packet of the flow.
pub const UPDATE: usize = 1_100;
/// Time between two looks at everything, as of a timer of tokio's.
const TICK: Duration = Duration::from_millis(1);

/// Parameters of a crowd.
#[derive(Debug, Clone, Copy)]
pub struct CrowdPlan {
    /// Receivers of all shards together.
    pub members: usize,
    /// Sources that share them.
    pub shards: usize,
    /// Probability that a packet is lost on its way to one receiver, and an acknowledgement on its
    /// way back.
    pub loss: f64,
    /// Updates a second.
    pub rate: u32,
    /// Seed of everything.
    pub seed: u64,
    /// Promises to break.
    pub faults: flexicast::source::Faults,
}

/// Failure of a source to do what it promises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrowdError(pub String);

impl std::fmt::Display for CrowdError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CrowdError {}

/// Counters of all shards since their beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Updates published, by each shard.
    pub updates: u64,
    /// Packets of the flow, of each shard.
    pub packets: u64,
    /// Their bytes.
    pub packet_bytes: u64,
    /// Packets that some receivers were sent by no multicast: lost or cut off.
    pub lost: u64,
    /// Acknowledgements sent by receivers.
    pub acks: u64,
    /// Their bytes.
    pub ack_bytes: u64,
    /// Other control frames of receivers.
    pub frames: u64,
    /// Streams on unicast paths.
    pub streams: u64,
    /// Their bytes.
    pub stream_bytes: u64,
    /// Packets that were sent again on the flow.
    pub shared_repairs: u64,
    /// Moves to unicast.
    pub fall_backs: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.updates += other.updates;
        self.packets += other.packets;
        self.packet_bytes += other.packet_bytes;
        self.lost += other.lost;
        self.acks += other.acks;
        self.ack_bytes += other.ack_bytes;
        self.frames += other.frames;
        self.streams += other.streams;
        self.stream_bytes += other.stream_bytes;
        self.shared_repairs += other.shared_repairs;
        self.fall_backs += other.fall_backs;
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, before: Counts) -> Counts {
        Counts {
            updates: self.updates - before.updates,
            packets: self.packets - before.packets,
            packet_bytes: self.packet_bytes - before.packet_bytes,
            lost: self.lost - before.lost,
            acks: self.acks - before.acks,
            ack_bytes: self.ack_bytes - before.ack_bytes,
            frames: self.frames - before.frames,
            streams: self.streams - before.streams,
            stream_bytes: self.stream_bytes - before.stream_bytes,
            shared_repairs: self.shared_repairs - before.shared_repairs,
            fall_backs: self.fall_backs - before.fall_backs,
        }
    }
}

/// Sources and their receivers.
#[derive(Debug)]
pub struct Crowd {
    plan: CrowdPlan,
    shards: Vec<Shard>,
    tick: u64,
    /// Updates that were due so far.
    published: u64,
    update: Bytes,
}

impl Crowd {
    /// Sources whose receivers all are members of the flow.
    ///
    /// # Errors
    /// A source does not take its receivers.
    pub fn new(plan: CrowdPlan) -> Result<Crowd, CrowdError> {
        let shards = plan.shards.max(1);
        let size = |shard| (plan.members * (shard + 1)) / shards - (plan.members * shard) / shards;
        let made: Result<_, _> = (0..shards)
            .map(|shard| Shard::new(&plan, shard as u64, size(shard)))
            .collect();
        Ok(Crowd {
            plan,
            shards: made?,
            tick: 0,
            published: 0,
            update: Bytes::from(vec![7; UPDATE]),
        })
    }

    /// Lets time pass, with updates at the plan's rate.
    ///
    /// # Errors
    /// A source breaks a promise.
    pub fn run(&mut self, time: Duration, meter: &mut impl Meter) -> Result<(), CrowdError> {
        self.pass(time, u64::from(self.plan.rate), meter)
    }

    fn pass(
        &mut self,
        time: Duration,
        rate: u64,
        meter: &mut impl Meter,
    ) -> Result<(), CrowdError> {
        let ticks = time.as_millis() as u64;
        let (start, before) = (self.tick, self.published);
        while self.tick < start + ticks {
            self.tick += 1;
            let due = before + (self.tick - start) * rate / 1_000;
            let fresh = due - self.published;
            self.published = due;
            for shard in &mut self.shards {
                shard.advance(self.tick, fresh, &self.update, meter)?;
            }
        }
        Ok(())
    }

    /// Takes multicast from a share of the receivers of each shard.
    pub fn cut(&mut self, share: f64) {
        self.shards.iter_mut().for_each(|shard| shard.cut(share));
    }

    /// Publishes nothing more until all receivers have all updates.
    ///
    /// # Errors
    /// Some lack updates after so long.
    pub fn settle(&mut self, patience: Duration, meter: &mut impl Meter) -> Result<(), CrowdError> {
        let deadline = self.tick + patience.as_millis() as u64;
        loop {
            let behind: usize = self.shards.iter().map(Shard::behind).sum();
            if behind == 0 {
                return Ok(());
            }
            if self.tick >= deadline {
                let head = self.published;
                let text = format!("{behind} receivers lack some of {head} updates");
                return Err(CrowdError(text));
            }
            self.pass(TICK * 100, 0, meter)?;
        }
    }

    /// Counters since the beginning.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.shards
            .iter()
            .for_each(|shard| counts += shard.counts());
        counts
    }

    /// Acknowledgement delay that the first shard asks for.
    pub fn ack_delay(&self) -> Duration {
        self.shards.first().map_or(Duration::ZERO, Shard::ack_delay)
    }

    /// Members of all flows.
    pub fn members(&self) -> usize {
        self.shards.iter().map(Shard::members).sum()
    }

    /// Drops the receivers, to measure what the sources take.
    pub fn drop_receivers(&mut self) {
        self.shards.iter_mut().for_each(Shard::drop_receivers);
    }
}
