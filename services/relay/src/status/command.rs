//! The `status` command: asks a running relay by HTTP.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};

use super::model::Status;
use super::view::render;

/// A relay that does not answer within this time does not.
const PATIENCE: Duration = Duration::from_secs(5);

/// No answer is longer, in bytes.
const LONGEST: u64 = 64 << 20;

/// What the command prints, and whether all is well.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// For standard output.
    pub text: String,
    /// A relay answers, and takes gateways.
    pub well: bool,
}

/// Asks the relay that answers HTTP at `address`.
///
/// # Errors
/// If nobody answers there, or another program; in words for the operator.
pub fn status(address: SocketAddr, as_json: bool) -> anyhow::Result<Answer> {
    let status = ask(address)?;
    let text = if as_json {
        format!("{:#}\n", serde_json::to_value(&status)?)
    } else {
        render(&status)
    };
    Ok(Answer {
        text,
        well: !status.draining,
    })
}

/// What the relay says.
pub(super) fn ask(address: SocketAddr) -> anyhow::Result<Status> {
    // All addresses of the machine: one of them.
    let to = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let to = SocketAddr::new(to, address.port());
    let body = get(to).with_context(|| {
        format!("no relay answers at http://{to}/status; is it running, with --http {address}?")
    })?;
    serde_json::from_slice(&body)
        .with_context(|| format!("what answers at http://{to}/status is no flexfeed-relay"))
}

fn get(address: SocketAddr) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // HTTP/1.0: the answer ends with the connection, and is in one piece.
    write!(
        stream,
        "GET /status HTTP/1.0\r\nhost: {address}\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    let end = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .context("the answer is no HTTP")?;
    let (head, body) = answer.split_at(end);
    let head = String::from_utf8_lossy(head);
    let first = head.lines().next().unwrap_or_default();
    let body = body.get(4..).unwrap_or_default();
    if first.split(' ').nth(1) != Some("200") {
        bail!(
            "it says {first}: {}",
            service::peer_text::plain(&String::from_utf8_lossy(body))
        );
    }
    Ok(body.to_vec())
}
