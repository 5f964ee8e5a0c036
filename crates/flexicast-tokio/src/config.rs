//! quiche settings of both ends, random bytes, and pins.

use boring::ssl::SslContextBuilder;
use flexicast::ALPN;
use flexicast::protect::FlowSecret;
use ring::rand::{SecureRandom, SystemRandom};

use crate::Error;

/// Length of the connection IDs that this crate issues, in bytes.
pub(crate) const CID_LEN: usize = 16;
/// First byte of all connection IDs of a source; that of its feedback IDs follows from it.
pub(crate) const SHARD: u8 = 0;
/// Connection IDs of the peer that each end keeps, and the paths that quiche follows for one
/// connection: the number of address changes of a receiver behind a NAT before it has to reconnect.
pub(crate) const ACTIVE_IDS: u64 = 16;
/// UDP payload of unicast packets in bytes: fits an IPv6 path of the minimum MTU. quiche's search
/// for more (`discover_pmtu`) stays off: it notices no black hole, and the unicast path is the one
/// that must work when all others fail.
pub(crate) const UDP_PAYLOAD: usize = 1232;
/// The control stream (protocol.md section 4).
pub(crate) const CONTROL_STREAM: u64 = 0;
/// The connection ends when nothing arrives for this long, in milliseconds.
const IDLE_MS: u64 = 30_000;
const CONTROL_WINDOW: u64 = 256 << 10;
const STREAM_WINDOW: u64 = 1 << 20;
const CONNECTION_WINDOW: u64 = 16 << 20;
const UNI_STREAMS: u64 = 512;
const DATAGRAMS: usize = 256;

/// The settings that are the same on both ends.
pub(crate) fn quic(tls: SslContextBuilder) -> Result<quiche::Config, Error> {
    let version = quiche::PROTOCOL_VERSION;
    let mut config =
        quiche::Config::with_boring_ssl_ctx_builder(version, tls).map_err(Error::quic)?;
    config
        .set_application_protos(&[ALPN])
        .map_err(Error::quic)?;
    config.set_max_idle_timeout(IDLE_MS);
    config.set_max_send_udp_payload_size(UDP_PAYLOAD);
    config.set_initial_max_data(CONNECTION_WINDOW);
    config.set_max_connection_window(CONNECTION_WINDOW);
    config.set_initial_max_stream_data_bidi_local(CONTROL_WINDOW);
    config.set_initial_max_stream_data_bidi_remote(CONTROL_WINDOW);
    config.set_initial_max_stream_data_uni(STREAM_WINDOW);
    config.set_max_stream_window(STREAM_WINDOW * 4);
    config.set_active_connection_id_limit(ACTIVE_IDS);
    config.enable_dgram(true, DATAGRAMS, DATAGRAMS);
    // Sessions are paced by a token bucket of their own, which also holds when quiche's congestion
    // window would let more pass.
    config.enable_pacing(false);
    Ok(config)
}

/// For the receiving end: how many streams the source may have open.
pub(crate) fn quic_client(tls: SslContextBuilder) -> Result<quiche::Config, Error> {
    let mut config = quic(tls)?;
    config.set_initial_max_streams_uni(UNI_STREAMS);
    config.set_initial_max_streams_bidi(0);
    Ok(config)
}

/// For the source: receivers open the control stream and no other.
pub(crate) fn quic_server(tls: SslContextBuilder) -> Result<quiche::Config, Error> {
    let mut config = quic(tls)?;
    config.set_initial_max_streams_uni(0);
    config.set_initial_max_streams_bidi(1);
    Ok(config)
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut out = [0; N];
    SystemRandom::new()
        .fill(&mut out)
        .map_err(|_| Error::Entropy)?;
    Ok(out)
}

/// Returns a new secret for an epoch of a flow.
pub(crate) fn random_secret() -> Result<FlowSecret, Error> {
    let mut secret = FlowSecret::default();
    SystemRandom::new()
        .fill(secret.as_mut_bytes())
        .map_err(|_| Error::Entropy)?;
    Ok(secret)
}

/// The SHA-256 of a DER certificate's SubjectPublicKeyInfo: what enrolment links pin;
/// `None` if it is no certificate.
pub fn spki_pin(certificate: &[u8]) -> Option<[u8; 32]> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate.public_key().raw);
    digest.as_ref().try_into().ok()
}
