//! Serving the pages with bounds on everything that a client can use up.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use service::host;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Connections at once; further ones wait in the system's queue.
const CONNECTIONS: usize = 64;

/// The longest time for a request's header, and for a whole request and its answer.
const HEADER_TIME: Duration = Duration::from_secs(5);
const REQUEST_TIME: Duration = Duration::from_secs(20);

/// The largest header in bytes.
const HEADER_BYTES: usize = 16 << 10;

/// The wait after a failed accept: the process has no descriptors left, and some may become free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Answers one request per connection until `stop`.
pub async fn serve(listener: TcpListener, app: Router, stop: CancellationToken) {
    // Who cannot say where it listens gets the strict rule.
    let local = listener
        .local_addr()
        .map_or(true, |at| host::is_own(at.ip()));
    let app = host::guarded("flexfeed-source", local, app);
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
                        warn!("a connection to the status pages could not be taken: {error}");
                        failing = true;
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            failing = false;
            let service = TowerToHyperService::new(app.clone());
            let connection = http.serve_connection(TokioIo::new(stream), service);
            let stop = stop.clone();
            tokio::spawn(async move {
                let _place = place;
                let answered = tokio::time::timeout(REQUEST_TIME, connection);
                match stop.run_until_cancelled(answered).await {
                    Some(Ok(Err(error))) => debug!("a client of the status pages: {error}"),
                    Some(Err(_)) => debug!("a client of the status pages took too long"),
                    Some(Ok(Ok(()))) | None => {}
                }
            });
        }
    };
    stop.run_until_cancelled(accepting).await;
}
