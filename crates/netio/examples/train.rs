//! Sends a train of datagrams over the loopback interface and receives it in batches.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use netio::{RecvBatch, UdpSocket};

const SEGMENT: usize = 1200;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (sender, receiver) = (UdpSocket::bind(any_port)?, UdpSocket::bind(any_port)?);

    // One system call where the kernel segments (GSO), ten where it does not.
    let train = vec![7; 10 * SEGMENT];
    sender
        .send(receiver.local_addr(), &train, Some(SEGMENT))
        .await?;

    let mut batch = RecvBatch::new();
    let mut received = 0;
    while received < 10 {
        receiver.readable().await?;
        match receiver.try_recv(&mut batch, |datagram| {
            println!("{} bytes from {}", datagram.data.len(), datagram.from);
        }) {
            Ok(datagrams) => received += datagrams,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    println!("sender: {:?}", sender.counters());
    Ok(())
}
