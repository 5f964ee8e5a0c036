//! From layers to typed settings.

use std::error::Error;
use std::slice;

use clap::error::{ContextKind, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::layer::{Given, Layer, Layers, Origin, Problem, Section};
use super::setting::{Keys, Setting, Table};
use super::{Environment, Loaded, Problems};
use crate::listen::HttpSettings;
use crate::peer_text::plain;

/// Beginnings of errors that go on after a quotation of the text.
const VERBS: [&str; 4] = ["is ", "has ", "names ", "cannot be "];

/// Settings as given, and what is wrong about them.
#[derive(Debug)]
pub struct Check {
    /// Layers, the strongest first.
    pub layers: Layers,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Problems.
    pub problems: Vec<Problem>,
}

impl Check {
    /// Notes a warning.
    pub fn warn(&mut self, what: impl Into<String>) {
        self.warnings.push(what.into());
    }

    /// Notes a problem.
    pub fn problem(&mut self, what: String) {
        self.problems.push(what.into());
    }

    /// Notes a problem of what is given there.
    pub fn wrong(&mut self, origin: &Origin, what: &str) {
        self.problems.push(Problem::at(origin, what));
    }

    /// Notes whether the HTTP address was given in the setting `name`.
    pub fn explicit(&self, name: &str, http: &mut Option<HttpSettings>) {
        if let Some(http) = http {
            http.explicit = self.layers.given(name).is_some();
        }
    }

    /// Notes a problem of a setting, if it is given.
    pub fn wrong_setting(&mut self, name: &str, what: &str) {
        let given = self.layers.given(name);
        let problem = given.map(|given| Problem::at(&given.origin, what));
        self.problems.extend(problem);
    }
}

impl Table {
    /// Returns the settings that are given; see [`load`](Table::load).
    ///
    /// # Errors
    /// All problems: those of the file in its order, then the others.
    pub fn resolve<S: FromArgMatches>(
        &self,
        mut given: Check,
        check: impl FnOnce(&mut S, &mut Check),
    ) -> Result<Loaded<S>, Problems> {
        let matches = self.matches(&mut given, &|_| true);
        let settings = matches.and_then(|matches| S::from_arg_matches(&matches).ok());
        let settings = settings.map(|mut settings| {
            check(&mut settings, &mut given);
            settings
        });
        match settings.filter(|_| given.problems.is_empty()) {
            Some(settings) => Ok(Loaded {
                settings,
                warnings: given.warnings,
                layers: given.layers,
            }),
            None => Err(given.problems.into()),
        }
    }

    /// Returns only the settings with these names, for a command that needs no others.
    ///
    /// # Errors
    /// The problems of these settings, and of all places of settings.
    pub fn load_some(
        &self,
        line: Layer,
        environment: &Environment,
        names: &[&str],
    ) -> Result<ArgMatches, Problems> {
        let wanted = |name: &str| names.contains(&name.strip_suffix("_file").unwrap_or(name));
        let mut given = self.gather(line, environment, &wanted);
        let matches = self.matches(&mut given, &wanted);
        let matches = matches.filter(|_| given.problems.is_empty());
        matches.ok_or_else(|| given.problems.into())
    }

    /// Parses the `wanted` settings; `None` after noting a problem that leaves nothing to parse.
    fn matches(&self, given: &mut Check, wanted: &dyn Fn(&str) -> bool) -> Option<ArgMatches> {
        let (layers, problems) = (&mut given.layers.0, &mut given.problems);
        exclude(&self.keys.rivals(), layers, problems);
        let missing = |_: &str| self.missing.to_owned().into();
        let words = self.words(&self.keys, layers, wanted, &missing, problems);
        let matches = self.keys.command().try_get_matches_from(words);
        let wrong = |error: clap::Error| problems.push(error.to_string().into());
        matches.map_err(wrong).ok()
    }

    /// Returns the words of a command line with the settings of `layers`, the strongest first.
    /// Every value has to be valid, also those that a stronger layer overrides. `missing` is the
    /// problem of one that is required and not given.
    fn words(
        &self,
        keys: &Keys,
        layers: &[Layer],
        wanted: &dyn Fn(&str) -> bool,
        missing: &dyn Fn(&str) -> Problem,
        problems: &mut Vec<Problem>,
    ) -> Vec<String> {
        let (command, mut settings) = (keys.command(), keys.settings());
        settings.retain(|setting| wanted(&setting.name));
        let mut words = Vec::new();
        for setting in settings {
            let all = layers.iter().filter_map(|layer| layer.0.get(&setting.name));
            let all = all.map(|given| self.valid(&command, &setting, given, problems));
            let all: Vec<Vec<String>> = all.collect();
            // A file with it that cannot be read is a problem already.
            let names = [setting.name.clone(), setting.file().unwrap_or_default()];
            let is_given = |layer: &Layer| names.iter().any(|name| layer.0.contains_key(name));
            if setting.arg.is_required_set() && !layers.iter().any(is_given) {
                problems.push(missing(&setting.name));
            }
            words.extend(all.into_iter().next().unwrap_or_default());
        }
        words
    }

    /// Returns the words of what is given of a setting, as far as it is valid.
    fn valid(
        &self,
        command: &Command,
        setting: &Setting,
        given: &Given,
        problems: &mut Vec<Problem>,
    ) -> Vec<String> {
        let flag = setting.arg.get_long().unwrap_or(&setting.name);
        let word = |text: &str| format!("--{flag}={text}");
        let tables = given.sections.iter();
        let tables = tables.filter_map(|section| self.section(setting, section, problems));
        let mut words: Vec<String> = tables.map(|text| word(&text)).collect();
        for item in &setting.items(&given.texts) {
            match command.clone().try_get_matches_from([word(item)]) {
                Ok(_) => words.push(word(item)),
                Err(error) => {
                    let what = self.explain(setting, item, &error);
                    problems.push(Problem::at(&given.origin, what));
                }
            }
        }
        words
    }

    /// Returns a table as the text that [`table`] reads; `None` if it has a problem.
    fn section(
        &self,
        setting: &Setting,
        section: &Section,
        problems: &mut Vec<Problem>,
    ) -> Option<String> {
        let (keys, before) = (setting.tables?, problems.len());
        exclude(&keys.rivals(), &mut [section.keys.clone()], problems);
        let missing = |key: &str| Problem::at(&section.origin, format!("has no {key}"));
        let layers = slice::from_ref(&section.keys);
        let words = self.words(keys, layers, &|_| true, &missing, problems);
        let valid = problems.len() == before;
        valid.then(|| serde_json::Value::from(words).to_string())
    }

    /// Returns an error in words for the operator, which quote no secret.
    fn explain(&self, setting: &Setting, text: &str, error: &clap::Error) -> String {
        let what = reason(error);
        let quoted = match setting.is_secret() {
            true => (self.hidden)(&setting.name, text),
            false => format!("{:?}", plain(text)),
        };
        match VERBS.iter().any(|verb| what.starts_with(verb)) {
            true => format!("{quoted} {what}"),
            false => what,
        }
    }
}

/// Removes from weaker layers what a setting of a stronger one excludes, so that it excludes
/// nothing itself. Of two in one layer, notes a problem.
fn exclude(rivals: &[(String, String)], layers: &mut [Layer], problems: &mut Vec<Problem>) {
    let Some((layer, weaker)) = layers.split_first_mut() else {
        return;
    };
    for (one, other) in rivals {
        let loser = match (layer.0.get(one), layer.0.get(other)) {
            (Some(given), Some(rival)) => {
                let rival = &rival.origin;
                let what = format!("has no effect together with {rival}; leave one of them out");
                problems.push(Problem::at(&given.origin, what));
                layer.0.remove(one);
                other
            }
            (Some(_), None) => other,
            (None, Some(_)) => one,
            (None, None) => continue,
        };
        for layer in &mut *weaker {
            layer.0.remove(loser);
        }
    }
    exclude(rivals, weaker, problems);
}

/// Reads a `[[name]]` table; the `value_parser` of settings that are tables.
///
/// # Errors
/// The text is no table.
pub fn table<T: Args>(text: &str) -> Result<T, String> {
    let words: Vec<String> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let matches = Keys::of::<T>(&[]).command().try_get_matches_from(words);
    let table = matches.and_then(|given| T::from_arg_matches(&given));
    table.map_err(|error| reason(&error))
}

/// Returns the error of a parser, without the text, which may be a secret.
fn reason(error: &clap::Error) -> String {
    match (error.source(), error.get(ContextKind::InvalidArg)) {
        (Some(source), _) => source.to_string(),
        (None, Some(arg)) if error.kind() == ErrorKind::ArgumentConflict => {
            format!("{arg} is given twice")
        }
        _ => "needs a value".to_owned(),
    }
}
