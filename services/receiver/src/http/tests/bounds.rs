//! Bounds on the resources that clients use.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// More than the buffers between two sockets hold.
const LONG: usize = 24 << 20;

impl Bench {
    /// Puts a long entry into a channel's feeds.
    fn lengthen(&mut self, channel: &str) {
        let mut update = payload::decode(&encoded(1)).unwrap();
        (update.incarnation, update.entry.id) = (Uuid::nil(), "long".into());
        update.entry.content_text = Some("x".repeat(LONG));
        self.files(channel).feeds().upsert(&update);
    }

    /// A client that asks for a page and reads nothing yet.
    async fn lazy(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// A metric that has to come to this value.
    async fn comes_to(&self, line: &str) {
        let begun = Instant::now();
        loop {
            let text = self.get("/metrics").await.text().await.unwrap();
            if text.contains(line) {
                return;
            }
            assert!(begun.elapsed() < TIME, "{line} is not in:\n{text}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// All that comes, header and all.
async fn all_of(stream: &mut TcpStream) -> usize {
    let mut all = Vec::new();
    // One that is cut ends with an error.
    let read = stream.read_to_end(&mut all);
    let _ = tokio::time::timeout(TIME, read).await.unwrap();
    all.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn downloads_in_progress_finish_at_shutdown() {
    let bounds = Bounds {
        drain: TIME,
        ..Bounds::default()
    };
    let mut bench = Bench::bounded(&["lore"], Limits::default(), bounds).await;
    bench.lengthen("lore");
    let mut stream = bench.lazy("/feeds/lore.atom").await;
    stream.readable().await.unwrap();
    bench.stop.cancel();
    // No other client is admitted meanwhile.
    let begun = Instant::now();
    while TcpStream::connect(bench.address).await.is_ok() {
        assert!(begun.elapsed() < TIME);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!bench.serving.is_finished());
    assert!(all_of(&mut stream).await > LONG, "it was cut");
    tokio::time::timeout(TIME, bench.serving)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_does_not_wait_for_a_stalled_client() {
    let bounds = Bounds {
        drain: Duration::from_millis(100),
        ..Bounds::default()
    };
    let mut bench = Bench::bounded(&["lore"], Limits::default(), bounds).await;
    bench.lengthen("lore");
    let mut stream = bench.lazy("/feeds/lore.atom").await;
    stream.readable().await.unwrap();
    bench.stop.cancel();
    tokio::time::timeout(TIME, bench.serving)
        .await
        .unwrap()
        .unwrap();
    assert!(all_of(&mut stream).await < LONG);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_answered_while_other_clients_hold_all_places() {
    let bounds = Bounds {
        connections: 12,
        answers: 6,
        per_peer: 4,
        ..Bounds::default()
    };
    let mut bench = Bench::bounded(&["lore"], Limits::default(), bounds).await;
    bench.lengthen("lore");
    let mut greedy = Vec::new();
    for _ in 0..4 {
        greedy.push(bench.lazy("/feeds/lore.atom").await);
        greedy.last().unwrap().readable().await.unwrap();
    }
    let refused = bench.get("/feeds/lore.atom").await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(bench.get("/events").await.status(), 503);
    // And silent ones.
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(bench.address).await.unwrap());
    }
    for page in ["/healthz", "/status.json", "/metrics"] {
        assert_eq!(bench.get(page).await.status(), 200, "{page}");
    }
    bench
        .comes_to("flexfeed_receiver_http_limited_total{limit=\"peer\"} 2\n")
        .await;
    let text = bench.get("/metrics").await.text().await.unwrap();
    assert!(
        !text.contains("http_limited_total{limit=\"connections\"} 0"),
        "{text}"
    );
    // Clients that read continue.
    assert!(all_of(&mut greedy[0]).await > LONG);
    drop((greedy, silent));
    bench
        .comes_to("flexfeed_receiver_http_connections 1\n")
        .await;
    assert_eq!(bench.get("/feeds/lore.atom").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_request_is_dropped() {
    let bounds = Bounds {
        // Every client of this test has to be quicker, the one that asks for the metrics included.
        header_time: Duration::from_secs(3),
        ..Bounds::default()
    };
    let bench = Bench::bounded(&["lore"], Limits::default(), bounds).await;
    let mut silent = TcpStream::connect(bench.address).await.unwrap();
    let mut slow = TcpStream::connect(bench.address).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nhost: ").await.unwrap();
    bench
        .comes_to("flexfeed_receiver_http_limited_total{limit=\"header\"} 2\n")
        .await;
    for stream in [&mut silent, &mut slow] {
        all_of(stream).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_is_cut_off() {
    let bounds = Bounds {
        // Every answer of this test has to be quicker, the metrics included.
        answer_time: Duration::from_secs(5),
        slowest: 1 << 40,
        ..Bounds::default()
    };
    let mut bench = Bench::bounded(&["lore"], Limits::default(), bounds).await;
    bench.put("lore", 1..=1);
    let mut events = bench.listen("/events", None).await;
    bench.lengthen("lore");
    let mut stream = bench.lazy("/feeds/lore.atom").await;
    bench
        .comes_to("flexfeed_receiver_http_limited_total{limit=\"time\"} 1\n")
        .await;
    assert!(all_of(&mut stream).await < LONG);
    // Events have no end, and thus no time.
    bench.put("lore", 2..=2);
    assert_eq!(events.seqs(1).await, [2]);
}
