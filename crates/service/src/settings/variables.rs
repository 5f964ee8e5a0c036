//! Settings in environment variables.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::layer::{Layer, Origin, Problem};
use super::setting::{Keys, Setting, Table};
use crate::environment::is_meant_for;
use crate::nearest::nearest;
use crate::ownership::remedy_to_read;
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

    /// Returns the text of a variable, if it is given.
    fn text(&self, name: &str, is_given: impl Fn(&str) -> bool) -> Option<Result<String, Problem>> {
        let value = self.0.get(name)?;
        // A replacement of other bytes would be another text: another folder, above all.
        let Some(text) = value.to_str() else {
            let what = "is not UTF-8 text, as every setting has to be";
            return Some(Err(Problem::at(&Origin::Variable(name.to_owned()), what)));
        };
        is_given(text).then(|| Ok(text.to_owned()))
    }
}

/// Reads a text file of at most `most` bytes.
pub(super) fn read(path: &Path, most: u64) -> Result<String, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
        .map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => format!("{error}; {}", remedy_to_read(path)),
            _ => error.to_string(),
        })?;
    match String::from_utf8(bytes) {
        Ok(text) if text.len() as u64 <= most => Ok(text),
        Ok(_) => Err(format!("it is longer than {most} bytes")),
        Err(_) => Err("it is not UTF-8 text".to_owned()),
    }
}

/// Takes the `wanted` secrets that are in files from there.
pub(super) fn open_files(
    keys: &Keys,
    layer: &mut Layer,
    wanted: &dyn Fn(&str) -> bool,
    problems: &mut Vec<Problem>,
) {
    for setting in keys.settings() {
        if !wanted(&setting.name) {
            continue;
        }
        if let (Some(tables), Some(given)) = (setting.tables, layer.0.get_mut(&setting.name)) {
            for section in &mut given.sections {
                open_files(&tables.keys, &mut section.keys, &|_| true, problems);
            }
        }
        let name = setting.file().unwrap_or_default();
        let file = layer.text(&name);
        let file = file.filter(|(_, path)| wanted(&name) && !path.trim().is_empty());
        let Some((origin, path)) = file else {
            continue;
        };
        let text = match layer.text(&setting.name) {
            Some((own, _)) => Err(Problem::from(format!(
                "both {own} and {origin} are given; leave one of them out"
            ))),
            None => match read(Path::new(path), MAX_SECRET) {
                Ok(text) if text.trim().is_empty() => Err(format!("{path} is empty")),
                Ok(text) => Ok(text.trim().to_owned()),
                Err(what) => Err(format!("cannot read the secret in {path}: {what}")),
            }
            .map_err(|what| Problem::at(origin, what)),
        };
        match (origin.clone(), text) {
            (origin, Ok(text)) => layer.put(&setting, origin, vec![text]),
            (_, Err(problem)) => problems.push(problem),
        }
    }
}

impl Table {
    /// Returns the settings of the environment, and their problems.
    #[must_use]
    pub fn variables_layer(&self, environment: &Environment) -> (Layer, Vec<Problem>) {
        let (mut layer, mut problems) = (Layer::default(), Vec::new());
        let mut take = |setting: &Setting, name: &str| {
            let text = environment.text(name, |text| match setting.name == self.empty {
                true => true,
                false if self.strict => !text.is_empty(),
                false => !text.trim().is_empty(),
            });
            let given = text?.map(|text| {
                layer.put(setting, Origin::Variable(name.to_owned()), vec![text]);
            });
            Some(given.map_err(|problem| problems.push(problem)))
        };
        let settings = self.settings();
        for setting in settings.iter().filter(|setting| setting.in_variable()) {
            let file = setting.file();
            let file = file.filter(|file| settings.iter().all(|other| other.name != *file));
            let file = file.map(|name| Setting {
                name,
                ..setting.clone()
            });
            let general = setting.arg.get_env().map(|name| name.to_string_lossy());
            for name in [self.variable(setting).into()].into_iter().chain(general) {
                let own = take(setting, &name).is_some();
                let in_file = format!("{name}{IN_A_FILE}");
                let by_file = file.as_ref().and_then(|file| take(file, &in_file));
                if own || by_file.is_some() {
                    break;
                }
            }
        }
        (layer, problems)
    }

    /// Returns a warning for each variable with the prefix that is no setting: mistyped, or unknown
    /// to this build.
    #[must_use]
    pub fn warnings(&self, environment: &Environment) -> Vec<String> {
        let mut settings = self.settings();
        settings.retain(Setting::in_variable);
        let files = settings.iter().filter_map(Setting::file);
        let known = settings
            .iter()
            .map(|setting| setting.name.clone())
            .chain(files);
        let known: Vec<String> = known.map(|name| name.to_ascii_uppercase()).collect();
        let unknown = environment.0.iter().filter_map(|(name, value)| {
            // Without the prefix, which makes all names similar.
            let own = name.strip_prefix(self.prefix)?;
            let unknown = is_meant_for(self.prefix, name, &value.to_string_lossy())
                && !self.other_variables.contains(&name.as_str())
                && !known.iter().any(|known| known == own);
            unknown.then_some((own, plain(name)))
        });
        let warnings = unknown.map(|(own, name)| {
            let meant = match nearest(own, known.iter().map(String::as_str)) {
                Some(meant) => format!(" (is {}{meant} meant?)", self.prefix),
                None => String::new(),
            };
            format!(
                "the environment variable {name}{meant} is no setting of this program and is \
                 ignored"
            )
        });
        warnings.collect()
    }
}
