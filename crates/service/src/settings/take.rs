//! From layers to values.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::Problems;
use super::layer::{Layers, Origin};
use crate::listen::HttpSettings;
use crate::logging::{LogFormat, LogSettings};
use crate::peer_text::plain;
use crate::values;

/// Takes settings, and collects what is wrong.
#[derive(Debug)]
pub struct Taker<'l> {
    /// What was said, the strongest first.
    pub layers: &'l Layers,
    problems: Vec<String>,
}

impl<'l> Taker<'l> {
    /// From these layers, with whom something was wrong already.
    #[must_use]
    pub fn new(layers: &'l Layers, problems: Vec<String>) -> Self {
        Self { layers, problems }
    }

    /// What was taken, if nothing is wrong.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn finish<T>(self, taken: T) -> Result<T, Problems> {
        match self.problems.is_empty() {
            true => Ok(taken),
            false => Err(Problems(self.problems)),
        }
    }

    /// Notes something that is wrong.
    pub fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    /// Notes what is wrong with what stands there.
    pub fn wrong(&mut self, origin: &Origin, what: &str) {
        self.problem(format!("{origin}: {what}"));
    }

    /// The value, or the note of what is wrong with it.
    pub fn take<T>(&mut self, origin: &Origin, value: Result<T, String>) -> Option<T> {
        value.map_err(|what| self.wrong(origin, &what)).ok()
    }

    /// The same, quoting the text: not for secrets.
    pub fn parse<T>(
        &mut self,
        origin: &Origin,
        text: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let quoted = |what| format!("{:?} {what}", plain(text));
        self.take(origin, parse(text).map_err(quoted))
    }

    /// A text that is there; an empty one takes back what a weaker layer says.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&'l Origin, &'l str)> {
        let text = self.layers.text(name);
        text.filter(|(_, text)| !text.trim().is_empty())
    }

    /// A file or folder.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(|(_, text)| text.into())
    }

    /// A value.
    pub fn value<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let (origin, text) = self.text(name)?;
        self.parse(origin, text, parse)
    }

    /// Whether a switch is on.
    pub fn is_on(&mut self, name: &str) -> bool {
        self.value(name, values::switch).unwrap_or(false)
    }

    /// The values of a list; `None` if it is not given.
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

    /// The log, by the settings `log_format` and `log_level`.
    pub fn log(&mut self) -> LogSettings {
        let format = self.value("log_format", values::log_format);
        LogSettings {
            format: format.unwrap_or(LogFormat::Text),
            level: self.text("log_level").map(|(_, text)| text.to_owned()),
        }
    }

    /// Where HTTP is answered, by the setting `http`; `None` for nowhere.
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
