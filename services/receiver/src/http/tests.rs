#![allow(clippy::unwrap_used)]
mod bounds;
mod events;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use feed::payload;
use flexicast::Cursor;
use flexicast_tokio::receiver::{Event, Leg, LegState};
use reqwest::{Client, Response};
use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::board::Identity;
use crate::deliver::tests::{encoded, incarnation};
use crate::journal::{Limits, Missing};
use crate::sink::{ChannelFiles, Layout, Sink};

const TIME: Duration = Duration::from_secs(30);

/// A site on a real socket, with the outputs behind it.
struct Bench {
    data: TempDir,
    files: Vec<(String, ChannelFiles)>,
    board: Arc<Board>,
    address: SocketAddr,
    client: Client,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl Bench {
    async fn start(channels: &[&str]) -> Bench {
        Bench::with(channels, Limits::default()).await
    }

    async fn with(channels: &[&str], limits: Limits) -> Bench {
        Bench::bounded(channels, limits, Bounds::default()).await
    }

    async fn bounded(channels: &[&str], limits: Limits, bounds: Bounds) -> Bench {
        let data = tempfile::tempdir().unwrap();
        std::fs::create_dir(data.path().join("state")).unwrap();
        let files: Vec<_> = channels
            .iter()
            .map(|name| ((*name).to_owned(), open(data.path(), name, limits)))
            .collect();
        let identity = Identity {
            name: "<r1>".into(),
            receiver_id: Uuid::from_u128(1),
            source: "h:4433".into(),
        };
        let known: Vec<_> = channels
            .iter()
            .map(|name| ((*name).to_owned(), None))
            .collect();
        let board = Arc::new(Board::new(identity, &known));
        let stop = CancellationToken::new();
        let served = files.iter().map(|(channel, files)| ServedChannel {
            channel: channel.clone(),
            reader: files.reader(),
            feeds: files.feeds(),
        });
        let mut site = Site::new(
            data.path(),
            true,
            served.collect(),
            Arc::clone(&board),
            Vec::new(),
            stop.clone(),
        );
        site.places = Arc::new(Places::new(bounds));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(Arc::new(site), listener));
        let _ = rustls::crypto::ring::default_provider().install_default();
        Bench {
            data,
            files,
            board,
            address,
            serving,
            client: Client::builder().tls_certs_only([]).build().unwrap(),
            stop,
        }
    }

    fn files(&mut self, channel: &str) -> &mut ChannelFiles {
        let mut files = self.files.iter_mut();
        &mut files.find(|(name, _)| name == channel).unwrap().1
    }

    fn put(&mut self, channel: &str, seqs: impl IntoIterator<Item = u64>) {
        let files = self.files(channel);
        for seq in seqs {
            let encoded = encoded(seq);
            files.take(incarnation(), payload::decode(&encoded).unwrap(), &encoded);
        }
        write(files);
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn get(&self, path: &str) -> Response {
        self.client.get(self.url(path)).send().await.unwrap()
    }

    async fn asked(&self, path: &str, header: &str, value: &str) -> Response {
        let request = self.client.get(self.url(path)).header(header, value);
        request.send().await.unwrap()
    }

    async fn listen(&self, path: &str, last: Option<&str>) -> Stream {
        let response = match last {
            Some(id) => self.asked(path, "last-event-id", id).await,
            None => self.get(path).await,
        };
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut stream = Stream {
            response,
            text: String::new(),
            id: None,
        };
        // The present position, before any event.
        let greeting = stream.block().await;
        assert!(greeting.contains("retry: "), "{greeting}");
        stream
    }
}

fn open(data: &Path, channel: &str, journal: Limits) -> ChannelFiles {
    let layout = Layout {
        data,
        state: &data.join("state"),
        source: "h:4433",
        delivery_log: None,
        json: true,
        keep: 500,
        served: None,
        journal,
        file_interval: Duration::from_secs(5),
    };
    ChannelFiles::open(&layout, channel).unwrap().0
}

fn write(files: &mut ChannelFiles) {
    files.write_journal().unwrap();
    files.announce();
}

/// A client of `/events`, as browsers are.
struct Stream {
    response: Response,
    text: String,
    id: Option<String>,
}

/// A type and data.
type ReceivedEvent = (String, Value);

impl Stream {
    /// Everything up to the next empty line.
    async fn block(&mut self) -> String {
        let read = async {
            loop {
                if let Some((block, rest)) = self.text.split_once("\n\n") {
                    let block = block.to_owned();
                    self.text = rest.to_owned();
                    return block;
                }
                let chunk = self
                    .response
                    .chunk()
                    .await
                    .unwrap()
                    .expect("the stream ended");
                self.text.push_str(std::str::from_utf8(&chunk).unwrap());
            }
        };
        let block = tokio::time::timeout(TIME, read).await.unwrap();
        for line in block.lines() {
            if let Some(id) = line.strip_prefix("id: ") {
                self.id = Some(id.to_owned());
            }
        }
        block
    }

    async fn next(&mut self) -> ReceivedEvent {
        loop {
            let block = self.block().await;
            let field = |name: &str| {
                let lines = block.lines();
                let values = lines.filter_map(|line| line.strip_prefix(name));
                values.collect::<Vec<_>>().join("\n")
            };
            let data = field("data: ");
            if !data.is_empty() {
                return (field("event: "), serde_json::from_str(&data).unwrap());
            }
        }
    }

    /// The seqs of the next updates.
    async fn seqs(&mut self, count: usize) -> Vec<u64> {
        let mut seqs = Vec::new();
        for _ in 0..count {
            let (kind, data) = self.next().await;
            assert_eq!(kind, "", "{data}");
            seqs.push(seq_of(&data));
        }
        seqs
    }
}

fn seq_of(event: &Value) -> u64 {
    let id = event["id"].as_str().unwrap();
    id.rsplit('/').next().unwrap().parse().unwrap()
}

fn id(seq: u64) -> String {
    format!("{}/{seq}", incarnation())
}

/// The feeds are of this moment, whatever is on disk.
#[tokio::test(flavor = "multi_thread")]
async fn feeds_have_validators() {
    let mut bench = Bench::start(&["lore"]).await;
    bench.put("lore", 1..=3);
    // A date is given once no other version can get the same.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let mut tags = Vec::new();
    for (path, kind) in [
        ("/feeds/lore.atom", "application/atom+xml; charset=utf-8"),
        ("/feeds/lore.json", "application/feed+json; charset=utf-8"),
    ] {
        let response = bench.get(path).await;
        assert_eq!(response.status(), 200);
        let headers = response.headers().clone();
        assert_eq!(headers["content-type"], kind);
        assert_eq!(headers["x-content-type-options"], "nosniff");
        let body = response.bytes().await.unwrap();
        let file = bench.data.path().join(path.rsplit('/').next().unwrap());
        assert_ne!(body, std::fs::read(&file).unwrap());
        let written = bench.data.path().join("written");
        let feeds = bench.files("lore").feeds();
        let format = match kind.contains("json") {
            true => crate::feeds::Format::Json,
            false => crate::feeds::Format::Atom,
        };
        feeds.snapshot(format).unwrap().store(&written).unwrap();
        assert_eq!(body, std::fs::read(&written).unwrap());
        let head = bench.client.head(bench.url(path)).send().await.unwrap();
        assert_eq!(head.status(), 200);
        for name in ["etag", "last-modified", "content-length", "content-type"] {
            assert_eq!(head.headers()[name], headers[name], "{name}");
        }
        assert_eq!(head.headers()["content-length"], body.len().to_string());
        assert_eq!(head.bytes().await.unwrap(), Bytes::new());

        let etag = headers["etag"].to_str().unwrap();
        let modified = headers["last-modified"].to_str().unwrap();
        for (name, value, code) in [
            ("if-none-match", etag, 304),
            ("if-none-match", &format!("\"x\", W/{etag}"), 304),
            ("if-none-match", "*", 304),
            ("if-none-match", "\"x\"", 200),
            ("if-modified-since", modified, 304),
            ("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT", 200),
            ("if-modified-since", "yesterday", 200),
        ] {
            let response = bench.asked(path, name, value).await;
            assert_eq!(response.status(), code, "{name}: {value}");
            assert_eq!(response.headers()["etag"], etag);
            let length = response.bytes().await.unwrap().len();
            assert_eq!(length == 0, code == 304);
        }
        // Another version of the same second, with another tag but the same date.
        let both = bench.client.get(bench.url(path));
        let both = both
            .header("if-none-match", "\"x\"")
            .header("if-modified-since", modified);
        assert_eq!(both.send().await.unwrap().status(), 200);
        tags.push(etag.to_owned());
    }
    bench.put("lore", [4]);
    for (path, old) in ["/feeds/lore.atom", "/feeds/lore.json"].iter().zip(tags) {
        let response = bench.asked(path, "if-none-match", &old).await;
        assert_eq!(response.status(), 200);
        assert_ne!(response.headers()["etag"], old);
        let modified = response.headers().get("last-modified").cloned();
        // After the next start, the same content has the same validators.
        let fresh = bench.get(path).await;
        assert_eq!(fresh.headers()["etag"], response.headers()["etag"]);
        assert!(modified.is_none() || fresh.headers().contains_key("last-modified"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_feeds_and_pages_are_served() {
    let bench = Bench::start(&["lore"]).await;
    std::fs::write(bench.data.path().join("secret.atom"), "s").unwrap();
    for path in [
        "/feeds/secret.atom",
        "/feeds/lore.txt",
        "/feeds/..%2Flore.atom",
        "/feeds/state%2Flore.json",
        "/feeds/lore",
        "/feeds/",
        "/state/receiver-id",
        "/events?channel=net",
    ] {
        assert_eq!(bench.get(path).await.status(), 404, "{path}");
    }
    let posted = bench
        .client
        .post(bench.url("/feeds/lore.atom"))
        .send()
        .await;
    assert_eq!(posted.unwrap().status(), 405);
    let page = bench.get("/").await;
    assert!(
        page.headers()["content-security-policy"]
            .to_str()
            .unwrap()
            .contains("'none'")
    );
    let page = page.text().await.unwrap();
    assert!(
        page.contains("&lt;r1&gt;") && !page.contains("<r1>"),
        "{page}"
    );
    assert!(page.contains("/feeds/lore.json"), "{page}");
    assert_eq!(bench.get("/healthz").await.text().await.unwrap(), "alive\n");
    let status: Value =
        serde_json::from_str(&bench.get("/status.json").await.text().await.unwrap()).unwrap();
    assert_eq!(
        (&status["name"], &status["running"]),
        (&"<r1>".into(), &true.into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_names_the_obstacle() {
    let mut bench = Bench::start(&["lore"]).await;
    async fn reasons(bench: &Bench) -> (u16, String) {
        let response = bench.get("/readyz").await;
        let code = response.status().as_u16();
        let body: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
        assert_eq!(body["ready"], code == 200);
        (code, body["reasons"].to_string())
    }
    let (code, why) = reasons(&bench).await;
    assert_eq!(code, 503);
    assert!(why.contains("no connection"), "{why}");
    bench.board.apply(&Event::Welcome {
        channel: "lore".into(),
        incarnation: incarnation(),
        head: 5,
        first: 1,
        resync: false,
    });
    let (code, why) = reasons(&bench).await;
    assert_eq!(code, 503);
    assert!(why.contains("5 updates behind"), "{why}");
    bench.put("lore", 1..=5);
    bench.board.delivered(
        "lore",
        &crate::deliver::Outcome {
            cursor: Some(Cursor {
                incarnation: incarnation(),
                seq: 5,
            }),
            ..Default::default()
        },
    );
    // A disk that others keep busy may not answer in time once.
    let begun = Instant::now();
    loop {
        let (code, why) = reasons(&bench).await;
        if code == 200 {
            break;
        }
        assert!(why.contains("does not answer"), "{why}");
        assert!(begun.elapsed() < TIME, "{why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bench.board.storage_failed("lore", "disk full".into());
    let (code, why) = reasons(&bench).await;
    assert_eq!(code, 503);
    assert!(why.contains("disk full"), "{why}");
    bench.board.leave();
    assert!(reasons(&bench).await.1.contains("about to stop"));
    let last = bench.board.clone();
    last.apply(&Event::Disconnected {
        reason: "away".into(),
        retry_in: Duration::ZERO,
    });
    assert!(reasons(&bench).await.1.contains("away"));
}

/// Every metric has a value: a channel with latencies, a hook, an answer.
#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_are_those_of_the_document() {
    let mut bench = Bench::start(&["lore"]).await;
    bench.put("lore", 1..=3);
    let record = crate::delivery_log::Record {
        seq: 3,
        id: "urn:3".into(),
        via: flexicast::Via::Flow,
        at_ms: 0.0,
        latency_ms: 250.0,
    };
    let outcome = crate::deliver::Outcome {
        delivered: vec![(record, true)],
        ..Default::default()
    };
    bench.board.delivered("lore", &outcome);
    let mut hooks = crate::hooks::Hooks::default();
    let patience = crate::hooks::RetryLimits {
        attempts: 1,
        max_age: TIME,
        pauses: crate::hooks::Pauses::default(),
    };
    let settings = crate::hooks::Settings {
        name: "h".into(),
        channels: Vec::new(),
        patience,
        concurrency: 1,
    };
    let tapes = [("lore".to_owned(), bench.files("lore").reader())];
    let target = crate::hooks::exec::Exec::new("true".into(), TIME);
    hooks
        .add(
            bench.data.path(),
            settings,
            target,
            &tapes,
            bench.board.messages(),
        )
        .unwrap();
    let files = bench.files("lore");
    let served = ServedChannel {
        channel: "lore".into(),
        reader: files.reader(),
        feeds: files.feeds(),
    };
    let site = Site::new(
        bench.data.path(),
        true,
        vec![served],
        Arc::clone(&bench.board),
        hooks.stats(),
        CancellationToken::new(),
    );
    site.metrics.answered("index", StatusCode::OK);
    bench.board.apply(&Event::Leg {
        channel: "lore".into(),
        leg: Leg::RELAY,
        state: LegState::Working,
        at: SystemTime::now(),
    });
    bench.board.apply(&Event::Relay {
        channel: "lore".into(),
        number: 0,
        relay: Some("192.0.2.7:2268".parse().unwrap()),
        text: String::new(),
        at: SystemTime::now(),
    });
    let text = site.metrics.text(&site).unwrap();
    let wrong = openmetrics::forms(&service::exposition::plain(&text), &text);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let families = openmetrics::parse(&text).unwrap();
    let document = include_str!("../../../../docs/metrics.md");
    let found = openmetrics::differences(document, "flexfeed_receiver_", &families);
    assert!(found.is_empty(), "{}", found.join("\n"));
    for line in [
        "flexfeed_receiver_update_latency_seconds_bucket{le=\"0.1\",channel=\"lore\"} 0\n",
        "flexfeed_receiver_update_latency_seconds_bucket{le=\"0.25\",channel=\"lore\"} 1\n",
        "flexfeed_receiver_update_latency_seconds_sum{channel=\"lore\"} 0.25\n",
        "flexfeed_receiver_rung_moves_total{channel=\"lore\",to=\"multicast\"} 0\n",
        "flexfeed_receiver_updates_total{channel=\"lore\",via=\"flow\"} 1\n",
        "flexfeed_receiver_journal_records{channel=\"lore\"} 3\n",
        "flexfeed_receiver_rung{channel=\"lore\",rung=\"unicast\"} 1\n",
        "flexfeed_receiver_leg{channel=\"lore\",leg=\"amt\",relay=\"192.0.2.7:2268\"} 1\n",
        "flexfeed_receiver_hook_pending_updates{hook=\"h\",kind=\"exec\"} 0\n",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    let kind = |served: &Response| served.headers()["content-type"].clone();
    let accept = "application/openmetrics-text";
    let open = bench.asked("/metrics", "accept", accept).await;
    assert_eq!(
        kind(&open),
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    openmetrics::parse(&open.text().await.unwrap()).unwrap();
    let plain = bench.get("/metrics").await;
    assert_eq!(kind(&plain), "text/plain; version=0.0.4; charset=utf-8");
    let text = plain.text().await.unwrap();
    assert!(
        text.contains("\n# TYPE flexfeed_receiver_build_info gauge\n"),
        "{text}"
    );
}

/// A page that had its name point here must not read what is here.
#[tokio::test]
async fn only_names_of_this_machine_are_answered() {
    let bench = Bench::start(&["lore"]).await;
    let evil = format!("evil.example:{}", bench.address.port());
    for path in [
        "/",
        "/feeds/lore.json",
        "/events",
        "/status.json",
        "/metrics",
    ] {
        let refused = bench.asked(path, "host", &evil).await;
        assert_eq!(refused.status(), 421, "{path}");
        assert_eq!(refused.headers()["x-content-type-options"], "nosniff");
        let text = refused.text().await.unwrap();
        assert!(text.contains("http://localhost:PORT/"), "{text}");
    }
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8080"] {
        let answered = bench.asked("/status.json", "host", host).await;
        assert_eq!(answered.status(), 200, "{host}");
    }
}
