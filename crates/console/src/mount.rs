//! A console inside a program that has the database open.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::site::{Parts, Site};
use crate::{http, live, setup};

/// Interval at which expired rows are deleted.
const TRIM: Duration = Duration::from_secs(3_600);

/// Interval at which expired commands are marked. A source does so, too, but there may be none.
const EXPIRE: Duration = Duration::from_secs(60);

/// A console that follows its database.
pub struct Console {
    site: Arc<Site>,
    tasks: JoinSet<()>,
}

/// Makes a console of its parts, and begins to follow the database. It goes on until the stop of
/// the parts. Within a tokio runtime only.
#[must_use]
pub fn mount(parts: Parts) -> Console {
    let site = Arc::new(Site::new(parts));
    let mut tasks = JoinSet::new();
    tasks.spawn(live::follow(Arc::clone(&site)));
    tasks.spawn(live::notify(Arc::clone(&site)));
    tasks.spawn(trim(Arc::clone(&site)));
    tasks.spawn(expire(Arc::clone(&site)));
    Console { site, tasks }
}

impl Console {
    /// Returns the router. `local` if only this machine reaches it: then no name that another site
    /// can have is answered.
    pub fn router(&self, local: bool) -> axum::Router {
        http::router(Arc::clone(&self.site), local)
    }

    /// Serves `listener` until the stop, within bounds on clients; first logs the address and,
    /// without any user, prints the setup link to standard output.
    pub async fn serve(mut self, listener: TcpListener) {
        let address = listener.local_addr();
        let address = address.unwrap_or_else(|_| crate::config::LISTEN.into());
        let base = setup::base(&self.site.settings, address);
        info!("the console is at {base}");
        match setup::new_link(&self.site.store, &base).await {
            Ok(Some(link)) => announce(&link),
            Ok(None) => {}
            Err(error) => warn!(%error, "user check failed"),
        }
        http::serve(Arc::clone(&self.site), listener).await;
        while self.tasks.join_next().await.is_some() {}
    }

    /// All that it answers from.
    #[must_use]
    pub fn site(&self) -> &Arc<Site> {
        &self.site
    }
}

/// Prints the link, which is a credential: not to the log.
fn announce(link: &str) {
    let text = format!(
        "\nThe console has no users yet. Choose the first operator's name and password at\n\n  \
         {link}\n\nThis works once. The next start, or `flexfeed-console setup-link`, makes \
         another link.\n\n"
    );
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match printed {
        Ok(()) => {
            info!("no users yet: the setup link for the first operator is on standard output")
        }
        Err(error) => warn!(
            "no users yet, and the setup link could not be printed ({error}): \
             `flexfeed-console setup-link` makes another one"
        ),
    }
}

/// Forgets old sessions, tokens and lines of the audit log.
async fn trim(site: Arc<Site>) {
    let stop = site.stop.clone();
    let trimming = async {
        let mut pause = Duration::from_secs(60);
        loop {
            tokio::time::sleep(pause).await;
            pause = TRIM;
            if let Err(error) = site.store.trim_accounts().await {
                warn!(%error, "removal of old sessions failed; retrying");
            }
        }
    };
    stop.run_until_cancelled(trimming).await;
}

/// Notes in the audit log what no source carried out in time.
async fn expire(site: Arc<Site>) {
    let stop = site.stop.clone();
    let expiring = async {
        loop {
            if let Err(error) = site.store.commands().expire().await {
                // The feeder logs database outages.
                debug!(%error, "expiry of commands failed; retrying");
            }
            tokio::time::sleep(EXPIRE).await;
        }
    };
    stop.run_until_cancelled(expiring).await;
}
