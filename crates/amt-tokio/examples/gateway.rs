//! Receives a multicast flow through an AMT relay: `gateway RELAY SOURCE GROUP PORT`.
//!
//! `RELAY` is a host name, an address or `anycast`. Ctrl-C leaves the relay.

use std::error::Error;

use amt::gateway::Subscription;
use amt_tokio::{Config, Gateway};
use netio::RecvBatch;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [relay, source, group, port] = arguments.as_slice() else {
        return Err("usage: gateway RELAY SOURCE GROUP PORT".into());
    };
    let config = Config {
        relays: vec![relay.parse()?],
        ..Config::default()
    };
    let mut gateway = Gateway::start(config)?;
    gateway.subscribe(Subscription {
        source: Some(source.parse()?),
        group: group.parse()?,
        port: port.parse()?,
    })?;
    let mut batch = RecvBatch::new();
    loop {
        tokio::select! {
            () = gateway.ready() => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        gateway.receive(&mut batch, |packet| {
            println!("{} bytes from {}", packet.data.len(), packet.from);
        })?;
        while let Some(event) = gateway.poll_event() {
            println!("{event}");
        }
    }
    gateway.stop().await;
    Ok(())
}
