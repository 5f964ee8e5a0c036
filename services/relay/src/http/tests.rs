//! The site, on a real socket.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use netio::direct::UdpPort;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::engine::{Receive, Setup};

struct Bench {
    site: Arc<Site>,
    address: SocketAddr,
}

impl Bench {
    async fn new() -> Self {
        let port = UdpPort::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let engine = Engine::start(Setup {
            relay: amt::relay::Config::default(),
            ports: vec![port],
            receive: Receive::Ports(vec![4434]),
            interface: None,
        });
        let engine = Arc::new(engine.unwrap());
        let site = Site::new(engine, vec!["x".into()], CancellationToken::new());
        let site = Arc::new(site);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(Arc::clone(&site), listener));
        Self { site, address }
    }

    /// Returns the code and the body.
    async fn get(&self, path: &str) -> (u16, String) {
        self.accepting("*/*", path).await
    }

    async fn accepting(&self, kinds: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {kinds}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        (code, body.to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_relay_is_ready_until_it_stops() {
    let bench = Bench::new().await;
    assert_eq!(bench.get("/healthz").await, (200, "alive\n".to_owned()));
    assert_eq!(bench.get("/readyz").await.0, 200);
    bench.site.leave();
    let (code, body) = bench.get("/readyz").await;
    assert_eq!(code, 503);
    assert!(body.contains("about to stop"), "{body}");
    assert_eq!(bench.get("/healthz").await.0, 200);
    assert_eq!(bench.get("/x").await.0, 404);
    let engine = Arc::clone(&bench.site.engine);
    tokio::task::spawn_blocking(move || engine.stop())
        .await
        .unwrap();
    let (code, body) = bench.get("/readyz").await;
    assert_eq!(code, 503);
    assert!(body.contains("does not answer"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_relay_is_ready_under_many_requests() {
    let bench = Arc::new(Bench::new().await);
    // As many at a time as may be connected.
    for _ in 0..5 {
        let asking = (0..60).map(|_| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move { bench.get("/readyz").await })
        });
        for asked in asking.collect::<Vec<_>>() {
            let (code, body) = asked.await.unwrap();
            assert_eq!(code, 200, "{body}");
        }
    }
    bench.site.engine.drain();
    let begun = std::time::Instant::now();
    loop {
        let view = bench.site.engine.view().await.unwrap();
        if view.draining {
            break;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_relay_is_not_ready_without_a_capture() {
    let bench = Bench::new().await;
    bench.site.engine.counters().not_capturing.set(1);
    let (code, body) = bench.get("/readyz").await;
    assert_eq!(code, 503);
    assert!(body.contains("nothing is captured"), "{body}");
    let (_, body) = bench.get("/status").await;
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status["not_capturing"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_lists_gateways_and_groups() {
    let bench = Bench::new().await;
    for path in ["/status", "/status.json"] {
        let (code, body) = bench.get(path).await;
        assert_eq!(code, 200);
        let status: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status["gateways"]["count"], 0);
        assert_eq!(status["gateways"]["max"], 10_000);
        assert_eq!(status["draining"], false);
        assert_eq!(status["listen"][0], "x");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_other_sites_are_refused() {
    let bench = Bench::new().await;
    let mut stream = TcpStream::connect(bench.address).await.unwrap();
    let request = "GET /status HTTP/1.1\r\nhost: evil.example\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_match_the_document() {
    let bench = Bench::new().await;
    let (code, plain) = bench.get("/metrics").await;
    assert_eq!(code, 200);
    let open = "application/openmetrics-text";
    let (code, text) = bench.accepting(open, "/metrics").await;
    assert_eq!(code, 200);
    let wrong = openmetrics::forms(&plain, &text);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let families = openmetrics::parse(&text).unwrap();
    let document = include_str!("../../../../docs/metrics.md");
    let found = openmetrics::differences(document, "flexfeed_relay_", &families);
    let table = openmetrics::table(&families).join("\n");
    assert!(
        found.is_empty(),
        "{}\n\nIt should be:\n\n{table}",
        found.join("\n")
    );
}
