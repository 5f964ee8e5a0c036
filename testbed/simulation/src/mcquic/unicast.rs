//! The same traffic by a connection for each receiver.

use std::time::Instant;

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::quic::{Endpoint, Inbox, Item, Packet};
use super::report::{Lateness, Report};
use super::schedule::Schedule;
use super::tree::{Tree, above};
use super::{McquicFailure, Plan, failed};

/// The first stream that a server opens.
const FIRST_STREAM: u64 = 3;
/// Time after the last update, more than any number of losses takes.
const SETTLES: std::time::Duration = std::time::Duration::from_secs(20);

#[derive(Debug)]
enum Event {
    Publish(usize),
    Down {
        to: usize,
        packet: Packet,
    },
    Climb {
        at: Option<usize>,
        of: usize,
        packet: Packet,
    },
    WakeClient(usize),
    WakeServer(usize),
}

struct Connection {
    server: Endpoint,
    client: Endpoint,
    inbox: Inbox,
    /// Numbers of the updates that are whole, and when they were.
    whole: Vec<(u64, Instant)>,
    armed: [Option<Instant>; 2],
}

/// Plays a run by unicast: each update is a stream of each receiver's connection.
///
/// # Errors
/// A receiver lacks updates at the end.
pub fn play_unicast(plan: &Plan) -> Result<Report, McquicFailure> {
    let start = Instant::now();
    let mut rng = SmallRng::seed_from_u64(plan.seed);
    let mut tree = Tree::new(plan.receivers, plan.lossy, plan.loss, start);
    let mut schedule = Schedule::new();
    for (number, (at, _)) in plan.traffic.iter().enumerate() {
        schedule.push(start + *at, Event::Publish(number));
    }
    let connection = |number| Connection {
        server: Endpoint::new(Tree::round_trip(number)),
        client: Endpoint::new(Tree::round_trip(number)),
        inbox: Inbox::default(),
        whole: Vec::new(),
        armed: [None; 2],
    };
    let mut connections: Vec<_> = (0..plan.receivers).map(connection).collect();
    let mut report = Report::default();
    let last = plan.traffic.last().map_or(start, |(at, _)| start + *at);
    let mut touched = Vec::new();
    while let Some((now, event)) = schedule.pop(last + SETTLES) {
        match event {
            Event::Publish(number) => {
                let content = Bytes::from(vec![number as u8; plan.traffic[number].1]);
                let stream = number as u64 * 4 + FIRST_STREAM;
                for connection in &mut connections {
                    connection.server.send_stream(stream, content.clone(), true);
                }
                touched.extend(0..connections.len());
            }
            Event::Down { to, packet } => {
                let connection = &mut connections[to];
                for item in connection.client.on_packet(packet, now) {
                    if let Item::Stream {
                        id,
                        offset,
                        data,
                        fin,
                    } = item
                        && let Some((_, true)) = connection.inbox.take(id, offset, data, fin)
                    {
                        connection.whole.push(((id - FIRST_STREAM) / 4, now));
                    }
                }
                touched.push(to);
            }
            Event::Climb {
                at: Some(node),
                of,
                packet,
            } => {
                if let Some(at) = tree.climb(node, now, packet.len, &mut rng) {
                    let at_node = above(node);
                    let climb = Event::Climb {
                        at: at_node,
                        of,
                        packet,
                    };
                    schedule.push(at, climb);
                }
            }
            Event::Climb {
                at: None,
                of,
                packet,
            } => {
                connections[of].server.on_packet(packet, now);
                touched.push(of);
            }
            Event::WakeClient(number) => {
                let armed = &mut connections[number].armed[0];
                if armed.take_if(|armed| *armed <= now).is_some() {
                    touched.push(number);
                }
            }
            Event::WakeServer(number) => {
                let armed = &mut connections[number].armed[1];
                if armed.take_if(|armed| *armed <= now).is_some() {
                    touched.push(number);
                }
            }
        }
        for number in touched.drain(..) {
            let connection = &mut connections[number];
            for end in [&mut connection.client, &mut connection.server] {
                if end.poll_timeout().is_some_and(|at| at <= now) {
                    end.handle_timeout(now);
                }
            }
            while let Some(packet) = connection.server.poll_transmit(now) {
                report.source_bytes += packet.len as u64;
                if let Some(at) = tree.unicast(number, now, packet.len, &mut rng) {
                    schedule.push(at, Event::Down { to: number, packet });
                }
            }
            while let Some(packet) = connection.client.poll_transmit(now) {
                report.receiver_bytes += packet.len as u64;
                let at = Some(number);
                let climb = Event::Climb {
                    at,
                    of: number,
                    packet,
                };
                schedule.push(now, climb);
            }
            let due = [&connection.client, &connection.server].map(Endpoint::poll_timeout);
            for (side, due) in due.into_iter().enumerate() {
                let Some(at) = due else { continue };
                if connection.armed[side].is_none_or(|armed| at < armed) {
                    connection.armed[side] = Some(at);
                    let wake = match side {
                        0 => Event::WakeClient(number),
                        _ => Event::WakeServer(number),
                    };
                    schedule.push(at.max(now), wake);
                }
            }
        }
    }
    let updates = plan.traffic.len();
    if let Some(behind) = connections.iter().position(|it| it.whole.len() != updates) {
        let got = connections[behind].whole.len();
        return Err(failed(format!("receiver {behind} got {got} of {updates}")));
    }
    let delays = |connection: &Connection| {
        let whole = connection.whole.iter();
        whole
            .map(|(number, at)| *at - (start + plan.traffic[*number as usize].0))
            .collect()
    };
    report.lateness = Lateness::of(connections.iter().map(delays));
    report.updates = updates as u64;
    (report.receivers, report.complete) = (plan.receivers, plan.receivers);
    report.unicast_bytes = report.source_bytes;
    report.repairs = connections.iter().map(|it| it.server.lost).sum();
    Ok(report)
}
