//! The HTTP client of a fetcher, and the meaning of its errors.

use std::error::Error as StdError;
use std::sync::{Arc, Once};
use std::time::Duration;

use reqwest::Client;
use tracing::warn;
use url::Url;

use super::address::redacted;
use super::config::FetchConfig;
use super::error::FetchError;
use super::guard::{ForbiddenAddress, Guard};

/// Largest number of header fields in a response. The client limits their bytes to about 400 KiB.
const MAX_HEADERS: usize = 128;

/// Longest contact, in bytes.
const MAX_CONTACT: usize = 200;

/// Environment variables that configure a proxy for other programs.
const PROXIES: [&str; 6] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
];

/// HTTP client, and the reason if https is unavailable.
#[derive(Debug)]
pub(super) struct Http {
    pub(super) client: Client,
    tls_note: Option<String>,
    connect_timeout: Duration,
}

impl Http {
    pub(super) fn new(config: &FetchConfig, guard: &Guard) -> Result<Self, FetchError> {
        // The client uses the provider of the process. An error means that one is already
        // installed, possibly by an earlier call, which is just as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        name_ignored_proxies();
        let agent = user_agent(config)?;
        let builder = || {
            Client::builder()
                .user_agent(&agent)
                .redirect(reqwest::redirect::Policy::none())
                .referer(false)
                // A proxy would resolve names and connect in place of the guard, to any address, so
                // none is read from the environment.
                .no_proxy()
                .connect_timeout(config.connect_timeout)
                .pool_max_idle_per_host(1)
                .http1_max_headers(MAX_HEADERS)
                .dns_resolver(Arc::new(guard.clone()))
        };
        let failed = |e: reqwest::Error| {
            let cause = e.source().map(ToString::to_string);
            cause.unwrap_or_else(|| e.to_string())
        };
        let connect_timeout = config.connect_timeout;
        match builder().build() {
            Ok(client) => Ok(Self {
                client,
                tls_note: None,
                connect_timeout,
            }),
            // A machine without certificate authorities can still fetch over plain http.
            Err(e) => {
                let note = format!(
                    "{} (https needs the certificate authorities of the system: install the \
                     package ca-certificates)",
                    failed(e)
                );
                match builder().tls_certs_only([]).build() {
                    Ok(client) => Ok(Self {
                        client,
                        tls_note: Some(note),
                        connect_timeout,
                    }),
                    Err(e) => Err(FetchError::Client(failed(e))),
                }
            }
        }
    }

    /// Returns the fetch error for an error of the client.
    pub(super) fn error(&self, url: &Url, error: &reqwest::Error) -> FetchError {
        let mut causes: Vec<String> = Vec::new();
        let mut next: Option<&(dyn StdError + 'static)> = error.source();
        while let Some(cause) = next {
            if let Some(forbidden) = cause.downcast_ref::<ForbiddenAddress>() {
                return FetchError::Private {
                    url: redacted(url),
                    host: forbidden.host.clone(),
                    address: forbidden.address,
                };
            }
            let text = cause.to_string();
            if causes.last() != Some(&text) && causes.len() < 8 {
                causes.push(text);
            }
            next = cause.source();
        }
        if error.is_timeout() {
            return FetchError::Timeout {
                url: redacted(url),
                after: self.connect_timeout,
            };
        }
        if causes.is_empty() {
            // The client's own text contains the whole address.
            causes.push("the request failed".into());
        }
        if url.scheme() == "https" {
            causes.extend(self.tls_note.clone());
        }
        FetchError::Transport {
            url: redacted(url),
            why: causes.join(": "),
        }
    }
}

/// Returns `contact`, trimmed, if it can be named in the `User-Agent`: a URL of `http` or `https`,
/// or an address as `mailto:`.
///
/// # Errors
/// The defect of the contact, for people.
pub fn check_contact(contact: &str) -> Result<String, String> {
    let contact = contact.trim();
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'(' | b')' | b'\\' | b'"');
    let url = Url::parse(contact).ok();
    let known = url.is_some_and(|url| match url.scheme() {
        "http" | "https" => url.has_host() && url.username().is_empty() && url.password().is_none(),
        "mailto" => url.path().contains('@'),
        _ => false,
    });
    if known && contact.len() <= MAX_CONTACT && contact.bytes().all(plain) {
        return Ok(contact.to_owned());
    }
    Err(format!(
        "the contact {:?} for the servers of feeds has to be like https://example.org/about or \
         mailto:admin@example.org, with at most {MAX_CONTACT} plain characters",
        contact.chars().take(MAX_CONTACT).collect::<String>()
    ))
}

/// Returns the `User-Agent`, which names the program and the contact for complaints.
fn user_agent(config: &FetchConfig) -> Result<String, FetchError> {
    match &config.contact {
        None => Ok(config.user_agent.clone()),
        Some(contact) => {
            let contact = check_contact(contact).map_err(FetchError::Client)?;
            Ok(format!("{} (+{contact})", config.user_agent))
        }
    }
}

fn name_ignored_proxies() {
    static NAMED: Once = Once::new();
    NAMED.call_once(|| {
        let set = |name: &&&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let set: Vec<&str> = PROXIES.iter().filter(set).copied().collect();
        if !set.is_empty() {
            let variables = set.join(",");
            warn!(
                variables,
                "proxy settings ignored: feeds are fetched directly, because a proxy would resolve \
                 their names unchecked"
            );
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn the_contact_is_an_address_that_people_can_use() {
        for good in ["https://example.org/about?x=1", "mailto:a@b.org"] {
            assert_eq!(check_contact(good).as_deref(), Ok(good), "{good}");
        }
        let long = format!("https://example.org/{}", "x".repeat(300));
        for bad in [
            "",
            "example.org",
            "mailto:me",
            "ftp://example.org/",
            "https://u:p@example.org/",
            "https://example.org/a b",
            "https://example.org/(x)",
            "https://example.org/\r\nX: y",
            &long,
        ] {
            assert!(check_contact(bad).is_err(), "{bad}");
        }
        let mut config = FetchConfig::new("https://example.org/");
        config.contact = Some("https://me.org/".into());
        let agent = user_agent(&config).unwrap();
        assert!(agent.starts_with("flexfeed/") && agent.ends_with(" (+https://me.org/)"));
    }
}
