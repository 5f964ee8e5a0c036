//! Sockets without a runtime, on real interfaces: each test in a network namespace of its own.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use netio::direct::{
    Capture, Fanout, GroupPort, Inbox, InterfaceState, Memberships, PathError, Poller, SendFailure,
    Target, UdpPort, interface_state, route_interface,
};
use netio::{MulticastSender, find_interface};

const PATIENCE: Duration = Duration::from_secs(20);

/// An interface with a small MTU and no hosts.
const NETWORK: &str = "\
ip link add narrow mtu 1280 type veth peer name other mtu 1280
for i in narrow other; do ip link set $i addrgenmode none; ip link set $i up; done
ip addr add 10.1.0.1/24 dev narrow
ip addr add fd00:1::1/64 dev narrow nodad
";

/// Runs a command in the namespace.
fn shell(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Receives `count` datagrams: sender, address, payload.
fn take(
    socket: &impl std::os::fd::AsFd,
    count: usize,
) -> Vec<(SocketAddr, Option<IpAddr>, Vec<u8>)> {
    let mut poller = Poller::new().unwrap();
    poller.add(socket, 7).unwrap();
    let mut inbox = Inbox::new(8);
    let mut got = Vec::new();
    let begun = Instant::now();
    while got.len() < count {
        assert!(begun.elapsed() < PATIENCE, "{} of {count}", got.len());
        poller.wait(Some(Duration::from_millis(100))).unwrap();
        inbox
            .receive(socket, 8, |message| {
                for datagram in message.datagrams() {
                    got.push((message.from, message.to, datagram.to_vec()));
                }
            })
            .unwrap();
    }
    assert_eq!(got.len(), count);
    got
}

#[test]
fn both_addresses_of_a_datagram_are_reported() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    for (any, to, from) in [
        ("0.0.0.0:0", "127.0.0.9", "127.0.0.5"),
        ("[::]:0", "fd00:1::1", "::1"),
    ] {
        let (one, two) = (
            UdpPort::bind(at(any)).unwrap(),
            UdpPort::bind(at(any)).unwrap(),
        );
        let target = SocketAddr::new(ip(to), two.local_addr().port());
        let sender = SocketAddr::new(ip(from), one.local_addr().port());
        let mut inbox = Inbox::new(1);
        let mut got = None;
        let begun = Instant::now();
        // A new address may not be reachable yet: retry.
        while got.is_none() {
            assert!(begun.elapsed() < PATIENCE, "{to} is not reached");
            one.send(b"hello", target, Some(ip(from))).unwrap();
            std::thread::yield_now();
            inbox
                .receive(&two, 1, |message| {
                    got = Some((message.from, message.to, message.data.to_vec()));
                    assert_eq!(message.tos, Some(0));
                    assert!(message.ttl.is_some() && message.interface > 0);
                })
                .unwrap();
        }
        let (from, to, payload) = got.unwrap();
        assert_eq!((from, to), (sender, Some(target.ip())));
        // Several may have come as a train.
        assert!(payload.starts_with(b"hello"));
    }
}

#[test]
fn a_train_is_sent_to_many() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let port = UdpPort::bind(at("127.0.0.1:0")).unwrap();
    let sinks: Vec<UdpPort> = (0..300)
        .map(|_| UdpPort::bind(at("127.0.0.1:0")).unwrap())
        .collect();
    let mut targets: Vec<Target> = sinks
        .iter()
        .map(|sink| Target {
            to: sink.local_addr(),
            from: Some(ip("127.0.0.1")),
        })
        .collect();
    // The kernel refuses the one in the middle: the others are not affected.
    targets[150].to = at("255.255.255.255:9");
    let train: Vec<u8> = (0..10_500_u32).map(|n| (n / 1000) as u8).collect();
    let mut failed = Vec::new();
    Fanout::new().send(&port, &train, 1000, targets.into_iter(), |number, what| {
        failed.push((number, what));
    });
    assert_eq!(failed.len(), 1);
    assert!(
        matches!(failed[0], (150, SendFailure::Lost { datagrams: 11, .. })),
        "{failed:?}"
    );
    for (number, sink) in sinks.iter().enumerate() {
        if number == 150 {
            continue;
        }
        let got: Vec<Vec<u8>> = take(sink, 11)
            .into_iter()
            .map(|(_, _, data)| data)
            .collect();
        let sent: Vec<&[u8]> = train.chunks(1000).collect();
        assert_eq!(got, sent);
    }
}

#[test]
fn datagrams_above_the_path_mtu_are_never_fragmented() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    for (local, to) in [
        ("10.1.0.1:0", "10.1.0.2:9"),
        ("[fd00:1::1]:0", "[fd00:1::2]:9"),
    ] {
        let port = UdpPort::bind(at(local)).unwrap();
        let target = Target {
            to: at(to),
            from: None,
        };
        for (bytes, segment) in [(1300, 1300), (13_000, 1300)] {
            let mut failed = Vec::new();
            Fanout::new().send(
                &port,
                &vec![0; bytes],
                segment,
                std::iter::once(target),
                |_, what| failed.push(what),
            );
            assert_eq!(failed, [SendFailure::TooLarge], "{bytes}");
        }
        let mut errors = Vec::new();
        port.path_errors(10, |error| errors.push(error)).unwrap();
        let too_large = PathError::TooLarge {
            to: target.to.ip(),
            mtu: 1280,
        };
        assert!(errors.contains(&too_large), "{errors:?}");
    }
}

#[test]
fn a_group_port_gets_its_group_and_source_only() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let narrow = find_interface("narrow").unwrap();
    assert_eq!(find_interface("10.1.0.1").unwrap(), narrow);
    assert!(find_interface("nowhere").is_err());
    for (source, group, other) in [
        ("10.1.0.1", "232.1.1.1:5000", "10.1.0.9"),
        ("fd00:1::1", "[ff3e::8000:1]:5000", "fd00:1::9"),
    ] {
        let sender = netio::MulticastSender::bind(ip(source), 1, true).unwrap();
        let mut right = GroupPort::open(at(group), narrow).unwrap();
        let mut wrong = GroupPort::open(at(group), narrow).unwrap();
        right.join(Some(ip(source))).unwrap();
        wrong.join(Some(ip(other))).unwrap();
        runtime.block_on(async {
            sender.send(at(group), b"one", None).await.unwrap();
        });
        assert_eq!(take(&right, 1)[0].2, b"one");
        let mut inbox = Inbox::new(1);
        assert_eq!(inbox.receive(&wrong, 1, |_| panic!()).unwrap(), 0);
        right.leave(Some(ip(source))).unwrap();
        assert!(right.is_idle());
        runtime.block_on(async {
            sender.send(at(group), b"two", None).await.unwrap();
        });
        assert_eq!(inbox.receive(&right, 1, |_| panic!()).unwrap(), 0);
    }
}

#[test]
fn a_port_gets_no_multicast() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let narrow = find_interface("narrow").unwrap();
    for (source, group, any) in [
        ("10.1.0.1", "239.1.1.1", "0.0.0.0:0"),
        ("fd00:1::1", "ff1e::8000:1", "[::]:0"),
    ] {
        let mut memberships = Memberships::default();
        memberships.join(None, ip(group), narrow).unwrap();
        let port = UdpPort::bind(at(any)).unwrap();
        // An ordinary socket receives what the port does not.
        let ordinary = std::net::UdpSocket::bind(at(any)).unwrap();
        let sender = netio::MulticastSender::bind(ip(source), 1, true).unwrap();
        for to in [port.local_addr(), ordinary.local_addr().unwrap()] {
            let to = SocketAddr::new(ip(group), to.port());
            runtime.block_on(sender.send(to, b"one", None)).unwrap();
        }
        ordinary.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 10];
        assert_eq!(ordinary.recv(&mut buffer).unwrap(), 3);
        let mut inbox = Inbox::new(1);
        assert_eq!(inbox.receive(&port, 1, |_| panic!("{group}")).unwrap(), 0);
    }
}

/// A port whose send buffer is full for seconds: no host answers its neighbour requests.
fn full_port() -> UdpPort {
    let port = UdpPort::bind(at("10.1.0.1:0")).unwrap();
    socket2::SockRef::from(&port)
        .set_send_buffer_size(4096)
        .unwrap();
    let mut sent = 0;
    while port.send(&[0; 1000], at("10.1.0.2:9"), None).is_ok() {
        sent += 1;
        assert!(sent < 1000, "the buffer takes everything");
    }
    port
}

#[test]
fn a_full_buffer_is_waited_for_once_and_not_for_each_destination() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let port = full_port();
    let targets = (0..1000).map(|n| Target {
        to: SocketAddr::new(ip("10.1.0.2"), 10_000 + n),
        from: None,
    });
    let mut fanout = Fanout::new();
    fanout.set_patience(Duration::from_millis(100));
    let begun = Instant::now();
    let mut lost = 0;
    fanout.send(&port, &[0; 3000], 1000, targets, |_, what| {
        assert!(
            matches!(
                what,
                SendFailure::Lost {
                    datagrams: 1..=3,
                    ..
                }
            ),
            "{what:?}"
        );
        lost += 1;
    });
    // For each of them it would be 100 seconds. Datagrams with room meanwhile are not lost.
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    assert!(lost > 900, "{lost}");
}

#[test]
fn send_one_does_not_wait_without_patience() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let port = full_port();
    let begun = Instant::now();
    let send = || port.send(&[0; 1000], at("10.1.0.2:9"), None);
    // Whether there is room for one now and then is another matter; one that waits for it loses
    // none.
    let lost = (0..1000).filter(|_| send().is_err()).count();
    assert!(lost > 900, "{lost}");
    // With 20 ms for each of them it would be more.
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_port_counts_its_losses() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let port = UdpPort::bind(at("127.0.0.1:0")).unwrap();
    socket2::SockRef::from(&port)
        .set_recv_buffer_size(4096)
        .unwrap();
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let begun = Instant::now();
    while port.dropped() == 0 {
        assert!(begun.elapsed() < PATIENCE);
        sender.send_to(&[0; 1000], port.local_addr()).unwrap();
    }
}

#[test]
fn the_route_of_a_group_is_found_and_interfaces_come_and_go() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let group = ip("239.1.1.1");
    let error = route_interface(group).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NetworkUnreachable);
    assert!(error.to_string().contains("239.1.1.1"), "{error}");
    shell("ip route add 239.1.1.0/24 dev narrow");
    let narrow = find_interface("narrow").unwrap();
    assert_eq!(route_interface(group).unwrap(), narrow);
    shell("ip -6 route add multicast ff3e::/32 dev narrow table local");
    assert_eq!(route_interface(ip("ff3e::8000:1")).unwrap(), narrow);
    assert_eq!(interface_state(narrow), InterfaceState::Up);
    shell("ip link set narrow down");
    assert_eq!(interface_state(narrow), InterfaceState::Down);
    shell("ip link del narrow");
    assert_eq!(interface_state(narrow), InterfaceState::Gone);
}

/// Returns the number of packets that have left by an interface.
fn left_by(interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics/tx_packets");
    let text = std::fs::read_to_string(path).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn a_time_to_live_of_0_stays_inside() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    shell("mount -t sysfs none /sys");
    shell("ip route add 232.0.0.0/8 dev narrow");
    shell("ip -6 route add multicast ff00::/8 dev narrow table local");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _guard = runtime.enter();
    let many = 200;
    for (interface, group) in [
        ("10.1.0.1", "232.1.1.1:5000"),
        ("fd00:1::1", "[ff3e::8000:1]:5000"),
    ] {
        let group = at(group);
        let mut sender = MulticastSender::bind(ip(interface), 0, true).unwrap();
        let send = |sender: &MulticastSender| {
            let before = left_by("narrow");
            for _ in 0..many {
                runtime
                    .block_on(sender.send(group, b"inside", None))
                    .unwrap();
            }
            left_by("narrow") - before
        };
        // What the kernel does by itself is why this is there; reports of memberships leave, a few.
        assert!(
            send(&sender) >= many,
            "{group}: the kernel stops them by itself"
        );
        sender.stay_inside(group.ip()).unwrap();
        let left = send(&sender);
        assert!(left < many / 4, "{group}: {left} packets left");
    }
}

#[test]
fn a_capture_counts_its_losses() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let narrow = find_interface("narrow").unwrap();
    let mut capture = Capture::open(narrow).unwrap();
    // No room for packets that are larger than a slot of the ring: trains of this host.
    socket2::SockRef::from(&capture)
        .set_recv_buffer_size(4096)
        .unwrap();
    let sender = netio::MulticastSender::bind(ip("10.1.0.1"), 1, false).unwrap();
    let to = at("232.1.1.1:5000");
    let mut got = 0;
    for _ in 0..10 {
        let sending = sender.send(to, &[1; 40_000], Some(1000));
        runtime.block_on(sending).unwrap();
        runtime.block_on(sender.send(to, b"small", None)).unwrap();
    }
    let started = Instant::now();
    while got < 10 {
        assert!(started.elapsed() < PATIENCE, "{got} came");
        capture.receive(100, |packet| got += usize::from(packet.segment.is_none()));
    }
    assert!(capture.take_lost() > 0);
    assert_eq!(capture.take_lost(), 0);
}

#[test]
fn a_waker_ends_a_wait() {
    let mut poller = Poller::new().unwrap();
    let waker = poller.waker();
    let waking = std::thread::spawn(move || waker.wake());
    assert!(poller.wait(None).unwrap().is_empty());
    waking.join().unwrap();
}
