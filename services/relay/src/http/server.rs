//! Connections, with bounds on everything that a client can use up.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Connections at once; further ones wait in the system's queue.
const CONNECTIONS: usize = 128;

/// The longest time for a request's header.
const HEADER_TIME: Duration = Duration::from_secs(5);

/// A client that takes nothing of its answer for so long is gone.
const STALL: Duration = Duration::from_secs(30);

/// The largest header in bytes.
const HEADER_BYTES: usize = 16 << 10;

/// The wait after a failed accept: the process has no descriptors left, and some may become free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Answers one request per connection until `stop`.
pub(super) async fn serve(listener: TcpListener, app: Router, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(HEADER_BYTES)
        // Idle connections would take the places of those that ask something.
        .keep_alive(false);
    let accepting = async {
        let mut failing = false;
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if !failing {
                        warn!("an HTTP connection could not be taken: {error}");
                        failing = true;
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            failing = false;

            let stream = TokioIo::new(Patient::new(stream));
            let service = TowerToHyperService::new(app.clone());
            let connection = http.serve_connection(stream, service);
            let stop = stop.clone();
            tokio::spawn(async move {
                let _place = place;
                if let Some(Err(error)) = stop.run_until_cancelled(connection).await {
                    debug!("an HTTP client: {error}");
                }
            });
        }
    };
    stop.run_until_cancelled(accepting).await;
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
