//! Server that misbehaves in every possible respect.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use feed::fetch::{FetchConfig, FetchError, Fetcher, Poll, Validators};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Response of the server to a request for a path.
pub(crate) enum Response {
    /// Sends these bytes and closes.
    Bytes(Vec<u8>),
    /// Sends these bytes, then this chunk for ever.
    Endless(Vec<u8>, Vec<u8>),
    /// Sends these bytes and then nothing, without closing.
    Stall(Vec<u8>),
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) async fn start(answer: fn(path: &str, request: &str) -> Response) -> Self {
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

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn config(&self, path: &str) -> FetchConfig {
        FetchConfig {
            allow_private: true,
            ..FetchConfig::new(self.url(path))
        }
    }

    pub(crate) async fn poll(&self, path: &str) -> Result<Poll, FetchError> {
        poll(self.config(path)).await
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

pub(crate) async fn poll(config: FetchConfig) -> Result<Poll, FetchError> {
    Fetcher::new(config)?.poll(&Validators::default()).await
}

pub(crate) async fn serve(
    mut stream: TcpStream,
    answer: fn(&str, &str) -> Response,
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
        Response::Bytes(bytes) => {
            let _ = stream.write_all(&bytes).await;
        }
        Response::Endless(bytes, chunk) => {
            let _ = stream.write_all(&bytes).await;
            while stream.write_all(&chunk).await.is_ok() {}
        }
        Response::Stall(bytes) => {
            let _ = stream.write_all(&bytes).await;
            std::future::pending::<()>().await;
        }
    }
}

pub(crate) fn response(status: &str, headers: &str, body: &[u8]) -> Response {
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    Response::Bytes(bytes)
}

pub(crate) fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// Brotli without compression: a header, one stored block, and the end (RFC 7932, section 9).
pub(crate) fn brotli(body: &[u8]) -> Vec<u8> {
    // WBITS 16 (one bit 0); ISLAST 0, MNIBBLES 4 (00), MLEN - 1 (16 bits), ISUNCOMPRESSED 1.
    let bits = (body.len() as u32 - 1) << 4 | 1 << 20;
    let mut out = bits.to_le_bytes()[..3].to_vec();
    out.extend_from_slice(body);
    // ISLAST 1, ISLASTEMPTY 1.
    out.push(3);
    out
}

pub(crate) fn document(poll: Poll) -> Vec<u8> {
    match poll {
        Poll::Fetched { document, .. } => document.to_vec(),
        Poll::NotModified { .. } => panic!("not modified"),
    }
}
