//! The UDP socket on the loopback interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use netio::{BindOptions, RecvBatch, UdpSocket, bind_group};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

fn local() -> UdpSocket {
    UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap()
}

struct Got {
    from: SocketAddr,
    to: Option<IpAddr>,
    data: Vec<u8>,
}

/// Receives `count` datagrams.
async fn receive(socket: &UdpSocket, count: usize) -> Vec<Got> {
    let mut batch = RecvBatch::new();
    let mut got = Vec::new();
    timeout(PATIENCE, async {
        while got.len() < count {
            socket.readable().await.unwrap();
            let received = socket.try_recv(&mut batch, |datagram| {
                got.push(Got {
                    from: datagram.from,
                    to: datagram.to,
                    data: datagram.data.to_vec(),
                });
            });
            match received {
                Ok(datagrams) => assert!(datagrams > 0),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    })
    .await
    .expect("all datagrams within the time");
    got
}

/// Returns `length` bytes that differ from datagram to datagram and from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as u8)
        .collect()
}

#[tokio::test]
async fn a_datagram_arrives_with_its_addresses() {
    let (a, b) = (local(), local());
    a.send(b.local_addr(), b"hello", None).await.unwrap();
    a.send(b.local_addr(), b"", None).await.unwrap();
    let got = receive(&b, 2).await;
    assert_eq!(got[0].from, a.local_addr());
    assert_eq!(got[0].to, Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    assert_eq!(got[0].data, b"hello");
    assert_eq!(got[1].data, b"", "an empty datagram is a datagram");
}

#[tokio::test]
async fn trains_are_split_into_their_datagrams_also_with_a_shorter_last_one() {
    let (a, b) = (local(), local());
    // Shorter than a segment, exact multiples, unequal last segments, and trains above what one
    // system call takes by count (64) and by bytes (64 KiB).
    for (length, segment) in [
        (700, 1200),
        (1200, 1200),
        (2400, 1200),
        (12_001, 1200),
        (47_999, 1200),
        (100_000, 1200),
        (1_001, 10),
        (30_000, 9_000),
        (1, 1),
        (130, 1),
    ] {
        let payload = pattern(length);
        a.send(b.local_addr(), &payload, Some(segment))
            .await
            .unwrap();
        let expected: Vec<_> = payload.chunks(segment).map(<[u8]>::to_vec).collect();
        let got: Vec<_> = receive(&b, expected.len())
            .await
            .into_iter()
            .map(|got| got.data)
            .collect();
        assert_eq!(got, expected, "{length} bytes in segments of {segment}");
    }
    assert_eq!(a.counters().send_lost, 0);
}

#[tokio::test]
async fn a_thousand_datagrams_arrive_in_order_when_paced() {
    let (a, b) = (local(), local());
    let to = b.local_addr();
    let sender = tokio::spawn(async move {
        for number in 0..1000_u32 {
            let mut datagram = pattern(1200);
            datagram[..4].copy_from_slice(&number.to_be_bytes());
            a.send(to, &datagram, None).await.unwrap();
            if number % 20 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        a.counters()
    });
    let numbers: Vec<_> = receive(&b, 1000)
        .await
        .iter()
        .map(|got| u32::from_be_bytes(got.data[..4].try_into().unwrap()))
        .collect();
    assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    assert_eq!(sender.await.unwrap(), netio::Counters::default());
}

#[tokio::test]
async fn an_empty_socket_returns_would_block() {
    let socket = local();
    let error = socket
        .try_recv(&mut RecvBatch::new(), |_| panic!("nothing was sent"))
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

/// One call receives everything and learns that there is no more; later datagrams wake again.
#[tokio::test]
async fn a_batch_that_is_not_full_was_the_last_one() {
    let (a, b) = (local(), local());
    let mut batch = RecvBatch::new();
    for round in 0..100_u32 {
        let number = round.to_be_bytes();
        a.send(b.local_addr(), &number, None).await.unwrap();
        let woken = timeout(PATIENCE, b.readable()).await;
        woken.expect("a datagram wakes the reader").unwrap();
        let mut got = Vec::new();
        b.try_recv(&mut batch, |datagram| got.push(datagram.data.to_vec()))
            .unwrap();
        assert_eq!(got, [number]);
        let again = timeout(Duration::ZERO, b.readable()).await;
        assert!(again.is_err(), "there is nothing to read in round {round}");
    }
}

#[tokio::test]
async fn a_paused_socket_becomes_readable_later_and_loses_nothing() {
    const PAUSE: Duration = Duration::from_millis(200);
    let bound = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (sender, socket) = (local(), UdpSocket::pausable(bound).unwrap());
    let send = async |byte| {
        let to = socket.local_addr();
        sender.send(to, &[byte], None).await.unwrap();
    };
    // A wait that ends before anything arrives takes no event along.
    timeout(Duration::from_millis(20), socket.readable())
        .await
        .unwrap_err();
    send(1).await;
    assert_eq!(receive(&socket, 1).await[0].data, [1]);

    let begun = Instant::now();
    socket.pause_reading(begun + PAUSE);
    send(2).await;
    assert_eq!(receive(&socket, 1).await[0].data, [2]);
    assert!(begun.elapsed() >= PAUSE, "{:?}", begun.elapsed());

    // A wait was given up, so that the next arrival would be an event.
    timeout(Duration::from_millis(20), socket.readable())
        .await
        .unwrap_err();
    let begun = Instant::now();
    socket.pause_reading(begun + PAUSE);
    send(5).await;
    timeout(PAUSE / 4, socket.readable()).await.unwrap_err();
    assert_eq!(receive(&socket, 1).await[0].data, [5]);
    assert!(begun.elapsed() >= PAUSE, "{:?}", begun.elapsed());

    socket.pause_reading(begun + PATIENCE * 100);
    send(3).await;
    let mut batch = RecvBatch::new();
    let without_waiting = async {
        while socket
            .try_recv(&mut batch, |d| assert_eq!(d.data, [3]))
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, without_waiting).await.unwrap();
    socket.pause_reading(begun);
    send(4).await;
    assert_eq!(receive(&socket, 1).await[0].data, [4]);
}

#[tokio::test]
async fn an_icmp_error_does_not_stop_sending_or_receiving() {
    // The kernel reports ICMP "port unreachable" to a connected socket. No other process must get
    // that port before it is used again: it is outside the range of automatic ports, and at an
    // address of this process.
    let [.., a, b] = std::process::id().to_be_bytes();
    let gone = SocketAddr::from((Ipv4Addr::new(127, 77, a, b), 20_077));
    let std_socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    std_socket.connect(gone).unwrap();
    let socket = UdpSocket::from_std(std_socket).unwrap();
    socket.send(gone, b"to nobody", None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let error = socket
        .try_recv(&mut RecvBatch::new(), |_| panic!("nothing was sent"))
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    // Each of these meets the error caused by the one before.
    for _ in 0..3 {
        socket.send(gone, b"to nobody", None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let back = UdpSocket::bind(gone).unwrap();
    back.send(socket.local_addr(), b"back again", None)
        .await
        .unwrap();
    assert_eq!(receive(&socket, 1).await[0].data, b"back again");
}

#[tokio::test]
async fn refused_destinations_are_counted_and_do_not_affect_others() {
    let (a, b) = (local(), local());
    a.writable().await.unwrap();
    // Port 0 is a valid source, but not a valid destination.
    let impossible = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    a.try_send(impossible, &pattern(5000), Some(1200)).unwrap();
    assert_eq!(a.counters().send_lost, 5);
    // Larger than any UDP datagram.
    a.try_send(b.local_addr(), &pattern(70_000), None).unwrap();
    assert_eq!(a.counters().send_lost, 6);
    assert_eq!(
        a.counters().last_send_error().unwrap().raw_os_error(),
        Some(libc::EMSGSIZE)
    );
    // None of that made the socket give up segmentation for reachable peers.
    let refused = a.counters().gso_refused;
    a.try_send(b.local_addr(), &pattern(5000), Some(1200))
        .unwrap();
    assert_eq!(receive(&b, 5).await.len(), 5);
    assert_eq!(a.counters().gso_refused, refused);
    let error = a
        .try_send(b.local_addr(), b"x", Some(0))
        .expect_err("a segment size of 0 is a mistake of the caller");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_dual_stack_socket_speaks_ipv4_with_ipv4_addresses() {
    let Ok(server) = UdpSocket::bind("[::]:0".parse().unwrap()) else {
        eprintln!("skipped: this machine has no IPv6");
        return;
    };
    let client = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 5), server.local_addr().port()));
    client.send(address, b"question", None).await.unwrap();
    let question = receive(&server, 1).await.remove(0);
    assert_eq!(question.from, client.local_addr());
    assert_eq!(question.to, Some(address.ip()));
    let answer = pattern(3000);
    let sent = server
        .try_send_some(question.from, question.to, &answer, Some(1200))
        .unwrap();
    assert_eq!(sent, answer.len());
    let got = receive(&client, 3).await;
    assert!(
        got.iter().all(|got| got.from == address),
        "the answer comes from the address that was asked"
    );
    let data: Vec<_> = got.into_iter().flat_map(|got| got.data).collect();
    assert_eq!(data, answer);
}

#[tokio::test]
async fn a_full_kernel_buffer_is_would_block_and_loses_nothing_that_was_taken() {
    let std_socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&std_socket)
        .set_send_buffer_size(4096)
        .unwrap();
    let a = UdpSocket::from_std(std_socket).unwrap();
    let b = local();
    let to = b.local_addr();
    // Far above the send buffer: `send` waits for room as often as needed.
    let payload = pattern(400_000);
    let expected = payload.len().div_ceil(1200);
    let sender = tokio::spawn(async move {
        for train in payload.chunks(12_000) {
            a.send(to, train, Some(1200)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        a.counters().send_lost
    });
    let got = receive(&b, expected).await;
    let bytes: Vec<_> = got.into_iter().flat_map(|got| got.data).collect();
    assert_eq!(bytes, pattern(400_000));
    assert_eq!(sender.await.unwrap(), 0);
}

#[tokio::test]
async fn an_address_in_use_is_named_and_reuse_is_optional() {
    let taken = local();
    let error = UdpSocket::bind(taken.local_addr()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(
        error.to_string().contains(&taken.local_addr().to_string()),
        "{error}"
    );
    let reuse = BindOptions {
        reuse_address: true,
        ..BindOptions::default()
    };
    let first = UdpSocket::bind_with("127.0.0.1:0".parse().unwrap(), reuse).unwrap();
    UdpSocket::bind_with(first.local_addr(), reuse).unwrap();
}

#[test]
fn outside_a_runtime_binding_is_an_error_and_no_panic() {
    let error = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("tokio runtime"), "{error}");
}

/// The kernel does not segment for a socket without UDP checksums.
pub fn refuse_segmentation(socket: &std::net::UdpSocket) {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the option's value is a live int of the size given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

#[tokio::test]
async fn an_unsegmented_train_is_sent_one_by_one() {
    let std_socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    refuse_segmentation(&std_socket);
    let a = UdpSocket::from_std(std_socket).unwrap();
    let b = local();
    let payload = pattern(10_001);
    for _ in 0..3 {
        a.send(b.local_addr(), &payload, Some(1200)).await.unwrap();
        let data: Vec<_> = receive(&b, 9)
            .await
            .into_iter()
            .flat_map(|g| g.data)
            .collect();
        assert_eq!(data, payload);
    }
    let counters = a.counters();
    assert_eq!(counters.send_lost, 0);
    assert_eq!(
        counters.gso_refused, 1,
        "it is not asked again for each train"
    );
}

#[tokio::test]
async fn a_group_of_sockets_shares_one_address_with_nobody_else() {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let count = NonZeroUsize::new(3).unwrap();
    let (first, others) = bind_group(any, count).unwrap();
    let address = first.local_addr().unwrap();
    let sockets: Vec<_> = [first].into_iter().chain(others).collect();
    assert_eq!(sockets.len(), 3);
    for socket in &sockets {
        assert_eq!(socket.local_addr().unwrap(), address);
    }
    // Not even with a group of the same user.
    let error = bind_group(address, count).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    // What one peer sends arrives at one socket, and what many send at all of them.
    let sockets = sockets.into_iter().map(|s| UdpSocket::from_std(s).unwrap());
    let sockets: Vec<_> = sockets.collect();
    let mut senders = Vec::new();
    for _ in 0..60 {
        let sender = local();
        for part in [b"a", b"b"] {
            sender.send(address, part, None).await.unwrap();
        }
        senders.push(sender.local_addr());
    }
    let mut arrived = Vec::new();
    for socket in &sockets {
        let mut batch = RecvBatch::new();
        let mut from = Vec::new();
        socket.readable().await.unwrap();
        while socket
            .try_recv(&mut batch, |datagram| from.push(datagram.from))
            .is_ok()
        {}
        assert!(from.chunks(2).all(|pair| pair[0] == pair[1]), "{from:?}");
        arrived.extend(from);
    }
    arrived.sort();
    arrived.dedup();
    senders.sort();
    assert_eq!(arrived, senders);
}

#[tokio::test]
async fn datagrams_that_find_no_room_are_counted() {
    let receiver = local();
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = receiver.local_addr();
    assert_eq!(receiver.dropped(), 0);
    let payload = [0; 1000];
    // More than the largest buffer that the kernel grants.
    for _ in 0..20_000 {
        sender.send_to(&payload, to).unwrap();
    }
    let dropped = receiver.dropped();
    assert!((1..20_000).contains(&dropped), "{dropped}");
}
