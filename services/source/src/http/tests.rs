#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::source::{Counters, FlowStatus, Move, ReceiverStatus};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::ingest::FeedState;

/// For everything that should happen soon.
const SOON: Duration = Duration::from_secs(20);

const RUNNING: u8 = 0;
const STOPPED: u8 = 1;
const BUSY: u8 = 2;

/// A transport that has seen one receiver.
struct Fake(AtomicU8);

#[async_trait]
impl Transport for Fake {
    async fn publish(&self, _: u64, _: Bytes) {}

    async fn status(&self) -> Option<SourceStatus> {
        match self.0.load(Ordering::Relaxed) {
            RUNNING => Some(seen()),
            STOPPED => None,
            _ => std::future::pending().await,
        }
    }
}

fn seen() -> SourceStatus {
    SourceStatus {
        head: 7,
        flow: Some(FlowStatus {
            id: "0011223344556677".into(),
            group: "232.70.70.1:4434".into(),
            source: Some("192.0.2.1".into()),
            next_pn: 12,
            members: 1,
            packets: 12,
            bytes: 1200,
            outstanding: 0,
        }),
        receivers: vec![ReceiverStatus {
            id: "id".into(),
            name: "r1".into(),
            addr: "192.0.2.2:5000".into(),
            rung: "multicast".into(),
            since_ms: 1,
            cursor: Some(6),
            backlog: 0,
            rtt_ms: 0.5,
        }],
        moves: vec![Move {
            at_ms: 1,
            receiver: "id".into(),
            name: "r1".into(),
            from: "unicast".into(),
            to: "multicast".into(),
            cause: "joined".into(),
        }],
        counters: Counters::default(),
    }
}

struct Site {
    address: SocketAddr,
    ingest: watch::Sender<IngestStatus>,
    transport: Arc<Fake>,
    store: Arc<dyn Store>,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Site {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = store::open_file(&folder.path().join("x.db")).await.unwrap();
        let transport = Arc::new(Fake(AtomicU8::new(RUNNING)));
        let ingest = watch::Sender::new(IngestStatus::default());
        let pages = Arc::new(Pages {
            channel: "lore".into(),
            incarnation: Uuid::from_u128(7),
            url: "https://example.org/f".into(),
            ingest: ingest.subscribe(),
            store: Arc::clone(&store),
            metrics: Arc::new(Metrics::default()),
            view: View::new(Arc::<Fake>::clone(&transport)),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, router(pages), stop.clone()));
        Self {
            address,
            ingest,
            transport,
            store,
            stop,
            _folder: folder,
        }
    }

    /// Sends a request and reads until the server closes the connection.
    async fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let talk = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = tokio::time::timeout(SOON, talk).await.unwrap();
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        (code, body)
    }

    async fn json(&self, path: &str) -> (u16, Value) {
        let (code, body) = self.ask("GET", path).await;
        (code, serde_json::from_str(&body).unwrap())
    }

    fn transport_is(&self, state: u8) {
        self.transport.0.store(state, Ordering::Relaxed);
    }
}

fn good() -> IngestStatus {
    IngestStatus {
        head: 7,
        feed: FeedState::Ok,
        detail: "25 entries".into(),
        last_poll_ms: Some(1234),
        last_success_ms: Some(1234),
        store_failure: None,
    }
}

#[tokio::test]
async fn the_status_page_is_as_agreed() {
    let site = Site::start().await;
    site.ingest.send_replace(good());
    let (code, page) = site.json("/status.json").await;
    assert_eq!(code, 200);
    assert_eq!(page["version"], 1);
    assert_eq!(page["channel"], "lore");
    assert_eq!(page["incarnation"], Uuid::from_u128(7).to_string());
    assert_eq!(page["head"], 7);
    assert_eq!(
        page["feed"],
        json!({"url": "https://example.org/f", "state": "ok", "last_poll_ms": 1234, "detail": "25 entries"})
    );
    for (member, expected) in [
        ("id", json!("0011223344556677")),
        ("group", json!("232.70.70.1:4434")),
        ("source", json!("192.0.2.1")),
        ("next_pn", json!(12)),
        ("members", json!(1)),
        ("packets", json!(12)),
        ("bytes", json!(1200)),
    ] {
        assert_eq!(page["flow"][member], expected, "{member}");
    }
    let receiver = &page["receivers"][0];
    assert_eq!(receiver["name"], "r1");
    assert_eq!(receiver["rung"], "multicast");
    assert_eq!(receiver["cursor"], 6);
    assert_eq!(receiver["rtt_ms"], 0.5);
    assert_eq!(page["moves"][0]["cause"], "joined");

    let status = IngestStatus {
        feed: FeedState::NotAFeed,
        ..good()
    };
    site.ingest.send_replace(status);
    let (_, page) = site.json("/status.json").await;
    assert_eq!(page["feed"]["state"], "not-a-feed");
}

#[tokio::test]
async fn a_busy_transport_is_shown_as_it_was_last_seen() {
    let site = Site::start().await;
    site.json("/status.json").await;
    site.transport_is(BUSY);
    let (code, page) = site.json("/status.json").await;
    assert_eq!((code, &page["receivers"][0]["name"]), (200, &json!("r1")));
    site.transport_is(STOPPED);
    let (code, page) = site.json("/status.json").await;
    assert_eq!((code, &page["flow"]), (200, &Value::Null));
    assert_eq!(page["receivers"], json!([]));
}

#[tokio::test]
async fn readiness_needs_a_poll_the_store_and_the_transport() {
    let site = Site::start().await;
    assert_eq!(site.ask("GET", "/healthz").await.0, 200);
    let (code, page) = site.json("/readyz").await;
    assert_eq!((code, &page["ready"]), (503, &json!(false)));
    assert!(page["reasons"][0].as_str().unwrap().contains("first poll"));

    site.ingest.send_replace(good());
    let (code, page) = site.json("/readyz").await;
    assert_eq!((code, &page["reasons"]), (200, &json!([])));

    // A feed that is away is said, but what is stored can be served.
    let away = IngestStatus {
        feed: FeedState::Error,
        detail: "nobody answers".into(),
        ..good()
    };
    site.ingest.send_replace(away);
    let (code, page) = site.json("/readyz").await;
    assert_eq!(
        (code, &page["feed"]["detail"]),
        (200, &json!("nobody answers"))
    );

    let full = IngestStatus {
        store_failure: Some("no space left".into()),
        ..good()
    };
    site.ingest.send_replace(full);
    let (code, page) = site.json("/readyz").await;
    assert_eq!(code, 503);
    assert!(
        page["reasons"][0]
            .as_str()
            .unwrap()
            .contains("no space left")
    );

    site.ingest.send_replace(good());
    site.transport_is(STOPPED);
    let (code, page) = site.json("/readyz").await;
    assert_eq!(code, 503);
    assert!(page["reasons"][0].as_str().unwrap().contains("transport"));

    site.transport_is(RUNNING);
    site.store.close().await;
    let (code, page) = site.json("/readyz").await;
    assert_eq!(code, 503);
    assert!(page["reasons"][0].as_str().unwrap().contains("store"));
    assert_eq!(site.ask("GET", "/healthz").await.0, 200, "still alive");
}

#[tokio::test]
async fn metrics_are_text_that_ends_properly() {
    let site = Site::start().await;
    let (code, text) = site.ask("GET", "/metrics").await;
    assert_eq!(code, 200);
    assert!(
        text.contains("flexfeed_source_receivers{rung=\"multicast\"} 1\n"),
        "{text}"
    );
    assert!(text.contains("flexfeed_source_moves_total{"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn only_what_is_there_can_be_read_and_nothing_written() {
    let site = Site::start().await;
    for path in ["/healthz", "/readyz", "/metrics", "/status.json"] {
        for method in ["POST", "PUT", "DELETE"] {
            assert_eq!(site.ask(method, path).await.0, 405, "{method} {path}");
        }
    }
    let (code, text) = site.ask("GET", "/nothing").await;
    assert_eq!(code, 404);
    assert!(text.contains("/status.json"), "{text}");
}

#[tokio::test]
async fn clients_that_misbehave_disturb_nobody() {
    let site = Site::start().await;
    // More silent connections than there are places; they are let go after the header time.
    let mut silent = Vec::new();
    for _ in 0..80 {
        silent.push(TcpStream::connect(site.address).await.unwrap());
    }
    let mut garbage = TcpStream::connect(site.address).await.unwrap();
    garbage
        .write_all(&[0x16, 3, 1, 0, 200, 255, 0])
        .await
        .unwrap();
    let mut endless = TcpStream::connect(site.address).await.unwrap();
    let header = [&b"GET / HTTP/1.1\r\nX: "[..], &[b'x'; 100_000]].concat();
    // The server may close before it has read all of it.
    let _ = endless.write_all(&header).await;
    assert_eq!(site.ask("GET", "/healthz").await.0, 200);
}

#[tokio::test]
async fn the_pages_end_when_told_to() {
    let site = Site::start().await;
    let mut open = TcpStream::connect(site.address).await.unwrap();
    open.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    assert_eq!(site.ask("GET", "/healthz").await.0, 200);
    site.stop.cancel();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(SOON, open.read_to_end(&mut rest));
    // Closed in either way.
    let _ = closed.await.unwrap();
    let refused = async {
        while TcpStream::connect(site.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, refused).await.unwrap();
}
