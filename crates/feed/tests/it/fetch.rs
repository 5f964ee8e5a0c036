//! Fetching from a local server that misbehaves in every possible respect.

mod redirects;
mod server;
mod sharing;

use std::time::Duration;

use feed::fetch::{FetchConfig, FetchError, Fetcher, Hints, Poll, Validators};
use feed::parse::parse_served;

use server::{Response, Server, brotli, document, gzip, poll, response};

#[tokio::test]
async fn validators_are_sent_and_304_is_understood() {
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
        charset,
        hints,
    } = first
    else {
        panic!("{first:?}");
    };
    assert_eq!(&document[..], b"<feed/>");
    assert_eq!(url, server.url("/f"));
    assert_eq!(charset, None);
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

/// The encoding stated by the server reaches the reader, of a feed, a page and an error.
#[tokio::test]
async fn the_header_sets_the_charset() {
    let server = Server::start(|path, _| {
        // "Привет" in windows-1251.
        let title = b"\xcf\xf0\xe8\xe2\xe5\xf2";
        let body = match path {
            "/404" => [&b"<html><title>"[..], title, b"</title>"].concat(),
            _ => [
                &b"<rss><channel><title>"[..],
                title,
                b"</title></channel></rss>",
            ]
            .concat(),
        };
        let (status, kind) = match path {
            "/404" => ("404 Not Found", "text/html; charset=windows-1251"),
            "/quoted" => ("200 OK", "application/xml; q=1; Charset=\"Windows-1251\""),
            "/none" => ("200 OK", "text/xml"),
            "/empty" => ("200 OK", "text/xml; charset="),
            _ => ("200 OK", "text/xml;charset=windows-1251 ; x=y"),
        };
        response(status, &format!("Content-Type: {kind}\r\n"), &body)
    })
    .await;
    for (path, expected, title) in [
        ("/f", Some("windows-1251"), "Привет"),
        ("/quoted", Some("Windows-1251"), "Привет"),
        ("/none", None, "Ïðèâåò"),
        ("/empty", None, "Ïðèâåò"),
    ] {
        let polled = server.poll(path).await.unwrap();
        let Poll::Fetched {
            document,
            charset,
            url,
            ..
        } = polled
        else {
            panic!("{polled:?}");
        };
        assert_eq!(charset.as_deref(), expected, "{path}");
        let feed = parse_served(&document, &url, charset.as_deref()).unwrap();
        assert_eq!(feed.title.as_deref(), Some(title), "{path}");
    }
    let fetcher = Fetcher::new(server.config("/f")).unwrap();
    let page = fetcher.get(&server.url("/quoted")).await.unwrap();
    assert_eq!(page.charset.as_deref(), Some("Windows-1251"));
    let error = server.poll("/404").await.unwrap_err().to_string();
    assert!(error.contains("Привет"), "{error}");
}

#[tokio::test]
async fn an_unsolicited_304_is_an_error() {
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
            Response::Stall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec())
        }
        "/endless" => Response::Endless(
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
async fn slow_servers_time_out() {
    let server = Server::start(|path, _| match path {
        "/silent" => Response::Stall(Vec::new()),
        _ => Response::Stall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<feed".to_vec()),
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
async fn refusals_describe_the_response() {
    let server = Server::start(|path, _| match path {
        "/later" => response(
            "503 Unavailable",
            "Retry-After: 120\r\n",
            b"<html><title>Just a moment...</title></html>",
        ),
        "/many" => response("429 Too Many Requests", "Retry-After: 7\r\n", b""),
        "/endless" => Response::Endless(
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
        "/short" => {
            Response::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<feed>".to_vec())
        }
        "/garbage" => Response::Bytes(b"\0\x01\x02 not http\r\n\r\n".to_vec()),
        "/not-gzip" => response("200 OK", "Content-Encoding: gzip\r\n", b"<feed/>"),
        _ => Response::Bytes(Vec::new()),
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
    // The server waits for a request that never comes, or closes: an error in both cases.
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

#[tokio::test]
async fn headers_are_limited() {
    let server = Server::start(|path, _| match path {
        "/many" => {
            let headers: String = (0..1000).map(|n| format!("X-{n}: y\r\n")).collect();
            response("200 OK", &headers, b"<feed/>")
        }
        "/long" => Response::Endless(b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 4096]),
        _ => Response::Endless(b"HTTP/1.1 200 OK\r\n".to_vec(), b"X-Y: z\r\n".repeat(100)),
    })
    .await;
    for path in ["/many", "/long", "/endless"] {
        let error = server.poll(path).await.unwrap_err();
        let refused = matches!(error, FetchError::Transport { .. });
        assert!(refused, "{path}: {error}");
    }
}
