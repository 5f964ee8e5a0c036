//! The generator's web server: the feed with conditional GET (RFC 9110, section 13), and the
//! controls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use tokio::net::TcpListener;

use super::book::{Book, Mode};
use super::hour::Hour;
use super::{FEED_PATH, SEARCH_PATH};

/// Interval at which due additions are applied.
const TICK: Duration = Duration::from_millis(50);

/// A page such as archives show to clients that they take for robots; the scenario for bad input
/// serves it instead of the feed.
const CHALLENGE: &str = "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
<title>Checking that you are not a bot</title>\n\
<script src=\"/.well-known/challenge/work.js\" defer></script></head>\n\
<body><h1>One moment, please</h1>\n\
<p>This site checks your browser before it lets you in. Please enable JavaScript and cookies.</p>\n\
<noscript><p>You need JavaScript to pass this challenge.</p></noscript></body>\n</html>\n";

/// Growth stops by itself when this many additions wait for polls, so that a source that stays away
/// does not make the queue grow without bound.
const MOST_WAITING: u64 = 1_000;

#[derive(Clone)]
struct Shared {
    book: Arc<Mutex<Book>>,
    growth: Arc<Mutex<Growth>>,
    hour: Arc<Mutex<Option<Play>>>,
    /// Unique to this start, so that a validator of another run never fits.
    run: i64,
}

/// Steady growth: `burst` entries at a time, `per_second` on average, until there are `total`.
#[derive(Debug, Clone, Copy)]
pub struct Growth {
    /// Entries a second; 0 for none.
    pub per_second: f64,
    /// Number of entries that appear at once.
    pub burst: u32,
    /// Total number of entries; `u64::MAX` for no end.
    pub total: u64,
}

/// An hour to be played.
#[derive(Debug, Clone)]
pub struct Play {
    /// The acts.
    pub hour: Hour,
    /// Speed-up over real time.
    pub speed: f64,
}

/// Serves a book until the process ends.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve(
    mut book: Book,
    listen: SocketAddr,
    growth: Growth,
    hour: Option<Play>,
) -> Result<()> {
    book.left = hour
        .as_ref()
        .map_or(0, |play| play.hour.acts().len() as u64);
    let shared = Shared {
        book: Arc::new(Mutex::new(book)),
        growth: Arc::new(Mutex::new(growth)),
        hour: Arc::new(Mutex::new(hour)),
        run: Timestamp::now().as_microsecond(),
    };
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("listening on {listen}"))?;
    println!(
        "flexfeed-lore: feed at http://{}{FEED_PATH}",
        listener.local_addr()?
    );
    tokio::spawn(keep_advancing(shared.clone()));
    tokio::spawn(keep_growing(shared.clone()));
    let app = Router::new()
        .route(FEED_PATH, get(feed))
        .route(SEARCH_PATH, get(search))
        .route("/play", post(play))
        .route("/state", get(state))
        .route("/grow", post(change))
        .route("/edit", post(change))
        .route("/rate", post(change))
        .route("/mode", post(change))
        .with_state(shared);
    axum::serve(listener, app).await.context("serving")
}

async fn keep_advancing(shared: Shared) {
    loop {
        tokio::time::sleep(TICK).await;
        report(shared.lock().advance());
    }
}

async fn keep_growing(shared: Shared) {
    let mut ticks = tokio::time::interval(TICK);
    let mut due = 0.0;
    loop {
        ticks.tick().await;
        let growth = *locked(&shared.growth);
        let burst = growth.burst.max(1);
        due += growth.per_second * TICK.as_secs_f64();
        if growth.per_second <= 0.0 {
            due = 0.0;
        }
        let mut book = shared.lock();
        while due >= f64::from(burst) {
            due -= f64::from(burst);
            let state = book.state();
            let left = growth.total.saturating_sub(state.entries + state.pending);
            if left > 0 && state.pending < MOST_WAITING {
                let step = burst.min(u32::try_from(left).unwrap_or(u32::MAX));
                report(book.grow(step));
            }
        }
    }
}

fn report(result: Result<()>) {
    if let Err(error) = result {
        eprintln!("flexfeed-lore: {error:#}");
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Book> {
        locked(&self.book)
    }
}

/// A panic elsewhere leaves counts behind that are still true.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

async fn feed(State(shared): State<Shared>, method: Method, headers: HeaderMap) -> Response {
    let mut book = shared.lock();
    match book.mode {
        Mode::Feed => {}
        Mode::Html => {
            return (
                [(header::CONTENT_TYPE, "text/html; charset=utf-8")],
                CHALLENGE,
            )
                .into_response();
        }
        Mode::Garbage => {
            let noise: Vec<u8> = (0..20_000u32)
                .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
                .collect();
            return ([(header::CONTENT_TYPE, "application/atom+xml")], noise).into_response();
        }
        Mode::Error => {
            return (StatusCode::SERVICE_UNAVAILABLE, "try again later\n").into_response();
        }
    }
    report(book.advance());
    let tag = format!("\"{}-{}\"", shared.run, book.version());
    let validators = |mut response: Response| {
        if let Ok(value) = HeaderValue::from_str(&tag) {
            response.headers_mut().insert(header::ETAG, value);
        }
        let now = Timestamp::now()
            .strftime("%a, %d %b %Y %H:%M:%S GMT")
            .to_string();
        if let Ok(value) = HeaderValue::from_str(&now) {
            response.headers_mut().insert(header::LAST_MODIFIED, value);
        }
        response
    };
    let same = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|list| {
            list.split(',')
                .any(|one| one.trim().trim_start_matches("W/") == tag)
        });
    if same {
        return validators(StatusCode::NOT_MODIFIED.into_response());
    }
    if method == Method::HEAD {
        return validators(StatusCode::OK.into_response());
    }
    match book.give_out() {
        Ok(document) => {
            println!("flexfeed-lore: gave out version {}", book.version());
            validators(([(header::CONTENT_TYPE, "application/atom+xml")], document).into_response())
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")).into_response(),
    }
}

/// `GET /all/?q=rt:A..B&x=A&o=200`: what public-inbox answers to a search, as Atom.
async fn search(State(shared): State<Shared>, uri: Uri) -> Response {
    let asked = || -> Result<(String, usize)> {
        ensure!(parameter(&uri, "x")? == "A", "only x=A is answered here");
        let query = form_decoded(parameter(&uri, "q")?)?;
        let offset = parameter(&uri, "o").map_or(Ok(0), str::parse)?;
        Ok((query, offset))
    };
    println!("flexfeed-lore: search {uri}");
    match asked().and_then(|(query, offset)| shared.lock().search(&query, offset)) {
        Ok(document) => {
            ([(header::CONTENT_TYPE, "application/atom+xml")], document).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}\n")).into_response(),
    }
}

/// A value of a query, decoded as forms encode it.
fn form_decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let hex: Vec<u8> = rest.by_ref().take(2).collect();
                let hex = std::str::from_utf8(&hex)?;
                bytes.push(u8::from_str_radix(hex, 16).context("a % without two digits")?);
            }
            other => bytes.push(other),
        }
    }
    Ok(String::from_utf8(bytes)?)
}

/// `POST /play`: the hour begins. It is over now, by its own time, when its last second has been
/// played.
async fn play(State(shared): State<Shared>) -> Response {
    let Some(play) = locked(&shared.hour).take() else {
        return (StatusCode::CONFLICT, "there is no hour to be played\n").into_response();
    };
    let begin = Timestamp::now() - play.hour.length();
    let keeper = shared.clone();
    tokio::spawn(async move {
        let started = tokio::time::Instant::now();
        for (at, act) in play.hour.acts() {
            tokio::time::sleep_until(started + at.div_f64(play.speed)).await;
            let mut book = keeper.lock();
            report(book.happen(*act, begin + *at));
            book.left -= 1;
        }
    });
    Json(shared.lock().state()).into_response()
}

async fn state(State(shared): State<Shared>) -> Response {
    Json(shared.lock().state()).into_response()
}

/// `POST /grow?n=5`, `/edit?n=1`, `/rate?r=2.5`, `/mode?m=html`.
async fn change(State(shared): State<Shared>, uri: Uri) -> Response {
    let mut book = shared.lock();
    let done = match uri.path() {
        "/grow" => number(&uri).and_then(|count| book.grow(count)),
        "/edit" => number(&uri).and_then(|count| book.edit(count)),
        "/rate" => rate(&uri).map(|rate| locked(&shared.growth).per_second = rate),
        _ => parameter(&uri, "m")
            .and_then(|text| text.parse())
            .map(|mode| book.mode = mode),
    };
    match done {
        Ok(()) => Json(book.state()).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}\n")).into_response(),
    }
}

fn number(uri: &Uri) -> Result<u32> {
    let text = parameter(uri, "n")?;
    text.parse()
        .with_context(|| format!("n={text:?} is not a number"))
}

fn rate(uri: &Uri) -> Result<f64> {
    let text = parameter(uri, "r")?;
    text.parse()
        .ok()
        .filter(|rate| (0.0..=1000.0).contains(rate))
        .with_context(|| format!("r={text:?} is not a number from 0 to 1000"))
}

fn parameter<'a>(uri: &'a Uri, name: &str) -> Result<&'a str> {
    uri.query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
        .with_context(|| format!("{}: the parameter {name} is missing", uri.path()))
}
