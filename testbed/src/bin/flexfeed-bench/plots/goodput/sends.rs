//! Costs of sockets on the loopback interface.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Result, ensure};
use netio::direct::{Inbox, UdpPort};
use socket2::SockRef;

use crate::cpu::Stopwatch;
use crate::parcel::{Parcel, UDP_PAYLOAD};
use crate::replicated::LARGE;
use crate::segments::let_kernel_segment;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 70, 7);
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Bytes that wait at a receiver.
const WAITING: usize = 4 << 20;
/// Acknowledgements that a source finds waiting at once.
const BATCH: usize = 16;
/// Acknowledgements of one measurement.
const ACKS: usize = 4_000;
/// Sockets that send acknowledgements, at most.
const SENDERS: usize = 100;

/// Returns what a packet to a multicast group costs who sends it, in trains: in ns. One receiver
/// has joined: in a network, copies are the routers' work.
///
/// # Errors
/// When the receiver did not get what was sent.
pub fn to_group(trains: usize) -> Result<f64> {
    let receiver = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    receiver.join_multicast_v4(&GROUP, &LOOPBACK)?;
    receiver.set_read_timeout(Some(Duration::from_secs(5)))?;
    SockRef::from(&receiver).set_recv_buffer_size(WAITING)?;
    let port = receiver.local_addr()?.port();
    let sender = UdpSocket::bind((LOOPBACK, 0))?;
    SockRef::from(&sender).set_multicast_if_v4(&LOOPBACK)?;
    let_kernel_segment(&sender, UDP_PAYLOAD)?;
    let parcel = Parcel::new(LARGE);
    let train = parcel.piece(0).unwrap_or_default();
    let mut watch = Stopwatch::new();
    let mut room = [0; UDP_PAYLOAD + 1];
    for _ in 0..trains {
        let sent = watch.time(|| sender.send_to(&train, (GROUP, port)))?;
        ensure!(sent == train.len(), "half a train was sent");
        for packet in train.chunks(UDP_PAYLOAD) {
            let len = receiver.recv(&mut room)?;
            ensure!(room[..len] == *packet, "a packet came that was not sent");
        }
    }
    let packets = trains * train.len().div_ceil(UDP_PAYLOAD);
    Ok(watch.total().as_nanos() as f64 / packets as f64)
}

/// Returns what it costs to copy a packet's bytes to where they are sent from, in ns.
///
/// # Errors
/// Never.
pub fn copy(trains: usize) -> Result<f64> {
    let parcel = Parcel::new(LARGE);
    let train = parcel.piece(0).unwrap_or_default();
    let mut to = Vec::with_capacity(train.len());
    let mut watch = Stopwatch::new();
    for _ in 0..trains {
        watch.time(|| {
            to.clear();
            to.extend_from_slice(std::hint::black_box(&train));
            std::hint::black_box(&to);
        });
    }
    let packets = trains * train.len().div_ceil(UDP_PAYLOAD);
    Ok(watch.total().as_nanos() as f64 / packets as f64)
}

/// Returns the cost of reading an acknowledgement of so many bytes from a socket, as many at once
/// as a source finds there: in ns.
///
/// # Errors
/// When one was not received.
pub fn acknowledgements(receivers: usize, bytes: usize) -> Result<f64> {
    let source = UdpPort::bind(SocketAddr::from((LOOPBACK, 0)))?;
    let mut inbox = Inbox::new(BATCH);
    let senders = receivers.min(SENDERS);
    let senders: std::io::Result<Vec<UdpSocket>> = (0..senders)
        .map(|_| UdpSocket::bind((LOOPBACK, 0)))
        .collect();
    let senders = senders?;
    let ack = vec![1; bytes];
    let mut watch = Stopwatch::new();
    let mut turns = senders.iter().cycle();
    for _ in 0..ACKS / BATCH {
        for sender in turns.by_ref().take(BATCH) {
            sender.send_to(&ack, source.local_addr())?;
        }
        watch.time(|| -> Result<()> {
            let mut read = 0;
            while read < BATCH {
                inbox.receive(&source, BATCH, |message| {
                    read += message.datagrams().count();
                })?;
            }
            Ok(())
        })?;
    }
    Ok(watch.total().as_nanos() as f64 / (ACKS / BATCH * BATCH) as f64)
}
