//! Feed whose server keeps older entries: a public-inbox with its search, or a weblog with archive
//! documents (RFC 5005).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use feed::gap::Search;
use tokio::net::TcpListener;

use super::*;

/// Number of entries in the feed.
pub(super) const WINDOW: usize = 25;

/// Number of entries in an archive document.
pub(super) const ARCHIVE: usize = 10;

/// Number of the entry that may be on top of all archive documents.
const PINNED: usize = 20;

/// Arrival of the first mail.
pub(super) const FIRST: i64 = 1_757_000_000;

/// Posted mail.
#[derive(Clone)]
struct Mail {
    id: String,
    text: String,
    arrived: Timestamp,
    /// Date in the entry; may be wrong.
    dated: Timestamp,
}

/// Fault of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Habit {
    #[default]
    None,
    /// Its search does not support `rt:`.
    NoArrival,
    /// Its archive answers with a bot check.
    Challenge,
    /// Its archive fails after the first page.
    Breaks,
    /// Every archive document links to the first one.
    Circle,
    /// There is always one more archive document, with new entries.
    Endless,
    /// Thirty more mails arrive when the archive is first asked.
    Grows,
    /// Its archive has only the mails up to `indexed`.
    Lags,
    /// Its search has only those too, except for the first page.
    GoesBack,
    /// Its search does not answer.
    Stalls,
    /// Its archive redirects to a page that is no feed, with a key in its address.
    Redirects,
    /// The archive's documents have the oldest entry first.
    OldestFirst,
    /// The archive's documents have an old entry on top.
    Pinned {
        /// Whether that entry has changed.
        edited: bool,
    },
}

#[derive(Default)]
struct Shelf {
    mails: Vec<Mail>,
    habit: Habit,
    /// Whether the feed names a source of older entries.
    archives: bool,
    /// Mails in an archive that lags.
    indexed: usize,
    /// Number of the first archive documents that are missing.
    missing: usize,
    /// Whether the feed is sorted by the times of arrival, as that of a public-inbox.
    is_dated: bool,
}

impl Shelf {
    fn post_up_to(&mut self, count: usize) {
        for n in self.mails.len()..count {
            let arrived = FIRST + 20 * i64::try_from(n).unwrap();
            let late = if n % 7 == 3 { 6 * 3600 } else { 0 };
            self.post(n, arrived, arrived - late);
        }
    }

    fn post(&mut self, n: usize, arrived: i64, dated: i64) {
        self.mails.push(Mail {
            id: mail_id(n),
            text: format!("text {n}"),
            arrived: Timestamp::from_second(arrived).unwrap(),
            dated: Timestamp::from_second(dated).unwrap(),
        });
    }

    /// Returns the mails in the archive, in the order in which they were posted.
    fn archived(&self) -> &[Mail] {
        match self.habit {
            Habit::Lags | Habit::GoesBack => {
                let indexed = self.indexed.min(self.mails.len());
                &self.mails[..indexed]
            }
            _ => &self.mails,
        }
    }
}

struct Shared {
    shelf: Mutex<Shelf>,
    polls: AtomicUsize,
    pages: AtomicUsize,
}

pub(super) struct ArchiveServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// Returns the id of a mail as public-inbox makes it.
pub(super) fn mail_id(n: usize) -> String {
    Uuid::from_u128(n as u128 + 1).urn().to_string()
}

/// Returns the ids of mails, oldest first.
pub(super) fn mail_ids(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(mail_id).collect()
}

impl ArchiveServer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            shelf: Mutex::default(),
            polls: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
        });
        let app = Router::new()
            .route("/all/new.atom", get(feed))
            .route("/all/", get(search))
            .route("/blog/feed.atom", get(feed))
            .route("/blog/archive", get(archive))
            .with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, shared }
    }

    /// Returns the address of the feed of a public-inbox.
    pub(super) fn inbox(&self) -> String {
        format!("http://{}/all/new.atom", self.address)
    }

    /// Returns the address of the feed of a weblog.
    pub(super) fn blog(&self) -> String {
        self.shared.shelf.lock().unwrap().archives = true;
        self.plain()
    }

    /// Returns the address of the same feed without a link to its archive.
    pub(super) fn plain(&self) -> String {
        format!("http://{}/blog/feed.atom", self.address)
    }

    pub(super) fn habit(&self, habit: Habit) {
        self.shared.shelf.lock().unwrap().habit = habit;
    }

    /// Posts mails up to, without, this number: one each 20 s, of which each seventh is dated six
    /// hours early.
    pub(super) fn post_up_to(&self, count: usize) {
        self.shared.shelf.lock().unwrap().post_up_to(count);
    }

    /// Posts one more mail, with the time of arrival in its headers, in seconds after another
    /// one's. Feed and search are sorted accordingly.
    pub(super) fn post_dated(&self, n: usize, seconds: i64) {
        let mut shelf = self.shared.shelf.lock().unwrap();
        shelf.is_dated = true;
        let dated = FIRST + seconds;
        shelf.post(n, dated, dated);
    }

    /// Limits the archive to this many mails.
    pub(super) fn lag(&self, habit: Habit, indexed: usize) {
        let mut shelf = self.shared.shelf.lock().unwrap();
        (shelf.indexed, shelf.habit) = (indexed, habit);
    }

    /// Changes the text of a mail, which makes it the newest entry of the feed.
    pub(super) fn edit(&self, n: usize) {
        let mut shelf = self.shared.shelf.lock().unwrap();
        let mut mail = shelf.mails.remove(n);
        mail.text.push_str(", corrected");
        shelf.mails.push(mail);
    }

    /// Returns the number of requested documents other than the feed.
    pub(super) fn pages(&self) -> usize {
        self.shared.pages.load(Ordering::SeqCst)
    }

    pub(super) fn polls(&self) -> usize {
        self.shared.polls.load(Ordering::SeqCst)
    }
}

fn document<'a>(links: &str, mails: impl IntoIterator<Item = &'a Mail>) -> Response {
    let entries: String = mails
        .into_iter()
        .map(|mail| {
            format!(
                "<entry><id>{}</id><title>t</title><updated>{}</updated>\
                 <content type=\"text\">{}</content></entry>",
                mail.id, mail.dated, mail.text
            )
        })
        .collect();
    let body = format!(
        "<feed xmlns=\"http://www.w3.org/2005/Atom\"><title>Lists</title>\
         <link rel=\"self\" href=\"https://elsewhere.example/new.atom\"/>{links}{entries}</feed>"
    );
    ([(CONTENT_TYPE, "application/atom+xml")], body).into_response()
}

async fn feed(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    shared.polls.fetch_add(1, Ordering::SeqCst);
    let shelf = shared.shelf.lock().unwrap();
    let mut newest: Vec<&Mail> = shelf.mails.iter().rev().collect();
    if shelf.is_dated {
        newest.sort_by_key(|mail| std::cmp::Reverse(mail.arrived));
    }
    let newest = newest.into_iter().take(WINDOW);
    let link = match shelf.mails.len().checked_sub(WINDOW) {
        Some(older) if shelf.archives && uri.path().starts_with("/blog") && older > 0 => {
            // The archives are whole, so the last of them may overlap with the feed.
            let last = older.min(shelf.archived().len()).div_ceil(ARCHIVE);
            format!("<link rel=\"prev-archive\" href=\"/blog/archive?n={last}\"/>")
        }
        _ => String::new(),
    };
    document(&link, newest)
}

/// Returns a parameter of an address.
fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let query = uri.query().unwrap_or_default();
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    let (_, value) = pairs.find(|(key, _)| key == name)?;
    Some(value.into_owned())
}

async fn search(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    let page = shared.pages.fetch_add(1, Ordering::SeqCst);
    let habit = shared.shelf.lock().unwrap().habit;
    if habit == Habit::Stalls {
        std::future::pending::<()>().await;
    }
    let mut shelf = shared.shelf.lock().unwrap();
    if shelf.habit == Habit::Grows && page == 0 {
        let more = shelf.mails.len() + 30;
        shelf.post_up_to(more);
    }
    assert_eq!(parameter(&uri, "x").as_deref(), Some("A"));
    let query = parameter(&uri, "q").unwrap();
    let offset = parameter(&uri, "o").map_or(0, |o| o.parse().unwrap());
    match shelf.habit {
        Habit::Challenge => {
            let check = "<html><title>Making sure you're not a bot!</title></html>";
            return ([(CONTENT_TYPE, "text/html")], check).into_response();
        }
        Habit::Breaks if page > 0 => return StatusCode::BAD_GATEWAY.into_response(),
        _ => {}
    }
    let (kind, range) = query.split_once(':').unwrap();
    let (from, to) = range.split_once("..").unwrap();
    let to = match to {
        "" => Timestamp::MAX,
        to => to.parse().unwrap(),
    };
    let from: Timestamp = match kind {
        "rt" => from.parse().unwrap(),
        "dt" => {
            let civil = jiff::civil::DateTime::strptime("%Y%m%d%H%M%S", from).unwrap();
            civil.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp()
        }
        other => panic!("{other}"),
    };
    let arrival = kind == "rt";
    if arrival && shelf.habit == Habit::NoArrival {
        return StatusCode::NOT_FOUND.into_response();
    }
    let time = |mail: &Mail| if arrival { mail.arrived } else { mail.dated };
    let mails = match shelf.habit {
        Habit::GoesBack if offset == 0 => &shelf.mails,
        _ => shelf.archived(),
    };
    let in_range = |mail: &&Mail| (from..=to).contains(&time(mail));
    let mut found: Vec<&Mail> = mails.iter().filter(in_range).collect();
    found.sort_by_key(|mail| std::cmp::Reverse(time(mail)));
    let found = found.into_iter().skip(offset);
    let found: Vec<&Mail> = found.take(Search::PAGE).collect();
    if found.is_empty() {
        return StatusCode::NOT_FOUND.into_response();
    }
    document("", found)
}

/// Returns archive document `n`, with the mails before number `n * ARCHIVE`.
async fn archive(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    if parameter(&uri, "key").is_some() {
        return "<feed xmlns=\"http://www.w3.org/2005/Atom\"><entry".into_response();
    }
    let n: usize = parameter(&uri, "n").unwrap().parse().unwrap();
    let page = shared.pages.fetch_add(1, Ordering::SeqCst);
    let shelf = shared.shelf.lock().unwrap();
    match shelf.habit {
        Habit::Challenge => return StatusCode::FORBIDDEN.into_response(),
        Habit::Redirects => {
            return axum::response::Redirect::temporary("?key=s3cret").into_response();
        }
        Habit::Breaks if page > 0 => return StatusCode::BAD_GATEWAY.into_response(),
        _ => {}
    }
    if shelf.habit == Habit::Endless {
        let made: Vec<Mail> = (0..ARCHIVE)
            .map(|m| Mail {
                id: format!("endless {page} {m}"),
                text: "x".into(),
                arrived: Timestamp::UNIX_EPOCH,
                dated: Timestamp::UNIX_EPOCH,
            })
            .collect();
        let link = format!(
            "<link rel=\"prev-archive\" href=\"/blog/archive?n={}\"/>",
            n + 1
        );
        return document(&link, &made);
    }
    let before = match shelf.habit {
        // Back to the newest archive.
        Habit::Circle => Some((shelf.mails.len() - WINDOW).div_ceil(ARCHIVE)),
        _ => n.checked_sub(1).filter(|n| *n > shelf.missing),
    };
    let link = before.map_or(String::new(), |n| {
        format!("<link rel=\"prev-archive\" href=\"archive?n={n}\"/>")
    });
    let mails = shelf.archived().iter();
    let mails = mails.skip((n - 1) * ARCHIVE).take(ARCHIVE);
    if shelf.habit == Habit::OldestFirst {
        return document(&link, mails);
    }
    let mut mails: Vec<Mail> = mails.rev().cloned().collect();
    if let Habit::Pinned { edited } = shelf.habit {
        let mut pinned = shelf.mails[PINNED].clone();
        if edited {
            pinned.text.push_str(", corrected");
        }
        mails.insert(0, pinned);
    }
    document(&link, &mails)
}
