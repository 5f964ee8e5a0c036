//! Server of a feed: returns the configured document, conditionally as servers do, and can go away.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::{TcpListener, TcpSocket};

use super::*;

/// Entry of the feed. Equal versions of an id have equal content.
#[derive(Clone)]
pub(super) struct Post {
    pub(super) id: String,
    pub(super) text: String,
    pub(super) updated: String,
}

pub(super) fn post(id: &str, text: &str) -> Post {
    Post {
        id: id.to_owned(),
        text: text.to_owned(),
        updated: "2025-09-05T09:49:57Z".to_owned(),
    }
}

struct Answers {
    status: StatusCode,
    kind: &'static str,
    body: String,
    /// More header fields.
    location: Option<String>,
    retry_after: Option<&'static str>,
    requests: AtomicUsize,
    not_modified: AtomicUsize,
}

type Shared = Arc<Mutex<Answers>>;

pub(super) struct FeedServer {
    address: SocketAddr,
    /// Bound to the port without listening: while the server is away, connections are refused, and
    /// no other program gets the port.
    _hold: TcpSocket,
    answers: Shared,
    task: Option<JoinHandle<()>>,
}

impl FeedServer {
    /// Starts a server with an empty feed.
    pub(super) async fn start() -> Self {
        let answers = Arc::new(Mutex::new(Answers {
            status: StatusCode::OK,
            kind: "",
            body: String::new(),
            location: None,
            retry_after: None,
            requests: AtomicUsize::new(0),
            not_modified: AtomicUsize::new(0),
        }));
        let hold = TcpSocket::new_v4().unwrap();
        // The same option as on the server's socket: with it both may have the port.
        hold.set_reuseaddr(true).unwrap();
        hold.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut server = Self {
            address: hold.local_addr().unwrap(),
            _hold: hold,
            answers,
            task: None,
        };
        server.give(&[]);
        server.come_back().await;
        server
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/new.atom", self.address)
    }

    /// Sets the feed's entries; feeds have the newest first.
    pub(super) fn give(&self, newest_first: &[Post]) {
        let entries: String = newest_first
            .iter()
            .map(|post| {
                format!(
                    "<entry><id>{}</id><title>About {}</title><updated>{}</updated>\
                     <content type=\"text\">{}</content></entry>",
                    post.id, post.id, post.updated, post.text
                )
            })
            .collect();
        self.give_document(
            StatusCode::OK,
            "application/atom+xml",
            format!(
                "<feed xmlns=\"http://www.w3.org/2005/Atom\"><title>Lists</title>{entries}</feed>"
            ),
        );
    }

    pub(super) fn give_document(&self, status: StatusCode, kind: &'static str, body: String) {
        let mut answers = self.answers.lock().unwrap();
        (answers.status, answers.kind, answers.body) = (status, kind, body);
        answers.location = None;
    }

    /// Redirects to another address from now on.
    pub(super) fn lead_to(&self, status: StatusCode, url: &str) {
        self.give_document(status, "text/plain", String::new());
        self.answers.lock().unwrap().location = Some(url.to_owned());
    }

    /// Sends `Retry-After` from now on.
    pub(super) fn ask_to_wait(&self, how_long: &'static str) {
        self.answers.lock().unwrap().retry_after = Some(how_long);
    }

    pub(super) fn requests(&self) -> usize {
        let answers = self.answers.lock().unwrap();
        answers.requests.load(Ordering::Relaxed)
    }

    pub(super) fn not_modified(&self) -> usize {
        let answers = self.answers.lock().unwrap();
        answers.not_modified.load(Ordering::Relaxed)
    }

    /// Stops listening, and cuts open connections.
    pub(super) async fn go_away(&mut self) {
        let task = self.task.take().unwrap();
        task.abort();
        let _ = task.await;
    }

    /// Listens again, at the same address.
    pub(super) async fn come_back(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        let app = Router::new()
            .route("/new.atom", get(answer))
            .with_state(Arc::clone(&self.answers));
        self.task = Some(tokio::spawn(async move {
            axum::serve(listener, app).await.unwrap();
        }));
    }
}

async fn answer(State(answers): State<Shared>, headers: HeaderMap) -> Response {
    let answers = answers.lock().unwrap();
    answers.requests.fetch_add(1, Ordering::Relaxed);
    let hash = ring::digest::digest(&ring::digest::SHA256, answers.body.as_bytes());
    let etag = format!("\"{}\"", data_encoding::HEXLOWER.encode(hash.as_ref()));
    let known = headers.get(IF_NONE_MATCH).is_some_and(|v| *v == *etag);
    if known && answers.status == StatusCode::OK {
        answers.not_modified.fetch_add(1, Ordering::Relaxed);
        return StatusCode::NOT_MODIFIED.into_response();
    }
    let mut fields = HeaderMap::new();
    fields.insert(ETAG, etag.parse().unwrap());
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(answers.kind));
    if let Some(location) = &answers.location {
        fields.insert(LOCATION, location.parse().unwrap());
    }
    if let Some(wait) = answers.retry_after {
        fields.insert(RETRY_AFTER, HeaderValue::from_static(wait));
    }
    (answers.status, fields, answers.body.clone()).into_response()
}
