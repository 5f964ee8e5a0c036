//! From layers to typed settings.

use std::collections::BTreeSet;
use std::error::Error;

use clap::{Arg, ArgMatches, Args, FromArgMatches};

use super::layer::{Layer, Layers, Problem};
use super::setting::{Keys, Setting, Table, name};
use super::{Environment, Loaded, Problems};
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

    /// Notes a problem of a setting, if it is given.
    pub fn wrong_setting(&mut self, name: &str, what: &str) {
        let given = self.layers.given(name);
        let problem = given.map(|given| Problem::at(&given.origin, what));
        self.problems.extend(problem);
    }
}

impl Table<'_> {
    /// Returns the settings that are given; see [`load`](Table::load).
    ///
    /// # Errors
    /// All problems: those of the file in its order, then the others.
    pub fn resolve<S: FromArgMatches>(
        &self,
        mut given: Check,
        check: impl FnOnce(&mut S, &mut Check),
    ) -> Result<Loaded<S>, Problems> {
        let matches = self.matches(&mut given);
        let mut settings = matches.and_then(|matches| S::from_arg_matches(&matches).ok());
        if let Some(settings) = &mut settings {
            check(settings, &mut given);
        }
        let (warnings, layers) = (given.warnings, given.layers);
        match settings.filter(|_| given.problems.is_empty()) {
            Some(settings) => Ok(Loaded {
                settings,
                warnings,
                layers,
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
        let mut some = *self;
        some.only = names;
        let mut given = some.gather(line, environment);
        let matches = some.matches(&mut given);
        let matches = matches.filter(|_| given.problems.is_empty());
        matches.ok_or_else(|| given.problems.into())
    }

    /// Parses the settings; `None` after noting a problem that leaves nothing to parse.
    fn matches(&self, given: &mut Check) -> Option<ArgMatches> {
        let (layers, problems) = (&mut given.layers.0, &mut given.problems);
        let missing = |_: &str| self.missing.to_owned().into();
        let words = self.words(&self.keys, layers, &missing, problems);
        let matches = self.keys.command().try_get_matches_from(words);
        let wrong = |error: clap::Error| problems.push(error.to_string().into());
        matches.map_err(wrong).ok()
    }

    /// Returns the words of a command line with the settings of `layers`, the strongest first.
    /// Every value has to be valid, also those that a stronger layer overrides. `missing` is the
    /// problem of one that is required and not given.
    pub(super) fn words(
        &self,
        keys: &Keys,
        layers: &mut [Layer],
        missing: &dyn Fn(&str) -> Problem,
        problems: &mut Vec<Problem>,
    ) -> Vec<String> {
        exclude(keys, layers, problems);
        let (command, mut words) = (keys.command(), Vec::new());
        for setting in keys.settings() {
            let (name, file) = (&setting.name, setting.file().unwrap_or_default());
            // A file with it that cannot be read is a problem already.
            let is_given = |layer: &Layer| [name, &file].iter().any(|n| layer.0.contains_key(*n));
            if !self.wants(name) {
                continue;
            }
            if setting.arg.is_required_set() && !layers.iter().any(is_given) {
                problems.push(missing(name));
            }
            let flag = setting.arg.get_long().unwrap_or(name);
            let mut all = Vec::new();
            for given in layers.iter().filter_map(|layer| layer.0.get(name)) {
                let mut valid = Vec::new();
                for item in &given.texts {
                    let word = format!("--{flag}={item}");
                    if let Err(error) = command.clone().try_get_matches_from([&word]) {
                        let what = self.explain(&setting, item, &error);
                        problems.push(Problem::at(&given.origin, what));
                    } else {
                        valid.push(word);
                    }
                }
                all.push(valid);
            }
            words.extend(all.into_iter().next().unwrap_or_default());
        }
        words
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
fn exclude(keys: &Keys, layers: &mut [Layer], problems: &mut Vec<Problem>) {
    let (command, mut excluded) = (keys.declared(), BTreeSet::new());
    for layer in layers {
        layer.0.retain(|name, _| !excluded.contains(name));
        for arg in command.get_arguments() {
            for other in command.get_arg_conflicts_with(arg) {
                let (one, other) = (name(arg), name(other));
                match (layer.0.get(&one), layer.0.get(&other)) {
                    (Some(given), Some(rival)) => {
                        let with = format!("together with {}", rival.origin);
                        let what = format!("has no effect {with}; leave one of them out");
                        problems.push(Problem::at(&given.origin, what));
                    }
                    (Some(_), None) => _ = excluded.insert(other),
                    (None, Some(_)) => _ = excluded.insert(one),
                    (None, None) => {}
                }
            }
        }
    }
}

/// Reads a `[[name]]` table, or its first key alone: the `value_parser` of settings that are
/// tables.
///
/// # Errors
/// The text is no table.
pub fn table<T: Args>(text: &str) -> Result<T, String> {
    let command = Keys::of::<T>(&[]).command();
    let first = command.get_arguments().next().and_then(Arg::get_long);
    let alone = |_| vec![format!("--{}={text}", first.unwrap_or_default())];
    let words: Vec<String> = serde_json::from_str(text).unwrap_or_else(alone);
    let matches = command.clone().try_get_matches_from(words);
    let table = matches.and_then(|given| T::from_arg_matches(&given));
    table.map_err(|error| reason(&error))
}

/// Returns the error of a parser, without the text, which may be a secret.
fn reason(error: &clap::Error) -> String {
    let source = error.source().map(ToString::to_string);
    source.unwrap_or_else(|| "needs a value, and only one".to_owned())
}
