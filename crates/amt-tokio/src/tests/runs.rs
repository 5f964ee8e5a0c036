//! Consecutive runs: the state that a killed run leaves.

use std::path::Path;

use rand::RngExt;

use super::*;
use crate::MemoryFile;

/// Creates a runtime; the relay has one, and the gateways of all runs another.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

/// Returns a free port outside the kernel's range of automatic ports.
fn free_port() -> std::net::UdpSocket {
    let mut ports = std::iter::repeat_with(|| rand::rng().random_range(10_000..30_000));
    let bound = ports.find_map(|port: u16| std::net::UdpSocket::bind(("::", port)).ok());
    bound.expect("there are many")
}

fn start(path: &Path, relay: &RelayName, port: Option<u16>) -> Gateway {
    let config = Config {
        relays: vec![relay.clone()],
        dns: None,
        port,
        memory: Some(MemoryFile::open(path.to_owned()).of("flows")),
        ..Config::default()
    };
    Gateway::start(config).unwrap()
}

/// Starts a gateway and waits for its first Update at the relay; also returns the earlier messages
/// at the relay.
async fn run(
    path: &Path,
    relay: &mut Relay,
    port: Option<u16>,
) -> (Gateway, SocketAddr, Vec<RelayEvent>) {
    let mut gateway = start(path, &relay.name, port);
    gateway.subscribe(flow()).unwrap();
    let connected = event(&mut gateway).await;
    assert!(matches!(connected, Event::Connected { .. }), "{connected}");
    let mut before = Vec::new();
    loop {
        match relay.next_event().await {
            RelayEvent::Update(from) => return (gateway, from, before),
            other => before.push(other),
        }
    }
}

/// Returns the content of the file once it is written.
async fn written(gateway: &Gateway, path: &Path) -> serde_json::Value {
    gateway.memory.as_ref().unwrap().written().await;
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Kills a first run: dropped outside of a runtime, a gateway sends nothing to the relay.
fn killed(runs: &tokio::runtime::Runtime, path: &Path, relay: &mut Relay) -> SocketAddr {
    let port = free_port().local_addr().unwrap().port();
    let (gateway, from) = runs.block_on(async {
        let (gateway, from, _) = run(path, relay, Some(port)).await;
        assert_eq!(from.port(), port);
        let file = written(&gateway, path).await;
        let tunnel = &file["gateways"]["flows"]["tunnel"];
        assert_eq!(tunnel["gateway"], from.to_string(), "{file}");
        (gateway, from)
    });
    drop(gateway);
    while let Ok(heard) = relay.heard.try_recv() {
        assert_ne!(heard, RelayEvent::Teardown, "it was killed");
    }
    from
}

#[test]
fn the_run_after_a_kill_uses_the_same_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("amt.json");
    let (relays, runs) = (runtime(), runtime());
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let mut relay = relays.block_on(relay(at, false));
        let first = killed(&runs, &path, &mut relay);
        runs.block_on(async {
            let (gateway, second, before) = run(&path, &mut relay, None).await;
            assert_eq!(second, first);
            assert!(
                !before.contains(&RelayEvent::Teardown),
                "it is the same tunnel"
            );
            gateway.stop().await;
            while relay.next_event().await != RelayEvent::Teardown {}
            let file: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let entry = &file["gateways"]["flows"];
            assert!(entry["tunnel"].is_null(), "it was taken down: {file}");
            let port = if first.is_ipv4() {
                "port_v4"
            } else {
                "port_v6"
            };
            assert_eq!(entry[port], first.port(), "{file}");
            // No tunnel is left to tear down, and the port is the same again.
            let (gateway, third, before) = run(&path, &mut relay, None).await;
            assert_eq!(third, first);
            assert!(!before.contains(&RelayEvent::Teardown));
            gateway.stop().await;
        });
    }
}

#[test]
fn an_old_tunnel_is_torn_down_if_its_port_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("amt.json");
    let (relays, runs) = (runtime(), runtime());
    let mut relay = relays.block_on(relay("127.0.0.1:0", false));
    let first = killed(&runs, &path, &mut relay);
    let taken = std::net::UdpSocket::bind(("0.0.0.0", first.port())).unwrap();
    runs.block_on(async {
        let (gateway, second, before) = run(&path, &mut relay, None).await;
        assert_ne!(second.port(), first.port());
        assert_eq!(before[0], RelayEvent::Teardown, "before anything is asked");
        let teardowns = before
            .iter()
            .filter(|heard| **heard == RelayEvent::Teardown);
        assert_eq!(teardowns.count(), 1, "{before:?}");
        let file = written(&gateway, &path).await;
        let entry = &file["gateways"]["flows"];
        assert_eq!(entry["port_v4"], second.port(), "{file}");
        assert_eq!(entry["tunnel"]["gateway"], second.to_string(), "{file}");
    });
    drop(taken);
}

#[tokio::test]
async fn both_families_use_the_configured_port() {
    let port = free_port().local_addr().unwrap().port();
    let mut sockets = crate::sockets::Sockets::new([vec![port], vec![port]]);
    for to in ["127.0.0.1:9", "[::1]:9"] {
        assert_eq!(sockets.open(to.parse().unwrap()).unwrap(), port, "{to}");
    }
    assert_eq!(sockets.ports(), [Some(port); 2]);
}

#[tokio::test]
async fn the_configured_port_is_used_if_free() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("amt.json");
    let mut relay = relay("127.0.0.1:0", false).await;
    let free = free_port();
    let port = free.local_addr().unwrap().port();
    let (gateway, other, _) = run(&path, &mut relay, Some(port)).await;
    assert_ne!(other.port(), port, "the port is taken");
    drop(gateway);
    drop(free);
    while relay.next_event().await != RelayEvent::Teardown {}
    let (_, from, _) = run(&path, &mut relay, Some(port)).await;
    assert_eq!(from.port(), port);
}

#[tokio::test]
async fn any_file_content_is_tolerated() {
    let folder = tempfile::tempdir().unwrap();
    let tunnel = |relay: &str| {
        format!(
            r#"{{"gateways": {{"flows": {{"port_v4": 0, "tunnel": {{"relay": "{relay}",
               "nonce": 1, "mac": [1, 2, 3, 4, 5, 6], "gateway": "192.0.2.1:1"}}}}}}}}"#
        )
    };
    let many: Vec<_> = (0..1000).map(|n| format!(r#""{n}": {{}}"#)).collect();
    let contents = [
        String::new(),
        "{".to_owned(),
        "[[[[[[[[".repeat(1000),
        "\u{0}".repeat(1 << 20),
        r#"{"gateways": {"flows": {"port_v4": 70000}}}"#.to_owned(),
        r#"{"gateways": {"flows": {"port_v4": 1, "port_v6": 65535}}}"#.to_owned(),
        format!(r#"{{"gateways": {{{}}}}}"#, many.join(", ")),
        tunnel("0.0.0.0:2268"),
        tunnel("255.255.255.255:2268"),
        tunnel("239.1.1.1:2268"),
        tunnel("[ff02::1]:2268"),
        tunnel("127.0.0.1:0"),
    ];
    for (n, content) in contents.iter().enumerate() {
        let path = folder.path().join(format!("{n}.json"));
        std::fs::write(&path, content).unwrap();
        let mut relay = relay("127.0.0.1:0", false).await;
        let (gateway, from, before) = run(&path, &mut relay, None).await;
        assert!(!before.contains(&RelayEvent::Teardown), "{content}");
        assert_eq!(gateway.counters().teardowns, 0, "{content}");
        // The file is valid again.
        let file = written(&gateway, &path).await;
        assert_eq!(file["gateways"]["flows"]["port_v4"], from.port(), "{file}");
        assert!(file["gateways"].as_object().unwrap().len() <= 64);
    }
    // An unreadable and unwritable file keeps nothing.
    let nowhere = [folder.path().to_owned(), "/proc/self/nothing/here".into()];
    for path in nowhere {
        let mut relay = relay("127.0.0.1:0", false).await;
        run(&path, &mut relay, None).await.0.stop().await;
    }
}
