//! From layers to values.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::Problems;
use super::layer::{Layers, Origin, Problem, Section};
use super::table::Table;
use crate::listen::HttpSettings;
use crate::logging::{LogFormat, LogSettings};
use crate::peer_text::plain;
use crate::values;

/// Reader of settings that collects problems.
#[derive(Debug)]
pub struct Taker<'l> {
    /// Layers, the strongest first.
    pub layers: &'l Layers,
    table: &'l Table,
    problems: Vec<Problem>,
}

impl<'l> Taker<'l> {
    /// Returns a reader of these layers with the problems found so far.
    #[must_use]
    pub fn new(table: &'l Table, layers: &'l Layers, problems: Vec<Problem>) -> Self {
        Self {
            layers,
            table,
            problems,
        }
    }

    /// Returns `taken` unless there are problems.
    ///
    /// # Errors
    /// All problems: those of the file in its order, then the others.
    pub fn finish<T>(mut self, taken: T) -> Result<T, Problems> {
        self.problems.sort_by_key(Problem::line);
        match self.problems.is_empty() {
            true => Ok(taken),
            false => Err(Problems(
                self.problems.iter().map(Problem::to_string).collect(),
            )),
        }
    }

    /// Notes a problem.
    pub fn problem(&mut self, what: String) {
        self.problems.push(what.into());
    }

    /// Notes a problem of a value.
    pub fn wrong(&mut self, origin: &Origin, what: &str) {
        self.problems.push(Problem {
            origin: Some(origin.clone()),
            what: what.to_owned(),
        });
    }

    /// Returns the value, or notes its problem.
    pub fn take<T>(&mut self, origin: &Origin, value: Result<T, String>) -> Option<T> {
        value.map_err(|what| self.wrong(origin, &what)).ok()
    }

    /// Parses a text, or notes its problem with a quotation: not for secrets.
    pub fn parse<T>(
        &mut self,
        origin: &Origin,
        text: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        self.take(origin, quoting(parse)(text))
    }

    /// Returns a text; an empty one overrides weaker layers.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&'l Origin, &'l str)> {
        let text = self.layers.text(name);
        text.filter(|(_, text)| !text.trim().is_empty())
    }

    /// Returns a file or folder.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(|(_, text)| text.into())
    }

    /// Returns a parsed value, or notes its problem with a quotation: not for secrets.
    pub fn value<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.unquoted(name, quoting(parse))
    }

    /// Returns a parsed value, or notes its problem without a quotation.
    pub fn unquoted<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let mut value = None;
        let strict = self.table.strict;
        for given in self.layers.all(name) {
            // Tables in the place of a text.
            let Some(text) = given.text() else { continue };
            if strict || !text.trim().is_empty() {
                value = value.or(self.take(&given.origin, parse(&text)));
            }
            if !strict {
                break;
            }
        }
        value
    }

    /// Returns the same, or the default of the table; `None` where the default is invalid.
    pub fn or_default<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.unquoted(name, &parse);
        value.or_else(|| parse(self.table.find(name)?.default).ok())
    }

    /// Whether a switch is on.
    pub fn is_on(&mut self, name: &str) -> bool {
        self.value(name, values::switch).unwrap_or(false)
    }

    /// Returns the values of a list; `None` if it is not given.
    pub fn list<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let mut list = None;
        for given in self.layers.all(name) {
            let texts = given.texts().iter().flat_map(|text| text.split(','));
            let texts = texts.map(str::trim).filter(|text| !text.is_empty());
            let values: Vec<T> = texts
                .filter_map(|text| self.parse(&given.origin, text, &parse))
                .collect();
            list = list.or(Some(values));
            if !self.table.strict {
                break;
            }
        }
        list.filter(|values| !values.is_empty())
    }

    /// Returns a parsed key of a table, or notes its problem without a quotation.
    pub fn key<T>(
        &mut self,
        section: &Section,
        key: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (origin, text) = section.text(key)?;
        self.take(origin, parse(&text))
    }

    /// Notes a problem of a table that lacks a key.
    pub fn require(&mut self, section: &Section, key: &str) {
        if !section.keys.contains_key(key) {
            self.wrong(&section.origin, &format!("has no {key}"));
        }
    }

    /// Returns the settings of the log: `log_format` and `log_level`.
    pub fn log(&mut self) -> LogSettings {
        let format = self.value("log_format", values::log_format);
        LogSettings {
            format: format.unwrap_or(LogFormat::Text),
            level: self.text("log_level").map(|(_, text)| text.to_owned()),
        }
    }

    /// Returns the settings of the HTTP listener, `http`; `None` for no HTTP.
    pub fn http(&mut self, default: SocketAddr) -> Option<HttpSettings> {
        let given = self.value("http", |text| values::listen_or_off(text, default.port()));
        match given {
            Some(addr) => addr.map(|addr| HttpSettings {
                addr,
                explicit: true,
            }),
            None => Some(HttpSettings {
                addr: default,
                explicit: false,
            }),
        }
    }
}

/// Returns a parser whose errors begin with a quotation of the text.
pub fn quoting<T>(parse: impl Fn(&str) -> Result<T, String>) -> impl Fn(&str) -> Result<T, String> {
    move |text| parse(text).map_err(|what| format!("{:?} {what}", plain(text)))
}
