//! One QUIC handshake with a source, for diagnosis: no HELLO is sent, so the source need not admit
//! anyone.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use flexicast::source::close;
use x509_parser::extensions::GeneralName;

use super::connection::{CloseReason, Connection};
use super::{ReceiverConfig, Verify};
use crate::config::spki_pin;

/// The names of a certificate that are read.
const MAX_NAMES: usize = 32;

/// Result of the handshake.
#[derive(Debug, Clone)]
pub struct ProbeResult {
    /// Time of the handshake.
    pub took: Duration,
    /// The certificate, if it can be read.
    pub certificate: Option<Certificate>,
    /// Whether the source is authentic, as configured; if not, why, in words for people.
    pub verified: Result<(), String>,
}

/// A source's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The SHA-256 of its SubjectPublicKeyInfo.
    pub pin: [u8; 32],
    /// The names and addresses that it is for.
    pub names: Vec<String>,
    /// Unix time in seconds from which it is valid.
    pub not_before: i64,
    /// Until when it is.
    pub not_after: i64,
}

/// Makes a connection to one address of a source and closes it again. Of the configuration, the
/// server's name, how it is verified and the qlog folder count.
///
/// # Errors
/// If no QUIC connection comes about, in words for people.
pub async fn probe(config: &ReceiverConfig, peer: SocketAddr) -> Result<ProbeResult, String> {
    let begun = Instant::now();
    // Unauthenticated first, to see the certificate.
    let anybody = ReceiverConfig {
        verify: Verify::Insecure,
        ..config.clone()
    };
    let mut connection = connect(&anybody, peer).await?;
    let took = begun.elapsed();
    let certificate = connection.link.conn.peer_cert().and_then(read);
    connection.close(close::DONE, "only a test").await;
    let verified = match config.verify {
        Verify::Insecure => Ok(()),
        _ => match connect(config, peer).await {
            Ok(mut connection) => {
                connection.close(close::DONE, "only a test").await;
                Ok(())
            }
            Err(reason) => Err(reason),
        },
    };
    Ok(ProbeResult {
        took,
        certificate,
        verified,
    })
}

async fn connect(config: &ReceiverConfig, peer: SocketAddr) -> Result<Connection, String> {
    let mut connection = Connection::open(config, peer, None, Instant::now())
        .map_err(|error| format!("{peer}: {error}"))?;
    loop {
        match connection.handshake(config, Instant::now()).await {
            Ok(true) => return Ok(connection),
            Ok(false) => {}
            Err(CloseReason { reason, .. }) => return Err(reason),
        }
        let due = connection.handshake_deadline();
        tokio::select! {
            ready = connection.socket.readable() => {
                ready.map_err(|error| format!("{peer}: {error}"))?;
            }
            () = tokio::time::sleep_until(due.into()) => {}
        }
    }
}

fn read(der: &[u8]) -> Option<Certificate> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let names = names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(v4) => Some(std::net::IpAddr::from(v4).to_string()),
            Err(_) => Some(std::net::IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string()),
        },
        _ => None,
    });
    Some(Certificate {
        pin: spki_pin(der)?,
        names: names.take(MAX_NAMES).collect(),
        not_before: certificate.validity().not_before.timestamp(),
        not_after: certificate.validity().not_after.timestamp(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_certificate_is_read() {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = vec![
            "feeds.example.org".into(),
            "192.0.2.1".into(),
            "2001:db8::1".into(),
        ];
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let certificate = parameters.self_signed(&key).unwrap();
        let read = read(certificate.der()).unwrap();
        assert_eq!(
            read.names,
            ["feeds.example.org", "192.0.2.1", "2001:db8::1"]
        );
        assert_eq!(
            (read.not_before, read.not_after),
            (1_577_836_800, 1_893_456_000)
        );
        assert_eq!(read.pin, spki_pin(certificate.der()).unwrap());
        assert_eq!(super::read(b"no certificate"), None);
    }
}
