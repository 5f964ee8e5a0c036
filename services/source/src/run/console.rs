//! The operator's console in this process: with a database in a file, one program suffices.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use console::config::SiteSettings;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::context::Context;
use crate::config::Console;

/// Listens on the console's address.
///
/// # Errors
/// The address is taken, or not one of this machine.
pub(super) async fn listen(console: &Console) -> Result<Option<TcpListener>> {
    let Some(listen) = console.at else {
        return Ok(None);
    };
    let listener = TcpListener::bind(listen).await.with_context(|| {
        format!("cannot serve the console on {listen}: choose another address with --console")
    })?;
    Ok(Some(listener))
}

/// Serves the console until `stop`, from the source's own database.
pub(super) async fn serve(listener: TcpListener, context: Arc<Context>, stop: CancellationToken) {
    let config = &context.config;
    let console = &config.console;
    let beyond = |listen: SocketAddr| !service::host::is_own(listen.ip());
    if console.at.is_some_and(beyond) && console.public_url.is_none() {
        warn!(
            "--console answers at an address that other machines reach, and --console-public-url \
             is not set: passwords would cross the network unencrypted; put a proxy with TLS \
             in front and set it to its https:// address"
        );
    }
    let console = console::mount(console::Parts {
        store: context.store.clone(),
        settings: SiteSettings {
            public_url: console.public_url.clone(),
            trusted_proxies: console.trusted_proxies.clone(),
            allow_private_feeds: config.feeds.allow_private,
            contact: config.feeds.contact.clone(),
            ..SiteSettings::default()
        },
        stop,
    });
    console.serve(listener).await;
}
