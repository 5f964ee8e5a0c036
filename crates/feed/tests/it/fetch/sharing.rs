//! Shared limits of fetchers, and their identification.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use feed::fetch::{FetchConfig, FetchError, Fetcher, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::server::{Response, Server, document, poll, response};

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

/// Number of concurrent requests at a server, and its maximum.
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Starts a server that delays each response, and counts into the gauge.
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
                tokio::time::sleep(Duration::from_millis(100)).await;
                gauge.now.fetch_sub(1, Ordering::SeqCst);
                if let Response::Bytes(bytes) = response("200 OK", "", b"<feed/>") {
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
                    // Waiting for a permit does not count: all of them together take longer.
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
async fn waiting_for_a_permit_does_not_count_as_server_time() {
    let gauge = Arc::new(Gauge {
        now: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    let address = slow_server(gauge).await;
    let limits = Arc::new(Limits::new(1, 1));
    let polls: Vec<_> = (0..120)
        .map(|_| {
            let config = FetchConfig {
                allow_private: true,
                limits: Arc::clone(&limits),
                // All responses, of 100 ms each, take longer than this. One does not, even on a
                // machine that stalls for some seconds.
                timeout: Duration::from_secs(10),
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
    child.args([
        "--exact",
        "fetch::sharing::with_a_proxy_in_the_environment",
        "--ignored",
    ]);
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
