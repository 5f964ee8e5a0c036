//! Reading a TOML file into a layer.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeArray, DeInteger, DeTable, DeValue};

use super::layer::{Layer, Origin, Table, Value};
use super::table::{Form, Key, KeyForm, SETTINGS, Setting, keys_of};
use crate::durable::FileError;
use service::nearest::nearest;
use service::peer_text::plain;

/// No such file is longer, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// What a file says, and what is wrong with it.
pub fn read(path: &Path) -> (Layer, Vec<String>) {
    let mut bytes = Vec::new();
    let read = File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(FileError::of("read the settings in", path));
    if let Err(error) = read {
        return (Layer::default(), vec![error.to_string()]);
    }
    if bytes.len() as u64 > MAX_FILE {
        let what = format!("{} is too long for a file of settings", path.display());
        return (Layer::default(), vec![what]);
    }
    match String::from_utf8(bytes) {
        Ok(text) => parse(path, &text),
        Err(_) => {
            let what = format!("{} is not UTF-8 text, as TOML is", path.display());
            (Layer::default(), vec![what])
        }
    }
}

/// What a text says, and what is wrong with it; `path` is where it stands.
pub fn parse(path: &Path, text: &str) -> (Layer, Vec<String>) {
    let mut reader = Reader {
        path,
        text,
        problems: Vec::new(),
    };
    let mut layer = Layer::default();
    match DeTable::parse(text) {
        Ok(table) => {
            for (key, value) in table.get_ref() {
                reader.setting(&mut layer, key, value);
            }
        }
        Err(error) => {
            let line = reader.line(error.span().map_or(0, |span| span.start));
            let what = plain(error.message());
            reader
                .problems
                .push(format!("{} line {line}: {what}", path.display()));
        }
    }
    (layer, reader.problems)
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().get(..offset).unwrap_or_default();
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn origin(&self, key: &Spanned<std::borrow::Cow<'_, str>>) -> Origin {
        Origin::File {
            path: self.path.to_owned(),
            line: self.line(key.span().start),
            key: plain(key.get_ref()),
        }
    }

    fn problem(&mut self, origin: &Origin, what: &str) {
        self.problems.push(format!("{origin}: {what}"));
    }

    fn setting(
        &mut self,
        layer: &mut Layer,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let origin = self.origin(key);
        let name = key.get_ref().replace('-', "_");
        let known = || SETTINGS.iter().filter(|setting| setting.in_file());
        let Some(setting) = known().find(|setting| setting.name == name) else {
            let what = if name == "config" {
                "a file cannot name another one".to_owned()
            } else {
                unknown(&name, known().map(|setting| setting.name))
            };
            return self.problem(&origin, &what);
        };
        let value = match setting.form {
            Form::Tables => self.tables(setting, &origin, value.get_ref()),
            _ => self.one(setting, &origin, value.get_ref()),
        };
        if let Some(value) = value {
            layer.put(setting, origin, value);
        }
    }

    fn one(&mut self, setting: &Setting, origin: &Origin, value: &DeValue<'_>) -> Option<Value> {
        let text = match (setting.form, value) {
            (Form::Switch, DeValue::Boolean(on)) => on.to_string(),
            (Form::Number, DeValue::Integer(number)) => decimal(number),
            (Form::Text | Form::Secret | Form::Number | Form::List, DeValue::String(text)) => {
                text.to_string()
            }
            (Form::List, DeValue::Array(array)) if texts(array).is_some() => {
                texts(array).unwrap_or_default().join(",")
            }
            (Form::Path, DeValue::String(text)) => self.beside(text),
            (form, other) => {
                let wanted = match form {
                    Form::Switch => "true or false",
                    Form::Number => "a number",
                    _ => "a text in quotation marks",
                };
                self.problem(
                    origin,
                    &format!("takes {wanted}, not a TOML {}", other.type_str()),
                );
                return None;
            }
        };
        Some(Value::Texts(vec![text]))
    }

    /// The tables of `[[webhook]]` or `[[exec]]`.
    fn tables(&mut self, setting: &Setting, origin: &Origin, value: &DeValue<'_>) -> Option<Value> {
        let wanted = format!(
            "each stands in a table of its own, which begins with [[{}]]",
            setting.name
        );
        let DeValue::Array(array) = value else {
            self.problem(origin, &wanted);
            return None;
        };
        let mut tables = Vec::new();
        for entry in array.iter() {
            let DeValue::Table(table) = entry.get_ref() else {
                self.problem(origin, &wanted);
                return None;
            };
            let origin = Origin::File {
                path: self.path.to_owned(),
                line: self.line(entry.span().start),
                key: setting.name.to_owned(),
            };
            tables.push(self.table(keys_of(setting.name), origin, table));
        }
        Some(Value::Tables(tables))
    }

    fn table(&mut self, known: &'static [Key], origin: Origin, table: &DeTable<'_>) -> Table {
        let mut keys = BTreeMap::new();
        for (key, value) in table {
            let origin = self.origin(key);
            let name = key.get_ref().replace('-', "_");
            let Some(key) = known.iter().find(|known| known.name == name) else {
                self.problem(
                    &origin,
                    &unknown(&name, known.iter().map(|known| known.name)),
                );
                continue;
            };
            let texts = match (key.form, value.get_ref()) {
                (KeyForm::Text | KeyForm::Secret, DeValue::String(text)) => vec![text.to_string()],
                (KeyForm::Path, DeValue::String(text)) => vec![self.beside(text)],
                (KeyForm::Number, DeValue::Integer(number)) => vec![decimal(number)],
                (KeyForm::Texts, DeValue::Array(array)) => match texts(array) {
                    Some(texts) => texts,
                    None => {
                        self.problem(&origin, "takes a list of texts in quotation marks");
                        continue;
                    }
                },
                (form, other) => {
                    let wanted = match form {
                        KeyForm::Number => "a whole number",
                        KeyForm::Texts => "a list of texts in quotation marks",
                        _ => "a text in quotation marks",
                    };
                    let what = format!("takes {wanted}, not a TOML {}", other.type_str());
                    self.problem(&origin, &what);
                    continue;
                }
            };
            keys.insert(key.name, (origin, texts));
        }
        Table { origin, keys }
    }

    /// A path that counts from the file's folder, wherever the program was started.
    fn beside(&self, text: &str) -> String {
        match self.path.parent() {
            Some(folder) if !text.is_empty() => folder.join(text).display().to_string(),
            _ => text.to_owned(),
        }
    }
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(name, known) {
        Some(meant) => format!("there is no such setting; is {meant} meant?"),
        None => "there is no such setting".to_owned(),
    }
}

fn texts(array: &DeArray<'_>) -> Option<Vec<String>> {
    let texts = array.iter().map(|value| value.get_ref().as_str());
    texts.map(|text| text.map(str::to_owned)).collect()
}

/// A number of TOML in decimal digits; as it is written where it has too many, which is no number to
/// anybody.
fn decimal(number: &DeInteger<'_>) -> String {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or_else(|_| number.as_str().to_owned(), |number| number.to_string())
}
