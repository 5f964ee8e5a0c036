//! A data folder and a database that commands work on.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use super::running::{Feed, Running, program, source};

/// User of the commands.
pub const PERSON: &str = "operator";

/// A data folder and a database, which a source has made.
pub struct Site {
    folder: tempfile::TempDir,
    database: Option<String>,
}

impl Site {
    pub fn new(database: Option<String>) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            database,
        }
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its database.
    pub async fn open(&self) -> store::Store {
        let opened = match &self.database {
            Some(url) => store::open(url).await,
            None => store::open_file(&self.data().join("flexfeed.db")).await,
        };
        opened.unwrap()
    }

    /// A source on it.
    pub fn source(&self, feed: &Feed) -> Running {
        let mut command = source(&self.data(), feed);
        self.with_database(&mut command);
        let mut running = Running::start(command);
        running.until("an update", |running| {
            running.page("/status.json").1.contains("\"head\":1,")
        });
        running
    }

    fn with_database(&self, command: &mut Command) {
        if let Some(url) = &self.database {
            // The usual name.
            command.env("DATABASE_URL", url);
        }
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = program();
        self.with_database(&mut command);
        command.env("USER", PERSON);
        command.args(arguments).arg("--data").arg(self.data());
        command.output().unwrap()
    }

    /// Does it and returns the JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Does it and returns what is said to people, which is never wider than 80 columns, but for
    /// links and lines to run.
    pub fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        let text = String::from_utf8(output.stdout).unwrap();
        let table = text
            .lines()
            .filter(|line| !line.contains("://") || line.contains("  "));
        for line in table.filter(|line| !line.starts_with("  ")) {
            let list = arguments.get(1) == Some(&"list");
            assert!(!list || line.chars().count() <= 80, "{line}");
        }
        text
    }

    /// Requires failure; returns the reason.
    pub fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.starts_with("error: "), "{said}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
        said
    }
}

/// Sorted: their order is no promise.
pub fn keys(value: &Value) -> Vec<&str> {
    let object = value.as_object().unwrap();
    let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

pub fn names(list: &Value) -> Vec<&str> {
    let names = list.as_array().unwrap().iter();
    names.map(|one| one["name"].as_str().unwrap()).collect()
}
