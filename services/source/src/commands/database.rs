//! The database of a source that may be running.

use std::fmt;

use store::{Origin, Store};

use super::audit::AuditEntry;
use super::progress::with_progress;
use super::{CommandOutput, Failure};
use crate::config::Config;
use crate::data::DATABASE;

/// Opens the database, runs `work`, writes its result to the audit log if there is a `note`, and
/// closes the database.
pub(super) async fn with_database<F>(
    config: &Config,
    note: Option<AuditEntry>,
    work: F,
) -> Result<CommandOutput, Failure>
where
    F: AsyncFnOnce(&Store) -> Result<CommandOutput, Failure>,
{
    let store = open(config).await?;
    let result = work(&store).await;
    if let Some(note) = note {
        note.write(&store, &result).await;
    }
    store.close().await;
    result
}

/// Opens the database. A missing one is not made: the source does that, or `restore`.
async fn open(config: &Config) -> Result<Store, Failure> {
    let open = async {
        match &config.database_url {
            Some(url) => store::open(url).await,
            None => store::open_file(&config.data.join(DATABASE)).await,
        }
    };
    let path = config.data.join(DATABASE);
    if config.database_url.is_none() && !path.exists() {
        return Err(Failure::other(format_args!(
            "there is no database in {}: name the source's data folder with --data, or its \
             database with --database-url; a new source makes them when it is started",
            config.data.display()
        )));
    }
    let store = with_progress("opening the database", || None, open).await;
    Ok(store?)
}

/// Checks that a channel or feed is not one of the settings, which are changed in their place: the
/// source would undo another change at its start.
pub(super) fn check_origin(
    is_active: bool,
    origin: Origin,
    what: impl fmt::Display,
) -> Result<(), Failure> {
    if is_active && origin == Origin::Flags {
        return Err(Failure::other(format_args!(
            "the {what} is given to the source by its flags, environment or configuration file: \
             change it there and start the source again"
        )));
    }
    Ok(())
}
