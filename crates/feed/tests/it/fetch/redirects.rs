//! Redirects, and the server's hints about the next poll.

use std::time::Duration;

use feed::fetch::{FetchConfig, FetchError, Fetcher, Hints, Poll, Validators};

use super::server::{Server, document, poll, response};

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

async fn hints(server: &Server, path: &str) -> Hints {
    match server.poll(path).await.unwrap() {
        Poll::Fetched { hints, .. } | Poll::NotModified { hints } => hints,
    }
}

#[tokio::test]
async fn server_hints_are_returned() {
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
async fn only_permanent_moves_are_reported() {
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
async fn only_the_feeds_own_server_declares_it_gone() {
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
