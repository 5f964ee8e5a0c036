//! The side that is compared with: quiche sends the parcel to each client on a connection of its
//! own, all in one thread.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use ring::digest::{self, SHA256};

use crate::cpu::Stopwatch;
use crate::generation::Cost;
use crate::pair::{Pair, send, to_client, to_server};
use crate::parcel::{PIECE, Parcel, TRAIN, UDP_PAYLOAD};

/// The first stream that a server opens.
const STREAM: u64 = 3;

struct Client {
    pair: Pair,
    offered: usize,
    received: usize,
    /// Pieces made by the application and not handed over yet; the flag marks the last.
    pieces: Vec<(Bytes, bool)>,
    hash: digest::Context,
}

/// Sends the parcel to every client, a train of packets at a time, one client after the other.
/// Timed are the server's calls that take the stream's bytes and make the packets, and apart from
/// them its reading of the acknowledgements.
///
/// # Errors
/// When quiche fails, or a client did not get the parcel.
pub fn deliver(pairs: Vec<Pair>, parcel: &Parcel) -> Result<Cost> {
    let clients = pairs.into_iter().map(|pair| Client {
        pair,
        offered: 0,
        received: 0,
        pieces: Vec::new(),
        hash: digest::Context::new(&SHA256),
    });
    let mut clients: Vec<Client> = clients.collect();
    let mut packets = vec![[0; UDP_PAYLOAD]; TRAIN];
    let mut lengths = Vec::with_capacity(TRAIN);
    let mut scratch = vec![0; PIECE];
    let (mut generate, mut acks) = (Stopwatch::new(), Stopwatch::new());
    let (mut made, mut ack_packets, mut ack_bytes) = (0, 0, 0);
    while clients.iter().any(|c| c.received < parcel.len()) {
        for client in clients.iter_mut().filter(|c| c.received < parcel.len()) {
            client.prepare(parcel);
            lengths.clear();
            generate.time(|| -> Result<()> {
                client.write()?;
                for packet in &mut packets {
                    match send(&mut client.pair.server, packet)? {
                        Some(len) => lengths.push(len),
                        None => break,
                    }
                }
                Ok(())
            })?;
            ensure!(!lengths.is_empty(), "quiche has stopped sending");
            made += lengths.len() as u64;
            for (packet, len) in packets.iter_mut().zip(&lengths) {
                client.pair.client.recv(&mut packet[..*len], to_client())?;
            }
            client.read(&mut scratch)?;
            while let Some(len) = send(&mut client.pair.client, &mut scratch)? {
                ack_packets += 1;
                ack_bytes += len as u64;
                let server = &mut client.pair.server;
                acks.time(|| server.recv(&mut scratch[..len], to_server()))?;
            }
        }
    }
    for client in clients {
        let finished = client.pair.client.stream_finished(STREAM);
        ensure!(
            finished && parcel.arrived(client.hash),
            "what a client of quiche received is not what was sent"
        );
    }
    Ok(Cost {
        generate: generate.total(),
        acks: acks.total(),
        packets: made,
        ack_packets,
        ack_bytes,
    })
}

impl Client {
    /// The application makes pieces until a train is waiting.
    fn prepare(&mut self, parcel: &Parcel) {
        while self.offered - self.received < TRAIN * UDP_PAYLOAD
            && let Some(piece) = parcel.piece(self.offered)
        {
            self.offered += piece.len();
            self.pieces.push((piece, self.offered == parcel.len()));
        }
    }

    /// The application hands its pieces over by quiche's ordinary call, as flexfeed's own unicast
    /// sessions do. `stream_send_zc` with buffers of one's own would save a copy;
    /// docs/benchmarks.md says how much.
    fn write(&mut self) -> Result<()> {
        for (piece, fin) in self.pieces.drain(..) {
            let taken = self.pair.server.stream_send(STREAM, &piece, fin)?;
            ensure!(taken == piece.len(), "quiche's windows are not wide open");
        }
        Ok(())
    }

    fn read(&mut self, scratch: &mut [u8]) -> Result<()> {
        loop {
            match self.pair.client.stream_recv(STREAM, scratch) {
                Ok((len, _)) => {
                    self.received += len;
                    self.hash.update(&scratch[..len]);
                }
                Err(quiche::Error::Done | quiche::Error::InvalidStreamState(_)) => return Ok(()),
                Err(error) => return Err(error).context("reading what a client received"),
            }
        }
    }
}
