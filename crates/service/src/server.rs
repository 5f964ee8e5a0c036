//! Connections, with bounds on everything that a client can use up.

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

/// A client that takes nothing of its answer for so long is gone.
const STALL: Duration = Duration::from_secs(30);

/// The largest request head in bytes; a `Last-Event-ID` of many channels is long.
const HEADER_BYTES: usize = 64 << 10;

/// The wait after a failed accept: the process has no descriptors left, and some may become free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Answers one request per connection until `stop`; what is being answered then has some time more.
///
/// Requests have their [`Connection`] as an extension: whoever answers them with much, or without
/// end, asks it for a place and says how long it may take.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    places: Arc<Places>,
    stop: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(places.bounds.header_time)
        // The buffer's size alone does not bound it: the last read may go beyond.
        .max_buf_size(HEADER_BYTES)
        .max_header_size(HEADER_BYTES)
        // Idle connections would take the places of those that ask something.
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
                    warn!("an HTTP connection could not be taken: {error}");
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
    // A new client is refused at once, not at the end.
    drop(listener);
    let drain = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(places.bounds.drain, drain)
        .await
        .is_err()
    {
        warn!(
            "{} HTTP answers were not taken in time and are cut short",
            connections.len()
        );
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
    // An event is sent when it happens, not when there are more.
    let _ = stream.set_nodelay(true);
    let connection = Arc::new(connection);
    let app = app
        .layer(from_fn(heard))
        .layer(Extension(Arc::clone(&connection)));
    let stream = TokioIo::new(Patient::new(stream));
    let mut talk = pin!(http.serve_connection(stream, TowerToHyperService::new(app)));
    let mut stopping = false;
    let ended = loop {
        tokio::select! {
            ended = &mut talk => break ended,
            () = connection.unwanted.cancelled() => return,
            () = connection.is_late() => {
                connection.meets(Limit::Time);
                return debug!("an HTTP client takes its answer too slowly and is dropped");
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
        debug!("an HTTP client: {error}");
    }
}

/// The request is whole: its connection is no longer one of those that make room for others.
async fn heard(
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
    next: Next,
) -> Response {
    connection.asked();
    next.run(request).await
}

/// A stream that fails when its peer takes nothing for too long.
struct Patient {
    stream: TcpStream,
    /// Since a write had to wait.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
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
                "it takes nothing any more",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
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
