//! Reading a TOML file into a layer.

use std::borrow::Cow;
use std::path::Path;

use toml::Spanned;
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
    #[must_use]
    pub fn file_layer(&self, path: &Path) -> (Layer, Vec<Problem>) {
        match read(path, MAX_FILE) {
            Ok(text) => self.text_layer(path, &text),
            Err(what) => {
                let what = format!("cannot read the settings in {}: {what}", path.display());
                (Layer::default(), vec![what.into()])
            }
        }
    }

    /// Returns the settings of a file's text, and their problems; `path` is its place.
    #[must_use]
    pub fn text_layer(&self, path: &Path, text: &str) -> (Layer, Vec<Problem>) {
        let mut reader = Reader {
            path,
            text,
            problems: Vec::new(),
        };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let origin = reader.origin(error.span().map_or(0, |span| span.start), "");
            reader
                .problems
                .push(Problem::at(&origin, plain(error.message())));
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
            match self.value(&known, key, value.get_ref()) {
                Ok((name, ..)) if layer.0.contains_key(name) => {
                    self.problems.push(Problem::at(&origin, "is given twice"));
                }
                Ok((name, texts, sections)) => {
                    let given = Given {
                        origin,
                        texts,
                        sections,
                    };
                    layer.0.insert(name.to_owned(), given);
                }
                Err(what) => self.problems.push(Problem::at(&origin, what)),
            }
        }
        layer
    }

    /// Returns the setting of a key, and its texts or tables.
    fn value<'k>(
        &mut self,
        known: &'k [Setting],
        key: &Spanned<Cow<'_, str>>,
        value: &DeValue<'_>,
    ) -> Result<(&'k str, Vec<String>, Vec<Section>), String> {
        // Hyphens are as good.
        let name = key.get_ref().replace('-', "_");
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
        let Some(tables) = setting.tables else {
            let texts = self.texts(setting.form(), value)?;
            return Ok((&setting.name, texts, Vec::new()));
        };
        let sections = value.as_array().and_then(|array| {
            let sections = array.iter().map(|entry| {
                let keys = self.layer(&tables.keys, entry.get_ref().as_table()?);
                let origin = self.origin(entry.span().start, tables.key);
                Some(Section { origin, keys })
            });
            sections.collect()
        });
        let wrong = || format!("each needs a table of its own, which begins with [[{name}]]");
        Ok((&setting.name, Vec::new(), sections.ok_or_else(wrong)?))
    }

    /// Returns the texts of a value that is no table.
    fn texts(&self, form: Form, value: &DeValue<'_>) -> Result<Vec<String>, String> {
        let one = |value: &DeValue<'_>| match (form, value) {
            (Form::Switch | Form::Optional, DeValue::Boolean(on)) => Some(on.to_string()),
            (Form::Switch, _) => None,
            (_, DeValue::String(text)) => Some(self.placed(form, text.to_string())),
            (_, DeValue::Integer(number)) => Some(self.placed(form, decimal(number))),
            (_, DeValue::Float(number)) => Some(self.placed(form, number.as_str().to_owned())),
            _ => None,
        };
        let texts = match (form, value) {
            (Form::List, DeValue::Array(array)) => {
                array.iter().map(|value| one(value.get_ref())).collect()
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

    /// Returns a path as one relative to the file's folder, wherever the program was started.
    fn placed(&self, form: Form, text: String) -> String {
        match (form, self.path.parent()) {
            (Form::Path, Some(folder)) if !text.is_empty() => {
                folder.join(text).display().to_string()
            }
            _ => text,
        }
    }
}

/// Returns a number of TOML in decimal digits; unchanged if it does not fit 64 bits, to be
/// rejected.
fn decimal(number: &DeInteger<'_>) -> String {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or_else(|_| number.as_str().to_owned(), |number| number.to_string())
}
