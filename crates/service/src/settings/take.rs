//! From layers to values.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::Problems;
use super::layer::{Layers, Origin};
use crate::listen::HttpSettings;
use crate::logging::{LogFormat, LogSettings};
use crate::peer_text::plain;
use crate::values;

/// Reader of settings that collects problems.
#[derive(Debug)]
pub struct Taker<'l> {
    /// Layers, the strongest first.
    pub layers: &'l Layers,
    problems: Vec<String>,
}

impl<'l> Taker<'l> {
    /// Returns a reader of these layers with the problems found so far.
    #[must_use]
    pub fn new(layers: &'l Layers, problems: Vec<String>) -> Self {
        Self { layers, problems }
    }

    /// Returns `taken` unless there are problems.
    ///
    /// # Errors
    /// All problems.
    pub fn finish<T>(self, taken: T) -> Result<T, Problems> {
        match self.problems.is_empty() {
            true => Ok(taken),
            false => Err(Problems(self.problems)),
        }
    }

    /// Notes a problem.
    pub fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    /// Notes a problem of a value.
    pub fn wrong(&mut self, origin: &Origin, what: &str) {
        self.problem(format!("{origin}: {what}"));
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
        let quoted = |what| format!("{:?} {what}", plain(text));
        self.take(origin, parse(text).map_err(quoted))
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

    /// Returns a parsed value.
    pub fn value<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let (origin, text) = self.text(name)?;
        self.parse(origin, text, parse)
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
        let given = self.layers.given(name)?;
        let texts = given.texts().iter().flat_map(|text| text.split(','));
        let texts = texts.map(str::trim).filter(|text| !text.is_empty());
        let values: Vec<T> = texts
            .filter_map(|text| self.parse(&given.origin, text, &parse))
            .collect();
        (!values.is_empty()).then_some(values)
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
