//! Reading a TOML file into a layer.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::layer::{Layer, Origin};
use super::table::{Form, SETTINGS, Setting};
use service::nearest::nearest;
use service::peer_text::plain;

/// No such file is longer, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// What a file says, and what is wrong with it.
pub fn read(path: &Path) -> (Layer, Vec<String>) {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
    let wrong = |what: String| (Layer::default(), vec![what]);
    if let Err(error) = read {
        return wrong(format!(
            "cannot read the settings in {}: {error}",
            path.display()
        ));
    }
    if bytes.len() as u64 > MAX_FILE {
        return wrong(format!(
            "{} is too long for a file of settings",
            path.display()
        ));
    }
    match String::from_utf8(bytes) {
        Ok(text) => parse(path, &text),
        Err(_) => wrong(format!("{} is not UTF-8 text, as TOML is", path.display())),
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
                reader.setting(&mut layer, key, value.get_ref());
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

    fn setting(
        &mut self,
        layer: &mut Layer,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &DeValue<'_>,
    ) {
        let origin = Origin::File {
            path: self.path.to_owned(),
            line: self.line(key.span().start),
            key: plain(key.get_ref()),
        };
        let name = key.get_ref().replace('-', "_");
        let known = || SETTINGS.iter().filter(|setting| setting.in_file());
        let Some(setting) = known().find(|setting| setting.name == name) else {
            let what = match nearest(&name, known().map(|setting| setting.name)) {
                _ if name == "config" => "a file cannot name another one".to_owned(),
                Some(meant) => format!("there is no such setting; is {meant} meant?"),
                None => "there is no such setting".to_owned(),
            };
            self.problems.push(format!("{origin}: {what}"));
            return;
        };
        match self.texts(setting, value) {
            Ok(texts) => layer.put(setting, origin, texts),
            Err(what) => self.problems.push(format!("{origin}: {what}")),
        }
    }

    fn texts(&self, setting: &Setting, value: &DeValue<'_>) -> Result<Vec<String>, String> {
        let one = |value: &DeValue<'_>| match (setting.form, value) {
            (Form::Switch, DeValue::Boolean(on)) => Some(on.to_string()),
            (Form::Number | Form::List, DeValue::Integer(number)) => Some(decimal(number)),
            (Form::Text | Form::Number | Form::List, DeValue::String(text)) => {
                Some(text.to_string())
            }
            (Form::Path, DeValue::String(text)) => {
                let folder = self.path.parent().unwrap_or(Path::new(""));
                folder.join(&**text).to_str().map(str::to_owned)
            }
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
                Form::Text | Form::Path => "a text in quotation marks",
            };
            format!("takes {wanted}, not a TOML {}", value.type_str())
        })
    }
}

/// A number of TOML in decimal digits; as it is written where it has too many, which is no number to
/// anybody.
fn decimal(number: &DeInteger<'_>) -> String {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or_else(|_| number.as_str().to_owned(), |number| number.to_string())
}
