//! Settings in environment variables.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::iter;
use std::path::Path;

use super::layer::{Layer, Origin, Problem};
use super::setting::{Keys, Setting, Table};
use crate::environment::is_meant_for;
use crate::nearest::nearest;
use crate::ownership::remedy_to_read;
use crate::peer_text::plain;

/// Variables that something else in the program reads.
const OTHERS: &[&str] = &[
    #[cfg(any(test, feature = "fault-injection"))]
    crate::faults::VARIABLE,
];

/// Bound on the length of a file with a secret, in bytes.
const MAX_SECRET: u64 = 64 << 10;

/// Environment variables. An empty one, as compose files make of unset ones, counts as none.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// Returns the variables of this process.
    pub fn of_process() -> Self {
        // No setting has a name that is no text.
        let all = std::env::vars_os();
        Self::with(all.filter_map(|(name, value)| Some((name.into_string().ok()?, value))))
    }

    /// Returns an environment of these variables.
    pub fn with<N: Into<String>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let owned = |(name, value): (N, V)| (name.into(), value.into());
        Self(variables.into_iter().map(owned).collect())
    }
}

/// Reads a text file of at most `most` bytes, which is to be the `what`.
pub(super) fn read(what: &str, path: &Path, most: u64) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_string(&mut text));
    let wrong = match read {
        Ok(length) if length as u64 <= most => return Ok(text),
        Ok(_) => format!("it is longer than {most} bytes"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            format!("{error}; {}", remedy_to_read(path))
        }
        Err(error) => error.to_string(),
    };
    let place = path.display();
    Err(format!("cannot read the {what} in {place}: {wrong}"))
}

/// Takes the `wanted` secrets that are in files from there.
pub(super) fn open_files(
    keys: &Keys,
    layer: &mut Layer,
    wanted: impl Fn(&str) -> bool,
    problems: &mut Vec<Problem>,
) {
    for setting in keys.settings() {
        let file = setting.file();
        let file = file.filter(|file| wanted(&setting.name) && wanted(file));
        let Some((origin, path)) = file.as_ref().and_then(|file| layer.text(file)) else {
            continue;
        };
        let text = match layer.text(&setting.name) {
            None => read("secret", Path::new(path), MAX_SECRET),
            Some((own, _)) => Err(format!(
                "both {own} and {origin} are given; leave one of them out"
            )),
        };
        let origin = origin.clone();
        match text.as_deref().map(str::trim) {
            Ok("") => problems.push(Problem::at(&origin, "the file is empty")),
            Ok(text) => layer.put(&setting.name, origin, vec![text.to_owned()]),
            Err(what) => problems.push(Problem::at(&origin, what)),
        }
    }
}

impl Table<'_> {
    /// Returns the settings that can be in variables, and the files of secrets, with the names of
    /// their variables, the stronger first.
    fn variables(&self) -> Vec<(Setting, Vec<String>)> {
        let mut settings = self.settings();
        settings.retain(Setting::in_variable);
        let mut all = Vec::new();
        for setting in &settings {
            let general = setting.arg.get_env().and_then(OsStr::to_str);
            let own = iter::once(self.variable(setting));
            let names: Vec<_> = own.chain(general.map(str::to_owned)).collect();
            if let Some(name) = setting.file() {
                let names = names.iter().map(|name| format!("{name}_FILE")).collect();
                let setting = setting.clone();
                all.push((Setting { name, ..setting }, names));
            }
            all.push((setting.clone(), names));
        }
        all
    }

    /// Returns the settings of the environment, and their problems.
    pub fn variables_layer(&self, environment: &Environment) -> (Layer, Vec<Problem>) {
        let (mut layer, mut problems) = (Layer::default(), Vec::new());
        for (setting, names) in self.variables() {
            let given = names.into_iter().find_map(|name| {
                let text = environment.0.get(&name)?;
                let is_empty = text.to_string_lossy().trim().is_empty();
                (!is_empty || setting.name == self.empty).then_some((Origin::from(name), text))
            });
            match given.map(|(origin, text)| (origin, text.to_str())) {
                Some((origin, Some(text))) => {
                    layer.put(&setting.name, origin, setting.items([text]))
                }
                // A replacement of other bytes would be another text: another folder, above all.
                Some((origin, None)) => {
                    let what = "is not UTF-8 text, as every setting has to be";
                    problems.push(Problem::at(&origin, what));
                }
                None => {}
            }
        }
        (layer, problems)
    }

    /// Returns a warning for each variable with the prefix that is no setting: mistyped, or unknown
    /// to this build.
    pub fn warnings(&self, environment: &Environment) -> Vec<String> {
        // Without the prefix, which makes all names similar.
        let own = |name: &str| name.strip_prefix(self.prefix).map(str::to_owned);
        let all = self.variables().into_iter().flat_map(|(_, names)| names);
        let known: Vec<String> = all.filter_map(|name| own(&name)).collect();
        let warnings = environment.0.iter().filter_map(|(name, value)| {
            let is_meant = is_meant_for(self.prefix, name, &value.to_string_lossy());
            let unknown = own(name).filter(|own| is_meant && !known.contains(own))?;
            let meant = match nearest(&unknown, known.iter().map(String::as_str)) {
                _ if OTHERS.contains(&name.as_str()) => return None,
                Some(meant) => format!(" (is {}{meant} meant?)", self.prefix),
                None => String::new(),
            };
            Some(format!(
                "the environment variable {}{meant} is no setting of this program and is ignored",
                plain(name)
            ))
        });
        warnings.collect()
    }
}
