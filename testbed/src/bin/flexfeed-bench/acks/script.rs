//! Everything that a thousand members send to a source, recorded in virtual time from real state
//! machines, for a source with the same seed and secrets to be played to.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use flexicast::control::{Credential, Endpoint};
use flexicast::flow::{FlowConfig, RateControl};
use flexicast::protect::{FlowSecret, SECRET_LEN};
use flexicast::receiver::{Receiver, ReceiverConfig};
use flexicast::source::{ChannelConfig, Limits, Source, SourceConfig, SourceEvent, Unicast};
use flexicast::{FlowId, Rung};
use uuid::Uuid;

/// Virtual time between two looks at everything: about ten of 20,000 acknowledgements a second come
/// together.
const TICK: Duration = Duration::from_micros(500);
/// Time for all receivers to become members.
const SETTLE: Duration = Duration::from_millis(500);
const CHANNEL: &str = "lore";
/// Bytes of an update.
const UPDATE: usize = 200;

/// A tick's input of the source.
#[derive(Debug, Default)]
pub struct Tick {
    /// Updates that are published, each of which fills a packet.
    updates: u64,
    /// Acknowledgements with the numbers of their members.
    pub acks: Vec<(usize, Vec<u8>)>,
    /// Acknowledgements in DATAGRAM frames beside feedback packets, as at first.
    both: Vec<(u64, Vec<u8>)>,
    control: Vec<(u64, Vec<u8>)>,
}

/// Traffic of the members.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub members: usize,
    /// Updates a second.
    pub rate: u32,
    /// Time with updates before the acknowledgements count.
    pub warm_up: Duration,
    /// Time in which they count.
    pub span: Duration,
    /// Whether members send feedback packets.
    pub feedback: bool,
}

/// A recording.
#[derive(Debug)]
pub struct Script {
    pub load: Load,
    start: Instant,
    flow: FlowId,
    secrets: [[u8; SECRET_LEN]; 2],
    ticks: Vec<Tick>,
}

/// Output of a source for one session.
enum Output<'a> {
    Control(&'a [u8]),
    Stream(Vec<u8>),
}

impl Script {
    /// Plays source and members to one another, and records what the members send.
    ///
    /// # Errors
    /// When an end rejects what the other says, or a receiver does not become a member.
    pub fn record(load: Load) -> Result<Self> {
        let mut script = Script {
            load,
            start: Instant::now(),
            flow: FlowId(rand::random()),
            secrets: rand::random(),
            ticks: Vec::new(),
        };
        let mut source = script.source()?;
        let mut members: Vec<Receiver> = (0..load.members).map(|i| receiver(i, load)).collect();
        let (mut now, mut published, mut streams) = (script.start, 0, 0);
        let publishing = SETTLE..SETTLE + load.warm_up + load.span;
        while now < script.start + publishing.end {
            now += TICK;
            let busy = (now - script.start).saturating_sub(publishing.start);
            let due = (busy.as_secs_f64() * f64::from(load.rate)) as u64;
            let mut tick = Tick {
                updates: due - published,
                ..Tick::default()
            };
            publish(&mut source, &mut published, tick.updates, now, |packet| {
                let mut copy = Vec::new();
                for member in &mut members {
                    packet.clone_into(&mut copy);
                    member.on_flow_datagram(Rung::Multicast, &mut copy, now);
                }
            });
            for (i, member) in members.iter_mut().enumerate() {
                speak(i, member, load.feedback, now, &mut tick);
            }
            for (i, ack) in &tick.acks {
                if load.feedback {
                    source.on_feedback(&mut ack.clone(), now, |_| true);
                } else {
                    source.on_datagram(*i as u64, ack, now)?;
                }
            }
            exchange(&mut source, &tick, now, |id, output| {
                let member = members.get_mut(id as usize).context("no such member")?;
                match output {
                    Output::Control(said) => member.on_control(said, now)?,
                    Output::Stream(bytes) => {
                        streams += 4;
                        member.on_unicast(streams, &bytes, true)?;
                    }
                }
                Ok(())
            })?;
            script.ticks.push(tick);
        }
        ensure_members(&source, load)?;
        Ok(script)
    }

    /// Returns a source to be played to.
    fn source(&self) -> Result<Source> {
        let endpoint = Endpoint {
            group: "232.70.70.1:4434".parse()?,
            source: Some("192.0.2.1".parse()?),
        };
        let [of_flow, of_feedback] = self.secrets.map(FlowSecret::from);
        let flow = FlowConfig {
            rate: None,
            control: RateControl::fixed(),
            ..FlowConfig::new(self.flow, of_flow)
        };
        let mut source = Source::new(SourceConfig {
            channels: vec![ChannelConfig {
                name: CHANNEL.into(),
                incarnation: Uuid::from_u128(42),
                head: 0,
                first: 1,
                private: false,
                endpoints: vec![endpoint],
                replicate: false,
                flow: Some(flow),
            }],
            unicast_rate: None,
            limits: Limits::default(),
            seed: 7,
        })?;
        source.enable_feedback(of_feedback, 0);
        (0..self.load.members).for_each(|i| source.accept(i as u64, self.start));
        Ok(source)
    }

    /// Plays the recording to a source, whose acknowledgements `take` delivers; it gets whether
    /// they count.
    ///
    /// # Errors
    /// When the source takes it otherwise than the recorded one.
    pub fn play(
        &self,
        mut take: impl FnMut(&mut Source, &Tick, bool, Instant) -> Result<()>,
    ) -> Result<()> {
        let mut source = self.source()?;
        let (mut now, mut published) = (self.start, 0);
        for tick in &self.ticks {
            now += TICK;
            publish(&mut source, &mut published, tick.updates, now, |_| {});
            take(&mut source, tick, self.counts(now), now)?;
            exchange(&mut source, tick, now, |_, _| Ok(()))?;
        }
        ensure_members(&source, self.load)
    }

    fn counts(&self, now: Instant) -> bool {
        now - self.start > SETTLE + self.load.warm_up
    }

    /// Returns the number of acknowledgements that count.
    pub fn acks(&self) -> usize {
        let times = (1..).map(|n| self.start + TICK * n);
        let counted = self.ticks.iter().zip(times);
        let counted = counted.filter(|(_, now)| self.counts(*now));
        counted.map(|(tick, _)| tick.acks.len()).sum()
    }
}

fn receiver(number: usize, load: Load) -> Receiver {
    let id = Uuid::from_u128(number as u128 + 1);
    let channels = vec![(CHANNEL.into(), None)];
    let mut config = ReceiverConfig::new(id, Credential::Token(vec![1]), channels);
    config.seed = number as u64;
    config.feedback = load.feedback;
    let mut receiver = Receiver::new(config);
    receiver.connected();
    receiver
}

/// Every receiver is still a member, with a delay that keeps the budget.
fn ensure_members(source: &Source, load: Load) -> Result<()> {
    let flow = source.flow(0).context("a channel without a flow")?;
    let (members, delay) = (flow.members(), flow.config().ack_delay);
    ensure!(
        members == load.members,
        "{members} of {} receivers are members",
        load.members
    );
    ensure!(
        delay <= Duration::from_millis(50),
        "acknowledgements are delayed by {delay:?}"
    );
    Ok(())
}

/// Publishes updates and passes on the flow's packets, one for each and those that are due.
fn publish(
    source: &mut Source,
    published: &mut u64,
    updates: u64,
    now: Instant,
    mut send: impl FnMut(&[u8]),
) {
    let mut packet = Vec::new();
    for rest in (0..=updates).rev() {
        while source.poll_transmit(now, &mut packet).is_some() {
            send(&packet);
        }
        if rest > 0 {
            *published += 1;
            let update = Bytes::from(vec![*published as u8; UPDATE]);
            source.publish(0, *published, update);
        }
    }
}

/// Takes what a member has to say.
fn speak(number: usize, member: &mut Receiver, feedback: bool, now: Instant, tick: &mut Tick) {
    if member.poll_timeout().is_some_and(|at| at <= now) {
        member.handle_timeout(now);
    }
    while member.poll_update().is_some() {}
    while member.poll_event().is_some() {}
    while let Some((_, ack)) = member.poll_datagram(now) {
        match feedback {
            true => tick.both.push((number as u64, ack)),
            false => tick.acks.push((number, ack)),
        }
    }
    while let Some(packet) = member.poll_feedback() {
        tick.acks.push((number, packet));
    }
    let said = member.take_control();
    if !said.is_empty() {
        tick.control.push((number as u64, said.to_vec()));
    }
}

/// Moves everything but flow packets and the acknowledgements of [`Tick::acks`].
fn exchange(
    source: &mut Source,
    tick: &Tick,
    now: Instant,
    mut take: impl FnMut(u64, Output<'_>) -> Result<()>,
) -> Result<()> {
    source.handle_timeout(now);
    for (id, ack) in &tick.both {
        source.on_datagram(*id, ack, now)?;
    }
    for (id, said) in &tick.control {
        source.on_control(*id, said, now)?;
    }
    while let Some(event) = source.poll_event() {
        if let SourceEvent::Authorise { session, .. } = event {
            source.authorised(session, Ok(()), now);
        }
    }
    while let Some(id) = source.poll_dirty() {
        take(id, Output::Control(&source.take_control(id)))?;
        while let Unicast::Stream { head, body, .. } = source.poll_unicast(id, now) {
            take(id, Output::Stream([&head[..], &body[..]].concat()))?;
        }
    }
    Ok(())
}
