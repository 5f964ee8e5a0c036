//! Fetching against a local server that does everything wrong that a server can.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use feed::fetch::{FetchConfig, FetchError, Fetcher, Hints, Limits, Poll, Validators};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with a request for a path.
enum Answer {
    /// Sends these bytes and closes.
    Bytes(Vec<u8>),
    /// Sends these bytes, then this chunk for ever.
    Endless(Vec<u8>, Vec<u8>),
    /// Sends these bytes and then nothing, without closing.
    Stall(Vec<u8>),
}

struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(answer: fn(path: &str, request: &str) -> Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answer, log.clone()));
            }
        });
        Self { address, requests }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn config(&self, path: &str) -> FetchConfig {
        FetchConfig {
            allow_private: true,
            ..FetchConfig::new(self.url(path))
        }
    }

    async fn poll(&self, path: &str) -> Result<Poll, FetchError> {
        poll(self.config(path)).await
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn poll(config: FetchConfig) -> Result<Poll, FetchError> {
    Fetcher::new(config)?.poll(&Validators::default()).await
}

async fn serve(
    mut stream: TcpStream,
    answer: fn(&str, &str) -> Answer,
    log: Arc<Mutex<Vec<String>>>,
) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte).await {
            Ok(1) => request.push(byte[0]),
            _ => return,
        }
    }
    let request = String::from_utf8_lossy(&request).to_ascii_lowercase();
    log.lock().unwrap().push(request.clone());
    let path = request.split(' ').nth(1).unwrap_or("/").to_owned();
    match answer(&path, &request) {
        Answer::Bytes(bytes) => {
            let _ = stream.write_all(&bytes).await;
        }
        Answer::Endless(bytes, chunk) => {
            let _ = stream.write_all(&bytes).await;
            while stream.write_all(&chunk).await.is_ok() {}
        }
        Answer::Stall(bytes) => {
            let _ = stream.write_all(&bytes).await;
            std::future::pending::<()>().await;
        }
    }
}

fn response(status: &str, headers: &str, body: &[u8]) -> Answer {
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    Answer::Bytes(bytes)
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// Brotli without compression: a header, one stored block, and the end (RFC 7932, section 9).
fn brotli(body: &[u8]) -> Vec<u8> {
    // WBITS 16 (one bit 0); ISLAST 0, MNIBBLES 4 (00), MLEN - 1 (16 bits), ISUNCOMPRESSED 1.
    let bits = (body.len() as u32 - 1) << 4 | 1 << 20;
    let mut out = bits.to_le_bytes()[..3].to_vec();
    out.extend_from_slice(body);
    // ISLAST 1, ISLASTEMPTY 1.
    out.push(3);
    out
}

fn document(poll: Poll) -> Vec<u8> {
    match poll {
        Poll::Fetched { document, .. } => document.to_vec(),
        Poll::NotModified { .. } => panic!("not modified"),
    }
}

#[tokio::test]
async fn validators_are_given_back_and_304_is_understood() {
    let server = Server::start(|_, request| {
        if request.contains("if-none-match: \"v1\"") {
            response("304 Not Modified", "", b"")
        } else {
            let date = "Fri, 05 Sep 2025 09:49:57 GMT";
            let headers = format!("ETag: \"v1\"\r\nLast-Modified: {date}\r\n");
            response("200 OK", &headers, b"<feed/>")
        }
    })
    .await;
    let fetcher = Fetcher::new(server.config("/f")).unwrap();
    let first = fetcher.poll(&Validators::default()).await.unwrap();
    let Poll::Fetched {
        document,
        validators,
        url,
        hints,
    } = first
    else {
        panic!("{first:?}");
    };
    assert_eq!(&document[..], b"<feed/>");
    assert_eq!(url, server.url("/f"));
    assert_eq!(validators.etag.as_deref(), Some("\"v1\""));
    assert_eq!(hints, Hints::default());
    let again = fetcher.poll(&validators).await.unwrap();
    assert!(matches!(again, Poll::NotModified { .. }), "{again:?}");
    let requests = server.requests();
    assert!(requests[0].contains("user-agent: flexfeed/"));
    for coding in ["gzip", "br", "zstd"] {
        assert!(requests[0].contains(coding), "{}", requests[0]);
    }
    assert!(!requests[0].contains("if-"));
    assert!(requests[1].contains("if-modified-since: fri, 05 sep 2025 09:49:57 gmt"));
}

#[tokio::test]
async fn an_unasked_304_is_an_error() {
    let server = Server::start(|_, _| response("304 Not Modified", "", b"")).await;
    let error = server.poll("/").await.unwrap_err();
    assert!(
        matches!(error, FetchError::Status { status: 304, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn compressed_documents_are_read() {
    let server = Server::start(|path, _| match path {
        "/gzip" => response("200 OK", "Content-Encoding: gzip\r\n", &gzip(b"<feed/>")),
        "/br" => response("200 OK", "Content-Encoding: br\r\n", &brotli(b"<feed/>")),
        _ => {
            let body = zstd::bulk::compress(b"<feed/>", 3).unwrap();
            response("200 OK", "Content-Encoding: zstd\r\n", &body)
        }
    })
    .await;
    for path in ["/gzip", "/br", "/zstd"] {
        let poll = server.poll(path).await.unwrap();
        assert_eq!(document(poll), b"<feed/>", "{path}");
    }
}

#[tokio::test]
async fn size_is_limited_before_and_after_decompression() {
    let server = Server::start(|path, _| match path {
        "/announced" => {
            Answer::Stall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec())
        }
        "/endless" => Answer::Endless(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
            [b"1000\r\n", vec![b' '; 4096].as_slice(), b"\r\n"].concat(),
        ),
        "/gzip-bomb" => {
            let body = gzip(&vec![b' '; 9 << 20]);
            response("200 OK", "Content-Encoding: gzip\r\n", &body)
        }
        "/zstd-bomb" => {
            let body = zstd::bulk::compress(&vec![b' '; 9 << 20], 3).unwrap();
            response("200 OK", "Content-Encoding: zstd\r\n", &body)
        }
        _ => response("200 OK", "", &vec![b' '; 8 << 20]),
    })
    .await;
    for path in ["/announced", "/endless", "/gzip-bomb", "/zstd-bomb"] {
        let error = server.poll(path).await.unwrap_err();
        assert!(
            matches!(error, FetchError::TooLarge { limit, .. } if limit == 8 << 20),
            "{path}: {error}"
        );
    }
    let exact = server.poll("/exact").await.unwrap();
    assert_eq!(document(exact).len(), 8 << 20);
    // A page of an archive may be larger, within bounds.
    let fetcher = Fetcher::new(server.config("/")).unwrap();
    let page = fetcher.get(&server.url("/gzip-bomb")).await.unwrap();
    assert_eq!(page.document.len(), 9 << 20);
    let error = fetcher.get(&server.url("/endless")).await.unwrap_err();
    assert!(
        matches!(error, FetchError::TooLarge { limit, .. } if limit == 32 << 20),
        "{error}"
    );
}

#[tokio::test]
async fn redirects_are_followed_within_limits() {
    let server = Server::start(|path, _| match path {
        "/loop" => response("302 Found", "Location: /loop\r\n", b""),
        "/lost" => response("301 Moved", "", b""),
        "/file" => response("302 Found", "Location: file:///etc/passwd\r\n", b""),
        "/bad" => response("302 Found", "Location: http://[::1\r\n", b""),
        "/end" => response("200 OK", "", b"<feed/>"),
        path => {
            let n: usize = path[1..].parse().unwrap();
            let next = if n == 1 {
                "end".into()
            } else {
                (n - 1).to_string()
            };
            response("307 Temporary", &format!("Location: {next}\r\n"), b"")
        }
    })
    .await;
    match server.poll("/5").await.unwrap() {
        Poll::Fetched { url, .. } => assert_eq!(url, server.url("/end")),
        Poll::NotModified { .. } => panic!("not modified"),
    }
    for path in ["/6", "/loop", "/lost", "/file", "/bad"] {
        let error = server.poll(path).await.unwrap_err();
        assert!(
            matches!(error, FetchError::Redirect { .. }),
            "{path}: {error}"
        );
    }
    let looped = server
        .requests()
        .iter()
        .filter(|r| r.contains("/loop"))
        .count();
    assert_eq!(looped, 6, "the first request and five redirects");
}

#[tokio::test]
async fn private_addresses_are_refused_by_number_name_and_redirect() {
    let server = Server::start(|_, _| response("200 OK", "", b"<feed/>")).await;
    let port = server.address.port();
    assert!(matches!(
        Fetcher::new(FetchConfig::new(server.url("/"))),
        Err(FetchError::Private { .. })
    ));
    let error = poll(FetchConfig::new(format!("http://localhost:{port}/")))
        .await
        .unwrap_err();
    match &error {
        FetchError::Private { host, address, .. } => {
            assert_eq!(host, "localhost");
            assert!(address.is_loopback());
        }
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("not a public address"));
    assert_eq!(server.requests().len(), 0, "nothing was sent");
    let allowed = FetchConfig {
        allow_private: true,
        ..FetchConfig::new(format!("http://localhost:{port}/"))
    };
    assert_eq!(document(poll(allowed).await.unwrap()), b"<feed/>");
}

#[tokio::test]
async fn slow_servers_run_into_the_timeout() {
    let server = Server::start(|path, _| match path {
        "/silent" => Answer::Stall(Vec::new()),
        _ => Answer::Stall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<feed".to_vec()),
    })
    .await;
    for path in ["/silent", "/half"] {
        let config = FetchConfig {
            timeout: Duration::from_millis(200),
            ..server.config(path)
        };
        let error = poll(config).await.unwrap_err();
        assert!(
            matches!(error, FetchError::Timeout { .. }),
            "{path}: {error}"
        );
    }
}

#[tokio::test]
async fn refusals_say_what_came() {
    let server = Server::start(|path, _| match path {
        "/later" => response(
            "503 Unavailable",
            "Retry-After: 120\r\n",
            b"<html><title>Just a moment...</title></html>",
        ),
        "/many" => response("429 Too Many Requests", "Retry-After: 7\r\n", b""),
        "/endless" => Answer::Endless(
            b"HTTP/1.1 500 Oops\r\nContent-Length: 999999999\r\n\r\n".to_vec(),
            vec![b'x'; 4096],
        ),
        _ => response("404 Not Found", "Retry-After: 120\r\n", b"no"),
    })
    .await;
    let later = server.poll("/later").await.unwrap_err();
    assert_eq!(later.retry_after(), Some(Duration::from_secs(120)));
    assert!(later.is_challenge());
    let text = later.to_string();
    for part in ["/later", "503", "Just a moment", "120 s"] {
        assert!(text.contains(part), "{text}");
    }
    let many = server.poll("/many").await.unwrap_err();
    assert_eq!(many.retry_after(), Some(Duration::from_secs(7)));
    let missing = server.poll("/missing").await.unwrap_err();
    assert_eq!(missing.retry_after(), None);
    assert!(matches!(
        missing,
        FetchError::Status {
            status: 404,
            challenge: false,
            ..
        }
    ));
    let endless = server.poll("/endless").await.unwrap_err();
    assert!(matches!(endless, FetchError::Status { status: 500, .. }));
}

#[tokio::test]
async fn broken_connections_and_tls_are_errors() {
    let server = Server::start(|path, _| match path {
        "/short" => Answer::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<feed>".to_vec()),
        "/garbage" => Answer::Bytes(b"\0\x01\x02 not http\r\n\r\n".to_vec()),
        "/not-gzip" => response("200 OK", "Content-Encoding: gzip\r\n", b"<feed/>"),
        _ => Answer::Bytes(Vec::new()),
    })
    .await;
    for path in ["/short", "/garbage", "/not-gzip", "/closed"] {
        let error = server.poll(path).await.unwrap_err();
        assert!(
            matches!(error, FetchError::Transport { .. }),
            "{path}: {error}"
        );
    }
    let https = FetchConfig {
        allow_private: true,
        connect_timeout: Duration::from_millis(300),
        ..FetchConfig::new(format!("https://user:secret@{}/", server.address))
    };
    // The server waits for a request that never comes, or hangs up: an error either way.
    let error = tokio::time::timeout(Duration::from_secs(60), poll(https)).await;
    let text = error.unwrap().unwrap_err().to_string();
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test]
async fn an_html_page_is_fetched_and_then_refused_as_a_feed() {
    let server = Server::start(|_, _| {
        let body = "<!doctype html><html><head><title>Making sure you're not a bot!</title>";
        response("200 OK", "Content-Type: text/html\r\n", body.as_bytes())
    })
    .await;
    let page = document(server.poll("/").await.unwrap());
    let error = feed::parse::parse(&page, &server.url("/")).unwrap_err();
    assert!(error.is_challenge());
    assert!(
        error
            .to_string()
            .contains("'Making sure you're not a bot!'"),
        "{error}"
    );
}

async fn hints(server: &Server, path: &str) -> Hints {
    match server.poll(path).await.unwrap() {
        Poll::Fetched { hints, .. } | Poll::NotModified { hints } => hints,
    }
}

#[tokio::test]
async fn what_the_server_asks_for_is_passed_on() {
    let server = Server::start(|path, request| match path {
        "/old" => response("301 Moved", "Location: /f\r\n", b""),
        _ if request.contains("if-none-match") => response(
            "304 Not Modified",
            "Cache-Control: max-age=60\r\nRetry-After: 7\r\n",
            b"",
        ),
        _ => response(
            "200 OK",
            "ETag: \"v1\"\r\nCache-Control: max-age=300\r\nAge: 100\r\nRetry-After: 9\r\n",
            b"<feed/>",
        ),
    })
    .await;
    let fetcher = Fetcher::new(server.config("/old")).unwrap();
    let first = fetcher.poll(&Validators::default()).await.unwrap();
    let Poll::Fetched {
        hints, validators, ..
    } = first
    else {
        panic!("{first:?}");
    };
    let seconds = |s| Some(Duration::from_secs(s));
    let moved_to = Some(server.url("/f"));
    let expected = Hints {
        moved_to: moved_to.clone(),
        max_age: seconds(200),
        retry_after: seconds(9),
    };
    assert_eq!(hints, expected);
    let expected = Hints {
        moved_to,
        max_age: seconds(60),
        retry_after: seconds(7),
    };
    let again = fetcher.poll(&validators).await.unwrap();
    assert_eq!(again, Poll::NotModified { hints: expected });
}

#[tokio::test]
async fn only_permanent_moves_are_told() {
    let server = Server::start(|path, _| match path {
        "/301" => response("301 Moved", "Location: /308\r\n", b""),
        "/308" => response("308 Moved", "Location: /end\r\n", b""),
        "/mixed" => response("301 Moved", "Location: /302\r\n", b""),
        "/302" => response("302 Found", "Location: /end\r\n", b""),
        "/302-first" => response("302 Found", "Location: /308\r\n", b""),
        _ => response("200 OK", "", b"<feed/>"),
    })
    .await;
    let end = Some(server.url("/end"));
    assert_eq!(hints(&server, "/301").await.moved_to, end);
    for path in ["/mixed", "/302", "/302-first", "/end"] {
        assert_eq!(hints(&server, path).await.moved_to, None, "{path}");
    }
}

#[tokio::test]
async fn gone_is_gone_unless_somebody_else_says_so() {
    let server = Server::start(|path, _| match path {
        "/moved" => response("301 Moved", "Location: /gone\r\n", b""),
        "/elsewhere" => response("302 Found", "Location: /gone\r\n", b""),
        _ => response("410 Gone", "", b"no more"),
    })
    .await;
    for path in ["/gone", "/moved"] {
        let error = server.poll(path).await.unwrap_err();
        assert!(matches!(error, FetchError::Gone { .. }), "{path}: {error}");
        assert!(error.to_string().contains("/gone"), "{error}");
    }
    let error = server.poll("/elsewhere").await.unwrap_err();
    let status = matches!(error, FetchError::Status { status: 410, .. });
    assert!(status, "{error}");
}

#[tokio::test]
async fn headers_are_limited() {
    let server = Server::start(|path, _| match path {
        "/many" => {
            let headers: String = (0..1000).map(|n| format!("X-{n}: y\r\n")).collect();
            response("200 OK", &headers, b"<feed/>")
        }
        "/long" => Answer::Endless(b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 4096]),
        _ => Answer::Endless(b"HTTP/1.1 200 OK\r\n".to_vec(), b"X-Y: z\r\n".repeat(100)),
    })
    .await;
    for path in ["/many", "/long", "/endless"] {
        let error = server.poll(path).await.unwrap_err();
        let refused = matches!(error, FetchError::Transport { .. });
        assert!(refused, "{path}: {error}");
    }
}

#[tokio::test]
async fn credentials_follow_a_redirect_on_their_server_only() {
    let other = Server::start(|_, _| response("200 OK", "", b"<feed/>")).await;
    static OTHER: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    OTHER.set(other.url("/x")).unwrap();
    let server = Server::start(|path, request| match path {
        // An absolute address, as most servers send it.
        "/same" => {
            let host = request.split("host: ").nth(1).unwrap();
            let host = host.split("\r\n").next().unwrap();
            let location = format!("Location: http://{host}/end\r\n");
            response("301 Moved", &location, b"")
        }
        "/other" => {
            let location = format!("Location: {}\r\n", OTHER.get().unwrap());
            response("301 Moved", &location, b"")
        }
        _ => response("200 OK", "", b"<feed/>"),
    })
    .await;
    let with_password = |path: &str| FetchConfig {
        url: format!("http://user:secret@{}{path}", server.address),
        ..server.config(path)
    };
    let same = poll(with_password("/same")).await.unwrap();
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|r| r.contains("authorization: basic")));
    let Poll::Fetched { url, hints, .. } = same else {
        panic!("{same:?}");
    };
    assert_eq!(url, server.url("/end"), "shown without them");
    assert_eq!(hints.moved_to, Some(server.url("/end")));
    poll(with_password("/other")).await.unwrap();
    assert!(!other.requests()[0].contains("authorization"));

    // The same for another document of the feed.
    let fetcher = Fetcher::new(with_password("/f")).unwrap();
    let page = fetcher.get(&server.url("/page")).await.unwrap();
    assert_eq!(
        (&page.document[..], page.url),
        (&b"<feed/>"[..], server.url("/page"))
    );
    assert!(
        server
            .requests()
            .last()
            .unwrap()
            .contains("authorization: basic")
    );
    fetcher.get(&other.url("/page")).await.unwrap();
    assert!(!other.requests()[1].contains("authorization"));
}

#[tokio::test]
async fn the_contact_is_in_the_user_agent() {
    let server = Server::start(|_, _| response("200 OK", "", b"<feed/>")).await;
    let config = |contact: &str| FetchConfig {
        contact: Some(contact.into()),
        user_agent: "flexfeed-test/9".into(),
        ..server.config("/")
    };
    poll(config("https://example.org/feeds")).await.unwrap();
    let request = server.requests().remove(0);
    let expected = "user-agent: flexfeed-test/9 (+https://example.org/feeds)\r\n";
    assert!(request.contains(expected), "{request}");
    assert!(matches!(
        Fetcher::new(config("nobody\r\nX: y")),
        Err(FetchError::Client(_))
    ));
}

/// How many requests a server has under way, and the most that it ever had.
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A server that takes a while for each answer, and counts into the gauge.
async fn slow_server(gauge: Arc<Gauge>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let gauge = Arc::clone(&gauge);
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let now = gauge.now.fetch_add(1, Ordering::SeqCst) + 1;
                gauge.most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(40)).await;
                gauge.now.fetch_sub(1, Ordering::SeqCst);
                if let Answer::Bytes(bytes) = response("200 OK", "", b"<feed/>") {
                    let _ = stream.write_all(&bytes).await;
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn fetchers_share_their_limits() {
    let gauge = || {
        Arc::new(Gauge {
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        })
    };
    // Twelve at once, at one host or at several, which are names of one server here.
    let run = async |global: usize, per_host: usize, hosts: &[&str]| {
        let gauge = gauge();
        let address = slow_server(Arc::clone(&gauge)).await;
        let limits = Arc::new(Limits::new(global, per_host));
        let polls: Vec<_> = (0..12)
            .map(|n| {
                let host = hosts[n % hosts.len()];
                let config = FetchConfig {
                    allow_private: true,
                    limits: Arc::clone(&limits),
                    // Waiting for a turn does not count: all of them together take longer.
                    timeout: Duration::from_secs(20),
                    ..FetchConfig::new(format!("http://{host}:{}/", address.port()))
                };
                tokio::spawn(poll(config))
            })
            .collect();
        for poll in polls {
            assert_eq!(document(poll.await.unwrap().unwrap()), b"<feed/>");
        }
        gauge.most.load(Ordering::SeqCst)
    };
    assert_eq!(run(9, 2, &["127.0.0.1"]).await, 2);
    assert!(run(3, 2, &["127.0.0.1", "localhost"]).await <= 3);
    assert!(run(1, 5, &["127.0.0.1", "localhost"]).await == 1);
}

#[tokio::test]
async fn waiting_for_a_turn_is_not_the_servers_time() {
    let gauge = Arc::new(Gauge {
        now: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    let address = slow_server(gauge).await;
    let limits = Arc::new(Limits::new(1, 1));
    let polls: Vec<_> = (0..30)
        .map(|_| {
            let config = FetchConfig {
                allow_private: true,
                limits: Arc::clone(&limits),
                // Thirty answers of 40 ms take longer than this, one does not.
                timeout: Duration::from_millis(1000),
                ..FetchConfig::new(format!("http://{address}/"))
            };
            tokio::spawn(poll(config))
        })
        .collect();
    for poll in polls {
        poll.await.unwrap().unwrap();
    }
}

/// Run by the next test, with a proxy in its environment.
#[tokio::test]
#[ignore = "a part of proxies_of_the_environment_are_not_used"]
async fn with_a_proxy_in_the_environment() {
    assert!(std::env::var_os("HTTP_PROXY").is_some());
    let server = Server::start(|_, _| response("200 OK", "", b"<feed/>")).await;
    assert_eq!(document(server.poll("/").await.unwrap()), b"<feed/>");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn proxies_of_the_environment_are_not_used() {
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "with_a_proxy_in_the_environment", "--ignored"]);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, &address);
    }
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = proxy.accept().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "it was asked");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}
