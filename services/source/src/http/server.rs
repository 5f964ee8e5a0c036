//! Serving the pages.

use std::sync::Arc;

use axum::Router;
use service::places::{Bounds, Places};
use service::{host, server};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Answers one request per connection until `stop`; what is being answered then has some time more.
pub async fn serve(listener: TcpListener, app: Router, stop: CancellationToken) {
    let local = host::is_local(&listener);
    let app = host::guarded("flexfeed-source", local, app);
    let places = Arc::new(Places::new(Bounds::default()));
    server::serve(listener, app, places, stop).await;
}
