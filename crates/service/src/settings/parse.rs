//! From layers to typed settings.

use std::error::Error;

use clap::error::{ContextKind, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::layer::{Given, Layer, Layers, Origin, Problem, Section};
use super::setting::{Keys, Setting, Table};
use super::{Environment, Loaded, Problems};
use crate::listen::HttpSettings;
use crate::peer_text::plain;

/// Beginnings of errors that go on after a quotation of the text.
const VERBS: [&str; 4] = ["is ", "has ", "names ", "cannot be "];

/// Findings about settings that are valid one by one.
#[derive(Debug)]
pub struct Check<'l> {
    /// Layers, the strongest first.
    pub layers: &'l Layers,
    /// Warnings.
    pub warnings: Vec<String>,
    problems: Vec<Problem>,
}

impl Check<'_> {
    /// Notes a problem.
    pub fn problem(&mut self, what: String) {
        self.problems.push(what.into());
    }

    /// Notes a problem of what is given there.
    pub fn wrong(&mut self, origin: &Origin, what: impl Into<String>) {
        self.problems.push(Problem::at(origin, what));
    }

    /// Notes whether the HTTP address was given in the setting `name`.
    pub fn explicit(&self, name: &str, http: &mut Option<HttpSettings>) {
        if let Some(http) = http {
            http.explicit = self.given(name).is_some();
        }
    }

    /// Notes a problem of a setting, if it is given.
    pub fn wrong_setting(&mut self, name: &str, what: impl Into<String>) {
        if let Some(given) = self.given(name) {
            let problem = Problem::at(&given.origin, what);
            self.problems.push(problem);
        }
    }

    /// Returns what is given of a setting, unless it is empty.
    fn given(&self, name: &str) -> Option<&Given> {
        let is_some = |text: &String| !text.trim().is_empty();
        let given = self.layers.given(name)?;
        (!given.sections.is_empty() || given.texts.iter().any(is_some)).then_some(given)
    }
}

impl Table {
    /// Returns the settings of the layers; see [`load`](Table::load).
    ///
    /// # Errors
    /// All problems: those of the file in its order, then the others.
    pub fn resolve<S: FromArgMatches>(
        &self,
        layers: Layers,
        problems: Vec<Problem>,
        warnings: Vec<String>,
        check: impl FnOnce(&mut S, &mut Check<'_>),
    ) -> Result<Loaded<S>, Problems> {
        let mut found = Check {
            layers: &layers,
            warnings,
            problems,
        };
        let matches = self.matches(&layers, |_| true, &mut found.problems);
        let settings = matches.and_then(|given| {
            let mut settings = S::from_arg_matches(&given).ok()?;
            check(&mut settings, &mut found);
            Some(settings)
        });
        let Check {
            warnings, problems, ..
        } = found;
        match settings.filter(|_| problems.is_empty()) {
            Some(settings) => Ok(Loaded {
                settings,
                warnings,
                layers,
            }),
            None => Err(Problems::of(problems)),
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
        let wanted = |name: &str| {
            let of_file = name.strip_suffix("_file").unwrap_or(name);
            names.contains(&name) || names.contains(&of_file)
        };
        let (layers, mut problems) = self.gather_some(line, environment, &wanted);
        let matches = self.matches(&layers, |name| names.contains(&name), &mut problems);
        let matches = matches.filter(|_| problems.is_empty());
        matches.ok_or_else(|| Problems::of(problems))
    }

    /// Parses the `wanted` settings; `None` after noting a problem that leaves nothing to parse.
    fn matches(
        &self,
        layers: &Layers,
        wanted: impl Fn(&str) -> bool,
        problems: &mut Vec<Problem>,
    ) -> Option<ArgMatches> {
        let all: Vec<&Layer> = layers.0.iter().collect();
        let missing = |_: &str| self.missing.to_owned().into();
        let words = self.words(&self.keys, &all, &wanted, &missing, problems);
        let matches = self.keys.command().try_get_matches_from(words);
        matches
            .map_err(|e| problems.push(e.to_string().into()))
            .ok()
    }

    /// Returns the words of a command line with the valid settings of `layers`, the strongest
    /// first. `missing` is the problem of one that is required and not given.
    fn words(
        &self,
        keys: &Keys,
        layers: &[&Layer],
        wanted: &dyn Fn(&str) -> bool,
        missing: &dyn Fn(&str) -> Problem,
        problems: &mut Vec<Problem>,
    ) -> Vec<String> {
        let (command, settings) = (keys.command(), keys.settings());
        let mut words = Vec::new();
        for setting in settings.iter().filter(|setting| wanted(&setting.name)) {
            let (mut own, before) = (None, problems.len());
            for given in layers.iter().filter_map(|layer| layer.0.get(&setting.name)) {
                if own.is_none() || self.strict {
                    let valid = self.valid(&command, setting, given, problems);
                    own.get_or_insert(valid);
                }
            }
            let own = own.unwrap_or_default();
            let file = setting.file().unwrap_or_default();
            let by_file = layers.iter().any(|layer| layer.text(&file).is_some());
            let is_missing = own.is_empty() && problems.len() == before && !by_file;
            if setting.arg.is_required_set() && is_missing {
                problems.push(missing(&setting.name));
            }
            if !is_excluded(&command, &settings, setting, layers, problems) {
                words.extend(own);
            }
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
        let mut words: Vec<String> = Vec::new();
        for section in &given.sections {
            let table = self.section(setting, section, problems);
            words.extend(table.map(|text| word(&text)));
        }
        for item in &setting.items(&given.texts) {
            let is_set = setting.is_secret() && matches!(given.origin, Origin::File { .. });
            if item.trim().is_empty() && !self.strict && !is_set {
                continue;
            }
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

    /// Returns a table as the text that [`table`] reads; `None` if it lacks a key.
    fn section(
        &self,
        setting: &Setting,
        section: &Section,
        problems: &mut Vec<Problem>,
    ) -> Option<String> {
        let keys = &setting.tables?.keys;
        let before = problems.len();
        let missing = |key: &str| Problem::at(&section.origin, format!("has no {key}"));
        // Nothing is overridden in a table: what is empty there is an error and not left out.
        let strict = Table {
            strict: true,
            ..*self
        };
        let words = strict.words(keys, &[&section.keys], &|_| true, &missing, problems);
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

impl Problems {
    /// Returns the problems of the file in its order, then the others.
    pub(super) fn of(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(Problem::line);
        Self(problems.iter().map(Problem::to_string).collect())
    }
}

/// Whether a setting has no effect because of another one that excludes it in a stronger layer.
/// Notes a problem if both are in one.
fn is_excluded(
    command: &Command,
    settings: &[Setting],
    setting: &Setting,
    layers: &[&Layer],
    problems: &mut Vec<Problem>,
) -> bool {
    let given = |name: &str| {
        let mut layers = layers.iter().zip(0..);
        layers.find_map(|(layer, rank)| Some((rank, &layer.0.get(name)?.origin)))
    };
    let Some((rank, origin)) = given(&setting.name) else {
        return false;
    };
    let excludes = |one: &Setting, other: &Setting| {
        let others = command.get_arg_conflicts_with(&one.arg);
        others.iter().any(|arg| arg.get_id() == other.arg.get_id())
    };
    let mut is_excluded = false;
    for other in settings {
        let declared = excludes(setting, other);
        let excluded = declared || excludes(other, setting);
        let Some((of_other, at)) = given(&other.name).filter(|_| excluded) else {
            continue;
        };
        if of_other == rank && declared {
            let what = format!("has no effect together with {at}; leave one of them out");
            problems.push(Problem::at(origin, what));
        }
        is_excluded |= of_other < rank || (of_other == rank && declared);
    }
    is_excluded
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
