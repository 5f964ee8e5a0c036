//! Against name servers that a test plays itself; `tests/discovery.rs` asks a real one.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::UdpSocket;

use super::*;

#[tokio::test]
async fn a_name_server_that_is_silent_costs_no_more_than_the_timeout() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let config = Config {
        nameservers: vec![silent.local_addr().unwrap()],
        timeout: Duration::from_millis(400),
    };
    let resolver = Resolver::new(&config).unwrap();
    let started = Instant::now();
    let error = resolver.relays([198, 51, 100, 7].into()).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(10));
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
