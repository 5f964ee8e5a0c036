//! Reading a TOML file into a layer.

use std::path::Path;

use toml::de::{DeArray, DeInteger, DeTable, DeValue};

use super::layer::{Given, Layer, Origin, Problem};
use super::setting::{CONFIG, Form, Keys, Setting, Table};
use super::variables::{open_files, read};
use crate::nearest::nearest;
use crate::peer_text::plain;

/// Bound on the length of a file, in bytes.
const MAX_FILE: u64 = 1 << 20;

impl Table<'_> {
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
        let mut reader = Reader {
            table: self,
            path,
            text,
            problems: Vec::new(),
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
    table: &'a Table<'a>,
    path: &'a Path,
    text: &'a str,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn origin(&self, offset: usize, key: &str) -> Origin {
        let before = self.text.as_bytes().get(..offset).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let colon = if key.is_empty() { "" } else { ": " };
        let text = format!("{} line {line}{colon}{}", self.path.display(), plain(key));
        Origin { line, text }
    }

    fn layer(&mut self, keys: &Keys, table: &DeTable<'_>) -> Layer {
        let mut known = keys.settings();
        known.retain(Setting::in_file);
        let mut layer = Layer::default();
        for (key, value) in table {
            let origin = self.origin(key.span().start, key.get_ref());
            let value = value.get_ref();
            let given = named(&known, key.get_ref(), value).and_then(|setting| {
                let given = self.given(setting, value, origin.clone());
                let wrong =
                    || format!("takes {}, not a TOML {}", wanted(setting), value.type_str());
                Ok((&setting.name, given.ok_or_else(wrong)?))
            });
            match given {
                Ok((name, _)) if layer.0.contains_key(name) => {
                    self.problems.push(Problem::at(&origin, "is given twice"));
                }
                Ok((name, given)) => _ = layer.0.insert(name.clone(), given),
                Err(what) => self.problems.push(Problem::at(&origin, what)),
            }
        }
        layer
    }

    /// Returns what is given of a setting; `None` if the value is no such thing.
    fn given(&mut self, setting: &Setting, value: &DeValue<'_>, origin: Origin) -> Option<Given> {
        let form = setting.form();
        let texts = match (setting.tables, value) {
            (Some(_), _) if !self.table.wants(&setting.name) => Vec::new(),
            (Some(_), DeValue::Array(all)) => return self.tables(setting, all, origin),
            (None, DeValue::Array(all)) if form == Form::List => {
                let items = all.iter().map(|item| self.text(form, item.get_ref()));
                items.collect::<Option<_>>()?
            }
            _ => vec![self.text(form, value)?],
        };
        Some(Given::new(origin, setting.items(texts)))
    }

    /// Returns the text of a value that is no list; a path as one relative to the file's folder,
    /// wherever the program was started.
    fn text(&self, form: Form, value: &DeValue<'_>) -> Option<String> {
        match (form, value) {
            (Form::Switch | Form::Optional, DeValue::Boolean(on)) => Some(on.to_string()),
            (Form::Switch | Form::Tables, _) => None,
            (Form::Path, DeValue::String(text)) if !text.is_empty() => {
                let placed = self.path.with_file_name(text.as_ref());
                Some(placed.display().to_string())
            }
            (_, DeValue::String(text)) => Some(text.to_string()),
            (_, DeValue::Integer(number)) => Some(decimal(number)),
            (_, DeValue::Float(number)) => Some(number.as_str().to_owned()),
            _ => None,
        }
    }

    /// Returns `[[key]]` tables as the texts that [`table`](super::table) reads, without those that
    /// have a problem; `None` if one is no table.
    fn tables(&mut self, setting: &Setting, all: &DeArray<'_>, origin: Origin) -> Option<Given> {
        let (keys, mut given) = (setting.tables?, Given::new(origin, Vec::new()));
        for entry in all.iter() {
            let origin = self.origin(entry.span().start, setting.key());
            let before = self.problems.len();
            let mut layer = self.layer(keys, entry.get_ref().as_table()?);
            open_files(keys, &mut layer, |_| true, &mut self.problems);
            for given in layer.0.values().filter(|given| given.texts.is_empty()) {
                let what = "is empty; leave it out for the default";
                self.problems.push(Problem::at(&given.origin, what));
            }
            let missing = |key: &str| Problem::at(&origin, format!("has no {key}"));
            let words = (self.table).words(keys, &mut [layer], &missing, &mut self.problems);
            if self.problems.len() == before {
                given.texts.push(serde_json::Value::from(words).to_string());
                given.at.push(origin);
            }
        }
        Some(given)
    }
}

/// Returns the values of a setting in words.
fn wanted(setting: &Setting) -> String {
    match setting.form() {
        Form::Tables => format!("tables, of which each begins with [[{}]]", setting.key()),
        Form::Switch => "true or false".to_owned(),
        Form::Optional => "true, false or a text in quotation marks".to_owned(),
        Form::List => "a list of texts or numbers, or one of them".to_owned(),
        Form::Text | Form::Path => "a text in quotation marks or a number".to_owned(),
    }
}

/// Returns the setting of a key.
fn named<'k>(known: &'k [Setting], key: &str, value: &DeValue<'_>) -> Result<&'k Setting, String> {
    // Hyphens are as good.
    let name = key.replace('-', "_");
    let named = known.iter().filter(|setting| setting.key() == name);
    // A key may have tables besides a value of another form.
    let fitting = named.max_by_key(|setting| setting.tables.is_some() == value.is_array());
    fitting.ok_or_else(|| match nearest(&name, known.iter().map(Setting::key)) {
        _ if name == CONFIG => "a file cannot name another one".to_owned(),
        Some(meant) => format!("there is no such setting; is {meant} meant?"),
        None => "there is no such setting".to_owned(),
    })
}

/// Returns a number of TOML in decimal digits; unchanged if it does not fit 64 bits, to be
/// rejected.
fn decimal(number: &DeInteger<'_>) -> String {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or_else(|_| number.as_str().to_owned(), |number| number.to_string())
}
