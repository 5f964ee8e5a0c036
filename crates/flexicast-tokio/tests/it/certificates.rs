//! Authentication of a source, and certificate changes while it runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use flexicast_tokio::receiver::{Event, ReceiverConfig, Verify};
use flexicast_tokio::{Rung, spki_pin};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use crate::site::{Probe, Site, any_port};

/// An authority, and what it signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// A certificate for these names and addresses, in files of this name.
    fn sign(&self, site: &Site, file: &str, names: &[&str], expired: bool) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<_> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        if expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        write(site, file, &cert.pem(), &key)
    }
}

fn write(site: &Site, file: &str, cert: &str, key: &KeyPair) -> (PathBuf, PathBuf) {
    let paths = (
        site.path(&format!("{file}.crt")),
        site.path(&format!("{file}.key")),
    );
    std::fs::write(&paths.0, cert).unwrap();
    std::fs::write(&paths.1, key.serialize_pem()).unwrap();
    paths
}

/// A self-signed one, and its pin.
fn own(site: &Site, file: &str) -> (PathBuf, PathBuf, [u8; 32]) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".into()]).unwrap();
    let cert = params.self_signed(&key).unwrap();
    let (path, key) = write(site, file, &cert.pem(), &key);
    (path, key, spki_pin(cert.der()).unwrap())
}

async fn welcomed(probe: &mut Probe) {
    while !matches!(probe.event().await, Event::Welcome { .. }) {
        assert_eq!(probe.disconnected, Vec::<String>::new());
    }
}

fn by_name(site: &Site, addr: SocketAddr, host: &str, verify: Verify) -> ReceiverConfig {
    let mut config = site.receiver_config(format!("{host}:{}", addr.port()));
    config.verify = verify;
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_and_chain_are_verified() {
    let site = Site::new();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let (ca, other) = (site.path("ca.pem"), site.path("other.pem"));
    std::fs::write(&ca, format!("{}{}", theirs.pem, ours.pem)).unwrap();
    std::fs::write(&other, &theirs.pem).unwrap();
    let ca = Verify::CaFile(ca);
    let good = ours.sign(&site, "good", &["localhost", "127.0.0.1"], false);
    let named = ours.sign(&site, "named", &["localhost"], false);
    let wrong = ours.sign(&site, "wrong", &["example.org", "192.0.2.1"], false);
    let expired = ours.sign(&site, "expired", &["localhost"], true);
    let forged = Authority::new("ours").sign(&site, "forged", &["localhost", "127.0.0.1"], false);
    let source = |files: &(PathBuf, PathBuf)| {
        let mut config = site.config(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        (config.cert, config.key) = files.clone();
        site.start(config)
    };
    for host in ["localhost", "127.0.0.1"] {
        let running = source(&good).await;
        let mut probe = site.start_receiver(by_name(&site, running.addr, host, ca.clone()));
        welcomed(&mut probe).await;
    }
    let cases = [
        ("wrong name", &wrong, "localhost", &ca, "ostname"),
        (
            "wrong address",
            &wrong,
            "127.0.0.1",
            &ca,
            "not for 127.0.0.1",
        ),
        (
            "a name is no address",
            &named,
            "127.0.0.1",
            &ca,
            "not for 127.0.0.1",
        ),
        ("expired", &expired, "localhost", &ca, "expired"),
        (
            "another authority",
            &good,
            "localhost",
            &Verify::CaFile(other),
            "issuer",
        ),
        ("a forged authority", &forged, "localhost", &ca, "signature"),
        (
            "no authority of the system",
            &good,
            "localhost",
            &Verify::Roots,
            "issuer",
        ),
    ];
    for (what, files, host, verify, words) in cases {
        let running = source(files).await;
        let config = by_name(&site, running.addr, host, verify.clone());
        let reason = site.start_receiver(config).until_reason().await;
        assert!(reason.contains(words), "{what}: {reason}");
        assert!(
            reason.contains("nothing was sent to it"),
            "{what}: {reason}"
        );
        let status = running.status().await;
        assert_eq!(
            status.counters.connections + status.counters.refused,
            0,
            "{what}"
        );
    }
    let running = source(&good).await;
    let missing = Verify::CaFile(site.path("missing.pem"));
    let config = by_name(&site, running.addr, "localhost", missing);
    let reason = site.start_receiver(config).until_reason().await;
    assert!(reason.contains("missing.pem"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_changed_under_live_connections() {
    let site = Site::new();
    let source = site.start(site.config(any_port())).await;
    let mut stays = site.receiver(source.addr);
    stays.until_rung(Rung::Multicast).await;
    let (cert, key, pin) = own(&site, "next");

    // Pairs that do not belong together, or are none: the old one stays.
    let old_key = site.path("key.pem");
    std::fs::write(
        site.path("broken.pem"),
        "-----BEGIN CERTIFICATE-----\nnope\n",
    )
    .unwrap();
    for (cert, key, named) in [
        (cert.clone(), old_key, "key.pem"),
        (site.path("broken.pem"), key.clone(), "broken.pem"),
        (site.path("missing.pem"), key.clone(), "missing.pem"),
        (cert.clone(), site.path("missing.pem"), "missing.pem"),
    ] {
        let error = source.handle.reload_certificate(cert, key).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
    welcomed(&mut site.receiver(source.addr)).await;

    source.handle.reload_certificate(cert, key).await.unwrap();
    let reason = site.receiver(source.addr).until_reason().await;
    assert!(reason.contains("wrong pin"), "{reason}");
    let mut config = site.receiver_config(source.addr);
    // As a link says it while keys are changed: the old one and the new one.
    config.verify = Verify::Pins(vec![site.pin, pin]);
    welcomed(&mut site.start_receiver(config)).await;
    site.publish(&source.handle, 20).await;
    stays.until_seq(20).await;
    assert!(stays.disconnected.is_empty(), "{:?}", stays.disconnected);
}
