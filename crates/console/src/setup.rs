//! The link by which the first operator is made.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use store::Store;

use crate::auth::secret;
use crate::config::SiteSettings;

/// Returns the URL of the console that listens there, for browsers, with a slash at the end.
#[must_use]
pub fn base(settings: &SiteSettings, listening: SocketAddr) -> String {
    if let Some(url) = &settings.public_url {
        return url.to_string();
    }
    // A wildcard address includes loopback.
    let address = match listening.ip().is_unspecified() {
        true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), listening.port()),
        false => listening,
    };
    format!("http://{address}/")
}

/// Makes a new link, which replaces the one before; `None` if there is a user already.
///
/// # Errors
/// The database fails, in words for the operator.
pub async fn new_link(store: &Store, base: &str) -> Result<Option<String>, String> {
    let failed = |error: store::StoreError| error.to_string();
    if !store.users().setup_open().await.map_err(failed)? {
        return Ok(None);
    }
    let token = secret::new_secret().map_err(|problem| problem.detail)?;
    let hash = secret::hash(&token).ok_or("the system gives no random numbers")?;
    let is_open = store.users().begin_setup(&hash).await.map_err(failed)?;
    Ok(is_open.then(|| format!("{base}setup#{token}")))
}
