//! Asking a feed's server whether there is something new: conditional GET (RFC 9110 section 13)
//! with bounds on time, size and redirects, and without letting a feed's address reach into the
//! private network.

mod error;
mod guard;

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{
    ACCEPT, CONTENT_ENCODING, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LAST_MODIFIED, LOCATION, RETRY_AFTER,
};
use reqwest::{Client, Response, StatusCode};
use serde::{Deserialize, Serialize};
use url::Url;

pub use error::FetchError;
use guard::{Forbidden, Guard};

/// The largest document by default, in bytes after decompression: 8 MiB.
pub const MAX_BYTES: usize = 8 << 20;

/// The longest validator that is remembered; a longer one is taken as absent.
const MAX_VALIDATOR: usize = 1024;

/// How much of an error response's body is looked at to say what it is.
const ERROR_BODY: usize = 16 << 10;

/// The longest wait that a server can ask for: a day.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);

const ACCEPTED: &str = "application/atom+xml, application/rss+xml, application/feed+json, \
                        application/xml;q=0.9, application/json;q=0.9, text/xml;q=0.9, */*;q=0.1";

/// How to fetch one feed.
#[derive(Debug, Clone)]
pub struct FetchConfig {
    /// The feed's address, `http` or `https`.
    pub url: String,
    /// Lets the address lead to private, loopback and similar networks.
    pub allow_private: bool,
    /// The `User-Agent`: should say who asks.
    pub user_agent: String,
    /// The largest document, in bytes after decompression.
    pub max_bytes: usize,
    /// For one poll as a whole, redirects and body included.
    pub timeout: Duration,
    /// For one connection to be made.
    pub connect_timeout: Duration,
    /// How many redirects are followed.
    pub max_redirects: usize,
}

impl FetchConfig {
    /// The defaults: private networks refused, 8 MiB, 30 s (10 s to connect), 5 redirects.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            allow_private: false,
            user_agent: concat!("flexfeed/", env!("CARGO_PKG_VERSION")).into(),
            max_bytes: MAX_BYTES,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            max_redirects: 5,
        }
    }
}

/// What a server said about a document's version, to be given back at the next poll.
///
/// Keep them only once the document's updates are stored: with the validators of a document that
/// was never taken in, the server would say "not modified" and it would be lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// The `ETag`, as it was.
    pub etag: Option<String>,
    /// The `Last-Modified` date, as it was.
    pub last_modified: Option<String>,
}

impl Validators {
    fn of(headers: &HeaderMap) -> Self {
        let get = |name: HeaderName| {
            let value = headers.get(name)?.to_str().ok()?;
            (value.len() <= MAX_VALIDATOR).then(|| value.to_owned())
        };
        Self {
            etag: get(ETAG),
            last_modified: get(LAST_MODIFIED),
        }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED));
        for (name, value) in [
            (IF_NONE_MATCH, &self.etag),
            (IF_MODIFIED_SINCE, &self.last_modified),
        ] {
            if let Some(value) = value
                && let Ok(value) = HeaderValue::from_str(value)
            {
                headers.insert(name, value);
            }
        }
        headers
    }

    fn is_empty(&self) -> bool {
        self.etag.is_none() && self.last_modified.is_none()
    }
}

/// What a poll brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Poll {
    /// The document that the validators are of is still the current one.
    NotModified,
    /// A document, which may or may not be a feed.
    Fetched {
        /// Its bytes, decompressed.
        document: Bytes,
        /// For the next poll.
        validators: Validators,
        /// Where it came from in the end, without credentials: the base of relative links.
        url: String,
    },
}

/// Polls one feed.
#[derive(Debug)]
pub struct Fetcher {
    config: FetchConfig,
    url: Url,
    client: Client,
    /// What to say about https where no certificate authorities were found.
    tls_note: Option<String>,
}

impl Fetcher {
    /// Prepares polling. Nothing is sent.
    ///
    /// # Errors
    /// [`FetchError::Address`] if the address is not a URL of `http` or `https` with a host,
    /// [`FetchError::Private`] if it names a private address, [`FetchError::Client`].
    pub fn new(config: FetchConfig) -> Result<Self, FetchError> {
        let url = Url::parse(&config.url).map_err(|e| FetchError::Address {
            url: config.url.chars().take(200).collect(),
            why: format!("{e}; write it as https://host/path"),
        })?;
        check_address(&url, config.allow_private)?;
        let (client, tls_note) = client(&config)?;
        Ok(Self {
            config,
            url,
            client,
            tls_note,
        })
    }

    /// Fetches the feed, unless it still is the document that the validators are of.
    ///
    /// # Errors
    /// [`FetchError`]; the feed may be polled again after any of them.
    pub async fn poll(&mut self, validators: &Validators) -> Result<Poll, FetchError> {
        let after = self.config.timeout;
        match tokio::time::timeout(after, self.follow(validators)).await {
            Ok(result) => result,
            Err(_) => Err(FetchError::Timeout {
                url: shown(&self.url),
                after,
            }),
        }
    }

    /// One request and the redirects that it leads to. They are followed here and not by the
    /// client, so that each address is checked before anything is sent to it.
    async fn follow(&self, validators: &Validators) -> Result<Poll, FetchError> {
        let mut url = self.url.clone();
        for _ in 0..=self.config.max_redirects {
            check_address(&url, self.config.allow_private)?;
            let request = self.client.get(url.clone()).headers(validators.headers());
            let response = request.send().await.map_err(|e| self.error(&url, &e))?;
            let status = response.status();
            match status {
                StatusCode::OK => return self.document(&url, response).await,
                // A server that says so without having been asked is out of order; taking it at
                // its word would mean never reading the feed.
                StatusCode::NOT_MODIFIED if !validators.is_empty() => {
                    return Ok(Poll::NotModified);
                }
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => url = target(&url, response.headers())?,
                _ => return Err(refusal(&url, response).await),
            }
        }
        Err(FetchError::Redirect {
            url: shown(&self.url),
            why: format!("more than {} times", self.config.max_redirects),
        })
    }

    async fn document(&self, url: &Url, mut response: Response) -> Result<Poll, FetchError> {
        let limit = self.config.max_bytes;
        let too_large = || FetchError::TooLarge {
            url: shown(url),
            limit,
        };
        // Worth refusing before reading; for a compressed body the length says little.
        let compressed = response.headers().contains_key(CONTENT_ENCODING);
        if !compressed && response.content_length().is_some_and(|n| n > limit as u64) {
            return Err(too_large());
        }
        let validators = Validators::of(response.headers());
        let mut document = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.error(url, &e))? {
            if document.len() + chunk.len() > limit {
                return Err(too_large());
            }
            document.extend_from_slice(&chunk);
        }
        Ok(Poll::Fetched {
            document: document.freeze(),
            validators,
            url: shown(url),
        })
    }

    fn error(&self, url: &Url, error: &reqwest::Error) -> FetchError {
        let mut causes: Vec<String> = Vec::new();
        let mut next: Option<&(dyn StdError + 'static)> = error.source();
        while let Some(cause) = next {
            if let Some(forbidden) = cause.downcast_ref::<Forbidden>() {
                return FetchError::Private {
                    url: shown(url),
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
                url: shown(url),
                after: self.config.connect_timeout,
            };
        }
        if causes.is_empty() {
            // Its own text holds the address with everything in it.
            causes.push("the request failed".into());
        }
        if url.scheme() == "https" {
            causes.extend(self.tls_note.clone());
        }
        FetchError::Transport {
            url: shown(url),
            why: causes.join(": "),
        }
    }
}

/// Makes the client, and says what is wrong with https where only http will work.
fn client(config: &FetchConfig) -> Result<(Client, Option<String>), FetchError> {
    // The client takes the process's provider. An error means that there is one already, be it by
    // an earlier call of this, and that is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        Client::builder()
            .user_agent(&config.user_agent)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(config.connect_timeout)
            .pool_max_idle_per_host(1)
            .dns_resolver(Arc::new(Guard {
                allow_private: config.allow_private,
            }))
    };
    let failed = |e: reqwest::Error| {
        let cause = e.source().map(ToString::to_string);
        cause.unwrap_or_else(|| e.to_string())
    };
    match builder().build() {
        Ok(client) => Ok((client, None)),
        // A machine without certificate authorities can still fetch over plain http.
        Err(e) => {
            let note = format!(
                "{} (https needs the certificate authorities of the system: install the package \
                 ca-certificates)",
                failed(e)
            );
            match builder().tls_certs_only([]).build() {
                Ok(client) => Ok((client, Some(note))),
                Err(e) => Err(FetchError::Client(failed(e))),
            }
        }
    }
}

/// Refuses what is not http(s), and literal addresses outside the public network. Names are
/// checked when they are resolved.
fn check_address(url: &Url, allow_private: bool) -> Result<(), FetchError> {
    let refuse = |why: &str| {
        Err(FetchError::Address {
            url: shown(url),
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
    if allow_private || guard::is_public(address) {
        return Ok(());
    }
    Err(FetchError::Private {
        url: shown(url),
        host: address.to_string(),
        address,
    })
}

/// Where a redirect leads.
fn target(url: &Url, headers: &HeaderMap) -> Result<Url, FetchError> {
    let broken = |why: &str| FetchError::Redirect {
        url: shown(url),
        why: why.into(),
    };
    let location = headers
        .get(LOCATION)
        .ok_or_else(|| broken("without saying where to"))?;
    let location = std::str::from_utf8(location.as_bytes())
        .map_err(|_| broken("to an address that is not text"))?;
    let next = url
        .join(location)
        .map_err(|e| broken(&format!("to an address that is none ({e})")))?;
    if !matches!(next.scheme(), "http" | "https") {
        return Err(broken(&format!("to the scheme {}:", next.scheme())));
    }
    Ok(next)
}

/// The error for a response that brings no document.
async fn refusal(url: &Url, mut response: Response) -> FetchError {
    let status = response.status();
    let retry_after = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    )
    .then(|| retry_after(response.headers(), Timestamp::now()))
    .flatten();
    let mut body = Vec::new();
    while body.len() < ERROR_BODY {
        match response.chunk().await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) | Err(_) => break,
        }
    }
    body.truncate(ERROR_BODY);
    let (seen, challenge) = if body.is_empty() {
        (None, false)
    } else {
        let (seen, challenge) = crate::parse::describe(&body);
        (Some(seen), challenge)
    };
    FetchError::Status {
        url: shown(url),
        status: status.as_u16(),
        retry_after,
        seen,
        challenge,
    }
}

/// `Retry-After` (RFC 9110 section 10.2.3): seconds or a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if value.bytes().all(|b| b.is_ascii_digit()) {
        // Digits that do not fit are a very long wait.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date = rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
        let seconds = date.as_second().saturating_sub(now.as_second());
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// The address without credentials.
fn shown(url: &Url) -> String {
    if url.username().is_empty() && url.password().is_none() {
        return url.to_string();
    }
    let mut url = url.clone();
    // These fail only for addresses without a host, which have no credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn wait(value: &str) -> Option<u64> {
        let now = "1994-11-06T08:49:00Z".parse().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, value.parse().unwrap());
        retry_after(&headers, now).map(|d| d.as_secs())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(wait("120"), Some(120));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(37));
        assert_eq!(wait("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
        assert_eq!(wait("99999999999999999999999"), Some(86_400));
        assert_eq!(wait("soon"), None);
        assert_eq!(wait("-1"), None);
    }

    #[test]
    fn addresses_are_checked_before_anything_is_sent() {
        let new = |url: &str| Fetcher::new(FetchConfig::new(url));
        for bad in [
            "",
            "lore.kernel.org",
            "ftp://example.org/",
            "file:///etc/passwd",
            "data:,x",
        ] {
            assert!(matches!(new(bad), Err(FetchError::Address { .. })), "{bad}");
        }
        for private in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://[::1]/",
            "http://[::ffff:10.0.0.1]/",
            "http://169.254.169.254/latest/meta-data/",
            "http://u:p@192.168.1.1/",
        ] {
            let error = new(private).unwrap_err();
            assert!(matches!(error, FetchError::Private { .. }), "{private}");
            assert!(!error.to_string().contains("u:p"), "{error}");
        }
        assert!(new("https://example.org/feed").is_ok());
    }

    #[test]
    fn credentials_are_not_shown() {
        let url = Url::parse("https://user:secret@example.org/f").unwrap();
        assert_eq!(shown(&url), "https://example.org/f");
    }

    #[test]
    fn overlong_validators_are_dropped() {
        let mut headers = HeaderMap::new();
        headers.insert(ETAG, "x".repeat(MAX_VALIDATOR + 1).parse().unwrap());
        headers.insert(LAST_MODIFIED, "today".parse().unwrap());
        let validators = Validators::of(&headers);
        assert_eq!(validators.etag, None);
        assert_eq!(validators.last_modified.as_deref(), Some("today"));
    }
}
