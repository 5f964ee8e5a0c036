//! Host names that a site answers to if only this machine reaches it.
//!
//! A page from anywhere may have its own name point to this machine afterwards (DNS rebinding):
//! the browser then takes this site for the page's own, and allows the page to read it. The browser
//! still sends that name, so a site without passwords answers only to names that no attacker can
//! own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CONTENT_SECURITY_POLICY, HOST, X_CONTENT_TYPE_OPTIONS};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;

/// Returns the site with [`harmless`] answers; if `local`, so if only this machine reaches it, it
/// refuses requests for other hosts.
pub fn guarded(program: &'static str, local: bool, site: Router) -> Router {
    site.layer(from_fn(move |request: Request, next: Next| async move {
        let refusal = match local {
            true => refusal(program, request.uri(), request.headers()),
            false => None,
        };
        harmless(match refusal {
            Some(refusal) => refusal.into_response(),
            None => next.run(request).await,
        })
    }))
}

/// Keeps browsers from taking text of feeds and peers for a page of this site. A page with a policy
/// of its own keeps it.
#[must_use]
pub fn harmless(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers
        .entry(CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; sandbox"));
    response
}

/// Whether only this machine can connect to an address.
#[must_use]
pub fn is_own(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Whether only this machine can connect to a listener. One without a known address is held to the
/// strict rule.
#[must_use]
pub fn is_local(listener: &TcpListener) -> bool {
    listener.local_addr().map_or(true, |at| is_own(at.ip()))
}

/// Returns the refusal of a request that names another host than `program`'s. A request without a
/// name is from no browser.
#[must_use]
pub fn refusal(program: &str, uri: &Uri, headers: &HeaderMap) -> Option<(StatusCode, String)> {
    let named = headers.get_all(HOST).iter().all(|host| {
        let host = host.to_str().ok();
        host.and_then(|host| host.parse().ok())
            .is_some_and(|authority| is_trusted(&authority))
    });
    if named && uri.authority().is_none_or(is_trusted) {
        return None;
    }
    Some((
        StatusCode::MISDIRECTED_REQUEST,
        format!(
            "{program} answers on this machine only, and only to the name localhost or an IP \
             address: use http://localhost:PORT/ or http://127.0.0.1:PORT/. For a proxy in front, \
             set such a Host there, or another address here (--http)\n"
        ),
    ))
}

/// Whether the host is `localhost` or an IP address, with any port.
fn is_trusted(authority: &Authority) -> bool {
    let host = authority.host();
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => host.eq_ignore_ascii_case("localhost") || host.parse::<Ipv4Addr>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_names_that_no_attacker_can_own_are_trusted() {
        for good in [
            "localhost",
            "LocalHost:80",
            "127.0.0.1:8080",
            "10.1.2.3",
            "[::1]:80",
            "[::1]",
        ] {
            assert!(is_trusted(&good.parse().unwrap()), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost@evil.example",
            "2130706433",
        ] {
            assert!(!is_trusted(&bad.parse().unwrap()), "{bad}");
        }
    }

    #[test]
    fn loopback_addresses_are_own() {
        for own in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(is_own(own.parse().unwrap()), "{own}");
        }
        for other in ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1"] {
            assert!(!is_own(other.parse().unwrap()), "{other}");
        }
    }
}
