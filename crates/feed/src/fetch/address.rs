//! Addresses: permission to fetch, redaction for messages, and redirects.

use std::net::{IpAddr, Ipv4Addr};

use reqwest::header::{HeaderMap, LOCATION};
use url::Url;

use super::error::FetchError;
use super::guard::{Guard, Lookup, is_public};

/// Characters of an unreadable address that are quoted.
const QUOTED: usize = 200;

/// Checks whether a feed can be fetched from this address, as far as that is known without a
/// request: a URL of `http` or `https` with a host which, unless `allow_private`, is neither a
/// private address nor a name of this machine for itself.
///
/// # Errors
/// [`FetchError::Address`], [`FetchError::Private`].
pub fn check(address: &str, allow_private: bool) -> Result<(), FetchError> {
    let url = parse(address)?;
    permit(&url, &Guard::system(allow_private))?;
    match url
        .host_str()
        .filter(|name| !allow_private && is_localhost(name))
    {
        None => Ok(()),
        Some(name) => Err(FetchError::Private {
            url: redacted(&url),
            host: name.to_owned(),
            address: Ipv4Addr::LOCALHOST.into(),
        }),
    }
}

/// Checks the address as [`check`] does, and resolves its name once by `lookup`. The name may
/// resolve differently later, so this gives early feedback and does not replace the checks at each
/// connection. A name that is unknown, or that also leads to a public address, passes. Takes as
/// long as `lookup` does.
///
/// # Errors
/// [`FetchError::Address`], [`FetchError::Private`].
pub async fn check_name(
    address: &str,
    allow_private: bool,
    lookup: Lookup,
) -> Result<(), FetchError> {
    check(address, allow_private)?;
    let url = parse(address)?;
    let Some(url::Host::Domain(host)) = url.host() else {
        return Ok(());
    };
    match Guard::system(allow_private).refuses(host, lookup).await {
        None => Ok(()),
        Some(address) => Err(FetchError::Private {
            url: redacted(&url),
            host: host.to_owned(),
            address,
        }),
    }
}

/// Whether the name means this machine wherever it is resolved (RFC 6761 section 6.3).
fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    let end = name.rsplit('.').next().unwrap_or_default();
    end.eq_ignore_ascii_case("localhost")
}

/// Returns the address to fetch a feed from that was configured as `address` and has moved to
/// `moved_to`: the latter, with the credentials of the former if they are for the same server.
#[must_use]
pub fn moved(address: &str, moved_to: &str) -> Option<String> {
    let (from, mut to) = (Url::parse(address).ok()?, Url::parse(moved_to).ok()?);
    if from.scheme() == "https" && to.scheme() != "https" {
        return None;
    }
    carry_credentials(&from, &mut to);
    Some(to.into())
}

pub(super) fn parse(address: &str) -> Result<Url, FetchError> {
    Url::parse(address).map_err(|e| {
        // Without anything that may be credentials or keys. A password may contain a question mark.
        let (mark, rest) = match address.rsplit_once('@') {
            Some((_, rest)) => ("…@", rest),
            None => ("", address),
        };
        let rest = rest.split('?').next().unwrap_or_default();
        let rest: String = rest.chars().take(QUOTED).collect();
        FetchError::Address {
            url: format!("{mark}{rest}"),
            why: format!("{e}; write it as https://host/path"),
        }
    })
}

/// Refuses other schemes than http(s), and literal addresses that the guard does not allow. Names
/// are checked when they are resolved.
///
/// # Errors
/// [`FetchError::Address`], [`FetchError::Private`].
pub(super) fn permit(url: &Url, guard: &Guard) -> Result<(), FetchError> {
    let refuse = |why: &str| {
        Err(FetchError::Address {
            url: redacted(url),
            why: why.into(),
        })
    };
    if !matches!(url.scheme(), "http" | "https") {
        return refuse("only http and https can be fetched");
    }
    let address = match url.host() {
        None => return refuse("it has no host"),
        Some(url::Host::Domain(_)) => return Ok(()),
        Some(url::Host::Ipv4(address)) => address.into(),
        Some(url::Host::Ipv6(address)) => address.into(),
    };
    if guard.allows(address) {
        return Ok(());
    }
    Err(FetchError::Private {
        url: redacted(url),
        host: address.to_string(),
        address,
    })
}

/// Returns the address without its user name and password.
#[must_use]
pub fn without_credentials(url: &Url) -> String {
    if url.username().is_empty() && url.password().is_none() {
        return url.to_string();
    }
    let mut url = url.clone();
    // These calls fail only for addresses without a host, which have no credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

/// Returns the address for messages: without credentials, and without the values of its query,
/// which may be keys; those of a redirect often are.
#[must_use]
pub fn redacted(url: &Url) -> String {
    let mut shown = url.clone();
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_fragment(None);
    if let Some(query) = url.query() {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) => format!("{name}=***"),
            None => "***".to_owned(),
        });
        shown.set_query(Some(&pairs.collect::<Vec<_>>().join("&")));
    }
    shown.into()
}

/// Copies the credentials to an address on the same server, also if it moves from http to https,
/// and to no other.
pub(super) fn carry_credentials(from: &Url, to: &mut Url) {
    let same =
        from.scheme() == to.scheme() && from.port_or_known_default() == to.port_or_known_default();
    let upgraded = (from.scheme(), to.scheme()) == ("http", "https")
        && from.port().is_none()
        && to.port().is_none();
    let own = !to.username().is_empty() || to.password().is_some();
    if own || from.host() != to.host() || !(same || upgraded) {
        return;
    }
    let _ = to.set_username(from.username());
    let _ = to.set_password(from.password());
}

/// Redirects of one fetch.
#[derive(Debug)]
pub(super) struct Chain {
    /// Peer of the first response.
    first: Option<IpAddr>,
    redirects: usize,
    /// Whether every redirect was 301 or 308, and none led from https to http.
    permanent: bool,
}

impl Chain {
    pub(super) fn new() -> Self {
        Self {
            first: None,
            redirects: 0,
            permanent: true,
        }
    }

    /// Returns the target of a redirect.
    pub(super) fn follow(
        &mut self,
        url: &Url,
        headers: &HeaderMap,
        permanent: bool,
        peer: Option<IpAddr>,
    ) -> Result<Url, FetchError> {
        let next = target(url, headers)?;
        let downgrade = url.scheme() == "https" && next.scheme() != "https";
        self.permanent &= permanent && !downgrade;
        if self.redirects == 0 {
            self.first = peer;
        }
        self.redirects += 1;
        Ok(next)
    }

    /// Whether the current server answers permanently for the feed's own address.
    pub(super) fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// Returns the address to remember: that of the last response, if it is permanent.
    pub(super) fn moved_to(&self, url: &Url, peer: Option<IpAddr>) -> Option<String> {
        if self.redirects == 0 || !self.permanent {
            return None;
        }
        // Also if private addresses are allowed: a server on the internet does not decide which
        // host of the private network is polled from now on.
        let (first, last) = (self.first.map(is_public), peer.map(is_public));
        let inward = first != Some(false) && last != Some(true);
        let mut url = url.clone();
        url.set_fragment(None);
        (!inward).then(|| without_credentials(&url))
    }
}

fn target(url: &Url, headers: &HeaderMap) -> Result<Url, FetchError> {
    let broken = |why: &str| FetchError::Redirect {
        url: redacted(url),
        why: why.into(),
    };
    let location = headers
        .get(LOCATION)
        .ok_or_else(|| broken("without saying where to"))?;
    let location = std::str::from_utf8(location.as_bytes())
        .map_err(|_| broken("to an address that is not text"))?;
    let mut next = url
        .join(location)
        .map_err(|e| broken(&format!("to an address that is none ({e})")))?;
    if !matches!(next.scheme(), "http" | "https") {
        return Err(broken(&format!("to the scheme {}:", next.scheme())));
    }
    carry_credentials(url, &mut next);
    Ok(next)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn addresses_are_checked_before_anything_is_sent() {
        for bad in [
            "",
            "lore.kernel.org",
            "ftp://example.org/",
            "file:///etc/passwd",
            "data:,x",
        ] {
            let error = check(bad, false).unwrap_err();
            assert!(matches!(error, FetchError::Address { .. }), "{bad}");
        }
        for private in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://[::1]/",
            "http://[::ffff:10.0.0.1]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:a00:1::]/",
            "http://169.254.169.254/latest/meta-data/",
            "http://[fd00:ec2::254]/latest/meta-data/",
            "http://u:p@192.168.1.1/",
            "http://localhost/",
            "http://LOCALHOST.:8080/f",
            "http://a.localhost/",
        ] {
            let error = check(private, false).unwrap_err();
            assert!(matches!(error, FetchError::Private { .. }), "{private}");
            assert!(!error.to_string().contains("u:p"), "{error}");
            assert!(check(private, true).is_ok(), "{private}");
        }
        for public in ["https://example.org/feed", "https://localhost.example.org/"] {
            assert!(check(public, false).is_ok(), "{public}");
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        let secret = "https://user:secret@example.org/f";
        assert_eq!(redacted(&url(secret)), "https://example.org/f");
        let keys = "https://a:b@example.org/f?channel=5&key=s3cret&s3cret&x=#s3cret";
        assert_eq!(
            redacted(&url(keys)),
            "https://example.org/f?channel=***&key=***&***&x=***"
        );
        let broken = check("https://user:secret@exa mple.org/", false).unwrap_err();
        assert!(!broken.to_string().contains("secret"), "{broken}");
    }

    #[test]
    fn credentials_stay_with_their_server() {
        let after = |from: &str, to: &str| {
            let mut to = url(to);
            carry_credentials(&url(from), &mut to);
            to.to_string()
        };
        let from = "http://u:p@example.org/f";
        assert_eq!(
            after(from, "http://example.org/g"),
            "http://u:p@example.org/g"
        );
        assert_eq!(
            after(from, "https://example.org/g"),
            "https://u:p@example.org/g"
        );
        assert_eq!(
            after(from, "http://a:b@example.org/"),
            "http://a:b@example.org/"
        );
        for other in [
            "http://example.com/g",
            "http://www.example.org/g",
            "http://example.org:8080/g",
            "https://example.org:8443/g",
        ] {
            assert_eq!(after(from, other), other);
        }
        let down = after("https://u:p@example.org/f", "http://example.org/f");
        assert_eq!(down, "http://example.org/f");
        let moved_to = moved(from, "https://example.org/g").unwrap();
        assert_eq!(moved_to, "https://u:p@example.org/g");
        assert_eq!(moved("https://example.org/f", "http://example.org/f"), None);
    }

    /// Returns the address that is remembered after redirects. `hops` are statuses, targets and
    /// peers; `last` is the peer of the last response.
    fn remembered(start: &str, hops: &[(u16, &str, &str)], last: &str) -> Option<String> {
        let mut chain = Chain::new();
        let mut at = url(start);
        for (status, to, peer) in hops {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, to.parse().unwrap());
            let permanent = matches!(status, 301 | 308);
            at = chain
                .follow(&at, &headers, permanent, Some(peer.parse().unwrap()))
                .unwrap();
        }
        chain.moved_to(&at, Some(last.parse().unwrap()))
    }

    #[test]
    fn only_fully_permanent_redirects_are_remembered() {
        let (a, b, c) = ("http://a.org/", "https://b.org/", "https://b.org/c#x");
        let (one, two) = ("1.1.1.1", "8.8.8.8");
        assert_eq!(remembered(a, &[], one), None);
        assert_eq!(remembered(a, &[(301, b, one)], two).as_deref(), Some(b));
        let both = [(308, b, one), (301, c, two)];
        assert_eq!(
            remembered(a, &both, two).as_deref(),
            Some("https://b.org/c")
        );
        for temporary in [302, 303, 307] {
            assert_eq!(
                remembered(a, &[(temporary, b, one), (301, c, two)], two),
                None
            );
            assert_eq!(
                remembered(a, &[(301, b, one), (temporary, c, two)], two),
                None
            );
        }
    }

    #[test]
    fn nothing_less_safe_is_remembered() {
        let (one, inside) = ("1.1.1.1", "10.0.0.1");
        let down = [(301, "http://a.org/", one)];
        assert_eq!(remembered("https://a.org/", &down, one), None);
        let down_and_up = [(301, "http://a.org/", one), (301, "https://a.org/x", one)];
        assert_eq!(remembered("https://a.org/", &down_and_up, one), None);
        let inward = [(301, "http://b.org/", one)];
        assert_eq!(remembered("http://a.org/", &inward, inside), None);
        let within = [(301, "http://b.org/", inside)];
        let kept = remembered("http://a.org/", &within, inside);
        assert_eq!(kept.as_deref(), Some("http://b.org/"));
        let outward = remembered("http://a.org/", &within, one);
        assert_eq!(outward.as_deref(), Some("http://b.org/"));
    }
}
