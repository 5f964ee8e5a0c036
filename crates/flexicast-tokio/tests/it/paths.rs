//! The ways between a source and a receiver: copies, NATs that change their minds, IPv6, several
//! addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use flexicast_tokio::receiver::Event;
use flexicast_tokio::source::{FlowEndpoint, SourceAddress, SourceStatus};
use flexicast_tokio::{Rung, Via};
use tokio::time::timeout;

use crate::site::proxy::Nat;
use crate::site::{Probe, Running, Site, any_port};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicated_packets_reach_receivers_without_multicast() {
    let site = Site::new();
    let source = site.source().await;
    let nat = Nat::new(source.addr).await;
    let mut member = site.receiver(source.addr);
    let mut far = site.behind(nat.addr);
    member.until_rung(Rung::Multicast).await;
    far.until_rung(Rung::Replicated).await;
    site.publish(&source.handle, 300).await;
    far.until_seq(300).await;
    member.until_seq(300).await;
    assert!(far.by_flow("lore") >= 280, "{}", far.by_flow("lore"));
    assert!(member.by_flow("lore") >= 280);
    let status = source.status().await;
    let flow = status.channels[0].flow.as_ref().unwrap();
    assert_eq!((flow.members, flow.replicas), (2, 1));
    assert!(status.counters.copies >= 300, "{:?}", status.counters);
    assert_eq!(status.counters.copy_errors, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_group_a_flow_lives_by_copies() {
    let site = Site::new();
    let mut config = site.config(any_port());
    if let Some(flow) = &mut config.channels[0].flow {
        flow.endpoints.clear();
    }
    let source = site.start(config).await;
    let mut probe = site.behind(source.addr);
    probe.until_rung(Rung::Replicated).await;
    site.publish(&source.handle, 100).await;
    probe.until_seq(100).await;
    assert!(probe.by_flow("lore") >= 90, "{}", probe.by_flow("lore"));
}

/// The connection continues from another address once the receiver has proved it; nothing is lost,
/// without a reconnection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nat_that_changes_its_port_loses_nothing() {
    let site = Site::new();
    let source = site.source().await;
    let nat = Nat::new(source.addr).await;
    let mut probe = site.behind(nat.addr);
    probe.until_rung(Rung::Replicated).await;
    for round in 1..=8 {
        let before = source.status().await.receivers[0].addr.clone();
        let publish = async {
            for step in 0..30 {
                if step == 10 {
                    nat.rebind().await;
                }
                site.publish(&source.handle, 2).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::join!(publish, probe.until_seq(round * 60));
        probe.until_rung(Rung::Replicated).await;
        source
            .until("it is elsewhere", |s| {
                s.receivers[0].addr != before && s.counters.migrations >= round
            })
            .await;
    }
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
    assert!(probe.by_flow("lore") >= 240, "{}", probe.by_flow("lore"));
    // A source that restarts is noticed from there too.
    source.task.abort();
    let _ = source.task.await;
    let source = site.start(site.config(source.addr)).await;
    site.publish(&source.handle, 10).await;
    let reason = probe.until_reason().await;
    assert!(reason.contains("restarted"), "{reason}");
    probe.until_seq(490).await;
}

/// Packets in flight to the old address are sent to the new one, however many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_in_flight_during_a_nat_rebinding_arrive() {
    let site = Site::new();
    let source = site.source().await;
    let mut nat = Nat::new(source.addr).await;
    let mut config = site.receiver_config(nat.addr);
    config.multicast = false;
    let mut probe = site.start_receiver(config);
    for (round, count) in [2, 5, 60].into_iter().enumerate() {
        site.publish(&source.handle, 20).await;
        let head = site.store.head("lore");
        probe.until_seq(head).await;
        nat.cut.store(true, Ordering::Relaxed);
        site.publish(&source.handle, count).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        nat.rebind().await;
        nat.cut.store(false, Ordering::Relaxed);
        site.publish(&source.handle, 5).await;
        let head = site.store.head("lore");
        probe.until_seq(head).await;
        assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
        source
            .until("it is there", |s| s.counters.migrations > round as u64)
            .await;
    }
    // Nor does it matter that another host tried in between.
    let (_thief, _) = nat.steal().await;
    site.publish(&source.handle, 30).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    nat.cut.store(false, Ordering::Relaxed);
    let head = site.store.head("lore");
    probe.until_seq(head).await;
}

/// Until a receiver has proved a new address, no replicated packets go there: an attacker that
/// spoofs its address makes no victim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_stop_when_nothing_comes_back() {
    let site = Site::new();
    let source = site.lively_source().await;
    let nat = Nat::new(source.addr).await;
    let mut probe = site.behind(nat.addr);
    probe.until_rung(Rung::Replicated).await;
    nat.cut.store(true, Ordering::Relaxed);
    let replicas =
        |s: &flexicast_tokio::source::SourceStatus| s.channels[0].flow.as_ref().unwrap().replicas;
    let publish = async {
        loop {
            site.publish(&source.handle, 1).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = publish => {}
        () = source.until("no copies", |s| replicas(s) == 0) => {}
    }
    nat.cut.store(false, Ordering::Relaxed);
    let head = site.store.head("lore");
    probe.until_seq(head).await;
    probe.until_rung(Rung::Replicated).await;
}

/// A client that spoofs a receiver from another address gets no replicated packets, and of all else
/// at most three times what it sent (RFC 9000 section 8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spoofed_packets_gain_little() {
    let site = Site::new();
    let source = site.source().await;
    let mut nat = Nat::new(source.addr).await;
    let mut probe = site.behind(nat.addr);
    probe.until_rung(Rung::Replicated).await;
    let (thief, sent) = nat.steal().await;
    site.publish(&source.handle, 200).await;
    let (mut got, mut buffer) = (0, vec![0; 65_536]);
    let quiet = Duration::from_millis(1500);
    while let Ok(Ok(len)) = timeout(quiet, thief.recv(&mut buffer)).await {
        got += len;
    }
    assert!(got <= 3 * sent, "{got} bytes for {sent}");
    nat.cut.store(false, Ordering::Relaxed);
    probe.until_seq(200).await;
    probe.until_rung(Rung::Replicated).await;
}

/// The source's address changes while updates flow: another one is announced before the old one
/// goes. Receivers move to it, connection and flow, and lose nothing; one behind a router that
/// translates the source's address stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_changes_its_address_loses_nothing() {
    let site = Site::new();
    let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let source = site.start(site.config(anywhere)).await;
    let port = source.addr.port();
    let [old, new] = [1, 2].map(|host| SocketAddr::from(([127, 0, 0, host], port)));
    let nat = Nat::new(old).await;
    let mut far = site.behind(nat.addr);
    let mut probe = site.receiver(old);
    probe.until_rung(Rung::Multicast).await;
    far.until_rung(Rung::Replicated).await;

    let address = |at, leaving| SourceAddress { at, leaving };
    let publish = async {
        for step in 0..200 {
            if step == 20 {
                let both = vec![address(new, false), address(old, false)];
                source.handle.set_addresses(both).await;
            }
            if step == 60 {
                let leaving = vec![address(new, false), address(old, true)];
                source.handle.set_addresses(leaving).await;
                let endpoint = FlowEndpoint {
                    group: site.group(0),
                    interface: new.ip(),
                    asm: false,
                    ttl: 1,
                };
                let moved = source.handle.set_endpoints("lore", vec![endpoint]).await;
                moved.expect("an address of the loopback interface");
            }
            site.publish(&source.handle, 2).await;
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    };
    tokio::join!(publish, probe.until_seq(400), far.until_seq(400));
    while probe.connected.last() != Some(&new) {
        probe.event().await;
    }
    assert_eq!(probe.connected, [old, new]);
    assert_eq!(probe.disconnected.len(), 1, "{:?}", probe.disconnected);
    assert!(probe.disconnected[0].contains("another address"));
    assert!(far.disconnected.is_empty(), "{:?}", far.disconnected);
    // The flow comes from the new address: what follows is by it.
    probe.until_rung(Rung::Multicast).await;
    let before = probe.via["lore"].len();
    site.publish(&source.handle, 50).await;
    probe.until_seq(450).await;
    far.until_seq(450).await;
    let after = &probe.via["lore"][before..];
    let by_flow = after.iter().filter(|via| **via != Via::Unicast).count();
    assert!(by_flow >= 45, "{by_flow}");
}

/// Interfaces with both address families, and a name with a dead address before a living one.
const NETWORK: &str = "
ip link add a1 type veth peer name b1
for i in a1 b1; do ip link set $i addrgenmode none; ip link set $i up; done
ip addr add fd00:1::1/64 dev a1 nodad
ip addr add 10.1.0.1/24 dev a1
hosts=$(mktemp)
printf '127.0.0.1 localhost\nfd00:1::99 dead.test\n10.1.0.1 dead.test\n' > $hosts
printf 'fd00:1::1 both.test\n10.1.0.1 both.test\n' >> $hosts
mount --bind $hosts /etc/hosts
";

fn six(site: &Site) -> FlowEndpoint {
    let host = site.incarnation.as_bytes();
    FlowEndpoint {
        group: format!("[ff3e::4646:{:x}{:02x}]:24434", host[0], host[1])
            .parse()
            .unwrap(),
        interface: "fd00:1::1".parse().unwrap(),
        asm: false,
        ttl: 1,
    }
}

fn four(site: &Site) -> FlowEndpoint {
    FlowEndpoint {
        group: site.group(0),
        interface: "10.1.0.1".parse().unwrap(),
        asm: false,
        ttl: 1,
    }
}

async fn start_with(site: &Site, listen: &str, endpoints: Vec<FlowEndpoint>) -> Running {
    let mut config = site.config(listen.parse().unwrap());
    if let Some(flow) = &mut config.channels[0].flow {
        flow.endpoints = endpoints.clone();
    }
    site.start(config).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multicast_by_ipv6() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let site = Site::new();
    let source = start_with(&site, "[::]:0", vec![six(&site)]).await;
    let port = source.addr.port();
    for server in [format!("[fd00:1::1]:{port}"), format!("10.1.0.1:{port}")] {
        let mut config = site.receiver_config(&server);
        config.interface = Some("fd00:1::1".parse().unwrap());
        let head = site.store.head("lore");
        config.channels[0].1 = site.cursor(head);
        let mut probe = site.start_receiver(config);
        probe.until_rung(Rung::Multicast).await;
        site.publish(&source.handle, 100).await;
        probe.until_seq(head + 100).await;
        assert!(probe.by_flow("lore") >= 90, "{server}");
        let at: SocketAddr = source.status().await.receivers[0].addr.parse().unwrap();
        assert_eq!(at.is_ipv4(), server.starts_with("10."), "{at} for {server}");
        probe.handle.shutdown().await;
        source.until("it is gone", |s| s.receivers.is_empty()).await;
    }
}

/// One flow by both families: each receiver takes the one that reaches it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_flow_by_both_families() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let site = Site::new();
    let endpoints = vec![six(&site), four(&site)];
    let source = start_with(&site, "[::]:0", endpoints).await;
    let port = source.addr.port();
    let mut probes = Vec::new();
    for server in ["[fd00:1::1]", "10.1.0.1"] {
        let mut config = site.receiver_config(format!("{server}:{port}"));
        config.interface = Some("10.1.0.1".parse().unwrap());
        probes.push(site.start_receiver(config));
    }
    for probe in &mut probes {
        probe.until_rung(Rung::Multicast).await;
    }
    site.publish(&source.handle, 200).await;
    for probe in &mut probes {
        probe.until_seq(200).await;
        assert!(probe.by_flow("lore") >= 180, "{}", probe.by_flow("lore"));
    }
    assert_eq!(source.status().await.counters.multicast_errors, 0);
}

/// Copies go out of a socket for both families to the address that each receiver wrote from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_by_both_families() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let site = Site::new();
    let source = start_with(&site, "[::]:0", Vec::new()).await;
    let port = source.addr.port();
    for server in ["[fd00:1::1]", "10.1.0.1"] {
        let addr = format!("{server}:{port}").parse().unwrap();
        let mut probe = site.behind(addr);
        probe.until_rung(Rung::Replicated).await;
        let head = site.store.head("lore");
        site.publish(&source.handle, 50).await;
        probe.until_seq(head + 50).await;
        assert!(probe.by_flow("lore") >= 40, "{server}");
    }
}

/// Every tenth packet that is ECN-capable gets marked on its way.
const MARKING: &str = "\
PATH=$PATH:/usr/sbin:/sbin
nft add table inet marking
nft 'add chain inet marking out { type filter hook output priority 0 ; }'
nft add rule inet marking out ip ecn ect0 numgen inc mod 10 == 0 ip ecn set ce
nft add rule inet marking out ip6 ecn ect0 numgen inc mod 10 == 0 ip6 ecn set ce
";

/// Marks of the network are counted, by multicast and replicated, and nothing is repaired for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn congestion_marks_are_reported() {
    if !kit::in_namespace!(format!("{NETWORK}{MARKING}").as_str()) {
        return;
    }
    let site = Site::new();
    let source = start_with(&site, "[::]:0", vec![four(&site)]).await;
    let port = source.addr.port();
    let mut marks = 0;
    for (server, rung) in [
        ("10.1.0.1", Rung::Multicast),
        ("10.1.0.1", Rung::Replicated),
        ("[fd00:1::1]", Rung::Replicated),
    ] {
        let mut config = site.receiver_config(format!("{server}:{port}"));
        config.interface = Some("10.1.0.1".parse().unwrap());
        config.multicast = rung == Rung::Multicast;
        config.replicated = rung == Rung::Replicated;
        let head = site.store.head("lore");
        config.channels[0].1 = site.cursor(head);
        let mut probe = site.start_receiver(config);
        probe.until_rung(rung).await;
        site.publish(&source.handle, 300).await;
        probe.until_seq(head + 300).await;
        let counted = |s: &SourceStatus| s.channels[0].flow.as_ref().unwrap().ecn_ce;
        source
            .until("marks are counted", |s| counted(s) > marks)
            .await;
        marks = counted(&source.status().await);
        assert!(probe.by_flow("lore") >= 280, "{server}, {rung}");
        probe.handle.shutdown().await;
        source.until("it is gone", |s| s.receivers.is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_address_that_answers_wins() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let site = Site::new();
    let source = site.start(site.config("[::]:0".parse().unwrap())).await;
    let port = source.addr.port();
    // The first address is dead: the second is tried a quarter of a second later, not when the
    // first is given up.
    let mut config = site.receiver_config(format!("dead.test:{port}"));
    config.multicast = false;
    let mut probe = site.start_receiver(config);
    let connected = async {
        while probe.connected.is_empty() {
            probe.event().await;
        }
    };
    timeout(Duration::from_secs(8), connected)
        .await
        .expect("no waiting for the dead address");
    let ip = |probe: &Probe| probe.connected.first().map(SocketAddr::ip);
    assert_eq!(ip(&probe), Some(IpAddr::from([10, 1, 0, 1])));
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
    // Both live: IPv6 goes first.
    let mut config = site.receiver_config(format!("both.test:{port}"));
    config.multicast = false;
    let mut six = site.start_receiver(config);
    site.publish(&source.handle, 10).await;
    probe.until_seq(10).await;
    six.until_seq(10).await;
    assert!(ip(&six).is_some_and(|ip| ip.is_ipv6()), "{:?}", ip(&six));
    let status = source.status().await;
    assert_eq!(
        (status.receivers.len(), status.counters.connections),
        (2, 2),
        "HELLO is said once by each"
    );
}

fn ip(arguments: &str) {
    let done = std::process::Command::new("ip")
        .args(arguments.split(' '))
        .status();
    assert!(done.unwrap().success(), "ip {arguments}");
}

/// A receiver whose own address changes goes on at once, on the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_changes_its_address_continues() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let site = Site::new();
    let source = start_with(&site, "[::]:0", vec![four(&site)]).await;
    let server = format!("10.1.0.1:{}", source.addr.port());
    let mut config = site.receiver_config(server);
    config.interface = None;
    let mut probe = site.start_receiver(config);
    site.publish(&source.handle, 10).await;
    probe.until_seq(10).await;
    ip("addr add 10.1.0.7/24 dev a1");
    ip("route replace local 10.1.0.1 dev a1 table local src 10.1.0.7");
    source
        .until("the receiver is seen elsewhere", |s| {
            s.receivers[0].addr.starts_with("10.1.0.7:")
        })
        .await;
    site.publish(&source.handle, 10).await;
    probe.until_seq(20).await;
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
    assert_eq!(source.status().await.counters.migrations, 1);
}

/// A receiver whose name of the source leads nowhere finds the source where it was last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_is_found_where_it_was_last() {
    let site = Site::new();
    let source = site.source().await;
    let silent = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let [name, older] = silent.each_ref().map(|one| one.local_addr().unwrap());
    let mut config = site.receiver_config(name);
    config.known = vec![older, source.addr];
    let mut probe = site.start_receiver(config);
    let known = loop {
        if let Event::Addresses { known } = probe.event().await {
            break known;
        }
    };
    assert_eq!(known, [source.addr]);
    site.publish(&source.handle, 20).await;
    probe.until_seq(20).await;
    assert_eq!(probe.connected, [source.addr]);
}
