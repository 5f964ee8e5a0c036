//! Asking a feed's server whether there is something new: conditional GET (RFC 9110 section 13)
//! with bounds on time, size and redirects, and without letting a feed's address reach into the
//! private network.

mod address;
mod client;
mod error;
mod guard;
mod hints;
mod limits;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use reqwest::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED,
};
use reqwest::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use url::Url;

use address::{Chain, carry_credentials, permit, without_credentials};
pub use address::{check, check_name, moved, redacted};
use client::Http;
pub use client::check_contact;
pub use error::FetchError;
use guard::Guard;
pub use guard::{Lookup, is_public, system_lookup};
pub use hints::Hints;
pub use limits::{GLOBAL, Limits, PER_HOST};

/// The largest document by default, in bytes after decompression: 8 MiB.
pub const MAX_BYTES: usize = 8 << 20;

/// A page of an archive may be so many times as large as the feed: searches answer with many more
/// entries than a feed shows.
const PAGE_FACTOR: usize = 4;

/// The longest validator that is remembered; a longer one is taken as absent.
const MAX_VALIDATOR: usize = 1024;

/// The longest label of an encoding that is taken.
const MAX_CHARSET: usize = 64;

/// How much of an error response's body is looked at to say what it is.
const ERROR_BODY: usize = 16 << 10;

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
    /// A URL or `mailto:` address in the `User-Agent` for those who run the feed's server; see
    /// [`check_contact`].
    pub contact: Option<String>,
    /// The largest document, in bytes after decompression.
    pub max_bytes: usize,
    /// For one poll as a whole, redirects and body included. Waiting for a turn does not count.
    pub timeout: Duration,
    /// For one connection to be made.
    pub connect_timeout: Duration,
    /// How many redirects are followed.
    pub max_redirects: usize,
    /// How many requests there are at a time; one for all fetchers of a process.
    pub limits: Arc<Limits>,
}

impl FetchConfig {
    /// The defaults: private networks refused, 8 MiB, 30 s (10 s to connect), 5 redirects, and the
    /// usual limits, shared with nobody.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            allow_private: false,
            user_agent: concat!("flexfeed/", env!("CARGO_PKG_VERSION")).into(),
            contact: None,
            max_bytes: MAX_BYTES,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            max_redirects: 5,
            limits: Arc::default(),
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
    NotModified {
        /// What else the server said.
        hints: Hints,
    },
    /// A document, which may or may not be a feed.
    Fetched {
        /// Its bytes, decompressed.
        document: Bytes,
        /// For the next poll.
        validators: Validators,
        /// Where it came from in the end, without credentials: the base of relative links.
        url: String,
        /// The encoding that the server states (`charset` of `Content-Type`).
        charset: Option<String>,
        /// What else the server said.
        hints: Hints,
    },
}

/// A document that belongs to a feed, such as a page of its archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Its bytes, decompressed.
    pub document: Bytes,
    /// Where it came from in the end, without credentials.
    pub url: String,
    /// The encoding that the server states (`charset` of `Content-Type`).
    pub charset: Option<String>,
}

/// Polls one feed.
#[derive(Debug)]
pub struct Fetcher {
    config: FetchConfig,
    url: Url,
    guard: Guard,
    http: Http,
}

impl Fetcher {
    /// Prepares polling. Nothing is sent.
    ///
    /// # Errors
    /// [`FetchError::Address`] if the address is not a URL of `http` or `https` with a host,
    /// [`FetchError::Private`] if it names a private address, [`FetchError::Client`].
    pub fn new(config: FetchConfig) -> Result<Self, FetchError> {
        let guard = Guard::system(config.allow_private);
        Self::guarded(config, guard)
    }

    fn guarded(config: FetchConfig, guard: Guard) -> Result<Self, FetchError> {
        let url = address::parse(&config.url)?;
        permit(&url, &guard)?;
        let http = Http::new(&config, &guard)?;
        Ok(Self {
            config,
            url,
            guard,
            http,
        })
    }

    /// Fetches the feed, unless it still is the document that the validators are of.
    ///
    /// # Errors
    /// [`FetchError`]. After [`FetchError::Gone`] the feed should be left alone; after any other
    /// one it may be polled again.
    pub async fn poll(&self, validators: &Validators) -> Result<Poll, FetchError> {
        self.follow(&self.url, validators, self.config.max_bytes)
            .await
    }

    /// Fetches another document that the feed leads to, under the same rules, but that it may be
    /// four times as large. The feed's credentials go along where it is on the same server.
    ///
    /// # Errors
    /// [`FetchError`].
    pub async fn get(&self, address: &str) -> Result<Page, FetchError> {
        let mut url = address::parse(address)?;
        carry_credentials(&self.url, &mut url);
        let limit = self.config.max_bytes.saturating_mul(PAGE_FACTOR);
        match self.follow(&url, &Validators::default(), limit).await? {
            Poll::Fetched {
                document,
                url,
                charset,
                ..
            } => Ok(Page {
                document,
                url,
                charset,
            }),
            // Without validators a 304 is an error before it comes to this.
            Poll::NotModified { .. } => Err(FetchError::Status {
                url: redacted(&url),
                status: 304,
                retry_after: None,
                seen: None,
                challenge: false,
            }),
        }
    }

    /// One request and the redirects that it leads to. They are followed here and not by the
    /// client, so that each address is checked before anything is sent to it.
    async fn follow(
        &self,
        start: &Url,
        validators: &Validators,
        limit: usize,
    ) -> Result<Poll, FetchError> {
        let late = || FetchError::Timeout {
            url: redacted(start),
            after: self.config.timeout,
        };
        let mut left = self.config.timeout;
        let mut chain = Chain::new();
        let mut url = start.clone();
        for _ in 0..=self.config.max_redirects {
            permit(&url, &self.guard)?;
            // Each request has its own turn, so that nobody holds one while waiting for another.
            let turn = self.config.limits.turn(url.host_str().unwrap_or_default());
            let turn = turn.await;
            let began = Instant::now();
            let step = self.step(&url, validators, limit, &mut chain);
            let step = tokio::time::timeout(left, step).await;
            drop(turn);
            left = left.saturating_sub(began.elapsed());
            match step.map_err(|_| late())?? {
                Step::Done(poll) => return Ok(poll),
                Step::Redirect(next) => url = next,
            }
        }
        Err(FetchError::Redirect {
            url: redacted(start),
            why: format!("more than {} times", self.config.max_redirects),
        })
    }

    /// One request.
    async fn step(
        &self,
        url: &Url,
        validators: &Validators,
        limit: usize,
        chain: &mut Chain,
    ) -> Result<Step, FetchError> {
        let request = self.http.client.get(url.clone());
        let request = request.headers(validators.headers());
        let response = request.send().await.map_err(|e| self.http.error(url, &e))?;
        let peer = response.remote_addr().map(|peer| peer.ip());
        let status = response.status();
        match status {
            StatusCode::OK => {
                let hints = hints(&response, chain, url, peer);
                let poll = self.document(url, response, limit, hints).await?;
                Ok(Step::Done(poll))
            }
            // A server that says so without having been asked is out of order; taking it at
            // its word would mean never reading the feed.
            StatusCode::NOT_MODIFIED if !validators.is_empty() => {
                let hints = hints(&response, chain, url, peer);
                Ok(Step::Done(Poll::NotModified { hints }))
            }
            StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT => {
                let permanent = matches!(
                    status,
                    StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT
                );
                let next = chain.follow(url, response.headers(), permanent, peer)?;
                Ok(Step::Redirect(next))
            }
            // Behind a temporary redirect it says nothing about the feed's own address.
            StatusCode::GONE if chain.is_permanent() => {
                Err(FetchError::Gone { url: redacted(url) })
            }
            _ => Err(refusal(url, response).await),
        }
    }

    async fn document(
        &self,
        url: &Url,
        mut response: Response,
        limit: usize,
        hints: Hints,
    ) -> Result<Poll, FetchError> {
        let too_large = || FetchError::TooLarge {
            url: redacted(url),
            limit,
        };
        // Worth refusing before reading; for a compressed body the length says little.
        let compressed = response.headers().contains_key(CONTENT_ENCODING);
        if !compressed && response.content_length().is_some_and(|n| n > limit as u64) {
            return Err(too_large());
        }
        let validators = Validators::of(response.headers());
        let charset = charset(response.headers());
        let mut document = BytesMut::new();
        let failed = |e: reqwest::Error| self.http.error(url, &e);
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if document.len() + chunk.len() > limit {
                return Err(too_large());
            }
            document.extend_from_slice(&chunk);
        }
        Ok(Poll::Fetched {
            document: document.freeze(),
            validators,
            url: without_credentials(url),
            charset,
            hints,
        })
    }
}

/// What one request led to.
enum Step {
    Done(Poll),
    Redirect(Url),
}

fn hints(response: &Response, chain: &Chain, url: &Url, peer: Option<IpAddr>) -> Hints {
    Hints {
        moved_to: chain.moved_to(url, peer),
        ..Hints::of(response.headers(), Timestamp::now())
    }
}

/// The label of the encoding in `Content-Type` (RFC 9110 section 8.3.2). Without one there is none:
/// the US-ASCII that `text/xml` once stood for is not what feeds mean.
fn charset(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let label = value.split(';').skip(1).find_map(|parameter| {
        let (name, label) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then_some(label)
    })?;
    let label = label.trim().trim_matches(['"', '\'']).trim();
    (1..=MAX_CHARSET)
        .contains(&label.len())
        .then(|| label.to_owned())
}

/// The error for a response that brings no document.
async fn refusal(url: &Url, mut response: Response) -> FetchError {
    let status = response.status();
    let retry_after = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    )
    .then(|| hints::retry_after(response.headers(), Timestamp::now()))
    .flatten();
    let charset = charset(response.headers());
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
        let (seen, challenge) = crate::parse::describe(&body, charset.as_deref());
        (Some(seen), challenge)
    };
    FetchError::Status {
        url: redacted(url),
        status: status.as_u16(),
        retry_after,
        seen,
        challenge,
    }
}

#[cfg(test)]
mod tests;
