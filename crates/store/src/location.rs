//! Where the database is: its URL, and the file or server behind it.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use url::Url;

use crate::StoreError;

/// Where a database is.
#[derive(Clone, Debug)]
pub(crate) enum Location {
    Sqlite(SqliteFile),
    Postgres(Box<PostgresServer>),
}

/// The file of a SQLite database, and how messages name it.
#[derive(Clone, Debug)]
pub(crate) struct SqliteFile {
    pub(crate) url: String,
    pub(crate) path: PathBuf,
}

/// A PostgreSQL database, and how messages name it: without password and parameters.
#[derive(Clone)]
pub(crate) struct PostgresServer {
    pub(crate) url: String,
    pub(crate) options: PgConnectOptions,
}

// The options hold the password.
impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresServer")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Known parameters of a PostgreSQL URL; anything else is refused, for a misspelt
/// `sslmode` must not be a connection without TLS.
const POSTGRES_PARAMETERS: [&str; 13] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

fn bad(reason: String) -> StoreError {
    StoreError::Url { reason }
}

impl Location {
    /// Reads a database URL.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        if let Some(rest) = url.strip_prefix("sqlite:") {
            return SqliteFile::parse(url, rest).map(Self::Sqlite);
        }
        match url.split_once(':') {
            Some(("postgres" | "postgresql", rest)) => {
                PostgresServer::parse(rest).map(|server| Self::Postgres(Box::new(server)))
            }
            // The rest of the URL may hold a password and is not repeated.
            Some((scheme, _)) => Err(bad(format!("the scheme {scheme:?} is not supported"))),
            None => Err(bad("it has no scheme".to_owned())),
        }
    }

    /// The SQLite database in a file.
    pub(crate) fn file(path: &Path) -> Self {
        Self::Sqlite(SqliteFile {
            url: format!("sqlite://{}", path.display()),
            path: path.to_owned(),
        })
    }

    /// Name in messages.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Sqlite(file) => &file.url,
            Self::Postgres(server) => &server.url,
        }
    }
}

impl PostgresServer {
    fn parse(rest: &str) -> Result<Self, StoreError> {
        let unusable = |what: &str| {
            bad(format!(
                "{what}; it is postgres://USER:PASSWORD@HOST:PORT/DATABASE, with special \
                 characters in the parts written as %XX"
            ))
        };
        let parsed = Url::parse(&format!("postgres:{rest}"))
            .map_err(|error| unusable(&error.to_string()))?;
        for (key, _) in parsed.query_pairs() {
            if !POSTGRES_PARAMETERS.contains(&key.as_ref()) {
                return Err(bad(format!(
                    "the parameter {key:?} is not supported (known: {})",
                    POSTGRES_PARAMETERS.join(", ")
                )));
            }
        }
        if parsed.path().trim_matches('/').is_empty()
            && !parsed.query_pairs().any(|(key, _)| key == "dbname")
        {
            return Err(unusable("it names no database"));
        }
        // The texts of these errors name a part of the URL at most, never its password.
        let options = PgConnectOptions::from_url(&parsed).map_err(|error| match error {
            sqlx::Error::Configuration(reason) => unusable(&reason.to_string()),
            _ => unusable("it cannot be read"),
        })?;
        let place = match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => options.get_host().to_owned(),
        };
        Ok(Self {
            url: format!(
                "postgres://{}@{place}:{}/{}",
                options.get_username(),
                options.get_port(),
                options.get_database().unwrap_or_default()
            ),
            options,
        })
    }
}

impl SqliteFile {
    fn parse(url: &str, rest: &str) -> Result<Self, StoreError> {
        let (file, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        // Options that other programs of the same library use by habit, and defaults here.
        if !matches!(parameters, "" | "mode=rwc") {
            return Err(bad(format!(
                "the parameters {parameters:?} are not supported"
            )));
        }
        if matches!(file, "" | "//") {
            return Err(bad("it names no file".to_owned()));
        }
        if file.trim_start_matches('/') == ":memory:" {
            return Err(bad(
                "a database in memory would lose every update at the end of the program".to_owned(),
            ));
        }
        let options = SqliteConnectOptions::from_str(&format!("sqlite:{file}"))
            .map_err(|error| bad(error.to_string()))?;
        Ok(Self {
            url: url.to_owned(),
            path: options.get_filename().to_owned(),
        })
    }

    /// Makes sure that the file exists and can be written; a new one is readable by its owner only.
    /// Blocks on the file system.
    pub(crate) fn prepare(&self) -> Result<(), StoreError> {
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        match std::fs::metadata(folder) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => {
                return Err(self.cannot_open(format!(
                    "{} is not a folder; set --database-url to another place",
                    folder.display()
                )));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(self.cannot_open(format!(
                    "the folder {} does not exist; create it or set --database-url",
                    folder.display()
                )));
            }
            Err(error) => {
                return Err(self.cannot_open(format!(
                    "the folder {} cannot be looked at ({error})",
                    folder.display()
                )));
            }
        }
        let is_new = !self.path.exists();
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path);
        match opened {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                return Err(self.cannot_open("it is a folder; name a file in it".to_owned()));
            }
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                return Err(StoreError::Full {
                    url: self.url.clone(),
                });
            }
            Err(error) => {
                return Err(self.cannot_open(format!(
                    "{error}; the file and the folder {} must be writable for this user, or set \
                     --database-url to another place",
                    folder.display()
                )));
            }
        }
        if is_new {
            // SQLite syncs the file's content; the name of a new file is ours to make durable.
            File::open(folder)
                .and_then(|folder| folder.sync_all())
                .map_err(|error| {
                    self.cannot_open(format!(
                        "cannot sync the folder {} to disk ({error})",
                        folder.display()
                    ))
                })?;
        }
        Ok(())
    }

    fn cannot_open(&self, reason: String) -> StoreError {
        StoreError::Open {
            url: self.url.clone(),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn urls_name_files() {
        for (url, path) in [
            ("sqlite://a.db", "a.db"),
            ("sqlite:a.db", "a.db"),
            ("sqlite:///var/lib/a.db", "/var/lib/a.db"),
            ("sqlite://data/flexfeed.db?mode=rwc", "data/flexfeed.db"),
            ("sqlite:///with%20space%3F.db", "/with space?.db"),
        ] {
            let Location::Sqlite(file) = Location::parse(url).unwrap() else {
                panic!("{url}");
            };
            assert_eq!(file.path, Path::new(path), "{url}");
        }
    }

    #[test]
    fn urls_name_servers_and_messages_name_them_without_passwords() {
        for (url, name) in [
            (
                "postgres://user:secret@db.example/flexfeed",
                "postgres://user@db.example:5432/flexfeed",
            ),
            (
                "postgresql://user:secret@[::1]:6432/a?sslmode=verify-full&sslrootcert=/ca.pem",
                "postgres://user@[::1]:6432/a",
            ),
            (
                "postgres://user@%2Frun%2Fpostgresql/a?password=secret",
                "postgres://user@/run/postgresql:5432/a",
            ),
        ] {
            let location = Location::parse(url).unwrap();
            assert_eq!(location.name(), name);
            assert!(!format!("{location:?}").contains("secret"));
        }
    }

    #[test]
    fn unusable_urls_are_refused_without_repeating_secrets() {
        for url in [
            "",
            "flexfeed.db",
            "sqlite:",
            "sqlite://",
            "sqlite::memory:",
            "sqlite://:memory:",
            "sqlite://a.db?mode=ro",
            "sqlite://a.db?vfs=unix-none",
            "sqlite://%ff.db",
            "mysql://user:secret@host/db",
            "postgres://user:secret@host",
            "postgres://user:secret@host/",
            "postgres://user:sec/ret@host/db",
            "postgres://user:secret@host:port/db",
            "postgres://user:secret@host/db?sslmod=verify-full",
            "postgres://user:secret@host/db?sslmode=always",
            "postgres://user:secret@host/db?port=x",
        ] {
            let text = Location::parse(url).unwrap_err().to_string();
            assert!(text.contains("sqlite://PATH"), "{url}: {text}");
            assert!(text.contains("postgres://"), "{url}: {text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
