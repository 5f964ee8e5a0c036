//! `backup` and `restore`.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use store::{Contents, Progress, RestoreReport, Store, StoreError};

use super::progress::with_progress;
use super::text::count;
use super::{CommandOutput, Failure, when};
use crate::config::Config;
use crate::data::DATABASE;

/// The folder's files hold secrets.
const FOLDER_MODE: u32 = 0o700;

pub(super) async fn backup(store: &Store, file: &Path) -> Result<CommandOutput, Failure> {
    let saving = store.backup(file);
    let report = with_progress("saving", || None, saving).await?;
    let shown = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let text = format!(
        "Saved {} to {} ({} bytes).\nIt holds no certificate and no key: those are in the data \
         folder.\n",
        words(&report.contents),
        shown.display(),
        report.bytes
    );
    let mut json = numbers(&report.contents);
    json["file"] = shown.display().to_string().into();
    json["bytes"] = report.bytes.into();
    Ok(CommandOutput::new(text, json))
}

pub(super) async fn restore(config: &Config, file: &Path) -> Result<CommandOutput, Failure> {
    if !file.is_file() {
        return Err(Failure::other(format_args!(
            "there is no backup {}",
            file.display()
        )));
    }
    let seen = Mutex::new(None);
    let far = || {
        let seen: Option<Progress> = *seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen?;
        Some(format!(
            "{} of {} updates",
            seen.done.updates, seen.of.updates
        ))
    };
    let mut report = |progress: Progress| {
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    };
    let filling = fill(config, file, &mut report);
    let report = with_progress("restoring", far, filling).await?;
    let text = format!(
        "Restored {}, as they were at {} UTC.\nThe channels have new incarnations, so their \
         receivers start over.\n",
        words(&report.contents),
        when::shown(report.made_ms)
    );
    let mut json = numbers(&report.contents);
    json["made_ms"] = report.made_ms.into();
    Ok(CommandOutput::new(text, json))
}

async fn fill(
    config: &Config,
    file: &Path,
    report: &mut (dyn FnMut(Progress) + Send),
) -> Result<RestoreReport, Failure> {
    let restored: Result<RestoreReport, StoreError> = match &config.database_url {
        Some(url) => store::restore(url, file, report).await,
        None => {
            let folder = &config.data;
            let made = DirBuilder::new()
                .recursive(true)
                .mode(FOLDER_MODE)
                .create(folder);
            made.map_err(|error| {
                Failure::other(format_args!(
                    "cannot make the data folder {}: {error}",
                    folder.display()
                ))
            })?;
            store::restore_file(&folder.join(DATABASE), file, report).await
        }
    };
    Ok(restored?)
}

fn words(contents: &Contents) -> String {
    format!(
        "{}, {}, {}, {}, {} and {}",
        count(contents.channels, "channel"),
        count(contents.feeds, "feed"),
        count(contents.updates, "update"),
        count(contents.tokens, "token"),
        count(contents.receivers, "receiver"),
        count(contents.users, "user")
    )
}

fn numbers(contents: &Contents) -> Value {
    json!({
        "channels": contents.channels,
        "feeds": contents.feeds,
        "entries": contents.entries,
        "updates": contents.updates,
        "signing_eras": contents.signing_eras,
        "gaps": contents.gaps,
        "tokens": contents.tokens,
        "receivers": contents.receivers,
        "users": contents.users,
        "api_tokens": contents.api_tokens,
        "audit": contents.audit,
    })
}
