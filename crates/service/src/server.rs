//! HTTP connections, with bounds on everything that a client can use up.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::places::{Connection, Limit, Places};

/// Time without progress after which a client counts as gone.
const STALL: Duration = Duration::from_secs(30);

/// Largest request head in bytes; a `Last-Event-ID` of many channels is long.
const HEADER_BYTES: usize = 64 << 10;

/// Delay after a failed accept: the process has no descriptors left, and some may become free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Answers one request per connection until `stop`; answers in progress have a bounded time more.
///
/// Requests have their [`Connection`] as an extension: a handler of a long or endless answer takes
/// a place there and sets its deadline.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    places: Arc<Places>,
    stop: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(places.bounds.header_time)
        // The size of the buffer alone is no bound: the last read may exceed it.
        .max_buf_size(HEADER_BYTES)
        .max_header_size(HEADER_BYTES)
        // Idle connections would take the places of those with a request.
        .keep_alive(false);
    let mut connections = JoinSet::new();
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if !failing {
                    warn!(%error, "HTTP connection not accepted");
                    failing = true;
                }
                let pause = tokio::time::sleep(ACCEPT_PAUSE);
                stop.run_until_cancelled(pause).await;
                continue;
            }
        };
        failing = false;
        let Some(connection) = places.enter(peer.ip()) else {
            continue;
        };
        connections.spawn(converse(
            http.clone(),
            stream,
            app.clone(),
            connection,
            stop.clone(),
        ));
    }
    // New clients are refused immediately, not at the end.
    drop(listener);
    let drain = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(places.bounds.drain, drain)
        .await
        .is_err()
    {
        let answers = connections.len();
        warn!(answers, "HTTP answers cut short: not read in time");
    }
}

/// Serves one connection to its end.
async fn converse(
    http: http1::Builder,
    stream: TcpStream,
    app: Router,
    connection: Connection,
    stop: CancellationToken,
) {
    // Events are sent immediately, not together with later ones.
    let _ = stream.set_nodelay(true);
    let connection = Arc::new(connection);
    let app = app
        .layer(from_fn(heard))
        .layer(Extension(Arc::clone(&connection)));
    let stream = TokioIo::new(TimedStream::new(stream));
    let mut talk = pin!(http.serve_connection(stream, TowerToHyperService::new(app)));
    let mut stopping = false;
    let ended = loop {
        tokio::select! {
            ended = &mut talk => break ended,
            () = connection.unwanted.cancelled() => return,
            () = connection.is_late() => {
                connection.meets(Limit::Time);
                return debug!("HTTP client dropped: reads too slowly");
            }
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                talk.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = ended {
        if error.is_timeout() {
            connection.meets(Limit::Header);
        }
        debug!(%error, "HTTP connection failed");
    }
}

/// Notes that the request is complete: its connection no longer makes room for others.
async fn heard(
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
    next: Next,
) -> Response {
    connection.asked();
    next.run(request).await
}

/// Stream that fails when its peer reads nothing for too long.
struct TimedStream {
    stream: TcpStream,
    /// Timer since a write had to wait.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            stalled: None,
        }
    }

    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(STALL)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the peer has stopped reading",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, buffers);
        self.judge(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, result)
    }
}
