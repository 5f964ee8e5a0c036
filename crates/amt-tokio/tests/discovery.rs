//! Discovery of relays by DNS (RFC 8777) against a real name server, bind9.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod bind;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use amt::gateway::{Candidate, Origin};
use amt_tokio::discovery::{Config, DiscoveryError, Relays, Resolver};
use bind::Named;

/// 198.51.100.0/24.
const V4: &str = "100.51.198.in-addr.arpa";
/// 2001:db8::/32.
const V6: &str = "8.b.d.0.1.0.0.2.ip6.arpa";

const V4_RECORDS: &str = "
1   IN AMTRELAY 10 0 1 203.0.113.15
1   IN AMTRELAY 10 0 2 2001:db8::15
1   IN AMTRELAY 5 1 1 203.0.113.5
1   IN AMTRELAY 128 1 3 relays.example.test.
2   IN CNAME 2.relays.example.test.
3   IN CNAME 3.0-31.100.51.198.in-addr.arpa.
3.0-31 IN AMTRELAY 20 1 1 203.0.113.3
4   IN AMTRELAY 0 0 0 .
5   IN AMTRELAY 0 0 0 .
5   IN AMTRELAY 9 1 1 203.0.113.9
6   IN TXT \"no relay\"
7   IN TYPE260 \\# 4 0a 04 c000
7   IN AMTRELAY 10 1 1 203.0.113.7
8   IN AMTRELAY 10 1 3 nowhere.example.test.
8   IN AMTRELAY 10 1 3 broken.test.
8   IN AMTRELAY 20 0 3 relay4.example.test.
9   IN TYPE260 \\# 4 0a 04 c000
10  IN AMTRELAY 1 1 3 alias.example.test.
10  IN AMTRELAY 2 0 3 alias.example.test.
11  3 IN AMTRELAY 1 1 1 203.0.113.11
12  IN AMTRELAY 1 1 1 224.0.0.1
12  IN AMTRELAY 1 1 1 0.0.0.0
";

const EXAMPLE: &str = "
relays  120 IN A 203.0.113.128
relays  IN AAAA 2001:db8::128
relay4  IN A 203.0.113.4
alias   IN CNAME alias2
alias2  IN CNAME relays
2.relays IN AMTRELAY 30 1 1 203.0.113.2
";

fn server() -> Option<Named> {
    // More than 512 bytes: truncated over UDP, whole over TCP.
    let many: String = (0..60)
        .map(|n| {
            format!(
                "1.0.0.0{} IN AMTRELAY {n} 1 2 2001:db8:ffff::{n:x}\n",
                ".0".repeat(20)
            )
        })
        .collect();
    bind::start(&[
        (V4, V4_RECORDS),
        (V6, &many),
        ("example.test", EXAMPLE),
        ("broken.test", ""),
        ("113.0.203.in-addr.arpa", ""),
    ])
}

fn resolver(named: &Named) -> Resolver {
    resolver_with(named, Duration::from_secs(30))
}

fn resolver_with(named: &Named, timeout: Duration) -> Resolver {
    let nameservers = vec![named.address];
    Resolver::new(&Config {
        nameservers,
        timeout,
    })
    .unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn candidate(addr: &str, discover: bool) -> Candidate {
    Candidate {
        addr: addr.parse().unwrap(),
        discover,
        origin: Origin::Dns,
    }
}

async fn relays(resolver: &Resolver, source: &str) -> Relays {
    resolver
        .relays(ip(source))
        .await
        .unwrap_or_else(|error| panic!("{source}: {error}"))
}

/// Returns the remaining validity of the answer, in seconds.
fn valid_for(relays: &Relays) -> u64 {
    relays
        .valid_until
        .saturating_duration_since(Instant::now())
        .as_secs()
}

#[tokio::test]
async fn records_of_all_kinds() {
    let Some(named) = server() else { return };
    let resolver = resolver(&named);

    let found = relays(&resolver, "198.51.100.1").await;
    assert_eq!(
        found.candidates,
        [
            candidate("203.0.113.5:2268", false),
            candidate("[2001:db8::15]:2268", true),
            candidate("203.0.113.15:2268", true),
            candidate("[2001:db8::128]:2268", false),
            candidate("203.0.113.128:2268", false),
        ]
    );
    assert!(!found.refused && found.unresolved.is_empty());
    // The addresses of the name, by which they are those of one relay.
    let mut names: Vec<_> = found.names.values().flatten().copied().collect();
    names.sort();
    assert_eq!(names, [ip("203.0.113.128"), ip("2001:db8::128")]);
    // The shortest TTL is that of one of the name's addresses.
    let valid = valid_for(&found);
    assert!((60..=120).contains(&valid), "{valid}");

    // The same address in the form of an IPv6 socket.
    let mapped = relays(&resolver, "::ffff:198.51.100.1").await;
    assert_eq!(mapped.candidates, found.candidates);

    // A CNAME out of the zone, and one within (RFC 2317).
    let found = relays(&resolver, "198.51.100.2").await;
    assert_eq!(found.candidates, [candidate("203.0.113.2:2268", false)]);
    let found = relays(&resolver, "198.51.100.3").await;
    assert_eq!(found.candidates, [candidate("203.0.113.3:2268", false)]);

    // A chain of CNAMEs from the relay's name, which two records have: the better one counts.
    let found = relays(&resolver, "198.51.100.10").await;
    let both = [
        candidate("[2001:db8::128]:2268", false),
        candidate("203.0.113.128:2268", false),
    ];
    assert_eq!(found.candidates, both);
}

#[tokio::test]
async fn a_source_may_forbid_relays() {
    let Some(named) = server() else { return };
    let resolver = resolver(&named);
    let found = relays(&resolver, "198.51.100.4").await;
    assert!(found.candidates.is_empty() && found.refused);
    // Not where it names one as well.
    let found = relays(&resolver, "198.51.100.5").await;
    assert_eq!(found.candidates, [candidate("203.0.113.9:2268", false)]);
    assert!(!found.refused);
}

#[tokio::test]
async fn no_relay_is_an_answer() {
    let Some(named) = server() else { return };
    let resolver = resolver(&named);
    // The name has other records; the name does not exist; no address can be a relay's; nothing but
    // a type that is not known.
    for source in [
        "198.51.100.6",
        "198.51.100.250",
        "198.51.100.12",
        "198.51.100.9",
    ] {
        let found = relays(&resolver, source).await;
        assert!(
            found.candidates.is_empty() && !found.refused,
            "{source}: {found:?}"
        );
    }
    // Held as long as the zone says.
    let valid = valid_for(&relays(&resolver, "198.51.100.250").await);
    assert!((30..=77).contains(&valid), "{valid}");
    // A record of an unknown type does not hide the others.
    let found = relays(&resolver, "198.51.100.7").await;
    assert_eq!(found.candidates, [candidate("203.0.113.7:2268", false)]);
}

#[tokio::test]
async fn names_without_an_answer_do_not_hide_others() {
    let Some(named) = server() else { return };
    let found = relays(&resolver(&named), "198.51.100.8").await;
    assert_eq!(found.candidates, [candidate("203.0.113.4:2268", true)]);
    let names: Vec<_> = found
        .unresolved
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["broken.test.", "nowhere.example.test."]);
    assert!(
        valid_for(&found) <= 60,
        "what is missing is asked for again soon"
    );
}

#[tokio::test]
async fn a_truncated_answer_is_fetched_over_tcp() {
    let Some(named) = server() else { return };
    let name = amt::discovery::reverse_name(ip("2001:db8::1"));
    let udp = (0..100)
        .find_map(|_| named.ask(&name, amt::discovery::RECORD_TYPE, 1))
        .expect("an answer");
    assert!(udp[2] & 0x02 != 0, "the answer over UDP is truncated");
    let found = relays(&resolver(&named), "2001:db8::1").await;
    // As many as are read of one answer, and those of the best precedence.
    let expected: Vec<_> = (0..32)
        .map(|n| candidate(&format!("[2001:db8:ffff::{n:x}]:2268"), false))
        .collect();
    let found: Vec<_> = found.candidates.into_iter().collect();
    assert_eq!(found, expected);
    let different: BTreeSet<_> = found.iter().map(|c| c.addr).collect();
    assert_eq!(different.len(), 32);
}

#[tokio::test]
async fn a_failing_name_server_is_an_error_with_its_cause() {
    let Some(named) = server() else { return };
    let error = resolver(&named)
        .relays(ip("203.0.113.1"))
        .await
        .unwrap_err();
    assert!(matches!(error, DiscoveryError::Lookup { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("1.113.0.203.in-addr.arpa"), "{text}");
    assert!(text.contains("erver"), "what the server said: {text}");
}

#[tokio::test]
async fn answers_are_cached_within_their_ttl() {
    let Some(named) = server() else { return };
    // A short timeout, since the last question times out.
    let resolver = resolver_with(&named, Duration::from_secs(3));
    // A busy name server may need more than one try.
    let found = async |source| {
        for _ in 0..10 {
            if let Ok(found) = resolver.relays(ip(source)).await {
                return found;
            }
        }
        panic!("no server answers")
    };
    let long = found("198.51.100.3").await;
    let first = found("198.51.100.11").await;
    assert_eq!(first.candidates, [candidate("203.0.113.11:2268", false)]);
    // The server has ended.
    drop(named);
    let again = relays(&resolver, "198.51.100.3").await;
    assert_eq!(again.candidates, long.candidates, "still valid");
    tokio::time::sleep(Duration::from_secs(4)).await;
    let error = resolver.relays(ip("198.51.100.11")).await;
    assert!(error.is_err(), "its TTL was 3 s: {error:?}");
}
