//! Polling of a feed's server: conditional GET (RFC 9110 section 13) with bounds on time, size and
//! redirects, and without access to the private network by a feed's address.

mod address;
mod client;
mod config;
mod error;
mod guard;
mod hints;
mod limits;

use std::net::IpAddr;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use reqwest::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED,
};
use reqwest::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use url::Url;

use address::{Chain, carry_credentials, permit};
pub use address::{check, check_name, moved, redacted, without_credentials};
use client::Http;
pub use client::check_contact;
pub use config::{FetchConfig, MAX_BYTES};
pub use error::FetchError;
use guard::Guard;
pub use guard::{Lookup, is_public, system_lookup};
pub use hints::Hints;
pub use limits::{GLOBAL, Limits, PER_HOST};

/// Size of an archive page relative to the feed's limit: searches return many more entries than a
/// feed shows.
const PAGE_FACTOR: usize = 4;

/// Longest validator that is kept; a longer one is treated as absent.
const MAX_VALIDATOR: usize = 1024;

/// Longest accepted label of an encoding.
const MAX_CHARSET: usize = 64;

/// Bytes of an error response's body that are examined to describe it.
const ERROR_BODY: usize = 16 << 10;

const ACCEPTED: &str = "application/atom+xml, application/rss+xml, application/feed+json, \
                        application/xml;q=0.9, application/json;q=0.9, text/xml;q=0.9, */*;q=0.1";

/// Validators of a document version, to be sent with the next poll.
///
/// Store them only once the document's updates are stored: with the validators of a document that
/// was never processed, the server would answer "not modified" and the document would be lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// `ETag`, verbatim.
    pub etag: Option<String>,
    /// `Last-Modified` date, verbatim.
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

/// Result of a poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Poll {
    /// The document of the validators is still the current one.
    NotModified {
        /// Other hints of the server.
        hints: Hints,
    },
    /// Document, which may or may not be a feed.
    Fetched {
        /// Bytes of the document, decompressed.
        document: Bytes,
        /// Validators for the next poll.
        validators: Validators,
        /// Final address without credentials: the base of relative links.
        url: String,
        /// Encoding stated by the server (`charset` of `Content-Type`).
        charset: Option<String>,
        /// Other hints of the server.
        hints: Hints,
    },
}

/// Document that belongs to a feed, such as a page of its archive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// Bytes of the document, decompressed.
    pub document: Bytes,
    /// Final address, without credentials.
    pub url: String,
    /// Encoding stated by the server (`charset` of `Content-Type`).
    pub charset: Option<String>,
}

/// Client that polls one feed.
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

    /// Fetches the feed, unless the document of the validators is still current.
    ///
    /// # Errors
    /// [`FetchError`]. After [`FetchError::Gone`] the feed should not be polled again; after any
    /// other error it may be.
    pub async fn poll(&self, validators: &Validators) -> Result<Poll, FetchError> {
        self.follow(&self.url, validators, self.config.max_bytes)
            .await
    }

    /// Fetches another document that the feed links to, under the same rules, except that it may be
    /// four times as large. The feed's credentials are sent to the same server only.
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
            // Without validators, a 304 has already been an error.
            Poll::NotModified { .. } => Err(FetchError::Status {
                url: redacted(&url),
                status: 304,
                retry_after: None,
                seen: None,
                challenge: false,
            }),
        }
    }

    /// Sends one request and follows its redirects. The client does not follow them itself, so that
    /// each address is checked before anything is sent to it.
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
            // Each request has its own permit, so that none is held while waiting for another.
            let permit = self
                .config
                .limits
                .permit(url.host_str().unwrap_or_default());
            let permit = permit.await;
            let began = Instant::now();
            let step = self.step(&url, validators, limit, &mut chain);
            let step = tokio::time::timeout(left, step).await;
            drop(permit);
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

    /// Sends one request.
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
            // An unsolicited 304 is a protocol violation; honouring it would mean never reading the
            // feed.
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
            // After a temporary redirect, 410 says nothing about the feed's own address.
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
        // Refused before reading; for a compressed body the length says little.
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

/// Result of one request.
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

/// Returns the label of the encoding in `Content-Type` (RFC 9110 section 8.3.2), if present: feeds
/// do not mean the US-ASCII that `text/xml` once implied.
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

/// Returns the error for a response without a document.
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
