#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[test]
fn overlong_validators_are_dropped() {
    let mut headers = HeaderMap::new();
    headers.insert(ETAG, "x".repeat(MAX_VALIDATOR + 1).parse().unwrap());
    headers.insert(LAST_MODIFIED, "today".parse().unwrap());
    let validators = Validators::of(&headers);
    assert_eq!(validators.etag, None);
    assert_eq!(validators.last_modified.as_deref(), Some("today"));
}

/// Substitute for the public network, which tests do not use: this address is public, all others
/// are private.
const PUBLIC: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Returns a guard for which the name `outside` is public, `both` is public and private, and any
/// other name is private.
fn guard() -> Guard {
    Guard::made_up(
        |host| {
            let addresses = match host.as_str() {
                "outside" => vec![PUBLIC],
                "both" => vec![Ipv4Addr::LOCALHOST, PUBLIC],
                _ => vec![Ipv4Addr::LOCALHOST],
            };
            let addresses = addresses.into_iter().map(|a| SocketAddr::from((a, 0)));
            let addresses = addresses.collect();
            Box::pin(async move { Ok(addresses) })
        },
        |address| address == PUBLIC,
    )
}

/// Server that redirects to the target in the path, or answers with a document.
struct RedirectServer {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl RedirectServer {
    async fn start(address: Ipv4Addr, port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((address, port)).await?;
        let port = listener.local_addr()?.port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let path = request.split(' ').nth(1).unwrap_or("/").to_owned();
                log.lock().unwrap().push(path.clone());
                let head = match path.strip_prefix("/to/") {
                    Some(to) => format!("301 Moved\r\nLocation: http://{to}"),
                    None => "200 OK".to_owned(),
                };
                let answer =
                    format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Ok(Self { port, requests })
    }

    /// Starts one server in the public network and one in the private, on the same port.
    async fn pair() -> (Self, Self) {
        for _ in 0..20 {
            let public = Self::start(PUBLIC, 0).await.unwrap();
            // A port that is free at one address may be in use at the other.
            if let Ok(private) = Self::start(Ipv4Addr::LOCALHOST, public.port).await {
                return (public, private);
            }
        }
        panic!("no port is free at both addresses");
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn redirects_into_private_networks_are_refused() {
    let (public, private) = RedirectServer::pair().await;
    let port = public.port;
    let fetch = async |path: &str| {
        let config = FetchConfig::new(format!("http://outside:{port}{path}"));
        let fetcher = Fetcher::guarded(config, guard()).unwrap();
        fetcher.poll(&Validators::default()).await
    };
    for inside in [
        format!("127.0.0.1:{port}/"),
        format!("2130706433:{port}/"),
        format!("[::ffff:127.0.0.1]:{port}/"),
        format!("inside:{port}/"),
        "169.254.169.254/latest/meta-data/".to_owned(),
        "[fd00:ec2::254]/latest/meta-data/".to_owned(),
        // Through another public address.
        format!("127.0.0.2:{port}/to/127.0.0.1:{port}/"),
    ] {
        let error = fetch(&format!("/to/{inside}")).await.unwrap_err();
        assert!(
            matches!(error, FetchError::Private { .. }),
            "{inside}: {error}"
        );
    }
    assert_eq!(
        private.requests(),
        Vec::<String>::new(),
        "nothing is sent there"
    );

    // A name that is both is reached at its public address.
    let Poll::Fetched { hints, .. } = fetch(&format!("/to/both:{port}/end")).await.unwrap() else {
        panic!("not modified");
    };
    assert_eq!(public.requests().last().map(String::as_str), Some("/end"));
    assert_eq!(private.requests(), Vec::<String>::new());
    // Both responses came from one private network, as far as real addresses go.
    assert_eq!(hints.moved_to, Some(format!("http://both:{port}/end")));

    // The pages of an archive are subject to the same rules.
    let config = FetchConfig::new(format!("http://outside:{port}/"));
    let fetcher = Fetcher::guarded(config, guard()).unwrap();
    for inside in ["127.0.0.1", "inside"] {
        let direct = fetcher.get(&format!("http://{inside}:{port}/")).await;
        let by = format!("http://outside:{port}/to/{inside}:{port}/");
        let led = fetcher.get(&by).await;
        for error in [direct.unwrap_err(), led.unwrap_err()] {
            assert!(matches!(error, FetchError::Private { .. }), "{error}");
        }
    }
    assert_eq!(private.requests(), Vec::<String>::new());
}
