//! Reading a TOML file into a layer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeArray, DeInteger, DeTable, DeValue};

use super::layer::{Layer, Origin, Section, Value};
use super::table::{CONFIG, Form, Key, KeyForm, Setting, Table};
use crate::nearest::nearest;
use crate::peer_text::plain;

/// Bound on the length of a file, in bytes.
const MAX_FILE: u64 = 1 << 20;

impl Table {
    /// Returns the settings of a file, and their problems.
    #[must_use]
    pub fn file_layer(&self, path: &Path) -> (Layer, Vec<String>) {
        let mut bytes = Vec::new();
        let read =
            File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
        let shown = path.display();
        let wrong = |what: String| (Layer::default(), vec![what]);
        if let Err(error) = read {
            return wrong(format!("cannot read the settings in {shown}: {error}"));
        }
        if bytes.len() as u64 > MAX_FILE {
            return wrong(format!("{shown} is too long for a file of settings"));
        }
        match String::from_utf8(bytes) {
            Ok(text) => self.text_layer(path, &text),
            Err(_) => wrong(format!("{shown} is not UTF-8 text, as TOML is")),
        }
    }

    /// Returns the settings of a file's text, and their problems; `path` is its place.
    #[must_use]
    pub fn text_layer(&self, path: &Path, text: &str) -> (Layer, Vec<String>) {
        let mut reader = Reader {
            table: self,
            path,
            text,
            problems: Vec::new(),
        };
        let mut layer = Layer::default();
        match DeTable::parse(text) {
            Ok(table) => {
                for (key, value) in table.get_ref() {
                    reader.setting(&mut layer, key, value.get_ref());
                }
            }
            Err(error) => {
                let line = reader.line(error.span().map_or(0, |span| span.start));
                let what = plain(error.message());
                let problem = format!("{} line {line}: {what}", path.display());
                reader.problems.push(problem);
            }
        }
        (layer, reader.problems)
    }
}

struct Reader<'a> {
    table: &'a Table,
    path: &'a Path,
    text: &'a str,
    problems: Vec<String>,
}

impl Reader<'_> {
    /// Counted from 1.
    fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().get(..offset).unwrap_or_default();
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn origin(&self, offset: usize, key: &str) -> Origin {
        Origin::File {
            path: self.path.to_owned(),
            line: self.line(offset),
            key: plain(key),
        }
    }

    fn setting(&mut self, layer: &mut Layer, key: &Spanned<Cow<'_, str>>, value: &DeValue<'_>) {
        let origin = self.origin(key.span().start, key.get_ref());
        let name = canonical(key.get_ref());
        let mut known = self.table.settings.iter().filter(|s| s.in_file());
        let Some(setting) = known.clone().find(|setting| setting.name == name) else {
            let what = match name == CONFIG {
                true => "a file cannot name another one".to_owned(),
                false => unknown(&name, known.by_ref().map(|setting| setting.name)),
            };
            self.problems.push(format!("{origin}: {what}"));
            return;
        };
        let value = match setting.form {
            Form::Sections(keys) => self.sections(setting, keys, value).map(Value::Sections),
            _ => self.texts(setting, value).map(Value::Texts),
        };
        match value {
            Ok(value) => layer.put(setting, origin, value),
            Err(what) => self.problems.push(format!("{origin}: {what}")),
        }
    }

    /// Returns the texts of a setting that is no table.
    fn texts(&self, setting: &Setting, value: &DeValue<'_>) -> Result<Vec<String>, String> {
        let one = |value: &DeValue<'_>| match (setting.form, value) {
            (Form::Switch, DeValue::Boolean(on)) => Some(on.to_string()),
            (Form::Number | Form::List, DeValue::Integer(number)) => Some(decimal(number)),
            (Form::Text | Form::Number | Form::List, DeValue::String(text)) => {
                Some(text.to_string())
            }
            (Form::Path, DeValue::String(text)) => Some(self.beside(text)),
            _ => None,
        };
        let texts = match (setting.form, value) {
            (Form::List, DeValue::Array(array)) => {
                array.iter().map(|value| one(value.get_ref())).collect()
            }
            (_, value) => one(value).map(|text| vec![text]),
        };
        texts.ok_or_else(|| {
            let wanted = match setting.form {
                Form::Switch => "true or false",
                Form::Number => "a number",
                Form::List => "a list of texts or numbers, or one of them",
                _ => "a text in quotation marks",
            };
            format!("takes {wanted}, not a TOML {}", value.type_str())
        })
    }

    /// Returns the `[[name]]` tables of a setting.
    fn sections(
        &mut self,
        setting: &Setting,
        keys: &'static [Key],
        value: &DeValue<'_>,
    ) -> Result<Vec<Section>, String> {
        let wanted = || {
            let name = setting.name;
            format!("each stands in a table of its own, which begins with [[{name}]]")
        };
        let DeValue::Array(array) = value else {
            return Err(wanted());
        };
        let mut sections = Vec::new();
        for entry in array.iter() {
            let DeValue::Table(table) = entry.get_ref() else {
                return Err(wanted());
            };
            let origin = self.origin(entry.span().start, setting.name);
            sections.push(self.section(keys, origin, table));
        }
        Ok(sections)
    }

    fn section(&mut self, known: &'static [Key], origin: Origin, table: &DeTable<'_>) -> Section {
        let mut keys = BTreeMap::new();
        for (key, value) in table {
            let origin = self.origin(key.span().start, key.get_ref());
            let name = canonical(key.get_ref());
            let texts = match known.iter().find(|known| known.name == name) {
                Some(key) => self
                    .key_texts(key, value.get_ref())
                    .map(|texts| (key, texts)),
                None => Err(unknown(&name, known.iter().map(|known| known.name))),
            };
            match texts {
                Ok((key, texts)) => {
                    keys.insert(key.name, (origin, texts));
                }
                Err(what) => self.problems.push(format!("{origin}: {what}")),
            }
        }
        Section { origin, keys }
    }

    fn key_texts(&self, key: &Key, value: &DeValue<'_>) -> Result<Vec<String>, String> {
        let texts = match (key.form, value) {
            (KeyForm::Text, DeValue::String(text)) => Some(vec![text.to_string()]),
            (KeyForm::Path, DeValue::String(text)) => Some(vec![self.beside(text)]),
            (KeyForm::Number, DeValue::Integer(number)) => Some(vec![decimal(number)]),
            (KeyForm::Texts, DeValue::Array(array)) => all_texts(array),
            _ => None,
        };
        texts.ok_or_else(|| {
            let wanted = match key.form {
                KeyForm::Number => "a whole number",
                KeyForm::Texts => "a list of texts in quotation marks",
                _ => "a text in quotation marks",
            };
            format!("takes {wanted}, not a TOML {}", value.type_str())
        })
    }

    /// Returns a path relative to the file's folder, wherever the program was started.
    fn beside(&self, text: &str) -> String {
        match self.path.parent() {
            Some(folder) if !text.is_empty() => folder.join(text).display().to_string(),
            _ => text.to_owned(),
        }
    }
}

/// Returns a key with underscores: hyphens are as good.
fn canonical(key: &str) -> String {
    key.replace('-', "_")
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(name, known) {
        Some(meant) => format!("there is no such setting; is {meant} meant?"),
        None => "there is no such setting".to_owned(),
    }
}

fn all_texts(array: &DeArray<'_>) -> Option<Vec<String>> {
    let texts = array.iter().map(|value| value.get_ref().as_str());
    texts.map(|text| text.map(str::to_owned)).collect()
}

/// Returns a number of TOML in decimal digits; unchanged if it does not fit 64 bits, to be
/// rejected.
fn decimal(number: &DeInteger<'_>) -> String {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or_else(|_| number.as_str().to_owned(), |number| number.to_string())
}
