//! The `doctor` command against a real source.

use std::path::{Path, PathBuf};
use std::process::Command;

use feed::payload;
use flexicast_tokio::source::FlowEndpoint;
use kit::network::{Network, sh};
use serde_json::Value;

use crate::program::{self, PATIENCE, Running, receiver, text};
use crate::site::{Site, entries};

struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        Home {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn run(&self, link: &str) -> Running {
        let data = self.data();
        let mut command = receiver(&["--data", text(&data), "--http", "off"]);
        Running::start(command.env("FLEXFEED_LINK", link))
    }

    /// Whether the receiver's status says that it is connected and on this rung.
    fn is_on(&self, rung: &str) -> bool {
        let status = std::fs::read(self.data().join("status.json")).unwrap_or_default();
        let status: Value = serde_json::from_slice(&status).unwrap_or_default();
        status["connected"] == true && status["channels"][0]["rung"] == rung
    }

    /// Runs the doctor; returns its findings and exit code.
    async fn doctor(&self, link: &str, more: &[&str]) -> Findings {
        let data = self.data();
        let mut command = receiver(&["doctor", "--json"]);
        command
            .args(more)
            .env("FLEXFEED_LINK", link)
            .env("FLEXFEED_DATA", data)
            .env("FLEXFEED_HTTP", "off");
        findings(command).await
    }
}

struct Findings {
    code: Option<i32>,
    value: Value,
}

impl Findings {
    /// The verdicts and words on a check.
    fn of(&self, check: &str) -> Vec<(&str, &str)> {
        let checks = self.value["checks"].as_array().unwrap().iter();
        let checks = checks.filter(|found| found["check"] == check);
        checks
            .map(|found| {
                (
                    found["verdict"].as_str().unwrap(),
                    found["what"].as_str().unwrap(),
                )
            })
            .collect()
    }

    fn has(&self, check: &str, verdict: &str, part: &str) -> bool {
        let mut found = self.of(check).into_iter();
        found.any(|(v, what)| v == verdict && what.contains(part))
    }

    fn expects(&self, check: &str, verdict: &str, part: &str) {
        assert!(
            self.has(check, verdict, part),
            "{check} is not {verdict} with {part:?}:\n{:#}",
            self.value
        );
    }
}

/// Repeats the doctor until a check has this result: it listens for some seconds only, which a
/// stalled machine may miss.
async fn soon(check: &str, verdict: &str, part: &str, ask: impl AsyncFn() -> Findings) -> Findings {
    let mut found = ask().await;
    for _ in 0..4 {
        if found.has(check, verdict, part) {
            break;
        }
        found = ask().await;
    }
    found.expects(check, verdict, part);
    found
}

async fn findings(mut command: Command) -> Findings {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let said = program::said(&output);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(!shown.contains("s3cret"), "{shown}");
    Findings {
        code: output.status.code(),
        value: serde_json::from_str(&shown).unwrap_or_else(|_| panic!("{shown}{said}")),
    }
}

fn stop(mut running: Running) {
    running.signal(program::Signal::TERM);
    assert_eq!(running.exit_code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_nothing_in_the_way_it_takes_nothing_away() {
    let mut site = Site::start().await;
    site.stop().await;
    site.copies = true;
    site.again().await;
    for seq in 1..=3 {
        site.publish(seq).await;
    }
    let home = Home::new();
    let found = home.doctor(&site.link(), &[]).await;
    assert_eq!(found.code, Some(0), "{:#}", found.value);
    found.expects("data folder", "ok", "does not exist yet");
    found.expects("udp", "ok", "QUIC handshake with 127.0.0.1");
    found.expects("certificate", "ok", "the key that the link pins");
    found.expects("delivery", "skip", "is not known to have admitted");
    assert_eq!(site.enrolled(), 0);
    assert!(!home.data().exists());

    let found = soon("delivery", "ok", "arrive by replicated", async || {
        home.doctor(&site.link(), &["--join", "--no-multicast"])
            .await
    })
    .await;
    assert_eq!(found.code, Some(0), "{:#}", found.value);
    found.expects("admission", "ok", "admitted");
    found.expects("multicast", "skip", "switched off");
    assert_eq!(site.enrolled(), 1);

    assert!(found.of("clock").is_empty(), "{:#}", found.value);
    // Made by a source whose clock is ahead, or so it seems to a receiver whose clock is behind.
    let later = jiff::Timestamp::now() + std::time::Duration::from_secs(60);
    let url = "https://example.org/feed";
    let entry = feed::Entry {
        id: "urn:entry:4".into(),
        ..feed::Entry::default()
    };
    let encoded = payload::encode(&entry, feed::Kind::Created, url, site.incarnation, 4, later);
    site.publish_as(4, encoded.into()).await;
    let found = home.doctor(&site.link(), &[]).await;
    found.expects("clock", "warn", "behind the source's by");

    // The doctor's reception took no update from the receiver.
    let running = home.run(&site.link_without_token());
    running.wait_for("channel=\"lore\" head=4");
    while entries(&home.data()).len() < 4 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let begun = std::time::Instant::now();
    while !home.is_on("replicated") {
        assert!(begun.elapsed() < PATIENCE, "it takes no copies");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // Beside the receiver, it looks at it instead of taking its place.
    let found = soon("delivery", "ok", "on replicated, 0 behind", async || {
        home.doctor(&site.link(), &[]).await
    })
    .await;
    assert_eq!(found.code, Some(0), "{:#}", found.value);
    found.expects("receiver", "ok", "is connected");
    // Also without a link.
    let data = home.data();
    let found = soon("delivery", "ok", "on replicated, 0 behind", async || {
        findings(receiver(&["doctor", "--json", "--data", text(&data)])).await
    })
    .await;
    assert_eq!(found.code, Some(0), "{:#}", found.value);
    found.expects("certificate", "skip", "without a link");
    found.expects("receiver", "ok", "is connected");
    stop(running);
    // After the admission, another test is no use of the token.
    let found = home.doctor(&site.link(), &[]).await;
    found.expects("admission", "ok", "admitted");
    assert_eq!(site.enrolled(), 1);
}

/// A first start without a reachable source makes an id and a credential without an admission.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_did_not_reach_the_source_is_no_admission() {
    let mut site = Site::start().await;
    site.stop().await;
    let home = Home::new();
    let running = home.run(&site.link());
    running.wait_for("connects to");
    stop(running);
    assert!(home.data().join("state/credential").exists());
    site.again().await;
    let found = home.doctor(&site.link(), &[]).await;
    found.expects("delivery", "skip", "is not known to have admitted");
    assert_eq!(site.enrolled(), 0);
    // By an ordinary start it is.
    let running = home.run(&site.link());
    running.wait_for("channel=\"lore\" head=");
    let noted = home.data().join("state/admission");
    while !noted.exists() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    stop(running);
    let found = home.doctor(&site.link_without_token(), &[]).await;
    found.expects("admission", "ok", "admitted");
    assert_eq!(site.enrolled(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn obstacles_are_named() {
    let mut site = Site::start().await;
    let home = Home::new();
    let found = home.doctor(&site.link_with_wrong_pin(), &["--join"]).await;
    assert_eq!(found.code, Some(1), "{:#}", found.value);
    found.expects("udp", "ok", "QUIC handshake");
    found.expects("certificate", "fail", "wrong pin");
    found.expects("delivery", "skip", "not tested");

    let found = home
        .doctor(&site.link_with_wrong_token(), &["--join"])
        .await;
    assert_eq!(found.code, Some(1), "{:#}", found.value);
    found.expects("admission", "fail", "no such token");

    let found = home.doctor(&site.link_without_pin(), &[]).await;
    found.expects("certificate", "fail", "");
    let certificate = site.certificate();
    let more = ["--ca-file", text(&certificate)];
    let found = home.doctor(&site.link_without_pin(), &more).await;
    found.expects("certificate", "ok", "it is localhost");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let found = home.doctor(&site.link(), &["--http", &address]).await;
    assert_eq!(found.code, Some(1), "{:#}", found.value);
    found.expects("http", "fail", &address);

    let file = home.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let found = home.doctor(&site.link(), &["--data", text(&file)]).await;
    found.expects("data folder", "fail", text(&file));

    site.stop().await;
    let found = home.doctor(&site.link(), &[]).await;
    assert_eq!(found.code, Some(1), "{:#}", found.value);
    found.expects("udp", "fail", "127.0.0.1");
}

/// In a network of its own, where name servers are found to be out of reach at once.
#[test]
fn a_name_that_is_not_found_is_named() {
    if !kit::in_namespace!() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let link = "flexfeed://x@no.such.host.invalid?ch=lore";
        let found = Home::new().doctor(link, &[]).await;
        assert_eq!(found.code, Some(1), "{:#}", found.value);
        found.expects("name", "fail", "no.such.host.invalid is not found");
    });
}

#[test]
fn wrong_settings_are_reported() {
    let output = receiver(&[
        "doctor",
        "--json",
        "--interface",
        "eth0",
        "flexfeed://x@h?ch=a",
    ])
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["ok"], false);
    assert!(
        value["problems"][0]
            .as_str()
            .unwrap()
            .contains("--interface"),
        "{value}"
    );
}

/// A source here and a doctor in a network beside it, by a cable that carries multicast, until it
/// does not.
#[test]
fn multicast_is_probed_and_obstacles_are_named() {
    if !kit::in_namespace!() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let network = Network::begin();
        sh(
            "ip addr add 10.7.0.1/24 dev here; ip link set here up; ip route add 232.0.0.0/8 dev \
            here",
        );
        network.sh(
            "ip addr add 10.7.0.2/24 dev there; ip link set there up; ip route add \
            232.0.0.0/8 dev there",
        );
        let mut site = Site::start().await;
        let endpoint = FlowEndpoint {
            group: "232.70.70.1:4434".parse().unwrap(),
            interface: "10.7.0.1".parse().unwrap(),
            asm: false,
            ttl: 1,
        };
        site.move_to("10.7.0.1:4433".parse().unwrap(), vec![endpoint])
            .await;
        let home = Home::new();

        let found = soon(
            "delivery",
            "ok",
            "the flow arrives by multicast",
            async || inside(&network, &home.data(), &site.link()).await,
        )
        .await;
        assert_eq!(found.code, Some(0), "{:#}", found.value);
        found.expects("udp", "ok", "from 10.7.0.2");

        // A firewall that drops it; the rest comes by unicast.
        network.sh(
            "nft add table ip t; nft 'add chain ip t c { type filter hook input priority 0; \
            }'; nft add rule ip t c ip daddr 232.0.0.0/8 drop",
        );
        let found = inside(&network, &home.data(), &site.link()).await;
        assert_eq!(found.code, Some(0), "{:#}", found.value);
        found.expects("delivery", "warn", "only by this receiver's own connection");
        found.expects(
            "multicast",
            "warn",
            "joined (10.7.0.1, 232.70.70.1) on there",
        );
        found.expects("multicast", "warn", "multicast packets came in, but");
        network.sh("nft delete table ip t");
    });
}

/// Multicast comes by one cable, but this machine's way to the source is another one.
#[test]
fn a_reverse_path_filter_is_named() {
    if !kit::in_namespace!() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let network = Network::begin();
        network.cable("way", "back");
        sh("ip addr add 10.7.0.1/24 dev here; ip link set here up; \
             ip route add 232.0.0.0/8 dev here; ip addr add 10.9.0.1/24 dev way; \
             ip link set way up");
        network.sh("ip addr add 10.8.0.2/24 dev there; ip link set there up; \
             ip route add 232.0.0.0/8 dev there; \
             ip addr add 10.9.0.2/24 dev back; ip link set back up; \
             ip route add 10.7.0.0/24 dev back; \
             echo 1 > /proc/sys/net/ipv4/conf/there/rp_filter");
        let mut site = Site::start().await;
        let endpoint = FlowEndpoint {
            group: "232.70.70.1:4434".parse().unwrap(),
            interface: "10.7.0.1".parse().unwrap(),
            asm: false,
            ttl: 1,
        };
        site.move_to("10.9.0.1:4433".parse().unwrap(), vec![endpoint])
            .await;
        let home = Home::new();
        let found = inside(&network, &home.data(), &site.link()).await;
        assert_eq!(found.code, Some(0), "{:#}", found.value);
        found.expects("multicast", "warn", "were dropped (rp_filter)");
        let text = found.value.to_string();
        assert!(text.contains("conf.there.rp_filter=2"), "{text}");
        // Follow the advice.
        network.sh("for name in there all; do \
             echo 2 > /proc/sys/net/ipv4/conf/$name/rp_filter; done");
        soon(
            "delivery",
            "ok",
            "the flow arrives by multicast",
            async || inside(&network, &home.data(), &site.link()).await,
        )
        .await;
    });
}

async fn inside(network: &Network, data: &Path, link: &str) -> Findings {
    let program = env!("CARGO_BIN_EXE_flexfeed-receiver");
    let mut command = network.command(program);
    command
        .args([
            "doctor",
            "--json",
            "--join",
            "--http",
            "off",
            "--data",
            text(data),
        ])
        .env("FLEXFEED_LINK", link);
    findings(command).await
}
