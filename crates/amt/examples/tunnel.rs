//! A gateway and a relay exchange messages in memory until a multicast packet leaves the tunnel.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use amt::Message;
use amt::gateway::{Candidate, Gateway, Input, Origin, Subscription, Timing};
use amt::ip::{Udp, write_udp};
use amt::relay::{Config, LocalEndpoint, Outcome, Relay};

fn main() -> Result<(), Box<dyn Error>> {
    let now = Instant::now();
    let relay_addr: SocketAddr = "192.0.2.1:2268".parse()?;
    let gateway_addr: SocketAddr = "198.51.100.7:40000".parse()?;
    let (source, group): (IpAddr, IpAddr) = ("203.0.113.9".parse()?, "232.1.1.1".parse()?);
    // Real programs draw the seeds at random.
    let mut relay = Relay::new(Config::default(), [1; 32], now);
    let mut gateway = Gateway::new(Timing::default(), [2; 32]);
    let candidate = Candidate {
        addr: relay_addr,
        discover: false,
        origin: Origin::Configured,
    };
    gateway.set_candidates([candidate], now);
    let (source_of, port) = (Some(source), 5000);
    gateway.subscribe(
        Subscription {
            source: source_of,
            group,
            port,
        },
        now,
    )?;
    gateway.handle_timeout(now);

    // Request, Membership Query, Membership Update.
    let local = LocalEndpoint {
        ip: relay_addr.ip(),
        socket: 0,
    };
    let (mut message, mut answer) = (Vec::new(), Vec::new());
    while gateway.poll_transmit(&mut message).is_some() {
        if relay.handle(gateway_addr, local, &message, now, &mut answer) == Outcome::Answer {
            gateway.handle(relay_addr, &answer, now);
        }
    }
    while let Some(event) = relay.poll_event() {
        println!("relay: {event:?}");
    }

    // A packet of the flow reaches the relay, which sends it to every recipient.
    let from = SocketAddr::new(source, 4000);
    let to = SocketAddr::new(group, port);
    let mut packet = Vec::new();
    write_udp(
        &Udp {
            from,
            to,
            ttl: 8,
            payload: b"hello",
        },
        0,
        &mut packet,
    );
    for recipient in relay
        .recipients(source, group)
        .into_iter()
        .flat_map(|r| r.all.iter())
    {
        let mut data = Vec::new();
        Message::Data { packet: &packet }.encode(&mut data);
        println!("relay: {} bytes to {}", data.len(), recipient.gateway);
        match gateway.handle(relay_addr, &data, now) {
            Input::Data { payload, from, .. } => {
                println!("gateway: {:?} from {from}", &data[payload])
            }
            other => println!("gateway: {other:?}"),
        }
    }
    Ok(())
}
