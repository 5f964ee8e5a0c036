//! Settings from environment variables.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::resolve::{Given, Layer, Mistake, Place};
use super::settings::{self, Setting};
use super::{CONFIG_VARIABLE, PREFIX};
use service::environment::is_of_others;
use service::nearest::nearest;

/// Suffix of a variable that names a file with the value.
const IN_A_FILE: &str = "_FILE";

/// Common name of the database's variable.
const DATABASE_URL: &str = "DATABASE_URL";

/// A secret in a file is at most this long, in bytes.
const MAX_SECRET: u64 = 64 << 10;

/// The environment of the process.
#[derive(Debug, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// Returns the environment of this process. An empty variable counts as none, because container
    /// files pass on unset variables; except where empty means something.
    pub fn of_process() -> Self {
        Self(
            std::env::vars_os()
                .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
                .collect(),
        )
    }

    #[cfg(test)]
    pub(super) fn with(variables: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), OsString::from(*value));
        Self(variables.iter().map(owned).collect())
    }

    /// The configuration file that it names.
    pub(super) fn config(&self) -> Option<PathBuf> {
        let path = self.0.get(CONFIG_VARIABLE)?;
        (!path.is_empty()).then(|| path.into())
    }

    /// The settings that it has.
    pub(super) fn layer(&self, mistakes: &mut Vec<Mistake>) -> Layer {
        let mut layer = Layer::new();
        for setting in settings::ALL {
            let mut names = vec![setting.variable()];
            if setting.name == "database-url" {
                names.push(DATABASE_URL.to_owned());
            }
            for name in names {
                match self.one(setting, &name) {
                    Ok(Some(given)) => {
                        layer.insert(setting.name, given);
                        break;
                    }
                    Ok(None) => {}
                    Err(mistake) => {
                        mistakes.push(mistake);
                        break;
                    }
                }
            }
        }
        layer
    }

    /// A setting's value under that name, or in the file that the name with `_FILE` names.
    fn one(&self, setting: &Setting, name: &str) -> Result<Option<Given>, Mistake> {
        let place = |name: &str| Place::Variable(name.to_owned());
        let plain = match self.0.get(name) {
            Some(value) if !value.is_empty() || setting.empty => Some(value),
            _ => None,
        };
        let file_name = format!("{name}{IN_A_FILE}");
        let file = self
            .0
            .get(&file_name)
            .filter(|path| setting.secret && !path.is_empty());
        let (text, at) = match (plain, file) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(Mistake::at(
                    place(name),
                    format!("{file_name} is there, too: leave one of them out"),
                ));
            }
            (Some(value), None) => {
                let text = value
                    .to_str()
                    .ok_or_else(|| Mistake::at(place(name), "it is not text (UTF-8)".into()))?;
                (text.to_owned(), place(name))
            }
            (None, Some(path)) => {
                let text = secret(Path::new(path)).map_err(|why| {
                    let path = Path::new(path).display();
                    Mistake::at(place(&file_name), format!("{path}: {why}"))
                })?;
                (text, place(&file_name))
            }
        };
        Ok(Some(Given { text, place: at }))
    }

    /// Those variables that look like settings and are none, such as typing errors, in words.
    pub(super) fn unknown(&self) -> Vec<String> {
        let mut known: Vec<String> = settings::ALL.iter().map(Setting::variable).collect();
        let secrets = settings::ALL.iter().filter(|setting| setting.secret);
        known.extend(secrets.map(|setting| format!("{}{IN_A_FILE}", setting.variable())));
        known.push(CONFIG_VARIABLE.to_owned());
        let ours = |(name, value): &(&String, &OsString)| {
            name.starts_with(PREFIX)
                && !is_of_faults(name)
                && !is_of_others(name, &value.to_string_lossy())
        };
        let names = self.0.iter().filter(ours).map(|(name, _)| name);
        let unknown = names.filter(|name| !known.contains(name)).map(|name| {
            let meant = match nearest(name, known.iter().map(String::as_str)) {
                Some(meant) => format!("; did you mean {meant}?"),
                None => String::new(),
            };
            let name = name.escape_debug();
            format!(
                "the environment variable {name} is no setting of this program and is \
                 ignored{meant}"
            )
        });
        unknown.collect()
    }
}

/// Reads a file with a secret: its text without the line's end.
fn secret(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        file.take(MAX_SECRET + 1)
            .read_to_string(&mut text)
            .map(|_| ())
    });
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > MAX_SECRET {
        return Err(format!("is longer than {MAX_SECRET} bytes"));
    }
    match text.trim_end_matches(['\n', '\r']) {
        "" => Err("is empty".into()),
        text => Ok(text.to_owned()),
    }
}

/// Whether a variable injects faults, which only builds with the feature know.
fn is_of_faults(_name: &str) -> bool {
    #[cfg(feature = "fault-injection")]
    return _name == crate::faults::VARIABLE;
    #[cfg(not(feature = "fault-injection"))]
    false
}
