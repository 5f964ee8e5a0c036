//! Requests of `status` and `health` to a program that answers HTTP, mostly on this machine.
//!
//! Requests block, within bounds, and need no runtime. HTTP/1.0 on purpose: the answer ends with
//! the connection and comes in one piece.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bounds on an answer.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Time from the beginning of the connection to the end of the answer.
    pub time: Duration,
    /// Length of the whole answer, in bytes.
    pub longest: usize,
}

/// Answer of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Status code, such as 200.
    pub status: u16,
    /// First line of the answer, as received.
    pub first_line: String,
    /// Body.
    pub body: Vec<u8>,
}

/// Returns the address at which a program is reached from its own machine: the loopback address if
/// it listens at all addresses.
#[must_use]
pub fn reached(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Gets the page `path` of the program that listens at `listen`; `accept` is the preferred type.
///
/// # Errors
/// No answer comes within the bounds, or none by HTTP.
pub fn get(
    listen: SocketAddr,
    path: &str,
    accept: &str,
    bounds: Bounds,
) -> Result<Answer, io::Error> {
    let end = Instant::now() + bounds.time;
    let to = reached(listen);
    let everywhere = listen.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let stream = match TcpStream::connect_timeout(&to, left(end)?) {
        // `[::]` includes the addresses of IPv4, and a container often has no others.
        Err(_) if everywhere => {
            let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listen.port());
            TcpStream::connect_timeout(&to, left(end)?)
        }
        stream => stream,
    };
    let request = format!(
        "GET {path} HTTP/1.0\r\nhost: {to}\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
    );
    let bytes = stream.and_then(|stream| talk(stream, &request, end, bounds.longest));
    parse(&bytes.map_err(|error| in_words(error, bounds.time))?)
}

/// Returns the time left, never zero, which would mean no limit to a socket.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

fn talk(mut stream: TcpStream, request: &str, end: Instant, longest: usize) -> io::Result<Vec<u8>> {
    stream.set_write_timeout(Some(left(end)?))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        // Set again for each read, so that a server that sends single bytes is late as well.
        stream.set_read_timeout(Some(left(end)?))?;
        let length = match stream.read(&mut part) {
            Ok(0) => return Ok(answer),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        answer.extend_from_slice(part.get(..length).unwrap_or_default());
        if answer.len() > longest {
            let what = format!("the answer is longer than {longest} bytes");
            return Err(io::Error::other(what));
        }
    }
}

/// Returns the error with one text for all kinds of timeouts.
fn in_words(error: io::Error, time: Duration) -> io::Error {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => io::Error::new(
            ErrorKind::TimedOut,
            format!("no whole answer within {time:?}"),
        ),
        _ => error,
    }
}

fn parse(answer: &[u8]) -> io::Result<Answer> {
    let no_http = || io::Error::new(ErrorKind::InvalidData, "the answer is not HTTP");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.ok_or_else(no_http)?);
    let head = String::from_utf8_lossy(head);
    let first_line = head.lines().next().unwrap_or_default();
    let mut words = first_line.split(' ');
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/"));
    let status = words.next().and_then(|word| word.parse().ok());
    Ok(Answer {
        status: status.filter(|_| is_http).ok_or_else(no_http)?,
        first_line: first_line.to_owned(),
        body: body.get(4..).unwrap_or_default().to_vec(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        time: Duration::from_secs(20),
        longest: 1000,
    };

    /// Answers one request with `answer`; returns the request.
    fn server(at: &str, answer: Vec<u8>) -> (SocketAddr, JoinHandle<String>) {
        let listener = TcpListener::bind(at).unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            // The client may have closed.
            let _ = stream.write_all(&answer);
            String::from_utf8(request).unwrap()
        });
        (address, thread)
    }

    #[test]
    fn pages_are_fetched() {
        let answer = b"HTTP/1.1 503 Service Unavailable\r\na: b\r\n\r\nnot\n\r\n\r\nready";
        let (address, thread) = server("127.0.0.1:0", answer.to_vec());
        let got = get(address, "/readyz", "text/plain", BOUNDS).unwrap();
        assert_eq!(
            (got.status, &got.body[..]),
            (503, &b"not\n\r\n\r\nready"[..])
        );
        assert_eq!(got.first_line, "HTTP/1.1 503 Service Unavailable");
        let request = thread.join().unwrap();
        assert!(request.starts_with("GET /readyz HTTP/1.0\r\n"), "{request}");
        let host = format!("\r\nhost: {address}\r\n");
        assert!(request.contains(&host), "{request}");
    }

    #[test]
    fn a_wildcard_address_is_reached_on_loopback() {
        let to = |text: &str| reached(text.parse().unwrap()).to_string();
        assert_eq!(to("0.0.0.0:1"), "127.0.0.1:1");
        assert_eq!(to("[::]:1"), "[::1]:1");
        assert_eq!(to("192.0.2.1:1"), "192.0.2.1:1");
        // By IPv4 as well, as in a container without IPv6.
        let (address, thread) = server("127.0.0.1:0", b"HTTP/1.0 200 OK\r\n\r\n".to_vec());
        let everywhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
        assert_eq!(get(everywhere, "/", "*/*", BOUNDS).unwrap().status, 200);
        thread.join().unwrap();
    }

    #[test]
    fn time_and_length_are_bounded() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let short = Bounds {
            time: Duration::from_millis(50),
            ..BOUNDS
        };
        let error = get(silent.local_addr().unwrap(), "/", "*/*", short).unwrap_err();
        assert_eq!(error.to_string(), "no whole answer within 50ms");
        let long = [&b"HTTP/1.0 200 OK\r\n\r\n"[..], &[b'x'; 1000]].concat();
        let (address, _) = server("127.0.0.1:0", long);
        let error = get(address, "/", "*/*", BOUNDS).unwrap_err();
        assert_eq!(error.to_string(), "the answer is longer than 1000 bytes");
        for odd in [
            "",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.0 x\r\n\r\n",
            "HTTP/1.0 200 OK\r\n",
        ] {
            assert!(parse(odd.as_bytes()).is_err(), "{odd:?}");
        }
    }
}
