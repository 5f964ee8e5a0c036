//! Settings in environment variables.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::layer::{Layer, Origin, Problem, Value};
use super::table::{Setting, Table};
use crate::environment::is_meant_for;
use crate::nearest::nearest;
use crate::peer_text::plain;

/// End of a variable that names a file with a secret.
const IN_A_FILE: &str = "_FILE";

/// Bound on the length of a file with a secret, in bytes.
const MAX_SECRET: u64 = 64 << 10;

/// Environment variables. An empty one, as compose files make of unset ones, counts as none.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// Returns the variables of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self::with(
            std::env::vars_os().map(|(name, value)| (name.to_string_lossy().into_owned(), value)),
        )
    }

    /// Returns an environment of these variables.
    #[must_use]
    pub fn with<N: Into<String>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let owned = |(name, value): (N, V)| (name.into(), value.into());
        Self(variables.into_iter().map(owned).collect())
    }

    /// Returns the text of a setting in the variable `name`, or in the file that the variable with
    /// `_FILE` names, and its origin; an empty variable is none, and so is a blank one unless the
    /// table is `strict`.
    fn text(
        &self,
        setting: &Setting,
        name: &str,
        strict: bool,
    ) -> Result<Option<(Origin, String)>, Problem> {
        let file_name = format!("{name}{IN_A_FILE}");
        let given = |name: &str| self.0.get(name).filter(|value| !value.is_empty());
        let value = self.0.get(name).filter(|_| setting.empty).or(given(name));
        let file = given(&file_name).filter(|_| setting.secret);
        let wrong = |name: &str, what: String| Problem {
            origin: Some(Origin::Variable(name.to_owned())),
            what,
        };
        let found = |name: &str, text: String| {
            let blank = text.trim().is_empty() && !setting.empty && !strict;
            (!blank).then(|| (Origin::Variable(name.to_owned()), text))
        };
        match (value, file) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(wrong(
                name,
                format!("{file_name} is set as well; leave one of them out"),
            )),
            // A replacement of other bytes would be another text: another folder, above all.
            (Some(value), None) => match value.to_str() {
                Some(text) => Ok(found(name, text.to_owned())),
                None => Err(wrong(
                    name,
                    "is not UTF-8 text, as every setting has to be".to_owned(),
                )),
            },
            (None, Some(path)) => {
                let path = Path::new(path);
                match read_secret(path) {
                    Ok(text) => Ok(found(&file_name, text)),
                    Err(what) => Err(wrong(&file_name, format!("{}: {what}", path.display()))),
                }
            }
        }
    }
}

/// Reads a file with a secret: its text without the end of the line.
fn read_secret(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_SECRET + 1).read_to_string(&mut text))
        .map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > MAX_SECRET {
        return Err(format!("is longer than {MAX_SECRET} bytes"));
    }
    match text.trim().is_empty() {
        true => Err("is empty".to_owned()),
        false => Ok(text.trim_end_matches(['\n', '\r']).to_owned()),
    }
}

impl Table {
    /// Returns the settings of the environment, and their problems.
    #[must_use]
    pub fn variables_layer(&self, environment: &Environment) -> (Layer, Vec<Problem>) {
        let mut layer = Layer::default();
        let mut problems = Vec::new();
        for setting in self.settings.iter().filter(|setting| setting.in_variable()) {
            let own = self.variable(setting);
            let general = setting.general_variable.map(str::to_owned);
            let mut names = std::iter::once(own).chain(general);
            let text = |name: String| environment.text(setting, &name, self.strict).transpose();
            let texts = names.find_map(text);
            match texts {
                Some(Ok((origin, text))) => {
                    let texts = match setting.words {
                        true => text.split_whitespace().map(str::to_owned).collect(),
                        false => vec![text],
                    };
                    layer.put(setting, origin, Value::Texts(texts));
                }
                Some(Err(problem)) => problems.push(problem),
                None => {}
            }
        }
        (layer, problems)
    }

    /// Returns variables with the prefix that are no settings, with suggestions: mistyped, or
    /// unknown to this build.
    #[must_use]
    pub fn unknown_variables(&self, environment: &Environment) -> Vec<String> {
        let settings = || self.settings.iter().filter(|setting| setting.in_variable());
        let mut known: Vec<String> = settings().map(|s| self.variable(s)).collect();
        let secrets = settings().filter(|setting| setting.secret);
        known.extend(secrets.map(|s| format!("{}{IN_A_FILE}", self.variable(s))));
        // Without the prefix, which makes all names similar.
        let own = |name: &str| name.get(self.prefix.len()..).unwrap_or_default().to_owned();
        let known_own: Vec<String> = known.iter().map(|name| own(name)).collect();
        let unknown = environment.0.iter().filter(|(name, value)| {
            is_meant_for(self.prefix, name, &value.to_string_lossy())
                && !self.other_variables.contains(&name.as_str())
                && !known.contains(name)
        });
        let unknown = unknown.map(|(name, _)| {
            match nearest(&own(name), known_own.iter().map(String::as_str)) {
                Some(meant) => format!("{} (is {}{meant} meant?)", plain(name), self.prefix),
                None => plain(name),
            }
        });
        unknown.collect()
    }

    /// Returns a warning for each unknown variable.
    #[must_use]
    pub fn warnings(&self, environment: &Environment) -> Vec<String> {
        let unknown = self.unknown_variables(environment).into_iter();
        let warning = |name| {
            format!("the environment variable {name} is no setting of this program and is ignored")
        };
        unknown.map(warning).collect()
    }
}
