//! Serving the pages.

use std::sync::Arc;

use axum::Router;
use service::places::{Bounds, Places};
use service::{host, server};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Answers one request per connection until `stop`; what is being answered then has some time more.
pub async fn serve(listener: TcpListener, app: Router, stop: CancellationToken) {
    // Who cannot say where it listens gets the strict rule.
    let local = listener
        .local_addr()
        .map_or(true, |at| host::is_own(at.ip()));
    let app = host::guarded("flexfeed-source", local, app);
    let places = Arc::new(Places::new(Bounds::default()));
    server::serve(listener, app, places, stop).await;
}
