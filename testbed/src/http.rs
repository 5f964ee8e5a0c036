//! A small HTTP client for status pages and the generator's controls, run inside a lab's node.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// The longest wait for a connection, and for each read and write: a busy machine may stand still
/// for some seconds, and what is asked again and again has a bound of its own.
const PATIENCE: Duration = Duration::from_secs(30);

/// The largest response accepted, in bytes.
const LARGEST: u64 = 64 * 1024 * 1024;

/// A response with its status code and body.
#[derive(Debug, Clone)]
pub struct Response {
    /// The HTTP status code.
    pub status: u16,
    /// The lines of the header after the first.
    pub header: String,
    /// The body, after the chunks (if any) are joined.
    pub body: Vec<u8>,
}

/// Sends a request without a body to `http://ADDRESS:PORT/path` and reads the whole response.
///
/// # Errors
/// The URL is of another kind, no answer in time, or the answer is not HTTP/1.
pub fn request(method: &str, url: &str) -> Result<Response> {
    send(method, url, &[], "")
}

/// Sends a request with more header fields and a body, and reads the whole response. A body is JSON
/// unless a field says otherwise.
///
/// # Errors
/// As [`request`].
pub fn send(method: &str, url: &str, fields: &[(&str, &str)], body: &str) -> Result<Response> {
    let (mut stream, authority, path) = connect(url)?;
    let mut head = format!("{method} {path} HTTP/1.0\r\nHost: {authority}\r\n");
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let is_typed = |(name, _): &(&str, &str)| name.eq_ignore_ascii_case("content-type");
    if !body.is_empty() && !fields.iter().any(is_typed) {
        head.push_str("Content-Type: application/json\r\n");
    }
    // HTTP/1.0 keeps the server from sending chunks and from keeping the connection.
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len())?;
    let mut bytes = Vec::new();
    stream
        .take(LARGEST)
        .read_to_end(&mut bytes)
        .with_context(|| format!("reading the answer of {url}"))?;
    parse(&bytes).with_context(|| format!("the answer of {url}"))
}

/// A connection to the server of a URL, with its authority and path.
fn connect(url: &str) -> Result<(TcpStream, &str, &str)> {
    let rest = url
        .strip_prefix("http://")
        .with_context(|| format!("{url}: only http:// URLs with a numeric address are taken"))?;
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let address: SocketAddr = authority
        .parse()
        .with_context(|| format!("{url}: {authority:?} is not ADDRESS:PORT"))?;
    let stream = TcpStream::connect_timeout(&address, PATIENCE)
        .with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok((stream, authority, path))
}

fn parse(bytes: &[u8]) -> Result<Response> {
    let end = bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .context("has no end of its header")?;
    let (head, body) = bytes.split_at(end);
    let head = String::from_utf8_lossy(head);
    let line = head.lines().next().unwrap_or_default();
    ensure!(line.starts_with("HTTP/1."), "begins {line:?}");
    let status = line
        .split_whitespace()
        .nth(1)
        .and_then(|code| code.parse().ok())
        .with_context(|| format!("has no status code: {line:?}"))?;
    if head.to_ascii_lowercase().contains("transfer-encoding:") {
        bail!("is chunked, which HTTP/1.0 does not know");
    }
    let header = head.split_once("\r\n").map_or("", |(_, rest)| rest);
    Ok(Response {
        status,
        header: header.to_owned(),
        body: body.get(4..).unwrap_or_default().to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_body_are_separated() {
        let response = parse(b"HTTP/1.0 404 Not Found\r\nA: b\r\n\r\nbody").unwrap();
        assert_eq!(response.status, 404);
        assert_eq!(response.header, "A: b");
        assert_eq!(response.body, b"body");
    }

    #[test]
    fn other_protocols_are_refused() {
        assert!(parse(b"SSH-2.0-x\r\n\r\n").is_err());
        assert!(parse(b"HTTP/1.1").is_err());
    }
}
