//! Certificates of the operator's own, which are replaced while the source runs.

use std::fs;
use std::path::Path;

use flexicast_tokio::receiver::{Event, ReceiverConfig, Verify};
use rcgen::{KeyPair, PublicKeyData, generate_simple_self_signed};
use ring::digest::{SHA256, digest};
use rustix::process::Signal;
use uuid::Uuid;

use crate::receiving::{Listening, configuration};
use crate::running::{Feed, Running, fails, source};

/// Writes a certificate and its key, and returns the pin.
fn write(folder: &Path) -> [u8; 32] {
    let made = generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let key: &KeyPair = &made.signing_key;
    fs::write(folder.join("own.pem"), made.cert.pem()).unwrap();
    fs::write(folder.join("own.key"), key.serialize_pem()).unwrap();
    let pin = digest(&SHA256, &key.subject_public_key_info());
    pin.as_ref().try_into().unwrap()
}

fn link(data: &Path) -> String {
    fs::read_to_string(data.join("enrolment-link")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_replaced_while_receivers_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (own, next) = (folder.path().join("own"), folder.path().join("next"));
    let data = folder.path().join("data");
    for folder in [&own, &next] {
        fs::create_dir(folder).unwrap();
    }
    let feed = Feed::with(1);
    let (present, coming) = (write(&own), write(&next));
    let shown =
        |pin: &[u8; 32]| format!("pin=sha256:{}", data_encoding::BASE64URL_NOPAD.encode(pin));
    let mut command = source(&data, &feed);
    command.arg("--cert").arg(own.join("own.pem"));
    command.arg("--key").arg(own.join("own.key"));
    command.args(["--next-pin", shown(&coming).trim_start_matches("pin=")]);
    let mut running = Running::start(command);
    assert!(!data.join("cert.pem").exists());
    let end = |running: &Running| -> f64 {
        let metrics = running.page("/metrics").1;
        let name = "flexfeed_source_certificate_not_after_timestamp_seconds ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse().unwrap()
    };
    // 4096-01-01, as it is where nothing is said.
    assert_eq!(end(&running), 67_090_118_400.0);
    let both = format!("?{}&{}&key=", shown(&present), shown(&coming));
    let made = link(&data);
    assert!(
        made.contains(&both) && made.trim().ends_with("&ch=lore"),
        "{made}"
    );
    let old = link(&data).replace(&format!("&{}", shown(&coming)), "");
    let with = |pin: [u8; 32], number: u8| {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("enrolment-link"), &old).unwrap();
        ReceiverConfig {
            verify: Verify::Pins(vec![pin]),
            receiver_id: Uuid::new_v4(),
            credential: [number; 32],
            ..configuration(place.path())
        }
    };
    let mut early = Listening::start(with(present, 1));
    early.update(1).await;

    // Half of it changes nothing.
    fs::copy(next.join("own.pem"), own.join("own.pem")).unwrap();
    running.signal(Signal::HUP);
    running.until("it is refused", |running| {
        running.log().contains("the certificate stays as it was")
    });
    assert!(
        running.log().contains("is not the key of"),
        "{}",
        running.log()
    );
    fs::copy(next.join("own.key"), own.join("own.key")).unwrap();
    running.signal(Signal::HUP);
    running.until("it is taken", |running| {
        running.log().contains("certificate reloaded")
    });
    running.until("the link follows", |_| {
        link(&data).contains(&format!("?{}&key=", shown(&coming)))
    });

    let mut late = Listening::start(with(coming, 2));
    late.update(1).await;
    let mut behind = Listening::start(with(present, 3));
    behind
        .until("the wrong pin", |event| match event {
            Event::Disconnected { .. } | Event::Refused { .. } => Some(()),
            Event::Connected { .. } => panic!("connected in spite of the pin"),
            _ => None,
        })
        .await;
    // Existing connections stay.
    feed.grow(1);
    let last = early
        .until("an update, and no new connection", |event| match event {
            Event::Update { seq, .. } => Some(*seq),
            Event::Disconnected { reason, .. } => panic!("{reason}"),
            _ => None,
        })
        .await;
    assert_eq!(last, 2);
    let (code, log, _) = running.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
}

#[test]
fn a_certificate_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = source(&folder.path().join("data"), &Feed::with(1));
    command.args([
        "--cert",
        "/nonexistent/own.pem",
        "--key",
        "/nonexistent/own.key",
    ]);
    let (code, said) = fails(command);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("/nonexistent/own.pem") && said.contains("--cert"),
        "{said}"
    );
}
