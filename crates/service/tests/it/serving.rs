//! Bounds on clients, on real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use service::places::{Bounds, Limit, Places};
use service::server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Bound on everything that has to happen.
const TIME: Duration = Duration::from_secs(30);

async fn serving(bounds: Bounds) -> (SocketAddr, Arc<Places>, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let places = Arc::new(Places::new(bounds));
    let stop = CancellationToken::new();
    let site = Router::new().route("/healthz", get(async || "alive\n"));
    tokio::spawn(server::serve(
        listener,
        site,
        Arc::clone(&places),
        stop.clone(),
    ));
    (address, places, stop)
}

async fn ask(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(TIME, read).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn connections_without_a_request_make_room() {
    let bounds = Bounds {
        connections: 12,
        // No client is disconnected for being late.
        header_time: 100 * TIME,
        ..Bounds::default()
    };
    let (address, places, _stop) = serving(bounds).await;
    let mut silent = Vec::new();
    for _ in 0..60 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    for _ in 0..3 {
        assert!(ask(address).await.ends_with("alive\n"));
    }
    assert!(places.met(Limit::Connections) >= 48);
    assert!(places.connections() <= 12);
}

#[tokio::test]
async fn late_requests_are_dropped_and_counted() {
    let bounds = Bounds {
        header_time: Duration::from_millis(200),
        ..Bounds::default()
    };
    let (address, places, _stop) = serving(bounds).await;
    let mut late = TcpStream::connect(address).await.unwrap();
    late.write_all(b"GET /healthz HTTP/1.1\r\nho")
        .await
        .unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(TIME, late.read_to_end(&mut rest));
    let _ = ended.await.unwrap();
    assert_eq!(places.met(Limit::Header), 1);
}

/// Sends a request head of so many bytes, all at once; returns the first line of the answer.
async fn ask_with_head(address: SocketAddr, length: usize) -> String {
    let start = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: ";
    let end = "\r\n\r\n";
    let filler = "x".repeat(length - start.len() - end.len());
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A server that has read enough may be gone.
    let _ = stream
        .write_all(format!("{start}{filler}{end}").as_bytes())
        .await;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(TIME, read).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_head_has_64_kib_at_most() {
    const LARGEST: usize = 64 << 10;
    let (address, _places, _stop) = serving(Bounds::default()).await;
    for length in [1000, LARGEST - 1, LARGEST] {
        let answer = ask_with_head(address, length).await;
        assert_eq!(answer, "HTTP/1.1 200 OK", "{length}");
    }
    for length in [LARGEST + 1, 80_000, 90_000, 400_000] {
        let answer = ask_with_head(address, length).await;
        // Bytes that were not read turn the end of the connection into a reset.
        let refused = "HTTP/1.1 431 Request Header Fields Too Large";
        assert!(answer == refused || answer.is_empty(), "{length}: {answer}");
    }
}

#[tokio::test]
async fn no_client_is_accepted_after_the_stop() {
    let (address, _places, stop) = serving(Bounds::default()).await;
    assert!(ask(address).await.ends_with("alive\n"));
    stop.cancel();
    let refused = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIME, refused).await.unwrap();
}
