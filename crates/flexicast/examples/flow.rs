//! A source and a receiver in memory: the receiver joins the flow, proves that it arrives, and gets
//! an update by it.

use std::error::Error;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{Credential, Endpoint};
use flexicast::flow::FlowConfig;
use flexicast::protect::FlowSecret;
use flexicast::receiver::{Output, Receiver, ReceiverConfig, ReceiverEvent};
use flexicast::source::{ChannelConfig, Limits, Source, SourceConfig, SourceEvent, Unicast};
use flexicast::{FlowId, Rung};
use uuid::Uuid;

const SESSION: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let mut now = Instant::now();
    let mut source = Source::new(SourceConfig {
        channels: vec![ChannelConfig {
            name: "lore".into(),
            incarnation: Uuid::from_u128(42),
            head: 0,
            first: 1,
            private: false,
            endpoints: vec![Endpoint {
                group: "232.70.70.1:4434".parse()?,
                source: Some("192.0.2.1".parse()?),
            }],
            replicate: false,
            // Both are random in real programs.
            flow: Some(FlowConfig::new(FlowId([1; 8]), FlowSecret::from([2; 32]))),
        }],
        unicast_rate: None,
        limits: Limits::default(),
        seed: 7,
    })?;
    let token = Credential::Token(b"secret".to_vec());
    let channels = vec![("lore".into(), None)];
    let mut receiver = Receiver::new(ReceiverConfig::new(Uuid::from_u128(1), token, channels));
    source.accept(SESSION, now);
    receiver.connected();

    // Three seconds in steps of 10 ms; an update in each second.
    let mut stream = 3;
    for tick in 0..300 {
        now += Duration::from_millis(10);
        if tick % 100 == 50 {
            let seq = tick / 100 + 1;
            source.publish(0, seq, Bytes::from(format!("update {seq}")));
        }
        step(&mut source, &mut receiver, &mut stream, now)?;
    }
    Ok(())
}

/// Moves everything that is ready at `now`, as the network would.
fn step(
    source: &mut Source,
    receiver: &mut Receiver,
    stream: &mut u64,
    now: Instant,
) -> Result<(), Box<dyn Error>> {
    source.handle_timeout(now);
    receiver.handle_timeout(now);
    source.on_control(SESSION, &receiver.take_control(), now)?;
    while let Some((_, ack)) = receiver.poll_datagram(now) {
        source.on_datagram(SESSION, &ack, now)?;
    }
    while let Some(event) = source.poll_event() {
        match event {
            SourceEvent::Authorise { session, .. } => source.authorised(session, Ok(()), now),
            other => println!("source: {other:?}"),
        }
    }
    receiver.on_control(&source.take_control(SESSION), now)?;
    while let Unicast::Stream { head, body, .. } = source.poll_unicast(SESSION, now) {
        receiver.on_unicast(*stream, &[&head[..], &body[..]].concat(), true)?;
        *stream += 4;
    }
    let mut packet = Vec::new();
    while source.poll_transmit(now, &mut packet).is_some() {
        receiver.on_flow_datagram(Rung::Multicast, &mut packet, now);
    }
    while let Some(event) = receiver.poll_event() {
        match event {
            ReceiverEvent::Join { endpoints, .. } => println!("receiver: join {endpoints:?}"),
            other => println!("receiver: {other:?}"),
        }
    }
    while let Some((channel, _, output)) = receiver.poll_update() {
        if let Output::Update(update) = output {
            println!(
                "{channel} {}: {:?} by {}",
                update.seq, update.encoded, update.via
            );
        }
    }
    Ok(())
}
