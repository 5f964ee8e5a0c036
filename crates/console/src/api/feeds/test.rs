//! Fetching a feed once, before it is added.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use feed::fetch::{FetchConfig, FetchError, Fetcher, Poll, Validators};
use feed::parse::{ParsedFeed, parse_served};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::check::{MAX_URL, read_address};
use crate::api::extract::Json as Body;
use crate::api::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::limit::seconds;
use crate::auth::rights::Scope;
use crate::site::Site;

/// User-Agent in the log of the feed's server.
const USER_AGENT: &str = concat!("flexfeed-console/", env!("CARGO_PKG_VERSION"));

/// Time limit, since a page waits for it.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Time limit for other tests of the same server.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time limit for looking a name up before a feed is added.
const LOOKUP: Duration = Duration::from_secs(3);

/// Number of entries shown.
const ENTRIES: usize = 10;

/// The longest text of what is shown, in characters.
const MAX_TEXT: usize = 300;

/// The longest part of a document that is no feed, in characters.
const MAX_EXCERPT: usize = 1_000;

/// A feed to be tested.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FeedToTest {
    /// Its address, with user name and password if it needs them.
    #[schema(required = true, max_length = 2048)]
    pub url: String,
}

/// Result of fetching an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedTest {
    /// `ok`, `not-a-feed`, `challenged` (the server demands a bot check), `gone` or `error`.
    #[schema(pattern = "^(ok|not-a-feed|challenged|gone|error)$")]
    pub state: String,
    /// The feed's own title; null if it has none, or is none.
    pub title: Option<String>,
    /// The result, in a sentence.
    pub detail: String,
    /// Time taken.
    pub took_ms: u64,
    /// Number of entries it has.
    pub entry_count: usize,
    /// The first ten of them.
    pub entries: Vec<TestedEntry>,
    /// The beginning of the document that is no feed; null if it is one.
    pub excerpt: Option<String>,
}

/// An entry of a tested feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TestedEntry {
    /// Its title; null if it has none.
    pub title: Option<String>,
    /// Its link; null if it has none.
    pub link: Option<String>,
    /// Time of publication or change as stated by the entry; Unix milliseconds; null if it states
    /// none.
    pub published_ms: Option<i64>,
}

/// Refuses an address that cannot be fetched, without a lookup.
pub(super) fn check_address(address: &str, local: bool) -> Result<(), Problem> {
    feed::fetch::check(address, local).map_err(|error| problem(&error))
}

/// Refuses an address whose name leads into private networks alone. One that is not found, or not
/// at once, is fine: the source looks each time that it connects.
pub(super) async fn check_name(site: &Site, address: &str) -> Result<(), Problem> {
    let (address, lookup) = (address.to_owned(), site.lookup);
    let local = site.settings.allow_private_feeds;
    let looking = async {
        let permit = Arc::clone(&site.lookups).acquire_owned().await.ok()?;
        // A lookup of the system cannot be cancelled: it keeps its permit until it ends.
        let looking = tokio::spawn(async move {
            let found = feed::fetch::check_name(&address, local, lookup).await;
            drop(permit);
            found
        });
        looking.await.ok()
    };
    match tokio::time::timeout(LOOKUP, looking).await {
        Ok(Some(Err(error))) => Err(problem(&error)),
        _ => Ok(()),
    }
}

/// Returns the problem shown for an address that may not be fetched.
fn problem(error: &FetchError) -> Problem {
    match error {
        FetchError::Private { url, address, .. } => Problem::private_address(format!(
            "{url} leads to {address}, which is in a private network, and the console fetches only \
             from public ones; start it with --allow-private-feeds if this is meant"
        )),
        FetchError::Address { why, .. } => Problem::invalid("url", why.clone()),
        other => Problem::invalid("url", other.to_string()),
    }
}

/// Tests a feed
///
/// Fetches it once, as the source would, and reads it. Addresses that lead into private networks
/// are refused, also by a name or a redirect, unless the console allows them.
#[utoipa::path(post, path = "/api/v1/feeds/test", tag = "feeds", operation_id = "test_feed",
    request_body = FeedToTest, responses((status = 200, body = FeedTest)))]
pub async fn test_feed(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Body(given): Body<FeedToTest>,
) -> Result<Json<FeedTest>, Problem> {
    caller.may_do(&site, Scope::Feeds, "feed.test", "").await?;
    let taken = site.limits.fetches.take(caller.user.id, Instant::now());
    taken.map_err(|wait| {
        Problem::too_many("too many feeds were tested; wait a moment", seconds(wait))
    })?;
    let (shown, address) = read_address(&given.url)?;
    let done = look(&site, address).await;
    caller
        .note(&site, "feed.test", shown, json!({}), &done)
        .await;
    done.map(Json)
}

async fn look(site: &Site, address: String) -> Result<FeedTest, Problem> {
    check_address(&address, site.settings.allow_private_feeds)?;
    let config = FetchConfig {
        allow_private: site.settings.allow_private_feeds,
        user_agent: USER_AGENT.to_owned(),
        contact: site.settings.contact.clone(),
        timeout: TIMEOUT,
        max_redirects: 5,
        limits: Arc::clone(&site.fetching),
        ..FetchConfig::new(address)
    };
    let fetcher = Fetcher::new(config).map_err(|error| problem(&error))?;
    let began = Instant::now();
    let none = Validators::default();
    let polled = tokio::time::timeout(PATIENCE, fetcher.poll(&none)).await;
    let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let failed = |state: &str, detail: String| FeedTest {
        state: state.to_owned(),
        title: None,
        detail,
        took_ms,
        entry_count: 0,
        entries: Vec::new(),
        excerpt: None,
    };
    let (document, url, charset) = match polled {
        Err(_) => return Ok(failed("error", "it took too long".to_owned())),
        Ok(Ok(Poll::Fetched {
            document,
            url,
            charset,
            ..
        })) => (document, url, charset),
        Ok(Ok(Poll::NotModified { .. })) => {
            let what = "the server says that nothing has changed, although it was not asked that";
            return Ok(failed("error", what.to_owned()));
        }
        Ok(Err(error @ FetchError::Private { .. })) => return Err(problem(&error)),
        Ok(Err(error)) => {
            let state = match &error {
                FetchError::Gone { .. } => "gone",
                error if error.is_challenge() => "challenged",
                _ => "error",
            };
            return Ok(failed(state, cut(&error.to_string(), MAX_EXCERPT)));
        }
    };
    let reading = tokio::task::spawn_blocking(move || {
        let parsed = parse_served(&document, &url, charset.as_deref());
        parsed.map_err(|error| (error, excerpt(&document)))
    });
    Ok(match reading.await.map_err(|_| Problem::internal())? {
        Ok(parsed) => found(parsed, took_ms),
        Err((error, excerpt)) => {
            let state = match error.is_challenge() {
                true => "challenged",
                false => "not-a-feed",
            };
            let mut test = failed(
                state,
                format!("it is {}", cut(&error.to_string(), MAX_TEXT)),
            );
            test.excerpt = Some(excerpt);
            test
        }
    })
}

fn found(parsed: ParsedFeed, took_ms: u64) -> FeedTest {
    let count = parsed.entries.len();
    let mut detail = format!("a feed with {count} entries");
    if !parsed.skipped.is_empty() {
        detail.push_str(&format!("; {} could not be read", parsed.skipped.len()));
    }
    if let Some(label) = &parsed.unknown_encoding {
        let label = cut(label, MAX_TEXT);
        detail.push_str(&format!(
            "; its encoding {label:?} is not known, UTF-8 was read"
        ));
    }
    let time = |time: Timestamp| time.as_millisecond();
    FeedTest {
        state: "ok".to_owned(),
        title: parsed.title.map(|title| cut(&title, MAX_TEXT)),
        detail,
        took_ms,
        entry_count: count,
        entries: parsed
            .entries
            .into_iter()
            .take(ENTRIES)
            .map(|entry| TestedEntry {
                title: entry.title.map(|title| cut(&title, MAX_TEXT)),
                link: entry.url.filter(|url| url.len() <= MAX_URL),
                published_ms: entry.published.or(entry.updated).map(time),
            })
            .collect(),
        excerpt: None,
    }
}

fn excerpt(document: &[u8]) -> String {
    // Of a character, at most four bytes are needed.
    let part = document.get(..MAX_EXCERPT * 4).unwrap_or(document);
    cut(&String::from_utf8_lossy(part), MAX_EXCERPT)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
