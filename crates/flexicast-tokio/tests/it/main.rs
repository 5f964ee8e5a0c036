//! Integration tests, one program: real QUIC and real multicast on the loopback interface.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod acks;
mod admission;
mod amplification;
mod certificates;
mod channels;
mod feedback;
mod forgery;
mod hostile;
mod idle;
mod loopback;
mod operator;
mod packet_size;
mod paths;
mod records;
mod relays;
mod replication;
mod shards;
mod site;
