//! Reading a TOML file into a layer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::layer::{Given, Layer, Origin, Problem, Section, Value};
use super::table::{CONFIG, Form, Key, Setting, Table};
use crate::nearest::nearest;
use crate::peer_text::plain;

/// Bound on the length of a file, in bytes.
const MAX_FILE: u64 = 1 << 20;

impl Table {
    /// Returns the settings of a file, and their problems.
    #[must_use]
    pub fn file_layer(&self, path: &Path) -> (Layer, Vec<Problem>) {
        let mut bytes = Vec::new();
        let read =
            File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
        let shown = path.display();
        let wrong = |what: String| (Layer::default(), vec![what.into()]);
        if let Err(error) = read {
            return wrong(format!("cannot read the settings in {shown}: {error}"));
        }
        if bytes.len() as u64 > MAX_FILE {
            return wrong(format!("{shown} is longer than {MAX_FILE} bytes"));
        }
        match String::from_utf8(bytes) {
            Ok(text) => self.text_layer(path, &text),
            Err(_) => wrong(format!("{shown} is not UTF-8 text, as TOML is")),
        }
    }

    /// Returns the settings of a file's text, and their problems; `path` is its place.
    #[must_use]
    pub fn text_layer(&self, path: &Path, text: &str) -> (Layer, Vec<Problem>) {
        let mut reader = Reader {
            table: self,
            path,
            text,
            problems: Vec::new(),
        };
        let mut layer = Layer::default();
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let origin = reader.origin(error.span().map_or(0, |span| span.start), "");
            reader.wrong(origin, plain(error.message()));
        }
        for (key, value) in table.get_ref() {
            reader.setting(&mut layer, key, value.get_ref());
        }
        (layer, reader.problems)
    }
}

struct Reader<'a> {
    table: &'a Table,
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

    fn wrong(&mut self, origin: Origin, what: String) {
        let origin = Some(origin);
        self.problems.push(Problem { origin, what });
    }

    fn setting(&mut self, layer: &mut Layer, key: &Spanned<Cow<'_, str>>, value: &DeValue<'_>) {
        let origin = self.origin(key.span().start, key.get_ref());
        let name = canonical(key.get_ref());
        let known = || self.table.settings.iter().filter(|s| s.in_file());
        let named = || known().filter(|setting| setting.key == name);
        // A key may have tables besides a value of another form.
        let has_tables = |setting: &&Setting| matches!(setting.form, Form::Sections(_));
        let tables = named().find(|setting| has_tables(setting) == value.is_array());
        let Some(setting) = tables.or_else(|| named().next()) else {
            let what = match name == CONFIG {
                true => "a file cannot name another one".to_owned(),
                false => unknown(&name, known().map(|setting| setting.key)),
            };
            return self.wrong(origin, what);
        };
        if self.table.strict && layer.0.contains_key(setting.name) {
            self.wrong(origin, "is given twice".to_owned());
        } else if let Some(value) = self.value(setting.key, setting.form, &origin, value) {
            layer.put(setting, origin, value);
        }
    }

    /// Returns the value of a setting or a key, or notes its problem.
    fn value(
        &mut self,
        name: &'static str,
        form: Form,
        origin: &Origin,
        value: &DeValue<'_>,
    ) -> Option<Value> {
        let result = match form {
            Form::Sections(keys) => self.sections(name, keys, value).map(Value::Sections),
            _ => self.texts(form, value).map(Value::Texts),
        };
        result.map_err(|what| self.wrong(origin.clone(), what)).ok()
    }

    /// Returns the texts of a value that is no table.
    fn texts(&self, form: Form, value: &DeValue<'_>) -> Result<Vec<String>, String> {
        let one = |value: &DeValue<'_>| match (form, value) {
            (Form::Switch | Form::Optional(_), DeValue::Boolean(on)) => Some(on.to_string()),
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
                Form::Optional(_) => "true, false or a text in quotation marks",
                Form::List => "a list of texts or numbers, or one of them",
                _ => "a text in quotation marks or a number",
            };
            format!("takes {wanted}, not a TOML {}", value.type_str())
        })
    }

    /// Returns the `[[name]]` tables of a setting or a key.
    fn sections(
        &mut self,
        name: &'static str,
        keys: &'static [Key],
        value: &DeValue<'_>,
    ) -> Result<Vec<Section>, String> {
        let array = value.as_array().into_iter().flatten();
        let tables: Option<Vec<_>> = array
            .map(|entry| Some((entry.span().start, entry.get_ref().as_table()?)))
            .collect();
        let Some(tables) = tables.filter(|_| value.is_array()) else {
            return Err(format!(
                "each needs a table of its own, which begins with [[{name}]]"
            ));
        };
        let sections = tables.into_iter();
        Ok(sections
            .map(|(start, table)| self.section(keys, self.origin(start, name), table))
            .collect())
    }

    fn section(&mut self, known: &'static [Key], origin: Origin, table: &DeTable<'_>) -> Section {
        let mut keys = BTreeMap::new();
        for (key, value) in table {
            let origin = self.origin(key.span().start, key.get_ref());
            let name = canonical(key.get_ref());
            let Some(key) = known.iter().find(|known| known.name == name) else {
                self.wrong(origin, unknown(&name, known.iter().map(|known| known.name)));
                continue;
            };
            if let Some(value) = self.value(key.name, key.form, &origin, value.get_ref()) {
                keys.insert(key.name, Given { origin, value });
            }
        }
        Section { origin, keys }
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

/// Returns a number of TOML in decimal digits; unchanged if it does not fit 64 bits, to be
/// rejected.
fn decimal(number: &DeInteger<'_>) -> String {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or_else(|_| number.as_str().to_owned(), |number| number.to_string())
}
