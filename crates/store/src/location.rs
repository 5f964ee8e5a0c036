//! Where the database is: its URL, and the file behind it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sqlx::sqlite::SqliteConnectOptions;

use crate::StoreError;

/// The file of a SQLite database, and how messages name it.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(crate) url: String,
    pub(crate) path: PathBuf,
}

impl Location {
    /// Reads a database URL.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let bad = |reason: String| StoreError::Url { reason };
        let Some(rest) = url.strip_prefix("sqlite:") else {
            // What follows the scheme may hold a password: it is not repeated.
            let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
            return Err(bad(match scheme {
                "" => "it has no scheme".to_owned(),
                scheme => format!("the scheme {scheme:?} is not supported"),
            }));
        };
        let (file, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        // What programs that use the same library write by habit, and what happens here anyway.
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

    /// The database in a file.
    pub(crate) fn file(path: &Path) -> Self {
        Self {
            url: format!("sqlite://{}", path.display()),
            path: path.to_owned(),
        }
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
                    "{error}; the file and the folder {} must be writable for this user, or set --database-url to another place",
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
            assert_eq!(Location::parse(url).unwrap().path, Path::new(path), "{url}");
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
            "postgres://user:secret@host/db",
        ] {
            let text = Location::parse(url).unwrap_err().to_string();
            assert!(text.contains("sqlite://PATH"), "{url}: {text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
