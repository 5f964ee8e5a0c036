//! Reading a TOML file into a layer.

use std::path::Path;

use toml::de::{DeInteger, DeTable, DeValue};

use super::layer::{Given, Layer, Origin, Problem, Section};
use super::setting::{CONFIG, Form, Keys, Setting, Table};
use super::variables::read;
use crate::nearest::nearest;
use crate::peer_text::plain;

/// Bound on the length of a file, in bytes.
const MAX_FILE: u64 = 1 << 20;

impl Table {
    /// Returns the settings of a file, and their problems.
    pub fn file_layer(&self, path: &Path) -> (Layer, Vec<Problem>) {
        match read("settings", path, MAX_FILE) {
            Ok(text) => self.text_layer(path, &text),
            Err(what) => (Layer::default(), vec![what.into()]),
        }
    }

    /// Returns the settings of a file's text, and their problems; `path` is its place.
    pub fn text_layer(&self, path: &Path, text: &str) -> (Layer, Vec<Problem>) {
        let (table, errors) = DeTable::parse_recoverable(text);
        let problems = Vec::new();
        let mut reader = Reader {
            path,
            text,
            problems,
        };
        for error in errors {
            let origin = reader.origin(error.span().map_or(0, |span| span.start), "");
            let problem = Problem::at(&origin, plain(error.message()));
            reader.problems.push(problem);
        }
        let layer = reader.layer(&self.keys, table.get_ref());
        (layer, reader.problems)
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn origin(&self, offset: usize, key: &str) -> Origin {
        let before = self.text.as_bytes().get(..offset).unwrap_or_default();
        Origin::File {
            path: self.path.to_owned(),
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
            key: plain(key),
        }
    }

    fn layer(&mut self, keys: &Keys, table: &DeTable<'_>) -> Layer {
        let mut known = keys.settings();
        known.retain(Setting::in_file);
        let mut layer = Layer::default();
        for (key, value) in table {
            let origin = self.origin(key.span().start, key.get_ref());
            let given = self.given(&known, key.get_ref(), value.get_ref(), origin.clone());
            let set = given.map(|(setting, given)| layer.0.insert(setting.name.clone(), given));
            let what = match set {
                Ok(None) => continue,
                Ok(Some(_)) => "is given twice".to_owned(),
                Err(what) => what,
            };
            self.problems.push(Problem::at(&origin, what));
        }
        layer
    }

    /// Returns the setting of a key, and what is given of it.
    fn given<'k>(
        &mut self,
        known: &'k [Setting],
        key: &str,
        value: &DeValue<'_>,
        origin: Origin,
    ) -> Result<(&'k Setting, Given), String> {
        // Hyphens are as good.
        let name = key.replace('-', "_");
        let named = || known.iter().filter(|setting| setting.key() == name);
        // A key may have tables besides a value of another form.
        let fits = |setting: &&Setting| setting.tables.is_some() == value.is_array();
        let Some(setting) = named().find(fits).or_else(|| named().next()) else {
            let nearest = nearest(&name, known.iter().map(Setting::key));
            return Err(match (name.as_str(), nearest) {
                (CONFIG, _) => "a file cannot name another one".to_owned(),
                (_, Some(meant)) => format!("there is no such setting; is {meant} meant?"),
                (_, None) => "there is no such setting".to_owned(),
            });
        };
        let (texts, sections) = match setting.tables {
            None => (self.texts(setting.form(), value)?, Vec::new()),
            Some(tables) => {
                let sections = value.as_array().and_then(|array| {
                    let sections = array.iter().map(|entry| {
                        let keys = self.layer(tables, entry.get_ref().as_table()?);
                        let origin = self.origin(entry.span().start, setting.key());
                        Some(Section { origin, keys })
                    });
                    sections.collect::<Option<Vec<_>>>()
                });
                let wrong =
                    || format!("each needs a table of its own, which begins with [[{name}]]");
                (Vec::new(), sections.ok_or_else(wrong)?)
            }
        };
        let given = Given {
            origin,
            texts,
            sections,
        };
        Ok((setting, given))
    }

    /// Returns the texts of a value that is no table; a path as one relative to the file's folder,
    /// wherever the program was started.
    fn texts(&self, form: Form, value: &DeValue<'_>) -> Result<Vec<String>, String> {
        let one = |value: &DeValue<'_>| match (form, value) {
            (Form::Switch | Form::Optional, DeValue::Boolean(on)) => Some(on.to_string()),
            (Form::Switch, _) => None,
            (Form::Path, DeValue::String(text)) if !text.is_empty() => {
                let placed = self.path.with_file_name(text.as_ref());
                Some(placed.display().to_string())
            }
            (_, DeValue::String(text)) => Some(text.to_string()),
            (_, DeValue::Integer(number)) => Some(decimal(number)),
            (_, DeValue::Float(number)) => Some(number.as_str().to_owned()),
            _ => None,
        };
        let texts = match (form, value) {
            (Form::List, DeValue::Array(all)) => {
                all.iter().map(|item| one(item.get_ref())).collect()
            }
            (_, value) => one(value).map(|text| vec![text]),
        };
        texts.ok_or_else(|| {
            let wanted = match form {
                Form::Switch => "true or false",
                Form::Optional => "true, false or a text in quotation marks",
                Form::List => "a list of texts or numbers, or one of them",
                _ => "a text in quotation marks or a number",
            };
            format!("takes {wanted}, not a TOML {}", value.type_str())
        })
    }
}

/// Returns a number of TOML in decimal digits; unchanged if it does not fit 64 bits, to be
/// rejected.
fn decimal(number: &DeInteger<'_>) -> String {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or_else(|_| number.as_str().to_owned(), |number| number.to_string())
}
