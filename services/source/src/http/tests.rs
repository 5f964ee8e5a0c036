#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::source::{
    BreakerState, ChannelBytes, ChannelStatus, Counters, FlowStatus, History, HistoryEvent,
    HistoryEventKind, Lateness, LoadStatus, MassFallBack, Move, Overload, ReceiverChannel,
    ReceiverStatus,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::board::ChannelInfo;
use crate::publish::{LeaseGuard, PublishStatus};
use crate::status::{FeedState, GapStatus, IngestStatus, Phase};
use tokio::sync::watch;
use uuid::Uuid;

/// For everything that should happen soon.
const SOON: Duration = Duration::from_secs(120);

const RUNNING: u8 = 0;
const STOPPED: u8 = 1;
const BUSY: u8 = 2;

/// A transport that has seen one receiver.
struct Fake(AtomicU8);

#[async_trait]
impl Transport for Fake {
    async fn publish(&self, _: &str, _: u64, _: Bytes) {}

    async fn send_message(
        &self,
        _: &str,
        _: u64,
        _: Bytes,
    ) -> Result<(), crate::transport::Unsent> {
        Ok(())
    }

    async fn set_first(&self, _: &str, _: u64) {}

    async fn status(&self) -> Option<SourceStatus> {
        match self.0.load(Ordering::Relaxed) {
            RUNNING => Some(seen()),
            STOPPED => None,
            _ => std::future::pending().await,
        }
    }

    async fn history(&self, after: u64) -> Option<History> {
        let seen = self.status().await?;
        let all = seen.moves.into_iter().map(|step| HistoryEvent {
            number: step.number,
            at_ms: step.at_ms,
            what: HistoryEventKind::Moved(step),
        });
        Some(History {
            events: all.filter(|h| h.number > after).collect(),
            last: 1,
            missed: 0,
        })
    }
}

fn seen() -> SourceStatus {
    let place = |channel: &str, rung: &str, cursor| ReceiverChannel {
        channel: channel.into(),
        rung: rung.into(),
        since_ms: 1,
        cause: None,
        legs: Vec::new(),
        cursor,
        backlog: 3,
        key_sequence: Some(2),
    };
    SourceStatus {
        channels: vec![
            ChannelStatus {
                channel: "lore".into(),
                head: 7,
                flow: Some(FlowStatus {
                    id: "0011223344556677".into(),
                    endpoints: vec!["(192.0.2.1, 232.70.70.1:4434)".into()],
                    group: "232.70.70.1:4434".into(),
                    source: Some("192.0.2.1".into()),
                    next_pn: 12,
                    key_sequence: 2,
                    members: 1,
                    replicas: 0,
                    packets: 12,
                    bytes: 1200,
                    outstanding: 0,
                    packet_size: 1442,
                    narrow_members: 1,
                    ecn_ce: 0,
                    fec: Some("tail,xor".into()),
                    repair_symbols: 3,
                    rebuilt: 7,
                    rate_bps: Some(2_000_000),
                    limited_by: None,
                    breaker: BreakerState::Closed,
                }),
                bytes: ChannelBytes::default(),
            },
            ChannelStatus {
                channel: "net".into(),
                head: 2,
                flow: None,
                bytes: ChannelBytes::default(),
            },
        ],
        receivers: vec![
            ReceiverStatus {
                id: "id".into(),
                name: "r1".into(),
                session: 1,
                software: "test".into(),
                connected_ms: 1,
                addr: "192.0.2.2:5000".into(),
                rtt_ms: 0.5,
                channels: vec![
                    place("net", "unicast", None),
                    place("lore", "multicast", Some(6)),
                ],
            },
            ReceiverStatus {
                id: "id2".into(),
                name: "r2".into(),
                session: 2,
                software: "test".into(),
                connected_ms: 1,
                addr: "192.0.2.3:5000".into(),
                rtt_ms: 0.5,
                channels: vec![place("net", "replicated", None)],
            },
        ],
        moves: vec![Move {
            number: 1,
            at_ms: 1,
            channel: "lore".into(),
            receiver: "id".into(),
            name: "r1".into(),
            from: "unicast".into(),
            to: "multicast".into(),
            cause: "joined".into(),
        }],
        replication_queue: 0,
        load: LoadStatus {
            overloaded: true,
            lag_ms: 120.0,
            publish_wait_ms: 0.0,
            acks_per_s: 10_000,
            overloads: vec![Overload {
                since_ms: 6,
                until_ms: None,
                late: vec![Lateness::ReceiveQueue],
            }],
        },
        shards: vec![3],
        mass_fall_backs: vec![MassFallBack {
            at_ms: 5,
            channel: "lore".into(),
            members: 40,
            cause: "ack-timeout".into(),
        }],
        counters: Counters::default(),
    }
}

struct Site {
    address: SocketAddr,
    ingest: watch::Sender<IngestStatus>,
    second: watch::Sender<IngestStatus>,
    transport: Arc<Fake>,
    board: Arc<Board>,
    stop: CancellationToken,
}

impl Site {
    async fn start() -> Self {
        let transport = Arc::new(Fake(AtomicU8::new(RUNNING)));
        let ingest = watch::Sender::new(IngestStatus::default());
        let second = watch::Sender::new(IngestStatus {
            state: FeedState::Ok,
            ..IngestStatus::default()
        });
        let board = Arc::new(Board::default());
        board.set_phase(Phase::Running);
        for (name, number, stored, ingest) in
            [("lore", 7, (7, 3), &ingest), ("net", 8, (2, 1), &second)]
        {
            let shown = ChannelInfo {
                private: name == "net",
                ..ChannelInfo::default()
            };
            board.show(name, shown);
            let (head, first) = stored;
            let publisher = watch::Sender::new(PublishStatus {
                head,
                published: head,
                first,
                store_failure: None,
            });
            let lease = LeaseGuard::made_up(name, number, Duration::from_secs(3600));
            let incarnation = Uuid::from_u128(number.into());
            board.active(name, incarnation, lease, publisher.subscribe());
            let url = format!("https://example.org/{number}");
            board.set_feeds(name, [(url.clone(), None)]);
            board.set_ingest(name, &url, Some(ingest.subscribe()));
        }
        let pages = Arc::new(Pages {
            board: Arc::clone(&board),
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
            second,
            transport,
            board,
            stop,
        }
    }

    /// Sends a request and reads until the server closes the connection.
    async fn ask(&self, method: &str, path: &str) -> (u16, String) {
        self.ask_for(method, path, "").await
    }

    /// The same with a line of a header.
    async fn ask_for(&self, method: &str, path: &str, header: &str) -> (u16, String) {
        self.ask_as("localhost", method, path, header).await
    }

    /// The same with another Host.
    async fn ask_as(&self, host: &str, method: &str, path: &str, header: &str) -> (u16, String) {
        let talk = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{header}\r\n");
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
        state: FeedState::Ok,
        detail: "25 entries".into(),
        last_poll_ms: Some(1234),
        last_success_ms: Some(1234),
        next_poll_ms: Some(9999),
        interval_ms: Some(8765),
        title: Some("Seven".into()),
        moved_to: Some("https://new.example/".into()),
        pending: 3,
        gap: Some(GapStatus {
            at_ms: 5,
            state: "filled",
            detail: "all".into(),
            entries: 9,
        }),
        ..IngestStatus::default()
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
        json!({
            "url": "https://example.org/7", "title": "Seven", "state": "ok",
            "detail": "25 entries", "last_poll_ms": 1234, "last_success_ms": 1234,
            "next_poll_ms": 9999, "interval_ms": 8765, "moved_to": "https://new.example/",
            "held": 3,
            "gap": {"at_ms": 5, "state": "filled", "detail": "all", "entries": 9},
        })
    );
    assert_eq!(page["feeds"][0], page["feed"]);
    assert_eq!(
        (&page["role"], &page["fence"]),
        (&json!("active"), &json!(7))
    );
    assert_eq!(
        (&page["published"], &page["groups"]),
        (&json!(7), &json!(""))
    );
    assert_eq!(
        (&page["phase"], &page["database"]["up"]),
        (&json!("running"), &json!(true))
    );
    assert!(
        page["software"]
            .as_str()
            .unwrap()
            .starts_with("flexfeed-source ")
    );
    for (member, expected) in [
        ("id", json!("0011223344556677")),
        ("group", json!("232.70.70.1:4434")),
        ("source", json!("192.0.2.1")),
        ("next_pn", json!(12)),
        ("members", json!(1)),
        ("packets", json!(12)),
        ("bytes", json!(1200)),
        ("packet_size", json!(1442)),
        ("fec", json!("tail,xor")),
        ("repair_symbols", json!(3)),
        ("rebuilt", json!(7)),
    ] {
        assert_eq!(page["flow"][member], expected, "{member}");
    }
    let receiver = &page["receivers"][0];
    assert_eq!(receiver["name"], "r1");
    assert_eq!(receiver["rung"], "multicast");
    assert_eq!(receiver["cursor"], 6);
    assert_eq!(receiver["rtt_ms"], 0.5);
    assert_eq!(page["moves"][0]["cause"], "joined");

    // Every channel, and each receiver's place in each.
    let channels = &page["channels"];
    assert_eq!(
        (&channels[0]["channel"], &channels[0]["first"]),
        (&json!("lore"), &json!(3))
    );
    assert_eq!(channels[0]["flow"], page["flow"]);
    assert_eq!(page["flow"]["key_sequence"], 2);
    assert_eq!(
        page["flow"]["endpoints"][0],
        "(192.0.2.1, 232.70.70.1:4434)"
    );
    assert_eq!(
        (
            &channels[1]["channel"],
            &channels[1]["head"],
            &channels[1]["private"]
        ),
        (&json!("net"), &json!(2), &json!(true))
    );
    assert_eq!(channels[1]["flow"], Value::Null);
    assert_eq!(channels[1]["feed"]["url"], "https://example.org/8");
    assert_eq!(
        receiver["channels"],
        json!([
            {"channel": "net", "rung": "unicast", "since_ms": 1, "cause": null, "cursor": 0,
             "backlog": 3, "key_sequence": 2},
            {"channel": "lore", "rung": "multicast", "since_ms": 1, "cause": null, "cursor": 6,
             "backlog": 3, "key_sequence": 2},
        ])
    );
    // A receiver without the first channel is shown in its own.
    let other = &page["receivers"][1];
    assert_eq!(
        (&other["rung"], &other["cursor"]),
        (&json!("replicated"), &json!(0))
    );
    assert_eq!(page["moves"][0]["channel"], "lore");
    assert_eq!(page["mass_fall_backs"][0]["members"], 40);
    assert_eq!(page["load"]["overloaded"], true);
    assert_eq!(page["load"]["overloads"][0]["late"][0], "receive-queue");
    assert_eq!(page["shards"], json!([3]));

    let status = IngestStatus {
        state: FeedState::NotAFeed,
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

    // A feed that is away is reported, but stored updates can be served.
    let away = IngestStatus {
        state: FeedState::Error,
        detail: "no answer".into(),
        ..good()
    };
    site.ingest.send_replace(away);
    let (code, page) = site.json("/readyz").await;
    assert_eq!((code, &page["feed"]["detail"]), (200, &json!("no answer")));

    let pending = site.second.send_replace(IngestStatus::default());
    let (code, page) = site.json("/readyz").await;
    let reason = page["reasons"][0].as_str().unwrap();
    assert_eq!(code, 503);
    assert!(
        reason.starts_with("channel net: the first poll"),
        "{reason}"
    );
    assert_eq!(page["feeds"][1]["channel"], "net");
    site.second.send_replace(pending);

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
    site.board.set_database(Some("connection refused".into()));
    let (code, page) = site.json("/readyz").await;
    assert_eq!(code, 503);
    let reason = page["reasons"][0].as_str().unwrap();
    assert!(
        reason.contains("store") && reason.contains("connection refused"),
        "{reason}"
    );
    site.board.set_database(None);
    assert_eq!(site.json("/readyz").await.0, 200);

    // A standby is not ready, unless the request accepts one.
    for name in ["lore", "net"] {
        site.board.standby(name, Some("other".into()));
    }
    let (code, page) = site.json("/readyz").await;
    assert_eq!((code, &page["standby"]), (503, &json!(true)));
    let reason = page["reasons"][0].as_str().unwrap();
    assert!(reason.contains("\"other\""), "{reason}");
    assert_eq!(site.json("/readyz?standby=ok").await.0, 200);
    let (code, text) = site
        .ask_for("GET", "/readyz", "Accept: text/plain\r\n")
        .await;
    assert_eq!(code, 503);
    assert!(
        text.starts_with("standing by\n- ") && text.contains("\"other\""),
        "{text}"
    );
    let (_, page) = site
        .ask_for("GET", "/readyz", "Accept: text/plain, */*;q=0.1\r\n")
        .await;
    assert!(page.starts_with("standing by"), "{page}");
    let (_, page) = site
        .ask_for("GET", "/readyz", "Accept: application/json, text/plain\r\n")
        .await;
    assert!(page.starts_with('{'), "{page}");
    site.board.set_phase(Phase::Stopping);
    assert_eq!(site.json("/readyz?standby=ok").await.0, 503);
    assert_eq!(site.ask("GET", "/healthz").await.0, 200, "still alive");
}

#[tokio::test]
async fn metrics_are_shown_in_the_form_that_is_asked_for() {
    let site = Site::start().await;
    let open = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let (code, text) = site.ask_for("GET", "/metrics", open).await;
    assert_eq!(code, 200);
    assert!(
        text.contains("flexfeed_source_receivers{channel=\"lore\",rung=\"multicast\"} 1\n"),
        "{text}"
    );
    assert!(text.contains("flexfeed_source_moves_total{"), "{text}");
    openmetrics::parse(&text).unwrap();
    let (code, plain) = site.ask("GET", "/metrics").await;
    assert_eq!(code, 200);
    let build = "\n# TYPE flexfeed_source_build_info gauge\n";
    assert!(plain.contains(build), "{plain}");
    assert!(!plain.contains("# EOF"), "{plain}");
}

#[tokio::test]
async fn only_existing_pages_answer_and_none_accepts_writes() {
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
async fn a_page_of_another_site_reads_nothing() {
    let site = Site::start().await;
    for path in ["/status.json", "/metrics", "/readyz"] {
        let (code, text) = site.ask_as("evil.example:8090", "GET", path, "").await;
        assert_eq!(code, 421, "{path}: {text}");
        assert!(text.contains("http://localhost:PORT/"), "{text}");
    }
    let (code, _) = site.ask_as("127.0.0.1:8090", "GET", "/healthz", "").await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn misbehaving_clients_do_not_disturb_others() {
    let site = Site::start().await;
    // More silent connections than there are places; they make room for those that ask.
    let mut silent = Vec::new();
    for _ in 0..300 {
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
async fn the_pages_end_on_request() {
    let site = Site::start().await;
    let mut open = TcpStream::connect(site.address).await.unwrap();
    open.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    assert_eq!(site.ask("GET", "/healthz").await.0, 200);
    site.stop.cancel();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(SOON, open.read_to_end(&mut rest));
    // Closed in both cases.
    let _ = closed.await.unwrap();
    let refused = async {
        while TcpStream::connect(site.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, refused).await.unwrap();
}
