//! A client and a server connection of unmodified quiche, joined in memory.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use flexicast::protect::Algorithm;
use quiche::{BufFactory, Config, Connection, ConnectionId, RecvInfo};
use rand::RngExt;

use crate::parcel::UDP_PAYLOAD;

/// Larger than everything that is sent: neither flow control nor congestion control may slow quiche
/// down.
const WIDE_OPEN: u64 = 1 << 40;
const WIDE_OPEN_PACKETS: usize = 1 << 22;

const CLIENT: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1));
const SERVER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 2));

/// Makes pairs; keeps the servers' certificate.
pub struct Maker {
    client: Config,
    server: Config,
}

impl Maker {
    /// Settings at which quiche sends as fast as it can: pacing off, and all windows wide open.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for a certificate")?;
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
        let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
        std::fs::write(&cert, made.cert.pem())?;
        std::fs::write(&key, made.signing_key.serialize_pem())?;
        let mut server = Self::config()?;
        server.load_cert_chain_from_pem_file(&cert.to_string_lossy())?;
        server.load_priv_key_from_pem_file(&key.to_string_lossy())?;
        let mut client = Self::config()?;
        client.verify_peer(false);
        Ok(Maker { client, server })
    }

    fn config() -> Result<Config> {
        let mut config = Config::new(quiche::PROTOCOL_VERSION)?;
        config.set_application_protos(&[b"bench"])?;
        config.set_max_send_udp_payload_size(UDP_PAYLOAD);
        config.set_initial_max_data(WIDE_OPEN);
        config.set_initial_max_stream_data_uni(WIDE_OPEN);
        config.set_initial_max_streams_uni(1 << 20);
        config.set_initial_congestion_window_packets(WIDE_OPEN_PACKETS);
        config.enable_pacing(false);
        config.enable_hystart(false);
        config.enable_dgram(true, 64, 64);
        config.grease(false);
        Ok(config)
    }

    /// A pair whose handshake is complete, and the AEAD that it negotiated.
    pub fn connect(&mut self) -> Result<(Pair, Algorithm)> {
        // As long as a Flow ID, so that the packets' overhead is the same.
        let ids: [[u8; 8]; 2] = rand::rng().random();
        let [client, server] = ids.each_ref().map(|id| ConnectionId::from_ref(id));
        let mut pair = Pair {
            client: quiche::connect(None, &client, CLIENT, SERVER, &mut self.client)?,
            server: quiche::accept_with_buf_factory(
                &server,
                None,
                SERVER,
                CLIENT,
                &mut self.server,
            )?,
        };
        for _ in 0..20 {
            pair.settle()?;
        }
        ensure!(
            pair.client.is_established() && pair.server.is_established(),
            "the handshake of a benchmark's connection did not complete"
        );
        let algorithm = pair.algorithm()?;
        Ok((pair, algorithm))
    }
}

/// Lets the server's streams take the application's buffers as they are, without a copy.
#[derive(Debug, Clone, Default)]
pub struct Shared;

impl BufFactory for Shared {
    type Buf = Bytes;
    type DgramBuf = Vec<u8>;

    fn buf_from_slice(buf: &[u8]) -> Bytes {
        Bytes::copy_from_slice(buf)
    }

    fn dgram_buf_from_slice(buf: &[u8]) -> Vec<u8> {
        buf.to_vec()
    }
}

/// One receiver of the unicast side, or the unicast path of a member of the flow.
pub struct Pair {
    /// The receiver's end.
    pub client: Connection,
    /// The source's end.
    pub server: Connection<Shared>,
}

impl Pair {
    /// Lets both ends say once what they have to say.
    pub fn settle(&mut self) -> Result<()> {
        let mut packet = [0; UDP_PAYLOAD];
        while let Some(len) = send(&mut self.client, &mut packet)? {
            self.server.recv(&mut packet[..len], to_server())?;
        }
        while let Some(len) = send(&mut self.server, &mut packet)? {
            self.client.recv(&mut packet[..len], to_client())?;
        }
        Ok(())
    }

    /// Returns the packet protection algorithm. quiche does not expose it, but the client's
    /// resumable session names the cipher suite: a length of 8 bytes, then the DER of an
    /// SSL_SESSION, which begins with two version numbers and the suite as an OCTET STRING of 2
    /// bytes.
    fn algorithm(&self) -> Result<Algorithm> {
        let session = self.client.session().unwrap_or_default();
        let suite = session
            .windows(4)
            .take(40)
            .find_map(|at| match *at {
                [0x04, 0x02, high, low] => Some(u64::from(high) << 8 | u64::from(low)),
                _ => None,
            })
            .context("the benchmark's connection has no session that names its cipher suite")?;
        match Algorithm::from_suite(suite) {
            Some(algorithm) => Ok(algorithm),
            None => bail!(
                "the benchmark's connection uses cipher suite {suite:#06x}, which flows do not have"
            ),
        }
    }
}

/// Returns the addresses of packets to the client.
pub fn to_client() -> RecvInfo {
    RecvInfo {
        from: SERVER,
        to: CLIENT,
    }
}

/// Returns the addresses of packets to the server.
pub fn to_server() -> RecvInfo {
    RecvInfo {
        from: CLIENT,
        to: SERVER,
    }
}

/// Makes a connection's next packet; `None` when there is none.
pub fn send<F: BufFactory>(
    connection: &mut Connection<F>,
    out: &mut [u8],
) -> Result<Option<usize>> {
    match connection.send(out) {
        Ok((len, _)) => Ok(Some(len)),
        Err(quiche::Error::Done) => Ok(None),
        Err(error) => Err(error).context("making a packet with quiche"),
    }
}
