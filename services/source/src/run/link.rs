//! The source's own enrolment link: made at the first start, and updated with the settings.

use std::io::Write as _;

use anyhow::{Result, bail};
use signing::VerifyingKey;
use store::{NewToken, Store};
use tracing::{info, warn};

use crate::data::DataFolder;
use crate::data::enrolment::{self, FILE, MAX_LINK, SaveOutcome, Token};

/// Label of the link's token.
const LABEL: &str = "first enrolment link";

/// Enrolment link, without its variable parts.
pub(super) struct Link {
    token: Token,
    /// HOST:PORT.
    address: String,
    /// Pin of the next key.
    next_pin: Option<[u8; 32]>,
    /// Whether the token is revoked.
    is_revoked: bool,
}

impl Link {
    /// Makes sure that there is a token, and that the store admits receivers with it.
    ///
    /// # Errors
    /// The file of the link is damaged, or the store fails.
    pub(super) async fn prepare(
        folder: &DataFolder,
        store: &Store,
        address: String,
        next_pin: Option<[u8; 32]>,
    ) -> Result<Self> {
        let (token, given_out) = match Token::load(folder)? {
            Some(token) => (token, true),
            None => (Token::make()?, false),
        };
        let hash = token.hash();
        let mut is_revoked = false;
        if store.tokens().valid(&hash).await?.is_none() {
            // Before the link is written: an existing link works unless an operator revoked it.
            let row = store
                .tokens()
                .add(&NewToken {
                    hash,
                    label: LABEL.to_owned(),
                    limit: None,
                    expires_ms: None,
                    public: false,
                    channels: Vec::new(),
                })
                .await?;
            is_revoked = row.revoked_ms.is_some();
            if given_out && !is_revoked {
                // A replaced database gets the token of the link that was handed out already.
                let channels = store.channels().list().await?;
                if channels.iter().all(|row| row.channel.head == 0) {
                    warn!(
                        "the database is new although this data folder is not: receivers start \
                         over; restore a backup if this is not meant"
                    );
                }
            }
        }
        Ok(Self {
            token,
            address,
            next_pin,
            is_revoked,
        })
    }

    /// Writes the link with the current channels and pin to its file, and logs changes.
    ///
    /// # Errors
    /// The link is too long, or its file cannot be written.
    pub(super) fn save(
        &self,
        folder: &DataFolder,
        pin: &[u8; 32],
        key: Option<VerifyingKey>,
        names: &[&str],
    ) -> Result<()> {
        let file = folder.file(FILE);
        let file = file.display();
        if self.is_revoked {
            info!(
                "the enrolment link in {file} was revoked; `flexfeed-source token create` makes \
                 another one"
            );
            return Ok(());
        }
        if names.is_empty() {
            // A link without channels is useless.
            return Ok(());
        }
        let next = self.next_pin.filter(|next| next != pin);
        let pins: Vec<[u8; 32]> = [*pin].into_iter().chain(next).collect();
        let link = self.token.link(&self.address, &pins, key, names);
        if link.len() > MAX_LINK {
            bail!(
                "the names of the {} channels make the enrolment link longer than the {MAX_LINK} \
                 bytes that receivers read: give them shorter names",
                names.len()
            );
        }
        match enrolment::save(folder, &link)? {
            SaveOutcome::New => announce(&link, &file.to_string()),
            SaveOutcome::Changed => info!(
                "the enrolment link in {file} changed with the public address, the certificate, the \
                 signing key or a channel: give receivers the new one"
            ),
            SaveOutcome::Same => info!("the enrolment link for receivers is in {file}"),
        }
        Ok(())
    }
}

/// Prints the link, here only, and not to the log.
fn announce(link: &str, file: &str) {
    let text = format!(
        "\nEnrolment link for receivers; anyone who has it can subscribe (kept in {file}):\n\n  \
         {link}\n\nRun a receiver:\n\n  flexfeed-receiver '{link}'\n\n"
    );
    let mut out = std::io::stdout().lock();
    if out
        .write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_err()
    {
        info!("the enrolment link for receivers is in {file}");
    }
}
