//! Discovery against scripted name servers; `tests/discovery.rs` asks a real one.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::UdpSocket;

use super::*;
use kit::dns::{A, AAAA, AMTRELAY, Answer, NameServer, relay_at, relay_named};

/// RFC 8305, section 3.
#[tokio::test]
async fn unanswered_names_do_not_delay_other_relays() {
    let server = NameServer::start();
    let config = Config {
        nameservers: vec![server.addr],
        timeout: Duration::from_secs(30),
    };
    let resolver = Resolver::new(&config).unwrap();
    let name = "7.100.51.198.in-addr.arpa.";
    let found = async |records: &[Vec<u8>]| {
        server.says(name, AMTRELAY, Answer::records(records.to_vec()));
        resolver.inner.clear_cache();
        let started = Instant::now();
        let found = resolver.relays([198, 51, 100, 7].into()).await.unwrap();
        assert!(
            started.elapsed() < Duration::from_secs(28),
            "the whole timeout was waited for"
        );
        let candidates: Vec<_> = found
            .candidates
            .iter()
            .map(|c| c.addr.to_string())
            .collect();
        let now = Instant::now();
        assert!(
            found.valid_until - now <= INCOMPLETE,
            "it is asked again soon"
        );
        (candidates, found.unresolved)
    };
    // The server is silent about its IPv6 addresses.
    server.says(
        "half.example.",
        A,
        Answer::records(vec![vec![192, 0, 2, 5]]),
    );
    server.says("half.example.", AAAA, Answer::Silence);
    let half = relay_named(1, "half.example.");
    let (candidates, unresolved) = found(std::slice::from_ref(&half)).await;
    assert_eq!(candidates, ["192.0.2.5:2268"]);
    assert_eq!(unresolved, []);
    // The server is silent about this name.
    let silent = relay_named(0, "silent.example.");
    let with_address = relay_at(9, [192, 0, 2, 9].into());
    let (candidates, unresolved) = found(&[silent, half, with_address]).await;
    assert_eq!(candidates, ["192.0.2.5:2268", "192.0.2.9:2268"]);
    assert_eq!(unresolved.len(), 1);
    assert_eq!(unresolved[0].0, "silent.example.");
}

#[tokio::test]
async fn a_silent_name_server_costs_at_most_the_timeout() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let config = Config {
        nameservers: vec![silent.local_addr().unwrap()],
        timeout: Duration::from_millis(400),
    };
    let resolver = Resolver::new(&config).unwrap();
    let started = Instant::now();
    let error = resolver.relays([198, 51, 100, 7].into()).await.unwrap_err();
    // With hickory's own timeouts it would be ten seconds.
    assert!(started.elapsed() < Duration::from_secs(9));
    let text = error.to_string();
    assert!(text.contains("7.100.51.198.in-addr.arpa."), "{text}");
}

#[test]
fn validity_is_kept_within_bounds() {
    let now = Instant::now();
    let bounded = |seconds| within_bounds(now + Duration::from_secs(seconds)) - now;
    assert!(bounded(0) >= MIN_VALID);
    assert!(bounded(300) == Duration::from_secs(300));
    assert!(bounded(10_000_000) < MAX_VALID + Duration::from_secs(60));
}
