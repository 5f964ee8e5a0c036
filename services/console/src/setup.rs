//! The link by which the first operator is made.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use store::Accounts;

use crate::auth::secret;
use crate::config::SiteSettings;

/// Where browsers find the console, as far as is known; with a slash at the end.
#[must_use]
pub fn base(settings: &SiteSettings, listening: Option<SocketAddr>) -> String {
    match (&settings.public_url, listening) {
        (Some(url), _) => url.to_string(),
        (None, Some(address)) => {
            // Whoever listens everywhere is found at home, too.
            let address = match address.ip().is_unspecified() {
                true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port()),
                false => address,
            };
            format!("http://{address}/")
        }
        (None, None) => "http://localhost:9470/".to_owned(),
    }
}

/// Makes a new link, instead of the one before; `None` if there is somebody already.
///
/// # Errors
/// The database fails, in words for the operator.
pub async fn new_link(accounts: &dyn Accounts, base: &str) -> Result<Option<String>, String> {
    let failed = |error: store::StoreError| error.to_string();
    if !accounts.setup_open().await.map_err(failed)? {
        return Ok(None);
    }
    let token = secret::new_secret().map_err(|problem| problem.detail)?;
    let hash = secret::hash(&token).ok_or("the system gives no random numbers")?;
    let is_open = accounts.begin_setup(&hash).await.map_err(failed)?;
    Ok(is_open.then(|| format!("{base}setup#{token}")))
}
