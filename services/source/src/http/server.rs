//! Serving the pages.

use axum::Router;
use service::pages;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Serves the pages until `stop`; answers in progress have a bounded time more.
pub async fn serve(listener: TcpListener, app: Router, stop: CancellationToken) {
    pages::serve("flexfeed-source", listener, app, stop).await;
}
